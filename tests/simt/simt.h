/* simt.h - the CUDA language for a C++ compiler: what kernels/cuda/port.cuh is without nvcc.
 *
 * A kernel's source stays as it is. Every CUDA thread is a fiber on the CPU; blocks run one after
 * another, the threads of a block in turns that end at barriers and warp collectives. Kernels are
 * compiled with -fsanitize=thread but linked with our own hooks (memory.cpp) instead of that
 * sanitizer, so every load and store is seen with its address, size and place.
 *
 * What it checks: races in shared memory and, between threads, blocks and streams, in global memory;
 * reads of unwritten shared memory and of copies still under way; bounds; alignment; host pointers;
 * divergent barriers; wrong masks and sources of warp collectives; limits of a launch.
 *
 * The first defect of a launch becomes the error of cudaGetLastError, with file and line.
 * SIMT_ORDER=0, 1, 2 in the environment runs threads in ascending, descending, random order. */
#pragma once
#include <array>
#include <math.h>
#include <new>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <tuple>

/* The toolkit's own types and conversions; they read well under any C++ compiler. */
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <vector_types.h>

/* ---- the language ------------------------------------------------------------------------------- */

#undef __shared__
#undef __constant__
#undef __launch_bounds__
/* All shared memory lies in one section: "is it shared?" is a range test, an address an offset. */
#define __shared__   static __attribute__((section("simt_shared")))
#define __constant__ static __attribute__((section("simt_constant")))
#define __launch_bounds__(...)
#define SIMT_INLINE static inline __attribute__((always_inline))
/* A copy of the call, as an optimiser may make one, would look like a second barrier. */
#define SIMT_CONVERGENT __attribute__((noduplicate, noinline))

#define DYN_SHARED(type, name) type* const name = reinterpret_cast<type*>(simt::dynamic_shared)
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    simt::launch(#kernel, kernel, grid, block, shared_bytes, stream, __VA_ARGS__)

#define threadIdx (simt::current->thread_index)
#define blockIdx  (simt::current->block_index)
#define blockDim  (simt::block_size)
#define gridDim   (simt::grid_size)
#define warpSize  32

namespace simt {

struct Thread {
    uint3 thread_index, block_index;
    int lane, warp;
    unsigned linear; /* number in the block */
};

extern Thread* current; /* NULL on the host */
extern dim3 block_size, grid_size;
extern char dynamic_shared[];

/* ---- launch ------------------------------------------------------------------------------------- */

struct Argument {
    const void* at;
    size_t bytes;
};
struct Kernel {
    const char* name;
    const void* function;
    void (*entry)(void*); /* calls it with the arguments at a place */
    void* place;
    const Argument* arguments;
    int count;
};
void* argument_buffer(size_t bytes);
void run_grid(const Kernel& kernel, dim3 grid, dim3 block, size_t shared_bytes,
              cudaStream_t stream);

template <class... P, class... A>
void launch(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, A&&... arguments)
{
    struct Call {
        void (*kernel)(P...);
        std::tuple<P...> arguments;
    };
    void* place = argument_buffer(sizeof(Call));
    Call* call = new (place) Call{kernel, std::tuple<P...>(static_cast<P>(arguments)...)};
    const auto list = std::apply(
        [](const P&... p) {
            return std::array<Argument, sizeof...(P)>{Argument{&p, sizeof p}...};
        },
        call->arguments);
    const auto entry = [](void* p) { std::apply(((Call*)p)->kernel, ((Call*)p)->arguments); };
    run_grid({name, (const void*)kernel, entry, call, list.data(), (int)list.size()}, grid, block,
             shared_bytes, stream);
}

/* ---- warp collectives --------------------------------------------------------------------------- */

struct Payload {
    uint32_t word[12];
};
enum Op { OP_SYNC, OP_SHUFFLE, OP_VOTE, OP_REDUCE, OP_MATCH, OP_LDMATRIX, OP_MMA };

struct Collective {
    unsigned mask, arrived, readers;
    Op op;
    const void* pc;
    void (*finish)(Collective&); /* runs once, when all lanes are there */
    Payload in[32], out[32];
};

/* Returns when every lane of `mask` has arrived. */
SIMT_CONVERGENT const Collective& collective(unsigned mask, Op op, const Payload& in,
                                             void (*finish)(Collective&));
SIMT_CONVERGENT void sync_threads();
enum Reduction { COUNT, AND, OR };
SIMT_CONVERGENT int sync_threads_reduce(Reduction kind, int predicate);
SIMT_CONVERGENT void named_barrier(int id, int threads);
void inactive_source(const void* pc, int lane);
void yield(const void* pc); /* lets other threads run: the caller waits for one of them */

/* ---- memory ------------------------------------------------------------------------------------- */

enum Access { READ, WRITE, ATOMIC };
void access(const void* p, int size, Access kind, const void* pc);
void need_aligned(const void* p, int bytes, const void* pc);
void fence();
uint32_t shared_offset(const void* p);
__attribute__((noinline)) void copy_async(uint32_t dst, const void* src, int bytes);
void commit_async();
void wait_async(int groups);
void finish_mma(Collective&);
void finish_ldmatrix(Collective&);
void finish_ldmatrix_trans(Collective&);

} // namespace simt

#include "tests/simt/atomic.h"
#include "tests/simt/intrinsic.h"
#include "tests/simt/port_simt.h"
#include "tests/simt/warp.h"

template <class T> static inline cudaError_t cudaMalloc(T** p, size_t bytes)
{
    return ::cudaMalloc((void**)p, bytes);
}
template <class T>
static inline cudaError_t cudaFuncSetAttribute(T* kernel, cudaFuncAttribute attribute, int value)
{
    return ::cudaFuncSetAttribute((const void*)kernel, attribute, value);
}
