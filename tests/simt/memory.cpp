/* memory.cpp - every access of a kernel: where it goes, and whether another one races with it.
 *
 * Device memory is one reserved range, between two that catch wild indices; an allocation ends at an
 * unmapped page. Each 4-byte word of
 * shared and device memory has a cell with its last writers (one per half) and two readers. Two
 * accesses race if they overlap, one writes, not both are atomic, and nothing orders them
 * (emulator.h). Memory starts as NaN. */
#include "tests/simt/emulator.h"
#include "tests/simt/guard.h"

#include <algorithm>
#include <map>
#include <set>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

extern "C" {
extern char __executable_start[], __data_start[]; /* from the linker */
extern char __start_simt_constant[] __attribute__((weak));
extern char __stop_simt_constant[] __attribute__((weak));
}

namespace simt {

/* Dynamic shared memory lies with the static one, as on a GPU. */
alignas(1024) __attribute__((section("simt_shared"), used)) char dynamic_shared[MAX_SHARED];

struct Cell {
    Stamp writer[2], reader[2];
    uint32_t written_epoch;   /* first epoch of the block that `written` speaks of */
    uint8_t written, pending; /* bytes of the word; pending: a copy is under way */
};

constexpr uint64_t ARENA = 16ull << 30, PAGE = 4096;
constexpr uint64_t WILD = 64ull << 30; /* on both sides: 16 bytes times an overflown int */
static char* arena;
static uint64_t arena_used;
static Cell *shared_cells, *device_cells;

struct Allocation {
    uint64_t size;
    bool live;
};
static std::map<uint64_t, Allocation> allocations; /* by offset, freed ones as well */
typedef std::map<uint64_t, Allocation>::iterator Found;

/* ---- order ---------------------------------------------------------------------------------------- */

/* Blocks whose writes this block has seen through an atomic behind a fence, and what each such word
 * hands on. */
static std::set<int> acquired;
static std::map<uint64_t, std::set<int>> released;

void start_block_memory()
{
    if (block.number == 0) released.clear();
    acquired.clear();
}
void fence() { self()->fenced = true; }

static int block_of(uint32_t epoch)
{
    const std::vector<uint32_t>& e = grid.block_epoch;
    return (int)(std::upper_bound(e.begin(), e.end(), epoch) - e.begin()) - 1;
}

static bool ordered(const Stamp& e)
{
    const Fiber* f = self();
    if (e.epoch < grid.first_epoch) return finished_before(e.epoch);
    if (e.epoch < block.first_epoch) return acquired.count(block_of(e.epoch)) != 0;
    if (e.epoch != block.epoch || e.thread == f->linear) return true;
    const int warp = e.thread / 32;
    if (warp == f->warp) return warps[warp].time[f->lane][e.thread % 32] >= e.lane_time;
    return block.warp_time[f->warp][warp] >= e.warp_time;
}

static Stamp now(const void* pc, unsigned bytes, bool atomic)
{
    const Fiber* f = self();
    return {block.epoch,
            warps[f->warp].time[f->lane][f->lane],
            block.warp_time[f->warp][f->warp],
            pack_pc(pc),
            (uint16_t)f->linear,
            (uint8_t)bytes,
            atomic};
}

static void race(const char* where, const char* what, const Stamp& e, const void* pc)
{
    const bool earlier = e.epoch < grid.first_epoch;
    const char* between = earlier                         ? "launches on two streams"
                          : e.epoch < block.first_epoch   ? "two blocks"
                          : e.thread / 32 == self()->warp ? "two lanes of a warp"
                                                          : "two warps";
    char kind[96];
    (void)snprintf(kind, sizeof kind, "race in %s memory", where);
    defect(pc, kind, "%s, between %s: thread %u here, thread %u at %s", what, between,
           self()->linear, e.thread, place(unpack_pc(e.pc)).c_str());
}

static void check_cell(Cell* c, unsigned bytes, Access kind, const void* pc, const char* where)
{
    for (Stamp& w : c->writer) {
        if (w.epoch == 0 || !(w.bytes & bytes) || (w.atomic && kind == ATOMIC) || ordered(w))
            continue;
        race(where, kind == READ ? "read after write" : "write after write", w, pc);
        w.epoch = 0;
    }
    const Stamp here = now(pc, bytes, kind == ATOMIC);
    if (kind == READ) {
        const bool first = c->reader[0].epoch == 0 || ordered(c->reader[0]);
        c->reader[first ? 0 : 1] = here;
        return;
    }
    for (Stamp& r : c->reader) {
        if (r.epoch != 0 && (r.bytes & bytes) && !ordered(r))
            race(where, "write after read", r, pc);
        if (r.bytes & bytes) r.epoch = 0;
    }
    c->writer[bytes & 3 ? 0 : 1] = here;
    if (bytes == 15) c->writer[1].epoch = 0;
}

/* f(cell, mask of bytes) for every word of [offset, offset + size). */
template <class F> static void for_words(Cell* cells, uint64_t offset, uint64_t size, F f)
{
    for (uint64_t at = offset; at < offset + size;) {
        const unsigned first = at % 4,
                       count = (unsigned)std::min<uint64_t>(4 - first, offset + size - at);
        f(&cells[at / 4], ((1u << count) - 1) << first);
        at += count;
    }
}

/* ---- shared memory -------------------------------------------------------------------------------- */

static size_t shared_bytes() { return (size_t)(__stop_simt_shared - __start_simt_shared); }

void reset_shared()
{
    if (shared_cells == nullptr)
        shared_cells = (Cell*)calloc(shared_bytes() / 4 + 1, sizeof *shared_cells);
    const size_t dynamic = (size_t)(dynamic_shared - __start_simt_shared);
    memset(__start_simt_shared, 0xff, dynamic);
    memset(dynamic_shared, 0xff, grid.shared_bytes);
    memset(dynamic_shared + MAX_SHARED, 0xff, shared_bytes() - dynamic - MAX_SHARED);
}

uint32_t shared_offset(const void* p)
{
    if ((const char*)p < __start_simt_shared || (const char*)p >= __stop_simt_shared)
        defect(__builtin_return_address(0), "not a shared address", "%p", p);
    return (uint32_t)((const char*)p - __start_simt_shared);
}

void set_pending(uint32_t offset, int size, bool pending)
{
    for_words(shared_cells, offset, (uint64_t)size, [pending](Cell* c, unsigned bytes) {
        c->pending = (uint8_t)(pending ? c->pending | bytes : c->pending & ~bytes);
    });
}

static bool past_dynamic(uint32_t offset, int size)
{
    const size_t first = (size_t)(dynamic_shared - __start_simt_shared);
    return offset < first + MAX_SHARED && offset + (size_t)size > first + grid.shared_bytes &&
           offset >= first;
}

static void shared_access(uint32_t offset, int size, Access kind, const void* pc)
{
    if (past_dynamic(offset, size) || offset + (size_t)size > shared_bytes()) {
        defect(pc, "shared memory out of bounds", "%zu bytes were asked for, thread %u",
               grid.shared_bytes, current->linear);
        fault();
    }
    bool unwritten = false, pending = false;
    for_words(shared_cells, offset, (uint64_t)size, [&](Cell* c, unsigned bytes) {
        if (c->written_epoch != block.first_epoch) *c = Cell{}; /* another block's memory */
        c->written_epoch = block.first_epoch;
        pending |= (c->pending & bytes) != 0;
        if (kind != READ) c->written = (uint8_t)(c->written | bytes);
        unwritten |= (c->written & bytes) != bytes;
        check_cell(c, bytes, kind, pc, "shared");
    });
    if (pending)
        defect(pc, "asynchronous copy still under way", "thread %u, byte %u", current->linear,
               offset);
    if (unwritten)
        defect(pc, "uninitialised shared memory", "thread %u reads byte %u", current->linear,
               offset);
}

/* ---- device memory -------------------------------------------------------------------------------- */

bool is_device(const void* p)
{
    return arena != nullptr && (const char*)p >= arena - WILD &&
           (const char*)p < arena + ARENA + WILD;
}

static void* reserve(uint64_t bytes, int protection)
{
    void* p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
    return p;
}

static size_t guarded;                      /* guard.h */
static std::map<uint64_t, uint64_t> closed; /* size by offset: live, shut while host code runs */
static void protect(uint64_t offset, uint64_t size, int protection)
{
    const uint64_t from = offset / PAGE * PAGE, to = (offset + size + PAGE - 1) / PAGE * PAGE;
    if (mprotect(arena + from, to - from, protection) != 0) abort();
}
static int protection(bool open) { return open ? PROT_READ | PROT_WRITE : PROT_NONE; }
void open_device(bool open)
{
    for (const auto& a : closed) protect(a.first, a.second, protection(open));
}

static void on_fault(int number, siginfo_t* info, void* context)
{
    if (!is_device(info->si_addr)) {
        (void)signal(number, SIG_DFL);
        return;
    }
    const char* pc = (const char*)((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP];
    (void)fprintf(stderr, "simt: %s: host code follows a device pointer\n", place(pc + 1).c_str());
    _exit(EXIT_FAILURE);
}

static void guard(size_t most)
{
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    if (sigaction(SIGSEGV, &action, nullptr) != 0) abort();
    open_device(true);
    guarded = most;
    closed.clear();
    for (const auto& a : allocations)
        if (a.second.live && a.second.size <= guarded) closed[a.first] = a.second.size;
    open_device(false);
}

char* allocate_device(size_t bytes)
{
    if (arena == nullptr) {
        arena = (char*)reserve(ARENA + 2 * WILD, PROT_NONE) + WILD;
        device_cells = (Cell*)reserve(ARENA / 4 * sizeof(Cell), PROT_READ | PROT_WRITE);
    }
    if (bytes > ARENA) return nullptr;
    const uint64_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    if (arena_used + whole + PAGE > ARENA) return nullptr;
    /* As far up as alignment lets it; the page behind stays unmapped. */
    const uint64_t offset = arena_used + (whole - bytes) / 256 * 256;
    if (mprotect(arena + arena_used, whole, PROT_READ | PROT_WRITE) != 0) return nullptr;
    memset(arena + arena_used, 0xff, whole);
    arena_used += whole + PAGE;
    allocations[offset] = {bytes, true};
    if (bytes <= guarded) {
        closed[offset] = bytes;
        protect(offset, bytes, PROT_NONE);
    }
    return arena + offset;
}

bool release_device(void* p)
{
    const auto a =
        is_device(p) ? allocations.find((uint64_t)((char*)p - arena)) : allocations.end();
    if (a == allocations.end() || !a->second.live) return false;
    a->second.live = false;
    closed.erase(a->first);
    const uint64_t from = a->first / PAGE * PAGE;
    const uint64_t to = (a->first + a->second.size + PAGE - 1) / PAGE * PAGE;
    (void)madvise(arena + from, to - from, MADV_DONTNEED);
    (void)madvise((char*)&device_cells[from / 4], (to - from) / 4 * sizeof(Cell), MADV_DONTNEED);
    return true;
}

Memory read_memory()
{
    Memory all;
    for (const auto& a : allocations)
        if (a.second.live)
            all.push_back({arena + a.first, {arena + a.first, arena + a.first + a.second.size}});
    return all;
}

/* The allocation at or below an offset. Offsets are signed: a wild index may point before the arena. */
static Found below(int64_t offset)
{
    Found a = allocations.upper_bound((uint64_t)std::max<int64_t>(offset, 0));
    return offset < 0 || a == allocations.begin() ? allocations.end() : --a;
}

static bool holds(Found a, int64_t offset, uint64_t size)
{
    return a != allocations.end() && a->second.live && offset >= (int64_t)a->first &&
           (uint64_t)offset - a->first + size <= a->second.size;
}

/* A copy opens what it touches, a kernel all. */
void open_around(const void* p, bool open)
{
    if (closed.empty() || !is_device(p)) return;
    const Found a = below((const char*)p - arena);
    if (a != allocations.end() && closed.count(a->first) != 0)
        protect(a->first, a->second.size, protection(open));
}

/* The reason why [offset, offset + size) is not all inside one live allocation, or "". */
static std::string outside(int64_t offset, uint64_t size)
{
    static Found last = allocations.end(); /* most accesses meet the one of the access before */
    if (holds(last, offset, size)) return "";
    const Found a = below(offset);
    if (a == allocations.end()) return "before every allocation";
    if (holds(a, offset, size)) {
        last = a;
        return "";
    }
    return std::to_string(size) + " bytes at byte " + std::to_string((uint64_t)offset - a->first) +
           " of " + (a->second.live ? "" : "freed ") + std::to_string(a->second.size);
}

static bool report_outside(int64_t offset, int size, const void* pc)
{
    const std::string reason = outside(offset, (uint64_t)size);
    if (reason.empty()) return false;
    defect(pc, "device memory out of bounds", "%s, block %d thread %u", reason.c_str(),
           block.number, current->linear);
    return true;
}

static void device_access(const char* p, int size, Access kind, const void* pc)
{
    if (report_outside(p - arena, size, pc)) fault();
    const uint64_t offset = (uint64_t)(p - arena);
    if (kind == ATOMIC && self()->fenced) { /* takes over what the word hands on, and adds itself */
        std::set<int>& through = released[offset];
        acquired.insert(through.begin(), through.end());
        through.insert(acquired.begin(), acquired.end());
        through.insert(block.number);
    }
    for_words(device_cells, offset, (uint64_t)size,
              [&](Cell* c, unsigned bytes) { check_cell(c, bytes, kind, pc, "global"); });
}

/* ---- any address ----------------------------------------------------------------------------------- */

void need_aligned(const void* p, int bytes, const void* pc)
{
    if ((uintptr_t)p % (unsigned)bytes == 0) return;
    defect(pc, "misaligned access", "%d bytes at %p, thread %u", bytes, p, current->linear);
    fault();
}

template <class T> static bool within(const char* p, const T& object)
{
    return p >= (const char*)&object && p < (const char*)(&object + 1);
}
/* What the emulator's headers read in a kernel's name. */
static bool is_own(const char* p)
{
    return within(p, current) || within(p, fibers) || within(p, warps) || within(p, block_size) ||
           within(p, grid_size) || within(p, arguments);
}
/* Code and what is constant; all of it lies before the first variable. */
static bool is_constant(const char* p)
{
    return (p >= __executable_start && p < __data_start) ||
           (p >= __start_simt_constant && p < __stop_simt_constant);
}

void access(const void* address, int size, Access kind, const void* pc)
{
    count_access(address, size, kind, pc);
    check_access(address, size, kind, pc);
}

void check_access(const void* address, int size, Access kind, const void* pc)
{
    const char* p = (const char*)address;
    const Fiber* f = self();
    if (p >= __start_simt_shared && p < __stop_simt_shared)
        return shared_access((uint32_t)(p - __start_simt_shared), size, kind, pc);
    if (is_device(p)) return device_access(p, size, kind, pc);
    if (p >= f->stack && p < f->stack + f->stack_bytes) return;
    if (is_own(p) || is_constant(p)) return;
    defect(pc, "host pointer in a kernel", "%d bytes at %p, thread %u", size, address, f->linear);
    fault();
}

void host_access(const void* p, size_t bytes)
{
    if (!is_device(p)) return;
    const std::string reason = outside((const char*)p - arena, bytes);
    if (!reason.empty()) set_error(cudaErrorInvalidValue, "copy out of bounds: " + reason);
}

template <class F> static void for_device_words(const void* p, size_t bytes, F f)
{
    for_words(device_cells, (uint64_t)((const char*)p - arena), bytes, f);
}

/* Words that a launch of another stream may still write, or read while this copy writes them. */
void check_copy(const void* p, size_t bytes, Access kind, const void* pc)
{
    for_device_words(p, bytes, [&](Cell* c, unsigned mask) {
        const auto races = [mask](const Stamp& e) {
            return e.epoch != 0 && (e.bytes & mask) && !finished_before(e.epoch);
        };
        const Stamp* other = std::find_if(c->writer, c->writer + 2, races);
        const bool written = other != c->writer + 2;
        if (!written && kind == WRITE) other = std::find_if(c->reader, c->reader + 2, races);
        if (written || (kind == WRITE && other != c->reader + 2))
            defect(pc, "race in global memory", "a copy %s what work of another stream %s at %s",
                   kind == READ ? "reads" : "writes",
                   written ? "may still write" : "may still read",
                   place(unpack_pc(other->pc)).c_str());
    });
}

/* Leaves the copy of that epoch in its words, but for those that later work has met since. */
void stamp_copy(const void* p, size_t bytes, Access kind, const void* pc, uint32_t epoch)
{
    for_device_words(p, bytes, [&](Cell* c, unsigned mask) {
        Stamp* last = kind == READ ? c->reader : c->writer;
        if (last->epoch <= epoch) *last = {epoch, 0, 0, pack_pc(pc), 0, (uint8_t)mask, false};
    });
}

} // namespace simt

extern "C" void simt_guard(size_t most) { simt::guard(most); }

/* ---- the compiler's hooks -------------------------------------------------------------------------- */

/* Called by instrumented kernels before each load and store. `natural`: the source says one access,
 * which a GPU wants aligned; else the compiler copies members of a struct together. Launchers, compiled
 * alike, run on the host and are not looked at. */
static inline void hook(const void* p, size_t size, simt::Access kind, bool natural, const void* pc)
{
    if (simt::current == nullptr || size == 0) return;
    const bool shared = p >= __start_simt_shared && p < __stop_simt_shared;
    if (natural && (shared || simt::is_device(p))) simt::need_aligned(p, (int)size, pc);
    simt::access(p, (int)size, kind, pc);
}

#define PC __builtin_return_address(0)
#define HOOKS(n)                                                                    \
    void __tsan_read##n(void* p) { hook(p, n, simt::READ, true, PC); }              \
    void __tsan_write##n(void* p) { hook(p, n, simt::WRITE, true, PC); }            \
    void __tsan_unaligned_read##n(void* p) { hook(p, n, simt::READ, false, PC); }   \
    void __tsan_unaligned_write##n(void* p) { hook(p, n, simt::WRITE, false, PC); } \
    void __tsan_read_write##n(void* p)                                              \
    {                                                                               \
        hook(p, n, simt::READ, true, PC);                                           \
        hook(p, n, simt::WRITE, true, PC);                                          \
    }                                                                               \
    void __tsan_unaligned_read_write##n(void* p) { __tsan_read_write##n(p); }

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
/* clang 14 copies structs with plain memcpy; the build renames it in kernels. A copy of 16 bytes is
 * one vector access. */
void* __tsan_memcpy(void* d, const void* s, size_t n)
{
    hook(s, n, simt::READ, n == 16, PC);
    hook(d, n, simt::WRITE, n == 16, PC);
    return memcpy(d, s, n);
}
void* __tsan_memmove(void* d, const void* s, size_t n)
{
    hook(s, n, simt::READ, false, PC);
    hook(d, n, simt::WRITE, false, PC);
    return memmove(d, s, n);
}
void* __tsan_memset(void* d, int v, size_t n)
{
    hook(d, n, simt::WRITE, false, PC);
    return memset(d, v, n);
}
}
