/* plans.h - what the CUDA device keeps for the attention ops between calls. Level 2. */
#pragma once
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/cuda.h"

#include <stdlib.h>

/* Arrays grow and are used again. */
typedef struct gr_cuda_plans {
    gr_pool_plan pool;
    gr_tree_plan tree;
    char* upload; /* arrays of a plan, as they go to the device */
    int64_t upload_cap;
} gr_cuda_plans;

gr_cuda_plans* gr_cuda_plans_of(const gr_dev* dev);

static inline void gr_cuda_plans_free(gr_cuda_plans* p)
{
    gr_pool_plan_free(&p->pool);
    gr_tree_plan_free(&p->tree);
    free(p->upload);
}
