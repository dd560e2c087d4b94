/* port_simt.h - the twins of the instruction wrappers in kernels/cuda/port.cuh. */
#pragma once
#include "tests/simt/warp.h"
#include <simt.h>

namespace port {

SIMT_INLINE uint32_t smem_addr(const void* p) { return simt::shared_offset(p); }

SIMT_INLINE void ldmatrix_x4(uint32_t (&r)[4], uint32_t addr)
{
    const simt::Collective& c =
        simt::collective(~0u, simt::OP_LDMATRIX, simt::payload_of(addr), simt::finish_ldmatrix);
    __builtin_memcpy(r, c.out[simt::current->lane].word, sizeof r);
}
SIMT_INLINE void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t addr)
{
    const simt::Collective& c = simt::collective(~0u, simt::OP_LDMATRIX, simt::payload_of(addr),
                                                 simt::finish_ldmatrix_trans);
    __builtin_memcpy(r, c.out[simt::current->lane].word, sizeof r);
}

/* Payload: a in words 0-3, b in 4-5, d in 6-9. */
SIMT_INLINE void mma_bf16_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    simt::Payload p{};
    __builtin_memcpy(p.word, a, sizeof a);
    p.word[4] = b0;
    p.word[5] = b1;
    __builtin_memcpy(p.word + 6, d, sizeof d);
    const simt::Collective& c = simt::collective(~0u, simt::OP_MMA, p, simt::finish_mma);
    __builtin_memcpy(d, c.out[simt::current->lane].word, sizeof d);
}

SIMT_INLINE void cp_async16(uint32_t dst, const void* src, int bytes = 16)
{
    simt::copy_async(dst, src, bytes);
}
SIMT_INLINE void cp_async_commit() { simt::commit_async(); }
template <int N> SIMT_INLINE void cp_async_wait() { simt::wait_async(N); }

__attribute__((noinline)) static inline void check_ldg16(const void* p)
{
    simt::need_aligned(p, 16, __builtin_return_address(0));
}
SIMT_INLINE uint4 ldg16(const void* p)
{
    check_ldg16(p);
    return *(const uint4*)p;
}

SIMT_INLINE float exp2_approx(float x) { return exp2f(x); }
SIMT_INLINE uint32_t pack_bf16(float low, float high)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(low)) |
           (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(high)) << 16;
}

SIMT_INLINE void bar_sync(int id, int threads) { simt::named_barrier(id, threads); }

} // namespace port
