/* weights.h - the parameters of one model on a device. Level 2.
 *
 * Everything lives in flat acc buffers with one tensor table (masters here, gradients and moments in
 * the optimizer use the same offsets), so that norms, reductions and checkpoints are loops over one
 * array. Projections that share an input are stored fused: qkv rows are [q; k; v], gate_up rows are
 * [gate; up]; files carry the usual separate names, which are row ranges of the fused tensors. */
#pragma once
#include "host/arena.h"
#include "kernels/ops.h"
#include "model/config.h"

typedef struct gr_tensor {
    char name[64];  /* Hugging Face name, e.g. "model.layers.0.self_attn.qkv_proj.weight" (fused) */
    int64_t offset; /* elements into the flat buffers, a multiple of 64 */
    int rows, cols; /* vectors: rows = 1 */
    bool decay;     /* weight decay applies: matrices, not norms or biases */
} gr_tensor;

/* Offsets of one layer's tensors into the flat buffers. -1: the model has no such tensor. */
typedef struct gr_layer_offsets {
    int64_t attn_norm, qkv, qkv_bias, q_norm, k_norm, attn_out, mlp_norm, gate_up, down;
} gr_layer_offsets;

/* One weight matrix packed for y = x w^T and, in models that train, for dx = dy w. */
typedef struct gr_packed {
    void *fwd, *bwd;
} gr_packed;
typedef struct gr_packed_layer {
    gr_packed qkv, attn_out, gate_up, down;
} gr_packed_layer;

typedef struct gr_weights {
    gr_model_config config;
    gr_dev* dev; /* borrowed */
    gr_tensor* tensor;
    gr_layer_offsets* layer;
    int64_t embed, final_norm, head; /* head == embed when tied; -1: none, without layers */
    int64_t value_bias;              /* of scalar heads; -1: an LM head */
    int n_tensors;
    int64_t n_params;        /* flat length, padding included */
    void* master;            /* (n_params) acc */
    void* value;             /* (n_params) real; == master unless the device is BF16 */
    gr_packed_layer* packed; /* (layers) */
    gr_packed packed_head;
    uint64_t version; /* +1 at every change; KV pages remember it */
} gr_weights;

/* Fills the table and places the buffers: `host` for tables, `device` for tensors. Run once on
 * measuring arenas and once on real ones. `train`: also the packing that the backward needs. */
void gr_weights_layout(gr_weights* w, gr_dev* dev, const gr_model_config* config, bool train,
                       gr_arena* host, gr_arena* device);
/* Normal(0, 0.02) matrices, residual outputs scaled by 1/sqrt(2 layers),
 * ones for norms, zeros for biases; the same values on every device and dtype for one seed. */
void gr_weights_init(gr_weights* w, uint64_t seed);
/* After any change of masters: rounds to real, packs, version + 1. */
void gr_weights_publish(gr_weights* w);
/* The same where `value` is up to date already, as after AdamW: packs, version + 1. */
void gr_weights_repack(gr_weights* w);

/* safetensors with Hugging Face names, fp32. Load checks names, shapes and dtypes: an error names the
 * file and the tensor, and leaves the weights untouched. Save writes to `path` directly; callers that
 * need atomic replacement write to a folder of their own (host/record.h). */
GR_MUST_CHECK gr_status gr_weights_save(const gr_weights* w, const char* path);
GR_MUST_CHECK gr_status gr_weights_load(gr_weights* w, const char* path);
/* What a file holds of a flat buffer laid out as the masters (the moments are such buffers too): one
 * entry per separate tensor, `prefix` before its name, for gr_safetensors_write and _read. Returns how
 * many there are; entry NULL: only counts. */
struct gr_safetensors_entry;
int gr_weights_entries(const gr_weights* w, void* flat, const char* prefix,
                       struct gr_safetensors_entry* entry);
uint64_t gr_weights_hash(const gr_weights* w); /* of the masters' bits, padding excluded */
