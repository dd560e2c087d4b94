/* config.h - the shape of a decoder-only transformer as in Llama and Qwen. Level 2. */
#pragma once
#include "kernels/ops.h"

typedef struct gr_model_config {
    int layers, width, heads, kv_heads, head_dim, mlp, vocab;
    int max_context; /* most tokens on one path */
    double rope_theta;
    gr_rope_scaling rope_scaling; /* Llama 3.1 and later */
    float norm_eps;
    bool qkv_bias; /* Qwen2 */
    bool qk_norm;  /* Qwen3 */
    bool tied;     /* head weights are the embedding */
    /* > 0: so many scalar heads take the place of the LM head (model/value.h); without layers they
     * are all there is, and read the hidden rows of another model */
    int value_heads;
} gr_model_config;

static inline int gr_qkv_width(const gr_model_config* c)
{
    return (c->heads + 2 * c->kv_heads) * c->head_dim;
}

/* Of a shape that a file describes: sizes that can be meant, and heads that fit together. `path` names
 * the file in the error. */
GR_MUST_CHECK gr_status gr_model_config_check(const gr_model_config* m, const char* path);
