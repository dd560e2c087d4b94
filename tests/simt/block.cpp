/* block.cpp - runs a grid: its blocks one after another, the threads of a block in turns. */
#include "tests/simt/emulator.h"

#include <algorithm>
#include <map>
#include <stdlib.h>

namespace simt {

dim3 block_size, grid_size;
Block block;
Launch grid;
uint32_t last_epoch;
alignas(64) char arguments[4096];
std::map<const void*, int> shared_limit; /* cudaFuncSetAttribute, per kernel */

void wait_as(State state, const void* pc)
{
    Fiber* f = self();
    f->state = state;
    f->pc = pc;
    switch_to_scheduler();
    f->state = RUNNING;
}

void yield(const void* pc)
{
    if (current == nullptr) return;
    self()->spinning = true;
    self()->pc = pc;
    switch_to_scheduler();
}

void fault()
{
    grid.stop = true;
    switch_to_scheduler();
    abort();
}

static void fiber_main()
{
    grid.entry(grid.arguments);
    Fiber* f = self();
    for (const std::vector<AsyncCopy>& g : f->groups)
        for (const AsyncCopy& c : g)
            defect(c.pc, "asynchronous copy never waited for", "thread %u returns", f->linear);
    for (const AsyncCopy& c : f->loose)
        defect(c.pc, "asynchronous copy never committed", "thread %u returns", f->linear);
    f->state = DONE;
    block.done++;
    leave_collectives(f);
    switch_to_scheduler();
    abort();
}

static int thread_order()
{
    static const char* text = getenv("SIMT_ORDER");
    return text != nullptr ? atoi(text) : 0;
}

/* Threads by turn, warp by warp; SIMT_ORDER tells how. */
static std::vector<int> turns()
{
    static unsigned seed = 1;
    std::vector<int> order((size_t)block.threads);
    for (int i = 0; i < block.threads; i++)
        order[(size_t)i] = thread_order() == 1 ? block.threads - 1 - i : i;
    for (int i = block.threads - 1; thread_order() == 2 && i > 0; i--) {
        seed = seed * 1664525u + 1013904223u;
        std::swap(order[(size_t)i], order[(seed >> 8) % (unsigned)(i + 1)]);
    }
    return order;
}

/* Runs every runnable thread of [from, to) once. `progress`: one did more than spin. */
static bool run_once(const std::vector<int>& order, int from, int to, bool* progress)
{
    bool ran = false;
    for (int i = from; i < to; i++) {
        Fiber* f = &fibers[order[(size_t)i]];
        if (f->state != RUNNING) continue;
        f->spinning = false;
        switch_to(f);
        ran = true;
        if (grid.stop) break;
        if (!f->spinning) *progress = true;
    }
    return ran;
}

static void schedule()
{
    const std::vector<int> order = turns();
    int idle = 0;
    while (block.done < block.threads) {
        bool ran = false, progress = false;
        for (int from = 0; from < block.threads; from += 32) {
            const int to = std::min(from + 32, block.threads);
            for (bool again = true; again;) { /* a warp goes on until all of it waits */
                again = false;
                ran |= run_once(order, from, to, &again);
                if (grid.stop) return;
                progress |= again;
            }
        }
        idle = progress ? 0 : idle + 1;
        if (ran && idle < 100000) continue;
        grid.stop = true;
        if (ran) {
            defect(fibers[0].pc, "livelock", "all threads spin");
        } else {
            const Fiber* f = std::find_if(fibers, fibers + block.threads,
                                          [](const Fiber& x) { return x.state != DONE; });
            defect(f->pc, "barrier divergence", "%s", waiting_threads().c_str());
        }
        return;
    }
}

static void run_block()
{
    block.done = 0;
    block.first_epoch = block.epoch = ++last_epoch;
    grid.block_epoch.push_back(block.first_epoch);
    memset(block.warp_time, 0, sizeof block.warp_time);
    for (int w = 0; w < block.warps; w++) block.warp_time[w][w] = 1;
    for (int i = 0; i < block.threads; i++) {
        Fiber* f = &fibers[i];
        f->state = RUNNING;
        f->spinning = f->fenced = false;
        f->last = nullptr;
        f->loose.clear();
        f->groups.clear();
        prepare_fiber(f, fiber_main);
    }
    reset_collectives();
    reset_shared();
    start_block_memory();
    schedule();
}

void* argument_buffer(size_t bytes)
{
    if (bytes > sizeof arguments) abort(); /* CUDA's own limit on kernel arguments */
    return arguments;
}

/* What the driver would refuse. */
static bool launchable(const char* name, const void* kernel, dim3 g, dim3 b, size_t shared_bytes)
{
    const uint64_t threads = (uint64_t)b.x * b.y * b.z;
    const auto limit = shared_limit.find(kernel);
    const size_t most = limit == shared_limit.end() ? GRANTED_SHARED : (size_t)limit->second;
    const char* reason = nullptr;
    if (threads == 0 || threads > MAX_THREADS || b.z > 64) reason = "threads of a block";
    if (g.x == 0 || g.y == 0 || g.z == 0 || g.y > 65535 || g.z > 65535 || g.x > 0x7fffffffu)
        reason = "size of the grid";
    if (shared_bytes > std::max(most, GRANTED_SHARED))
        reason = "shared memory (cudaFuncSetAttribute)";
    if (reason == nullptr) return true;
    char text[256];
    (void)snprintf(text, sizeof text,
                   "invalid launch of %s: %s: grid %u x %u x %u, block %u x %u x %u, %zu bytes",
                   name, reason, g.x, g.y, g.z, b.x, b.y, b.z, shared_bytes);
    set_error(cudaErrorInvalidConfiguration, text);
    return false;
}

/* Blocks in order, from the same start for each way to run them. */
static void run_blocks(cudaStream_t stream, void (*entry)(void*), void* place)
{
    grid.entry = entry;
    grid.arguments = place;
    grid.block_epoch.clear();
    grid.first_epoch = last_epoch + 1;
    begin_work(stream, grid.first_epoch);
    const dim3 g = grid_size;
    for (uint64_t n = 0; n < (uint64_t)g.x * g.y * g.z && !grid.stop; n++) {
        const uint3 at =
            make_uint3((unsigned)(n % g.x), (unsigned)(n / g.x % g.y), (unsigned)(n / g.x / g.y));
        for (int i = 0; i < block.threads; i++) fibers[i].block_index = at;
        block.number = (int)n;
        run_block();
    }
}

static void run_both(cudaStream_t stream, const Kernel& kernel, const Runner& other)
{
    const Memory before = read_memory();
    pause_counts(true);
    run_blocks(stream, kernel.entry, kernel.place);
    pause_counts(false);
    if (grid.stop) return;
    const Memory after = read_memory();
    for (const auto& m : before) memcpy(m.first, m.second.data(), m.second.size());
    run_blocks(stream, other.entry, other.arguments);
    if (!grid.stop) other.compare(after, kernel.function);
}

static void number_threads(dim3 b)
{
    block.threads = (int)(b.x * b.y * b.z);
    block.warps = (block.threads + 31) / 32;
    for (unsigned i = 0; i < (unsigned)block.threads; i++) {
        Fiber* f = &fibers[i];
        f->linear = i;
        f->lane = (int)(i % 32);
        f->warp = (int)(i / 32);
        f->thread_index = make_uint3(i % b.x, i / b.x % b.y, i / (b.x * b.y));
    }
}

void run_grid(const Kernel& kernel, dim3 g, dim3 b, size_t shared_bytes, cudaStream_t stream)
{
    if (!launchable(kernel.name, kernel.function, g, b, shared_bytes)) return;
    grid_size = g;
    block_size = b;
    grid = Launch{};
    grid.name = kernel.name;
    grid.shared_bytes = shared_bytes;
    number_threads(b);
    const Runner other = other_runner(kernel.function, kernel.arguments, kernel.count);
    open_device(true);
    if (other.entry == nullptr)
        run_blocks(stream, kernel.entry, kernel.place);
    else if (other.compare == nullptr)
        run_blocks(stream, other.entry, other.arguments);
    else
        run_both(stream, kernel, other);
    open_device(false);
    end_launch_counts();
}

} // namespace simt
