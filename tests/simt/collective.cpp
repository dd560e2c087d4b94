/* collective.cpp - warp collectives and barriers: who waits for whom, and what that orders. */
#include "tests/simt/emulator.h"

#include <algorithm>
#include <map>

namespace simt {

Warp warps[MAX_WARPS];

static int waiting, reduced[3], result[3]; /* block barrier: threads, predicates, last outcome */
static const void* barrier_pc;
static int named_count[16];

static void clear_reduction()
{
    reduced[COUNT] = reduced[OR] = 0;
    reduced[AND] = 1;
}

void reset_collectives()
{
    waiting = 0;
    clear_reduction();
    memset(named_count, 0, sizeof named_count);
    for (int w = 0; w < block.warps; w++) {
        const int lanes = std::min(32, block.threads - 32 * w);
        warps[w].exists = lanes == 32 ? ~0u : bit(lanes) - 1;
        warps[w].exited = 0;
        memset(warps[w].active, 0, sizeof warps[w].active);
        memset(warps[w].time, 0, sizeof warps[w].time);
        for (int i = 0; i < 32; i++) warps[w].time[i][i] = 1;
        for (Collective& c : warps[w].pool) c.readers = 0;
    }
}

/* ---- warp collectives --------------------------------------------------------------------------- */

/* All lanes of `mask` learn each other's times; what they do next is later. */
static void join_lanes(Warp* w, unsigned mask)
{
    uint32_t latest[32] = {0};
    for (int a = 0; a < 32; a++)
        for (int b = 0; b < 32 && (mask >> a & 1); b++)
            latest[b] = std::max(latest[b], w->time[a][b]);
    for (int a = 0; a < 32; a++) {
        if (!(mask >> a & 1)) continue;
        memcpy(w->time[a], latest, sizeof latest);
        w->time[a][a]++;
    }
}

static void finish_if_complete(int number, int slot)
{
    Warp* w = &warps[number];
    Collective* c = w->active[slot];
    if (c == nullptr || (c->arrived | w->exited | ~w->exists | ~c->mask) != ~0u) return;
    w->active[slot] = nullptr;
    if ((c->arrived | w->exited) == w->exists) cut_counts(number);
    if (c->finish != nullptr) c->finish(*c);
    if (c->op == OP_SYNC) join_lanes(w, c->arrived);
    for (int i = 0; i < 32; i++) {
        Fiber* f = &fibers[32 * number + i];
        if ((c->arrived >> i & 1) && f->state == IN_COLLECTIVE) f->state = RUNNING;
    }
}

static void release_last(Fiber* f)
{
    if (f->last != nullptr) f->last->readers &= ~bit(f->lane);
    f->last = nullptr;
}

static void check_overlap(const Fiber* f, unsigned mask, int slot, const void* pc)
{
    for (int i = 0; i < 32; i++) {
        const Collective* c = warps[f->warp].active[i];
        if (i == slot || c == nullptr || (c->mask & mask) == 0) continue;
        defect(pc, "overlapping masks", "lane %d comes with %08x, others wait at %s with %08x",
               f->lane, mask, place(c->pc).c_str(), c->mask);
        return;
    }
}

static Collective* join(Fiber* f, unsigned mask, Op op, const void* pc, void (*finish)(Collective&))
{
    Warp* w = &warps[f->warp];
    const int slot = __builtin_ctz(mask);
    check_overlap(f, mask, slot, pc);
    Collective* c = w->active[slot];
    if (c != nullptr) {
        if (c->mask != mask || c->op != op)
            defect(pc, "warp collectives do not match", "lane %d with %08x, at %s others with %08x",
                   f->lane, mask, place(c->pc).c_str(), c->mask);
        return c;
    }
    c = w->pool;
    while (c->readers != 0) c++;
    c->mask = mask;
    c->arrived = 0;
    c->op = op;
    c->pc = pc;
    c->finish = finish;
    w->active[slot] = c;
    return c;
}

const Collective& collective_at(unsigned mask, Op op, const Payload& in,
                                void (*finish)(Collective&), const void* pc)
{
    Fiber* f = self();
    release_last(f);
    if (!(mask >> f->lane & 1)) {
        defect(pc, "lane missing from its mask", "lane %d, mask %08x", f->lane, mask);
        mask |= bit(f->lane);
    }
    Collective* c = join(f, mask, op, pc, finish);
    c->in[f->lane] = in;
    c->arrived |= bit(f->lane);
    c->readers |= bit(f->lane);
    f->last = c;
    f->state = IN_COLLECTIVE;
    finish_if_complete(f->warp, __builtin_ctz(mask));
    if (f->state == IN_COLLECTIVE) wait_as(IN_COLLECTIVE, pc);
    return *c;
}

const Collective& collective(unsigned mask, Op op, const Payload& in, void (*finish)(Collective&))
{
    return collective_at(mask, op, in, finish, __builtin_return_address(0));
}

void inactive_source(const void* pc, int lane)
{
    defect(pc, "shuffle reads an inactive lane", "lane %d reads lane %d", current->lane, lane);
}

/* ---- block barriers ----------------------------------------------------------------------------- */

static void open_barrier_if_complete()
{
    if (waiting == 0 || waiting + block.done < block.threads) return;
    waiting = 0;
    for (int w = 0; w < block.warps; w++) cut_counts(w);
    memcpy(result, reduced, sizeof result);
    clear_reduction();
    block.epoch = ++last_epoch;
    for (int i = 0; i < block.threads; i++)
        if (fibers[i].state == IN_BARRIER) fibers[i].state = RUNNING;
}

void sync_threads_at(const void* pc)
{
    if (waiting == 0) barrier_pc = pc;
    if (barrier_pc != pc && place(barrier_pc) != place(pc))
        defect(pc, "barrier divergence", "thread %u waits here, others at %s", current->linear,
               place(barrier_pc).c_str());
    waiting++;
    self()->state = IN_BARRIER;
    open_barrier_if_complete();
    if (self()->state == IN_BARRIER) wait_as(IN_BARRIER, pc);
}

void sync_threads() { sync_threads_at(__builtin_return_address(0)); }

int sync_threads_reduce(Reduction kind, int predicate)
{
    if (kind == COUNT) reduced[COUNT] += predicate != 0;
    if (kind == AND) reduced[AND] &= predicate != 0;
    if (kind == OR) reduced[OR] |= predicate != 0;
    sync_threads_at(__builtin_return_address(0));
    return result[kind];
}

/* The warps of a named barrier learn each other's times, their lanes too. */
static void open_named(int id)
{
    uint32_t latest[MAX_WARPS] = {0};
    unsigned members = 0;
    named_count[id] = 0;
    for (int i = 0; i < block.threads; i++) {
        Fiber* f = &fibers[i];
        if (f->state != IN_NAMED_BARRIER || f->barrier_id != id) continue;
        f->state = RUNNING;
        members |= bit(f->warp);
    }
    for (int w = 0; w < block.warps; w++)
        for (int v = 0; v < MAX_WARPS && (members >> w & 1); v++)
            latest[v] = std::max(latest[v], block.warp_time[w][v]);
    for (int w = 0; w < block.warps; w++) {
        if (!(members >> w & 1)) continue;
        memcpy(block.warp_time[w], latest, sizeof latest);
        block.warp_time[w][w]++;
        join_lanes(&warps[w], warps[w].exists);
    }
}

void named_barrier_at(int id, int threads, const void* pc)
{
    Fiber* f = self();
    f->barrier_id = id;
    f->state = IN_NAMED_BARRIER;
    if (++named_count[id] == threads) open_named(id);
    if (f->state == IN_NAMED_BARRIER) wait_as(IN_NAMED_BARRIER, pc);
}

void named_barrier(int id, int threads)
{
    named_barrier_at(id, threads, __builtin_return_address(0));
}

void leave_collectives(Fiber* f)
{
    Warp* w = &warps[f->warp];
    release_last(f);
    w->exited |= bit(f->lane);
    if (w->exited == w->exists) cut_counts(f->warp);
    for (int i = 0; i < 32; i++) finish_if_complete(f->warp, i);
    open_barrier_if_complete();
}

std::string waiting_threads()
{
    std::map<std::string, int> where;
    for (int i = 0; i < block.threads; i++)
        where[fibers[i].state == DONE ? "have returned" : "wait at " + place(fibers[i].pc)]++;
    std::string text;
    for (const auto& w : where)
        text += (text.empty() ? "" : ", ") + std::to_string(w.second) + " threads " + w.first;
    return text;
}

} // namespace simt
