/* memory.cpp - loads, stores, atomics and copies of the interpreter, each checked and counted by the
 * emulator. */
#include "tests/simt/ptx/program.h"

#include <algorithm>

namespace simt {
namespace ptx {

alignas(1024) __attribute__((section("simt_shared"), used)) char static_shared[MAX_STATIC];

/* Addresses of shared memory are offsets, of parameters too; all others are the host's. */
enum Space { GENERIC, SHARED, PARAMETER };

static bool has(const Parts& part, const char* word)
{
    return std::find(part.begin(), part.end(), word) != part.end();
}

template <int SPACE> static char* address_of(const Thread* t, uint64_t base, int64_t offset)
{
    if (SPACE == PARAMETER) return (char*)t->parameters + base + offset;
    if (SPACE == SHARED) return __start_simt_shared + (uint32_t)(base + (uint64_t)offset);
    return (char*)base + offset;
}

static void past_static(const Thread* t, const char* p, size_t bytes)
{
    if (p < static_shared || p >= static_shared + MAX_STATIC) return;
    if (p + bytes <= static_shared + t->kernel->static_bytes) return;
    defect(t->pc, "shared memory out of bounds", "%zu static bytes, thread %u",
           t->kernel->static_bytes, current->linear);
    fault();
}

static void touch(Thread* t, char* p, size_t bytes, Access kind)
{
    need_aligned(p, (int)bytes, t->pc);
    past_static(t, p, bytes);
    access(p, (int)bytes, kind, t->pc);
}

/* ---- loads and stores ------------------------------------------------------------------------------ */

template <class T, int SPACE> static void load(Thread* t, const Instruction& i)
{
    char* p = address_of<SPACE>(t, t->slot[i.slot[i.elements]], i.offset);
    if (SPACE != PARAMETER) touch(t, p, sizeof(T) * (size_t)i.elements, READ);
    for (int e = 0; e < i.elements; e++) {
        T value;
        memcpy(&value, p + sizeof(T) * (size_t)e, sizeof value);
        put(t, i.slot[e], value);
    }
}
template <class T, int SPACE> static void store(Thread* t, const Instruction& i)
{
    char* p = address_of<SPACE>(t, t->slot[i.slot[0]], i.offset);
    touch(t, p, sizeof(T) * (size_t)i.elements, WRITE);
    for (int e = 0; e < i.elements; e++) {
        const T value = get<T>(t, i.slot[1 + e]);
        memcpy(p + sizeof(T) * (size_t)e, &value, sizeof value);
    }
}
static Run load_or_store(const Parts& part, Instruction* out)
{
    const bool loads = part[0] == "ld";
    const int space = has(part, "shared") ? SHARED : has(part, "param") ? PARAMETER : GENERIC;
    out->elements = has(part, "v4") ? 4 : has(part, "v2") ? 2 : 1;
    if (out->slot[out->elements] < 0) return nullptr;
    return for_any(part.back(), [=](auto x) -> Run {
        typedef decltype(x) T;
        if (space == PARAMETER) return loads ? load<T, PARAMETER> : nullptr;
        if (space == SHARED) return loads ? load<T, SHARED> : store<T, SHARED>;
        return loads ? load<T, GENERIC> : store<T, GENERIC>;
    });
}

/* ---- atomics: fibers switch only where they wait ---------------------------------------------------- */

struct Sum {
    template <class T> T operator()(T old, T x) const { return (T)(old + x); }
};
struct Least {
    template <class T> T operator()(T old, T x) const { return std::min(old, x); }
};
struct Greatest {
    template <class T> T operator()(T old, T x) const { return std::max(old, x); }
};
struct Exchange {
    template <class T> T operator()(T, T x) const { return x; }
};

/* d, [address], b */
template <class T, int SPACE, class F> static void atomic(Thread* t, const Instruction& i)
{
    char* p = address_of<SPACE>(t, t->slot[i.slot[1]], i.offset);
    touch(t, p, sizeof(T), ATOMIC);
    T old;
    memcpy(&old, p, sizeof old);
    const T value = F()(old, get<T>(t, i.slot[2]));
    memcpy(p, &value, sizeof value);
    put(t, i.slot[0], old);
}
/* d, [address], expected, new */
template <class T, int SPACE> static void compare_and_swap(Thread* t, const Instruction& i)
{
    char* p = address_of<SPACE>(t, t->slot[i.slot[1]], i.offset);
    touch(t, p, sizeof(T), ATOMIC);
    T old;
    memcpy(&old, p, sizeof old);
    const T value = get<T>(t, i.slot[3]);
    if (old == get<T>(t, i.slot[2]))
        memcpy(p, &value, sizeof value);
    else
        yield(t->pc);
    put(t, i.slot[0], old);
}
template <class T, int SPACE> static Run atomic_of(const Parts& part, const Instruction* out)
{
    if (has(part, "add")) return atomic<T, SPACE, Sum>;
    if (has(part, "min")) return atomic<T, SPACE, Least>;
    if (has(part, "max")) return atomic<T, SPACE, Greatest>;
    if (has(part, "exch")) return atomic<T, SPACE, Exchange>;
    return has(part, "cas") && out->slot[3] >= 0 ? compare_and_swap<T, SPACE> : nullptr;
}
static Run atomic_update(const Parts& part, const Instruction* out)
{
    const bool shared = has(part, "shared");
    return for_any(part.back(), [&](auto x) -> Run {
        typedef decltype(x) T;
        return shared ? atomic_of<T, SHARED>(part, out) : atomic_of<T, GENERIC>(part, out);
    });
}

/* ---- asynchronous copies --------------------------------------------------------------------------- */

/* [shared], [global], 16, bytes to take */
static void start_copy(Thread* t, const Instruction& i)
{
    copy_async_at(get<uint32_t>(t, i.slot[0]), (const void*)t->slot[i.slot[1]],
                  get<int>(t, i.slot[3]), t->pc);
}
static Run copy(const Parts& part, const Instruction* out)
{
    if (part == Parts{"cp", "async", "cg", "shared", "global"})
        return out->slot[3] >= 0 ? start_copy : nullptr;
    if (part == Parts{"cp", "async", "commit_group"})
        return [](Thread*, const Instruction&) { commit_async(); };
    if (part == Parts{"cp", "async", "wait_group"} && out->slot[0] >= 0)
        return [](Thread* t, const Instruction& i) { wait_async(get<int>(t, i.slot[0])); };
    return nullptr;
}

/* ---- all ------------------------------------------------------------------------------------------- */

/* A generic address of shared memory is where it lies on the host. */
static Run convert_address(const Parts& part)
{
    if (!has(part, "shared")) /* global: the same */
        return [](Thread* t, const Instruction& i) { t->slot[i.slot[0]] = t->slot[i.slot[1]]; };
    if (!has(part, "to"))
        return [](Thread* t, const Instruction& i) {
            t->slot[i.slot[0]] = (uint64_t)__start_simt_shared + t->slot[i.slot[1]];
        };
    return [](Thread* t, const Instruction& i) {
        t->slot[i.slot[0]] = t->slot[i.slot[1]] - (uint64_t)__start_simt_shared;
    };
}

Run decode_memory(const Parts& part, Instruction* out)
{
    if (part[0] == "ld" || part[0] == "st") return load_or_store(part, out);
    if (part[0] == "atom") return atomic_update(part, out);
    if (part[0] == "cp") return copy(part, out);
    if (part[0] == "cvta") return convert_address(part);
    return [](Thread*, const Instruction&) { fence(); };
}

} // namespace ptx
} // namespace simt
