/* bench_decode.h - how fast a model samples, and where the time goes. */
#pragma once
#include <stdio.h>

#include "kernels/device.h"
#include "model/config.h"

typedef struct gr_bench_decode_options {
    gr_model_config model;
    gr_dev_options device;
    int repeats; /* the best of so many runs is reported */
} gr_bench_decode_options;

/* The shape of a 135M Llama: 30 layers, width 576, vocabulary 49152. */
gr_model_config gr_bench_model_135m(void);

/* Decodes batches of 1, 8 and 32 paths of 32 to 80 tokens and 32 leaves of one 1,000-token prefix with
 * random weights, greedily and sampled. Writes one JSON line per case: tokens per second, milliseconds
 * per step, and each op's share of the time. */
GR_MUST_CHECK gr_status gr_bench_decode(const gr_bench_decode_options* o, FILE* out);
