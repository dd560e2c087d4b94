/* plans.h - what the CUDA device keeps for the attention ops between calls. Level 2.
 *
 * All layers of a batch read one plan. It is made and sent when the first of them asks, and lies in a
 * room of the device that nothing else writes, until another one is sent. */
#pragma once
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/cuda.h"

#include <stdlib.h>

#define GR_UPLOAD_ARRAYS 12

/* The arrays of plan number `number` of `plan`, behind each other from `device` on. */
typedef struct gr_upload {
    const void* plan; /* NULL: none that stays */
    uint64_t number;
    const void* host[GR_UPLOAD_ARRAYS]; /* only while they are sent */
    size_t bytes[GR_UPLOAD_ARRAYS], offset[GR_UPLOAD_ARRAYS];
    char* device;
    size_t used;
    int n;
} gr_upload;

/* Arrays grow and are used again. */
typedef struct gr_cuda_plans {
    gr_pool_plan pool;
    gr_tree_plan tree;
    gr_upload sent;
    void* room;    /* on the device, GR_CUDA_PLAN_ROOM bytes */
    char* staging; /* arrays of a plan, as they go to the device */
    int64_t staging_cap;
} gr_cuda_plans;

gr_cuda_plans* gr_cuda_plans_of(const gr_dev* dev);

static inline void gr_cuda_plans_free(gr_cuda_plans* p)
{
    gr_pool_plan_free(&p->pool);
    gr_tree_plan_free(&p->tree);
    free(p->staging);
}
