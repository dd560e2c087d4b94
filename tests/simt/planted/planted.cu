/* planted.cu - kernels with one defect each, and the same kernels without it (SOUND).
 *
 * The line at fault carries a comment that begins with the defect's name; tests/test_planted.c looks
 * it up and asks the emulator for that line. The sound twin differs in the defect alone and must
 * pass in silence. */
#include "kernels/cuda/cuda.h"
#include "tests/simt/planted/planted.h"

#include <stdlib.h>
#include <string.h>

#define N 64 /* threads of a block */

/* ---- shared memory -------------------------------------------------------------------------------- */

template <bool SOUND> __global__ void missing_barrier(float* x)
{
    __shared__ float tile[N];
    tile[threadIdx.x] = x[threadIdx.x];
    if (SOUND) __syncthreads();
    x[threadIdx.x] = tile[(threadIdx.x + 32) % N]; /* missing_barrier: other warp's value */
}
template <bool SOUND> __global__ void missing_second_barrier(float* x)
{
    __shared__ float tile[N];
    for (int i = 0; i < 2; i++) {
        tile[threadIdx.x] = x[threadIdx.x]; /* missing_second_barrier: still being read */
        __syncthreads();
        x[threadIdx.x] += tile[(threadIdx.x + 32) % N];
        if (SOUND) __syncthreads();
    }
}
template <bool SOUND> __global__ void missing_syncwarp(float* x)
{
    __shared__ float tile[32];
    if (threadIdx.x >= 32) return;
    tile[threadIdx.x] = x[threadIdx.x];
    if (SOUND) __syncwarp();
    x[threadIdx.x] = tile[threadIdx.x ^ 1]; /* missing_syncwarp: a neighbour's value */
}
template <bool SOUND> __global__ void same_element(float* x)
{
    __shared__ float sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    if (SOUND)
        atomicAdd(&sum, x[threadIdx.x]);
    else
        sum = sum + x[threadIdx.x]; /* same_element: two warps add at once */
    __syncthreads();
    x[threadIdx.x] = sum;
}
template <bool SOUND> __global__ void unwritten_shared(float* x)
{
    __shared__ float tile[N];
    if (SOUND || threadIdx.x < N - 1) tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = tile[N - 1 - threadIdx.x]; /* unwritten_shared: the last one */
}
template <bool SOUND> __global__ void tile_off_by_one(float* x)
{
    DYN_SHARED(float, tile);
    tile[threadIdx.x + (SOUND ? 0 : 1)] = x[threadIdx.x]; /* tile_off_by_one: past the end */
}
template <bool SOUND> __global__ void wrong_named_barrier(float* x)
{
    __shared__ float tile[N];
    tile[threadIdx.x] = x[threadIdx.x];
    if (SOUND)
        port::bar_sync(1, N);
    else
        port::bar_sync(1, 32);                  /* opens for one warp alone */
    x[threadIdx.x] = tile[N - 1 - threadIdx.x]; /* wrong_named_barrier: the other warp's value */
}

/* ---- device memory -------------------------------------------------------------------------------- */

template <bool SOUND> __global__ void past_the_end(float* x)
{
    x[threadIdx.x + (SOUND ? 0 : 1)] = 0; /* past_the_end: thread 63 */
}
template <bool SOUND> __global__ void wrong_stride(float* x)
{
    x[threadIdx.x * (SOUND ? 1 : 2)] = 0; /* wrong_stride: twice too far */
}
template <bool SOUND> __global__ void stale_page(float* x, const int* page)
{
    x[threadIdx.x] = x[page[SOUND] * N + threadIdx.x]; /* stale_page: page 1000 is long gone */
}
template <bool SOUND> __global__ void index_overflow(float* x, int rows, int vocabulary)
{
    const int64_t all = (int64_t)rows * vocabulary;
    const int narrow = (int)((unsigned)rows * (unsigned)vocabulary);
    const int64_t shard = (SOUND ? all : narrow) / 100000000; /* of 2.2e9 elements: past 2^31 */
    x[N + threadIdx.x] = x[shard];                            /* index_overflow: a negative index */
}
template <bool SOUND> __global__ void misaligned_vector(float* x)
{
    const uint4 v = port::ldg16(x + (SOUND ? 4 : 1)); /* misaligned_vector: 4 bytes off */
    if (threadIdx.x == 0) x[8] = __uint_as_float(v.x ^ v.y ^ v.z ^ v.w);
}
template <bool SOUND> __global__ void host_heap(float* x, const float* scale)
{
    x[threadIdx.x] *= SOUND ? 2 : scale[0]; /* host_heap: of the host */
}
static float host_scale = 2;
template <bool SOUND> __global__ void host_variable(float* x, const float* scale)
{
    x[threadIdx.x] *= SOUND ? 2 : scale[0]; /* host_variable: of the host */
}
template <bool SOUND> __global__ void double_accumulate(float* x)
{
    if (threadIdx.x == 0 && (!SOUND || blockIdx.x == 0))
        x[0] += 1; /* double_accumulate: by every block */
}
template <bool SOUND> __global__ void neighbour_block(float* x)
{
    x[threadIdx.x + (SOUND ? N * blockIdx.x : 0)] = 2; /* neighbour_block: both blocks write it */
}
/* The last block to come here adds up what all of them wrote. */
template <bool SOUND> __global__ void missing_fence(float* x, int* ticket)
{
    __shared__ int last;
    x[N * blockIdx.x + threadIdx.x] = (float)blockIdx.x;
    if (SOUND) __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(ticket, 1) == (int)gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    if (SOUND) __threadfence();
    float sum = 0;
    for (unsigned b = 0; b < gridDim.x; b++)
        sum += x[N * b + threadIdx.x]; /* missing_fence: written by another block */
    x[N * gridDim.x + threadIdx.x] = sum;
}

/* ---- barriers and warps --------------------------------------------------------------------------- */

template <bool SOUND> __global__ void divergent_barrier(float* x)
{
    if (SOUND || threadIdx.x < 32) {
        __syncthreads();
        x[threadIdx.x] = 1;
    } else {
        x[threadIdx.x] = 2;
        __syncthreads(); /* divergent_barrier: the other warp waits elsewhere */
    }
}
template <bool SOUND> __global__ void lane_not_in_mask(float* x)
{
    if (threadIdx.x >= 32) return;
    const unsigned mask = SOUND ? 0xffffffffu : 0xfffffffeu;
    x[threadIdx.x] = __shfl_sync(mask, x[threadIdx.x], 1); /* lane_not_in_mask: lane 0 */
}
template <bool SOUND> __global__ void inactive_lane(float* x)
{
    if (threadIdx.x >= 16) return;
    const int width = SOUND ? 16 : 32;
    x[threadIdx.x] = __shfl_down_sync(0xffffu, x[threadIdx.x], 8, width); /* inactive_lane: 16 on */
}
template <bool SOUND> __global__ void overlapping_masks(float* x)
{
    const bool high = threadIdx.x % 32 >= 16;
    const unsigned mask = high ? 0xffff0000u : SOUND ? 0x0000ffffu : 0x0001ffffu;
    const float mine = x[threadIdx.x];
    x[threadIdx.x] = __shfl_xor_sync(mask, mine, 1); /* overlapping_masks: lane 16 */
}
template <bool SOUND> __global__ void warp_left_waiting(float* x)
{
    if (SOUND || threadIdx.x % 32 != 1) __syncwarp(); /* warp_left_waiting: lane 1 never comes */
    __syncthreads();
    x[threadIdx.x] = 0;
}
template <bool SOUND> __global__ void spins_for_ever(float* x, int* flag)
{
    if (SOUND && threadIdx.x == N - 1) atomicExch(flag, 1);
    while (atomicCAS(flag, 1, 1) != 1) {} /* spins_for_ever: no one sets it */
    x[threadIdx.x] = 0;
}

/* ---- asynchronous copies ---------------------------------------------------------------------------- */

template <bool SOUND> __global__ void missing_wait(float* x)
{
    __shared__ __align__(16) float tile[4 * N];
    port::cp_async16(port::smem_addr(tile + 4 * threadIdx.x), x);
    port::cp_async_commit();
    if (SOUND)
        port::cp_async_wait<0>();
    else
        port::cp_async_wait<1>();
    x[4 * (N + threadIdx.x)] = tile[4 * threadIdx.x]; /* missing_wait: one group short */
    port::cp_async_wait<0>();
}
template <bool SOUND> __global__ void missing_commit(float* x)
{
    __shared__ __align__(16) float tile[4 * N];
    port::cp_async16(port::smem_addr(tile + 4 * threadIdx.x), x); /* missing_commit: of this */
    if (SOUND) port::cp_async_commit();
    port::cp_async_wait<0>();
}
template <bool SOUND> __global__ void wait_is_no_barrier(float* x)
{
    __shared__ __align__(16) float tile[4 * N];
    port::cp_async16(port::smem_addr(tile + 4 * threadIdx.x), x);
    port::cp_async_commit();
    port::cp_async_wait<0>();
    if (SOUND) __syncthreads();
    x[4 * N + threadIdx.x] = tile[4 * (N - 1 - threadIdx.x)]; /* wait_is_no_barrier: its own only */
}

/* ---- a product -------------------------------------------------------------------------------------- */

/* a: 16 rows of ones, and room behind them; every sum is 16 if each lane finds its row. */
template <bool SOUND> __global__ void fragment_off_by_one_row(float* x)
{
    __shared__ __align__(16) uint16_t a[24 * 16];
    for (int i = (int)threadIdx.x; i < 256; i += (int)blockDim.x) a[i] = 0x3f80;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    const unsigned row = threadIdx.x % 16 + (SOUND ? 0 : 1);
    uint32_t f[4];
    float d[4] = {0, 0, 0, 0};
    const uint32_t at = port::smem_addr(a + row * 16 + threadIdx.x / 16 * 8);
    port::ldmatrix_x4(f, at); /* fragment_off_by_one_row: row 16 of 16 */
    port::mma_bf16_16816(d, f, 0x3f803f80u, 0x3f803f80u);
    for (int i = 0; i < 4; i++) x[4 * threadIdx.x + i] = d[i];
}

/* ---- streams ---------------------------------------------------------------------------------------- */

__global__ void fill(float* x) { x[threadIdx.x] = 1; }
__global__ void double_up(float* x, const float* y)
{
    x[threadIdx.x] = 2 * y[threadIdx.x]; /* two_streams: the other stream still writes it */
}
__global__ void read_again(float* x, const float* y)
{
    x[threadIdx.x] = 2 * y[threadIdx.x]; /* copy_not_awaited: the other stream still clears it */
}
template <bool SOUND> static void two_streams(float* x)
{
    cudaStream_t first, second;
    cudaEvent_t event;
    (void)cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
    (void)cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
    (void)cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    LAUNCH(fill, 1, N, 0, first, x);
    (void)cudaEventRecord(event, first);
    if (SOUND) (void)cudaStreamWaitEvent(second, event, 0);
    LAUNCH(double_up, 1, N, 0, second, x + N, x);
    (void)cudaEventDestroy(event);
    (void)cudaStreamDestroy(first);
    (void)cudaStreamDestroy(second);
}

template <bool SOUND> static void copy_too_early(float* x)
{
    cudaStream_t first, second;
    (void)cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
    (void)cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
    LAUNCH(fill, 1, N, 0, first, x);
    if (SOUND) (void)cudaStreamSynchronize(first);
    const size_t bytes = N * sizeof *x;
    (void)cudaMemcpyAsync(x + N, x, bytes, /* copy_too_early: of what a launch still writes */
                          cudaMemcpyDeviceToDevice, second);
    (void)cudaStreamDestroy(first);
    (void)cudaStreamDestroy(second);
}

template <bool SOUND> static void copy_not_awaited(float* x)
{
    cudaStream_t first, second;
    (void)cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
    (void)cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
    (void)cudaMemsetAsync(x, 0, N * sizeof *x, first);
    if (SOUND) (void)cudaStreamSynchronize(first);
    LAUNCH(read_again, 1, N, 0, second, x + N, x);
    (void)cudaStreamDestroy(first);
    (void)cudaStreamDestroy(second);
}

/* ---- launches --------------------------------------------------------------------------------------- */

#define ON(kernel, grid, shared, ...) \
    if (strcmp(name, #kernel) == 0) LAUNCH(kernel<SOUND>, grid, N, shared, 0, __VA_ARGS__)

/* number: a page that is gone, one that is there, two zeros. */
template <bool SOUND> static void launch(const char* name, float* x, int* number, float* host)
{
    ON(missing_barrier, 1, 0, x);
    ON(missing_second_barrier, 1, 0, x);
    ON(missing_syncwarp, 1, 0, x);
    ON(same_element, 1, 0, x);
    ON(unwritten_shared, 1, 0, x);
    ON(tile_off_by_one, 1, N * sizeof(float), x);
    ON(wrong_named_barrier, 1, 0, x);
    ON(past_the_end, 1, 0, x + PLANTED_FLOATS - N);
    ON(wrong_stride, 1, 0, x + PLANTED_FLOATS - N);
    ON(stale_page, 1, 0, x, number);
    ON(index_overflow, 1, 0, x, 14461, 152064);
    ON(misaligned_vector, 1, 0, x);
    ON(host_heap, 1, 0, x, host);
    ON(host_variable, 1, 0, x, &host_scale);
    ON(double_accumulate, 2, 0, x);
    ON(neighbour_block, 2, 0, x);
    ON(missing_fence, 3, 0, x, number + 2);
    ON(divergent_barrier, 1, 0, x);
    ON(lane_not_in_mask, 1, 0, x);
    ON(inactive_lane, 1, 0, x);
    ON(overlapping_masks, 1, 0, x);
    ON(warp_left_waiting, 1, 0, x);
    ON(spins_for_ever, 1, 0, x, number + 2);
    ON(missing_wait, 1, 0, x);
    ON(missing_commit, 1, 0, x);
    ON(wait_is_no_barrier, 1, 0, x);
    ON(fragment_off_by_one_row, 1, 0, x);
    if (strcmp(name, "two_streams") == 0) two_streams<SOUND>(x);
    if (strcmp(name, "copy_not_awaited") == 0) copy_not_awaited<SOUND>(x);
    if (strcmp(name, "copy_too_early") == 0) copy_too_early<SOUND>(x);
}

void planted_run(const char* name, int sound, float* result)
{
    static float memory[PLANTED_FLOATS];
    const int number[4] = {1000, 1, 0, 0};
    float *x, *host = (float*)calloc(1, sizeof *host);
    int* n;
    (void)cudaMalloc(&x, sizeof memory);
    (void)cudaMalloc(&n, sizeof number);
    for (int i = 0; i < PLANTED_FLOATS; i++) memory[i] = 1;
    (void)cudaMemcpy(x, memory, sizeof memory, cudaMemcpyHostToDevice);
    (void)cudaMemcpy(n, number, sizeof number, cudaMemcpyHostToDevice);
    if (sound)
        launch<true>(name, x, n, host);
    else
        launch<false>(name, x, n, host);
    (void)cudaDeviceSynchronize();
    (void)cudaGetLastError();
    if (result != NULL) (void)cudaMemcpy(result, x, sizeof memory, cudaMemcpyDeviceToHost);
    (void)cudaFree(x);
    (void)cudaFree(n);
    free(host);
}
