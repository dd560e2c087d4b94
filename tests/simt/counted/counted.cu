/* counted.cu - small kernels whose traffic tests/test_counted.c knows from counting by hand. */
#include "kernels/cuda/cuda.h"
#include "tests/simt/counted/counted.h"

#include <string.h>

#define FLOATS 4096

__global__ void copy_floats(float* x) { x[1024 + threadIdx.x] = x[threadIdx.x]; }
__global__ void copy_vectors(float* x)
{
    const uint4 v = *(const uint4*)(x + 4 * threadIdx.x);
    *(uint4*)(x + 1024 + 4 * threadIdx.x) = v;
}
__global__ void shifted(float* x) { x[1024 + threadIdx.x] = x[threadIdx.x + 1]; }
__global__ void column(float* x) { x[64 * threadIdx.x] = 1; }
__global__ void one_for_all(float* x) { x[1024 + threadIdx.x] = x[7]; }
__global__ void half_the_lanes(float* x)
{
    if (threadIdx.x % 2 == 0) x[1024 + threadIdx.x] = 1;
}
__global__ void twice(float* x)
{
    float sum = 0;
    for (int i = 0; i < 2; i++) {
        sum += x[threadIdx.x];
        __syncwarp();
    }
    x[1024 + threadIdx.x] = sum;
}
__global__ void shared_rows(float* x)
{
    __shared__ float tile[32];
    tile[threadIdx.x] = 1;
    __syncwarp();
    x[threadIdx.x] = tile[31 - threadIdx.x];
}
template <int PITCH> __device__ __forceinline__ void turn(float* x)
{
    __shared__ float tile[32 * PITCH];
    for (int i = 0; i < 32; i++) tile[i * PITCH + threadIdx.x] = 1;
    __syncwarp();
    float sum = 0;
    for (int i = 0; i < 32; i++) sum += tile[threadIdx.x * PITCH + i];
    x[threadIdx.x] = sum;
}
__global__ void columns_of_32(float* x) { turn<32>(x); }
__global__ void columns_of_33(float* x) { turn<33>(x); }
__global__ void shared_vectors(float* x)
{
    __shared__ __align__(16) float tile[128];
    const uint4 v = *(const uint4*)(x + 4 * threadIdx.x);
    *(uint4*)(tile + 4 * threadIdx.x) = v;
    __syncwarp();
    x[threadIdx.x] = tile[0];
}
/* Rows of 16 floats: those of an ldmatrix meet in two banks' worth each. */
__global__ void product(float* x)
{
    __shared__ __align__(16) uint16_t a[32 * 32];
    port::cp_async16(port::smem_addr(a + 8 * threadIdx.x), x + 4 * threadIdx.x);
    port::cp_async_commit();
    for (int i = 256 + (int)threadIdx.x; i < 32 * 32; i += 32) a[i] = 0;
    port::cp_async_wait<0>();
    __syncwarp();
    uint32_t f[4];
    float d[4] = {0, 0, 0, 0};
    port::ldmatrix_x4(f, port::smem_addr(a + 32 * threadIdx.x));
    for (int i = 0; i < 3; i++) port::mma_bf16_16816(d, f, 0, 0);
    x[threadIdx.x] = d[0];
}

void counted_run(const char* name)
{
    float* x;
    (void)cudaMalloc(&x, FLOATS * sizeof *x);
    (void)cudaMemsetAsync(x, 0, FLOATS * sizeof *x, 0);
#define ON(kernel) \
    if (strcmp(name, #kernel) == 0) LAUNCH(kernel, 1, 32, 0, 0, x)
    ON(copy_floats);
    ON(copy_vectors);
    ON(shifted);
    ON(column);
    ON(one_for_all);
    ON(half_the_lanes);
    ON(twice);
    ON(shared_rows);
    ON(columns_of_32);
    ON(columns_of_33);
    ON(shared_vectors);
    ON(product);
    (void)cudaFree(x);
}
