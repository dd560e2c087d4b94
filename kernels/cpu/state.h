/* state.h - what a cpu device keeps in gr_dev.impl. Level 2. */
#pragma once
#include "kernels/device.h"

/* Elements (acc) of each thread's scratch: copies of operand blocks that fit a level 2 cache. */
#define GR_CPU_SCRATCH ((size_t)448 << 10)

typedef struct gr_cpu_state {
    char* scratch;            /* threads * GR_CPU_SCRATCH * acc_bytes, owned */
    struct gr_onednn* onednn; /* owned; NULL unless matmul is bf16 */
    double mark[2];           /* seconds */
} gr_cpu_state;

static inline void* gr_cpu_scratch(const gr_dev* dev, int thread)
{
    const gr_cpu_state* state = dev->impl;
    return state->scratch + (size_t)thread * GR_CPU_SCRATCH * dev->acc_bytes;
}
