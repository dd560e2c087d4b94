/* kv.cu - pages of keys and values: writing rows into them, copying whole pages.
 *
 * A page holds GR_PAGE tokens: per KV head K as [GR_PAGE][d], then V as [GR_PAGE][d], so that a
 * head's page is one stretch and each of its rows too. Bytes only move here, in chunks of 16. */
#include "kernels/cuda/cuda.cuh"

#define KV_THREADS 128

size_t OP(kv_page_bytes)(const gr_dev* dev, int hk, int d)
{
    return (size_t)hk * 2 * GR_PAGE * (size_t)d * dev->real_bytes;
}

template <class T> struct append_args {
    T* pool;
    const T *k, *v;
    const int32_t* slot;
    int64_t n;
    int hk, d;
    bool whole;
};

/* Copies left elements of a row, at most a chunk. */
template <class T>
__device__ __forceinline__ void move_chunk(T* to, const T* from, int left, bool whole)
{
    if (whole) {
        *(uint4*)to = *(const uint4*)from;
        return;
    }
    for (int i = 0; i < chunk_of<T>::n && i < left; i++) to[i] = from[i];
}

/* Thread = chunk of a head's row, of K and of V. */
template <class T> __global__ void __launch_bounds__(KV_THREADS) append_rows(append_args<T> a)
{
    const int N = chunk_of<T>::n, chunks = (a.d + N - 1) / N;
    const int64_t all = a.n * a.hk * chunks, stride = (int64_t)gridDim.x * KV_THREADS;
    for (int64_t at = (int64_t)blockIdx.x * KV_THREADS + threadIdx.x; at < all; at += stride) {
        const int64_t head_row = at / chunks, row = head_row / a.hk;
        const int c = (int)(at % chunks) * N, head = (int)(head_row % a.hk);
        const int64_t page = a.slot[row] / GR_PAGE;
        const int offset = a.slot[row] % GR_PAGE;
        T* to = a.pool + ((page * a.hk + head) * 2 * GR_PAGE + offset) * a.d + c;
        move_chunk(to, a.k + head_row * a.d + c, a.d - c, a.whole);
        move_chunk(to + GR_PAGE * a.d, a.v + head_row * a.d + c, a.d - c, a.whole);
    }
}

void OP(kv_append)(gr_dev* dev, void* pool, const void* k, const void* v, const int32_t* slot,
                   int64_t n, int hk, int d)
{
    if (n == 0) return;
    FOR_REAL(dev, {
        const bool whole = (size_t)d * sizeof(T) % 16 == 0 && is_aligned(pool, 16) &&
                           is_aligned(k, 16) && is_aligned(v, 16);
        const append_args<T> a = {(T*)pool, (const T*)k, (const T*)v, slot, n, hk, d, whole};
        const int64_t blocks = ceil_div(n * hk * ceil_div(d, chunk_of<T>::n), KV_THREADS);
        LAUNCH(append_rows<T>, (unsigned)GR_MIN(blocks, (int64_t)gr_cuda_processors(dev) * 16),
               KV_THREADS, 0, gr_cuda_stream(dev), a);
    });
    gr_cuda_launched(dev, "kv_append");
}

/* Block = pair, layer. Every page is a whole number of 16-byte chunks. */
__global__ void __launch_bounds__(KV_THREADS)
    copy_pages(uint4* pool, const int32_t* pair, int64_t pages, int page_chunks)
{
    const int64_t first = blockIdx.y * pages;
    const uint4* from = pool + (first + pair[2 * (int64_t)blockIdx.x]) * page_chunks;
    uint4* to = pool + (first + pair[2 * (int64_t)blockIdx.x + 1]) * page_chunks;
    for (int i = (int)threadIdx.x; i < page_chunks; i += KV_THREADS) to[i] = from[i];
}

void OP(kv_copy)(gr_dev* dev, void* pool, const int32_t* pair, int64_t n, int layers, int64_t pages,
                 int hk, int d)
{
    if (n == 0) return;
    const int chunks = (int)(OP(kv_page_bytes)(dev, hk, d) / sizeof(uint4));
    const dim3 grid((unsigned)n, (unsigned)layers);
    LAUNCH(copy_pages, grid, KV_THREADS, 0, gr_cuda_stream(dev), (uint4*)pool, pair, pages, chunks);
    gr_cuda_launched(dev, "kv_copy");
}
