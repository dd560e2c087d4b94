/* chain.cuh - links rows of equal key, so that each key's rows can be added in row order without
 * atomics: one worker starts at the first row of a key and follows the links. */
#pragma once
#include "kernels/cuda/cuda.cuh"

typedef struct chain {
    int32_t next;     /* the next row of this key, or n */
    int32_t is_first; /* no row before has this key */
} chain;

#define CHAIN_THREADS 256

/* Thread = row; keys of all rows pass through shared memory, so they are read n / 256 times. */
static __global__ void __launch_bounds__(CHAIN_THREADS)
    find_chains(chain* out, const int32_t* key, int n)
{
    __shared__ int32_t tile[CHAIN_THREADS];
    const int row = (int)(blockIdx.x * CHAIN_THREADS + threadIdx.x);
    const int32_t mine = row < n ? key[row] : 0;
    int next = n, is_first = 1;
    for (int first = 0; first < n; first += CHAIN_THREADS) {
        const int count = n - first < CHAIN_THREADS ? n - first : CHAIN_THREADS;
        __syncthreads();
        if ((int)threadIdx.x < count) tile[threadIdx.x] = key[first + threadIdx.x];
        __syncthreads();
        for (int i = count - 1; i >= 0; i--) {
            if (tile[i] != mine) continue;
            const int at = first + i;
            if (at < row) is_first = 0;
            if (at > row && at < next) next = at;
        }
    }
    if (row < n) {
        out[row].next = next;
        out[row].is_first = is_first;
    }
}

/* out (n) from key (n). */
static inline void chain_equals(cudaStream_t stream, chain* out, const int32_t* key, int64_t n)
{
    LAUNCH(find_chains, (unsigned)ceil_div(n, CHAIN_THREADS), CHAIN_THREADS, 0, stream, out, key,
           (int)n);
}
