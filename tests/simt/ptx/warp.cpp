/* warp.cpp - barriers, shuffles, votes and tensor-core instructions of the interpreter: the emulator's
 * collectives, with the operands of PTX. */
#include "tests/simt/ptx/program.h"

namespace simt {
namespace ptx {

static const Collective& meet(Thread* t, unsigned mask, Op op, const Payload& in,
                              void (*finish)(Collective&))
{
    return collective_at(mask, op, in, finish, t->pc);
}

/* ---- barriers -------------------------------------------------------------------------------------- */

/* bar.sync id [, threads]; bar.warp.sync mask */
static Run barrier(const Parts& part, Instruction* out)
{
    if (part == Parts{"bar", "warp", "sync"})
        return [](Thread* t, const Instruction& i) {
            (void)meet(t, get<uint32_t>(t, i.slot[0]), OP_SYNC, Payload{}, nullptr);
        };
    if (part != Parts{"bar", "sync"}) return nullptr;
    if (out->slot[1] < 0) return [](Thread* t, const Instruction&) { sync_threads_at(t->pc); };
    return [](Thread* t, const Instruction& i) {
        named_barrier_at(get<int>(t, i.slot[0]), get<int>(t, i.slot[1]), t->pc);
    };
}

/* ---- shuffles -------------------------------------------------------------------------------------- */

enum Shuffle { INDEX, UP, DOWN, BUTTERFLY };

/* The source lane for operands b and c (PTX ISA, shfl.sync); -1: out of the segment. */
static int source_of(int mode, int lane, int b, int c)
{
    const int segment = c >> 8 & 31, first = lane & segment, last = first | (c & 31 & ~segment);
    const int from = mode == UP      ? lane - b
                     : mode == DOWN  ? lane + b
                     : mode == INDEX ? first | (b & ~segment)
                                     : lane ^ b;
    return mode == UP ? (from >= last ? from : -1) : (from <= last ? from : -1);
}

/* d | p, a, b, c, mask */
static void shuffle_lanes(Thread* t, const Instruction& i)
{
    Payload in{};
    in.word[0] = get<uint32_t>(t, i.slot[2]);
    const int b = get<int>(t, i.slot[3]) & 31, c = get<int>(t, i.slot[4]);
    const Collective& all = meet(t, get<uint32_t>(t, i.slot[5]), OP_SHUFFLE, in, nullptr);
    const int from = source_of(i.mode, current->lane, b, c);
    if (from >= 0 && !(all.arrived >> from & 1)) inactive_source(t->pc, from);
    put(t, i.slot[0], all.in[from < 0 ? current->lane : from].word[0]);
    put(t, i.slot[1], from >= 0);
}
static Run shuffle(const Parts& part, Instruction* out)
{
    if (part.size() != 4 || part[1] != "sync" || part[3] != "b32") return nullptr;
    out->mode = part[2] == "up"     ? UP
                : part[2] == "down" ? DOWN
                : part[2] == "idx"  ? INDEX
                                    : BUTTERFLY;
    return shuffle_lanes;
}

/* ---- votes ----------------------------------------------------------------------------------------- */

/* d, predicate, mask */
static unsigned ballot(Thread* t, const Instruction& i, const Collective** all)
{
    Payload in{};
    in.word[0] = get<bool>(t, i.slot[1]);
    *all = &meet(t, get<uint32_t>(t, i.slot[2]), OP_VOTE, in, nullptr);
    unsigned votes = 0;
    for (int lane = 0; lane < 32; lane++)
        if ((*all)->arrived >> lane & 1) votes |= (*all)->in[lane].word[0] << lane;
    return votes;
}
static Run vote(const Parts& part)
{
    if (part.size() < 3) return nullptr;
    const std::string& what = part[2];
    if (what == "ballot")
        return [](Thread* t, const Instruction& i) {
            const Collective* all;
            put(t, i.slot[0], ballot(t, i, &all));
        };
    if (what == "any")
        return [](Thread* t, const Instruction& i) {
            const Collective* all;
            put(t, i.slot[0], ballot(t, i, &all) != 0);
        };
    if (what == "all")
        return [](Thread* t, const Instruction& i) {
            const Collective* all;
            put(t, i.slot[0], ballot(t, i, &all) == all->arrived);
        };
    return nullptr;
}

/* ---- tensor cores ---------------------------------------------------------------------------------- */

/* {d0, d1, d2, d3}, [address] */
template <bool TRANSPOSE> static void load_matrix(Thread* t, const Instruction& i)
{
    Payload in{};
    in.word[0] = get<uint32_t>(t, i.slot[4]) + (uint32_t)i.offset;
    const Collective& all =
        meet(t, ~0u, OP_LDMATRIX, in, TRANSPOSE ? finish_ldmatrix_trans : finish_ldmatrix);
    for (int e = 0; e < 4; e++) put(t, i.slot[e], all.out[current->lane].word[e]);
}
/* {d: 4}, {a: 4}, {b: 2}, {c: 4} */
static void multiply(Thread* t, const Instruction& i)
{
    Payload in{};
    for (int e = 0; e < 10; e++) in.word[e] = get<uint32_t>(t, i.slot[4 + e]);
    const Collective& all = meet(t, ~0u, OP_MMA, in, finish_mma);
    for (int e = 0; e < 4; e++) put(t, i.slot[e], all.out[current->lane].word[e]);
}

Run decode_warp(const Parts& part, Instruction* out)
{
    if (part[0] == "bar") return barrier(part, out);
    if (part[0] == "shfl") return shuffle(part, out);
    if (part[0] == "vote") return vote(part);
    if (part == Parts{"ldmatrix", "sync", "aligned", "m8n8", "x4", "shared", "b16"})
        return load_matrix<false>;
    if (part == Parts{"ldmatrix", "sync", "aligned", "m8n8", "x4", "trans", "shared", "b16"})
        return load_matrix<true>;
    if (part ==
        Parts{"mma", "sync", "aligned", "m16n8k16", "row", "col", "f32", "bf16", "bf16", "f32"})
        return multiply;
    return nullptr;
}

} // namespace ptx
} // namespace simt
