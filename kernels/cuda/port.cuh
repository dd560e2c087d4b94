/* port.cuh - the one header of CUDA that a kernel includes. Level 2.
 *
 * nvcc: the CUDA runtime and wrappers of the PTX instructions that have no intrinsic. Any other
 * compiler: tests/simt/simt.h, which gives the same names to C++ and runs them on the CPU. A wrapper
 * is added as a pair, here and in tests/simt/port_simt.h.
 *
 * So that both can read a kernel:
 *   - launch with LAUNCH(kernel, grid, block, shared_bytes, stream, args...), at least one argument;
 *     a kernel with a comma in its template arguments stands in parentheses
 *   - dynamic shared memory with DYN_SHARED(type, name), static with __shared__ in the function
 *   - no inline asm, no cooperative groups, no dynamic parallelism; every warp collective names
 *     exactly the lanes that take part
 *   - a loop that waits for another thread waits with an atomic */
#pragma once

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)

#define DYN_SHARED(type, name)                                      \
    extern __shared__ __align__(128) unsigned char port_dynamic_[]; \
    type* const name = reinterpret_cast<type*>(port_dynamic_)

namespace port {

/* The 32-bit address that ldmatrix and cp.async take. */
__device__ __forceinline__ uint32_t smem_addr(const void* p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Four 8x8 matrices of 16-bit elements; lanes 8i .. 8i+7 give the addresses of matrix i's rows. */
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

/* d (16x8 fp32) += a (16x16 bf16, row-major) b (16x8 bf16, column-major), in fragments. */
__device__ __forceinline__ void mma_bf16_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Starts a copy of 16 bytes to shared memory, past the L1 cache: `bytes` (0 .. 16) from src, zeros
 * behind them. Both addresses are 16-byte aligned. */
__device__ __forceinline__ void cp_async16(uint32_t dst, const void* src, int bytes = 16)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(dst), "l"(src), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits until at most N of this thread's committed groups are still under way. */
template <int N> __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}

/* 16 bytes that no one writes during the launch, read once: leaves no line in the L1 cache. */
__device__ __forceinline__ uint4 ldg16(const void* p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* 2^x, good to two units in the last place; subnormal numbers are 0. */
__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two bf16 in one word, rounded to nearest, ties to even. */
__device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

/* Barrier `id` (1 .. 15) of `threads` threads, whole warps. */
__device__ __forceinline__ void bar_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

} // namespace port

#else
#include <simt.h>
#endif
