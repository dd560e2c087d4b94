/* emulator.h - what the emulator's own files share: threads, warps, the running block and launch. */
#pragma once
#include <simt.h>
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

#include <string>
#include <vector>

extern "C" {
extern char __start_simt_shared[], __stop_simt_shared[]; /* from the linker */
}

namespace simt {

constexpr int MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / 32;
constexpr size_t MAX_SHARED = 227 << 10;    /* dynamic bytes a block may ask for */
constexpr size_t GRANTED_SHARED = 48 << 10; /* without cudaFuncSetAttribute */

/* ---- time ------------------------------------------------------------------------------------------
 * Two accesses of a launch are ordered by: one thread; a block barrier between them (an epoch ends
 * there); __syncwarp, through the lanes' vector clocks; a named barrier, through the warps' clocks;
 * or, between blocks, an atomic on both sides of a fence. Shuffles and votes order nothing. */
struct Stamp {
    uint32_t epoch; /* unique in the process; 0: never */
    uint32_t lane_time, warp_time;
    uint32_t pc; /* offset in the program */
    uint16_t thread;
    uint8_t bytes; /* of the word, as a mask */
    bool atomic;
};

/* ---- threads ------------------------------------------------------------------------------------- */

struct AsyncCopy {
    uint32_t dst;
    const char* src;
    int bytes; /* of 16; the rest is zero */
    const void* pc;
};

enum State { RUNNING, IN_COLLECTIVE, IN_BARRIER, IN_NAMED_BARRIER, DONE };

struct Fiber : Thread {
    State state;
    bool spinning, fenced;
    const void* pc; /* where it waits */
    int barrier_id;
    Collective* last; /* whose results it may still read */
    void* stack_pointer;
    char* stack;
    size_t stack_bytes;
    std::vector<AsyncCopy> loose;               /* copies issued, not committed */
    std::vector<std::vector<AsyncCopy>> groups; /* committed, oldest first */
};

struct Warp {
    Collective pool[34];
    Collective* active[32]; /* by the lowest lane of the mask */
    unsigned exists, exited;
    uint32_t time[32][32]; /* time[a][b]: what lane a knows of lane b's time */
};

struct Block {
    int threads, warps, done;
    int number; /* in the grid */
    uint32_t first_epoch, epoch;
    uint32_t warp_time[MAX_WARPS][MAX_WARPS];
};

struct Launch {
    const char* name = "";
    size_t shared_bytes = 0;
    uint32_t first_epoch = 0, number = 0;
    bool stop = false;
    void (*entry)(void*) = nullptr;
    void* arguments = nullptr;
    std::vector<uint32_t> block_epoch; /* first epoch of each block so far */
};

extern Fiber fibers[MAX_THREADS];
extern Warp warps[MAX_WARPS];
extern Block block;
extern Launch grid;
extern uint32_t last_epoch;
extern char arguments[4096]; /* of the kernel */

static inline Fiber* self() { return (Fiber*)current; }
static inline unsigned bit(int lane) { return 1u << lane; }

/* ---- ptx/launch.cpp: another way to run a kernel ---------------------------------------------------- */

/* entry NULL: run the source. compare NULL: run this instead of the source; else after it, from the
 * same memory, and hand it what the source left there. */
typedef std::vector<std::pair<char*, std::vector<char>>>
    Memory; /* live allocations, what they hold */
struct Runner {
    void (*entry)(void*);
    void* arguments;
    void (*compare)(const Memory& source, const void* kernel);
};
Runner other_runner(const void* kernel, const Argument* arguments, int count);
std::string other_place(const void* pc); /* "": not one of its places */

/* ---- fiber.cpp ------------------------------------------------------------------------------------ */
void prepare_fiber(Fiber* f, void (*main)());
void switch_to(Fiber* f);   /* from the scheduler */
void switch_to_scheduler(); /* from a fiber */

/* ---- block.cpp ------------------------------------------------------------------------------------ */
void wait_as(State state, const void* pc);
[[noreturn]] void fault(); /* ends the launch, as an access violation does on a GPU */

/* ---- collective.cpp ------------------------------------------------------------------------------- */
void reset_collectives();
void leave_collectives(Fiber* f); /* f returns from the kernel */
std::string waiting_threads();

/* As those of simt.h, called from `pc`. */
const Collective& collective_at(unsigned mask, Op op, const Payload& in,
                                void (*finish)(Collective&), const void* pc);
void sync_threads_at(const void* pc);
void named_barrier_at(int id, int threads, const void* pc);

/* ---- tensor.cpp ----------------------------------------------------------------------------------- */
void copy_async_at(uint32_t dst, const void* src, int bytes, const void* pc);

/* ---- memory.cpp ----------------------------------------------------------------------------------- */
void reset_shared();
void check_access(const void* p, int size, Access kind, const void* pc); /* counts nothing */
void set_pending(uint32_t offset, int size, bool pending);
void start_block_memory();
void host_access(const void* p, size_t bytes);                             /* of a copy: bounds */
void check_copy(const void* p, size_t bytes, Access kind, const void* pc); /* and order */
void stamp_copy(const void* p, size_t bytes, Access kind, const void* pc, uint32_t epoch);
char* allocate_device(size_t bytes); /* NULL: no room */
bool release_device(void* p);
bool is_device(const void* p);
void open_device(bool open);                /* all of it, to a kernel */
void open_around(const void* p, bool open); /* the allocation there, to a copy */
Memory read_memory();

/* ---- count.cpp ------------------------------------------------------------------------------------ */
void count_access(const void* p, int size, Access kind, const void* pc);
void pause_counts(bool pause);
void count_mma(const void* pc);
void cut_counts(int warp); /* the lanes of a warp meet */
void end_launch_counts();

/* ---- cuda_api.cpp --------------------------------------------------------------------------------- */
void begin_work(cudaStream_t stream, uint32_t first_epoch);
/* True if the work of `epoch`, an earlier one, is certain to be over when the current work runs. */
bool finished_before(uint32_t epoch);

/* ---- report.cpp ----------------------------------------------------------------------------------- */
std::string place(const void* pc); /* file:line, past the emulator's own headers */
uint32_t pack_pc(const void* pc);
const void* unpack_pc(uint32_t offset);
void defect(const void* pc, const char* kind, const char* fmt, ...)
    __attribute__((format(printf, 3, 4)));
cudaError_t pending_error();
void clear_error();
void set_error(cudaError_t error, const std::string& text);
const char* error_text();

} // namespace simt
