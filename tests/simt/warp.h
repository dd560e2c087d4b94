/* warp.h - barriers, shuffles, votes, reductions and matches of the CUDA language. */
#pragma once
#include <simt.h>

#define SIMT_PC __builtin_return_address(0)

SIMT_INLINE void __syncthreads() { simt::sync_threads(); }
SIMT_INLINE int __syncthreads_count(int p) { return simt::sync_threads_reduce(simt::COUNT, p); }
SIMT_INLINE int __syncthreads_and(int p) { return simt::sync_threads_reduce(simt::AND, p); }
SIMT_INLINE int __syncthreads_or(int p) { return simt::sync_threads_reduce(simt::OR, p); }
SIMT_INLINE void __syncwarp(unsigned mask = 0xffffffffu)
{
    simt::collective(mask, simt::OP_SYNC, simt::Payload{}, nullptr);
}

namespace simt {

template <class T> SIMT_INLINE Payload payload_of(T v)
{
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    Payload p{};
    __builtin_memcpy(p.word, &v, sizeof v);
    return p;
}

/* The value of lane `source`; a negative source keeps the caller's own. */
template <class T> SIMT_INLINE T shuffle(unsigned mask, T v, int source)
{
    const Collective& c = collective(mask, OP_SHUFFLE, payload_of(v), nullptr);
    if (source < 0) return v;
    if (!(c.arrived >> source & 1)) inactive_source(c.pc, source);
    T out;
    __builtin_memcpy(&out, c.in[source].word, sizeof out);
    return out;
}
SIMT_INLINE int segment(int lane, int width) { return lane & ~(width - 1); }

/* Folds the payloads of the lanes that arrived. */
template <class F> SIMT_INLINE unsigned fold(unsigned mask, Op op, unsigned v, unsigned start, F f)
{
    const Collective& c = collective(mask, op, payload_of(v), nullptr);
    unsigned sum = start;
    for (int i = 0; i < 32; i++)
        if (c.arrived >> i & 1) sum = f(sum, c.in[i].word[0], i);
    return sum;
}

} // namespace simt

template <class T> SIMT_INLINE T __shfl_sync(unsigned mask, T v, int source, int width = 32)
{
    return simt::shuffle(mask, v,
                         simt::segment(simt::current->lane, width) | (source & (width - 1)));
}
template <class T> SIMT_INLINE T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32)
{
    const int lane = simt::current->lane, source = lane ^ bits;
    return simt::shuffle(mask, v, source >= simt::segment(lane, width) + width ? -1 : source);
}
template <class T>
SIMT_INLINE T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32)
{
    const int lane = simt::current->lane, source = lane + (int)delta;
    return simt::shuffle(mask, v, source >= simt::segment(lane, width) + width ? -1 : source);
}
template <class T> SIMT_INLINE T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32)
{
    const int lane = simt::current->lane, source = lane - (int)delta;
    return simt::shuffle(mask, v, source < simt::segment(lane, width) ? -1 : source);
}

SIMT_INLINE unsigned __ballot_sync(unsigned mask, int predicate)
{
    return simt::fold(mask, simt::OP_VOTE, predicate != 0, 0,
                      [](unsigned s, unsigned x, int i) { return s | x << i; });
}
SIMT_INLINE int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
SIMT_INLINE int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, !p) == 0; }
SIMT_INLINE unsigned __match_any_sync(unsigned mask, unsigned v)
{
    return simt::fold(mask, simt::OP_MATCH, v, 0,
                      [v](unsigned s, unsigned x, int i) { return s | (unsigned)(x == v) << i; });
}
SIMT_INLINE unsigned __reduce_add_sync(unsigned mask, unsigned v)
{
    return simt::fold(mask, simt::OP_REDUCE, v, 0,
                      [](unsigned s, unsigned x, int) { return s + x; });
}
SIMT_INLINE unsigned __reduce_or_sync(unsigned mask, unsigned v)
{
    return simt::fold(mask, simt::OP_REDUCE, v, 0,
                      [](unsigned s, unsigned x, int) { return s | x; });
}
SIMT_INLINE unsigned __reduce_and_sync(unsigned mask, unsigned v)
{
    return simt::fold(mask, simt::OP_REDUCE, v, ~0u,
                      [](unsigned s, unsigned x, int) { return s & x; });
}
SIMT_INLINE unsigned __reduce_max_sync(unsigned mask, unsigned v)
{
    return simt::fold(mask, simt::OP_REDUCE, v, 0,
                      [](unsigned s, unsigned x, int) { return s > x ? s : x; });
}
SIMT_INLINE unsigned __reduce_min_sync(unsigned mask, unsigned v)
{
    return simt::fold(mask, simt::OP_REDUCE, v, ~0u,
                      [](unsigned s, unsigned x, int) { return s < x ? s : x; });
}
