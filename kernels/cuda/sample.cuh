/* sample.cuh - draws from a part of the vocabulary. */
#pragma once
#include "kernels/cuda/head.cuh"

struct drawn_rows {
    float *logp, *entropy; /* entropy may be NULL */
    int32_t* token;        /* NULL when measuring */
};

/* Draws the restricted rows again, from z (rows, v) and the rows' maxima; others stay as they are. */
void gr_cuda_draw_restricted(cudaStream_t stream, const drawn_rows& out, const float* z,
                             const row_stats* stats, const head_query& q, int64_t rows, int v);
