/* weights.c - one model's tensor table, initial values, packed matrices and file names. */
#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/safetensors.h"

#define CHUNK      4096 /* elements that pass through the host at a time */
#define FLAT_ALIGN 64   /* elements; every tensor of the flat buffers begins at a multiple */

/* ---- layout ---------------------------------------------------------------------------------- */

/* Appends a tensor (layer -1: outside the layers) and returns its offset. While measuring there is
 * no table, only its length. */
static int64_t add(gr_weights* w, int layer, const char* name, int rows, int cols)
{
    int64_t offset = w->n_params;
    if (w->tensor != NULL) {
        gr_tensor* t = &w->tensor[w->n_tensors];
        *t = (gr_tensor){.offset = offset, .rows = rows, .cols = cols, .decay = rows > 1};
        if (layer < 0) {
            (void)snprintf(t->name, sizeof t->name, "%s", name);
        } else {
            (void)snprintf(t->name, sizeof t->name, "model.layers.%d.%s", layer, name);
        }
    }
    w->n_tensors++;
    w->n_params += ((int64_t)rows * cols + FLAT_ALIGN - 1) / FLAT_ALIGN * FLAT_ALIGN;
    return offset;
}

static void add_layer(gr_weights* w, int l, gr_layer_offsets* at)
{
    const gr_model_config* c = &w->config;
    int qkv = gr_qkv_width(c);
    at->attn_norm = add(w, l, "input_layernorm.weight", 1, c->width);
    at->qkv = add(w, l, "self_attn.qkv_proj.weight", qkv, c->width);
    at->qkv_bias = c->qkv_bias ? add(w, l, "self_attn.qkv_proj.bias", 1, qkv) : -1;
    at->q_norm = c->qk_norm ? add(w, l, "self_attn.q_norm.weight", 1, c->head_dim) : -1;
    at->k_norm = c->qk_norm ? add(w, l, "self_attn.k_norm.weight", 1, c->head_dim) : -1;
    at->attn_out = add(w, l, "self_attn.o_proj.weight", c->width, c->heads * c->head_dim);
    at->mlp_norm = add(w, l, "post_attention_layernorm.weight", 1, c->width);
    at->gate_up = add(w, l, "mlp.gate_up_proj.weight", 2 * c->mlp, c->width);
    at->down = add(w, l, "mlp.down_proj.weight", c->width, c->mlp);
}

/* The matrix that reads hidden rows has one row per token, or per scalar head. */
static int head_rows(const gr_model_config* c)
{
    return c->value_heads > 0 ? c->value_heads : c->vocab;
}

static void add_head(gr_weights* w)
{
    const gr_model_config* c = &w->config;
    w->value_bias = -1;
    if (c->value_heads > 0) {
        w->head = add(w, -1, "value_head.weight", c->value_heads, c->width);
        w->value_bias = add(w, -1, "value_head.bias", 1, c->value_heads);
    } else {
        w->head = c->tied ? w->embed : add(w, -1, "lm_head.weight", c->vocab, c->width);
    }
}

static int count_tensors(const gr_model_config* c)
{
    int head = c->value_heads > 0 ? 2 : !c->tied, around = c->layers > 0 ? 2 : 0;
    return head + around + c->layers * (6 + c->qkv_bias + 2 * c->qk_norm);
}

static void place_packed(const gr_weights* w, gr_packed* p, int rows, int cols, bool train,
                         gr_arena* device)
{
    const gr_ops* op = w->dev->ops;
    p->fwd = gr_arena_push(device, op->matmul_packed_bytes(w->dev, rows, cols, false), 1);
    size_t bwd = train ? op->matmul_packed_bytes(w->dev, rows, cols, true) : 0;
    p->bwd = gr_arena_push(device, bwd, 1);
}

void gr_weights_layout(gr_weights* w, gr_dev* dev, const gr_model_config* config, bool train,
                       gr_arena* host, gr_arena* device)
{
    const gr_model_config* c = config;
    *w = (gr_weights){.config = *config, .dev = dev};
    w->tensor = GR_PUSH(host, gr_tensor, count_tensors(c));
    w->layer = GR_PUSH(host, gr_layer_offsets, c->layers);
    w->packed = GR_PUSH(host, gr_packed_layer, c->layers);
    bool measuring = w->tensor == NULL;

    bool trunk = c->layers > 0;
    w->embed = trunk ? add(w, -1, "model.embed_tokens.weight", c->vocab, c->width) : -1;
    for (int l = 0; l < c->layers; l++) {
        gr_layer_offsets unused;
        add_layer(w, l, measuring ? &unused : &w->layer[l]);
    }
    w->final_norm = trunk ? add(w, -1, "model.norm.weight", 1, c->width) : -1;
    add_head(w);
    GR_ASSERT(w->n_tensors == count_tensors(c));

    w->master = gr_arena_push(device, (size_t)w->n_params, dev->acc_bytes);
    w->value = w->master;
    if (dev->dtype == GR_BF16)
        w->value = gr_arena_push(device, (size_t)w->n_params, dev->real_bytes);
    for (int l = 0; l < c->layers; l++) {
        gr_packed_layer unused, *p = measuring ? &unused : &w->packed[l];
        place_packed(w, &p->qkv, gr_qkv_width(c), c->width, train, device);
        place_packed(w, &p->attn_out, c->width, c->heads * c->head_dim, train, device);
        place_packed(w, &p->gate_up, 2 * c->mlp, c->width, train, device);
        place_packed(w, &p->down, c->width, c->mlp, train, device);
    }
    place_packed(w, &w->packed_head, head_rows(c), c->width, train, device);
}

/* ---- publishing ------------------------------------------------------------------------------ */

static void pack(const gr_weights* w, const gr_packed* p, int64_t offset, int rows, int cols)
{
    const void* value = gr_real_at(w->dev, w->value, offset);
    w->dev->ops->matmul_pack(w->dev, p->fwd, value, rows, cols, false);
    if (p->bwd != NULL) w->dev->ops->matmul_pack(w->dev, p->bwd, value, rows, cols, true);
}

void gr_weights_repack(gr_weights* w)
{
    const gr_model_config* c = &w->config;
    for (int l = 0; l < c->layers; l++) {
        const gr_layer_offsets* at = &w->layer[l];
        const gr_packed_layer* p = &w->packed[l];
        pack(w, &p->qkv, at->qkv, gr_qkv_width(c), c->width);
        pack(w, &p->attn_out, at->attn_out, c->width, c->heads * c->head_dim);
        pack(w, &p->gate_up, at->gate_up, 2 * c->mlp, c->width);
        pack(w, &p->down, at->down, c->width, c->mlp);
    }
    pack(w, &w->packed_head, w->head, head_rows(c), c->width);
    w->version++;
}

void gr_weights_publish(gr_weights* w)
{
    double chunk[CHUNK];
    gr_dev* dev = w->dev;
    for (int64_t i = 0; w->value != w->master && i < w->n_params; i += CHUNK) {
        int64_t n = GR_MIN(CHUNK, w->n_params - i);
        gr_dev_read_acc(dev, chunk, gr_acc_at(dev, w->master, i), n);
        gr_dev_write_real(dev, gr_real_at(dev, w->value, i), chunk, n);
    }
    gr_weights_repack(w);
}

/* ---- initial values -------------------------------------------------------------------------- */

/* Standard normals first .. first + n of the stream `key`, first a multiple of 4. Four come from
 * one Philox block by the Box-Muller transform. */
static void normals(double* out, uint64_t key, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i += 4) {
        uint32_t word[4];
        double z[4];
        gr_philox(key, 0, (uint64_t)(first + i) / 4, word);
        for (int k = 0; k < 4; k += 2) {
            double radius = sqrt(-2 * log((word[k] + 0.5) * 0x1p-32));
            double angle = 2 * M_PI * 0x1p-32 * word[k + 1];
            z[k] = radius * cos(angle);
            z[k + 1] = radius * sin(angle);
        }
        memcpy(out + i, z, (size_t)GR_MIN(4, n - i) * sizeof *z);
    }
}

static bool ends_with(const char* name, const char* end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Scalar heads begin at 0: before they have learnt anything every value is 0. */
static double initial(const gr_tensor* t, double normal, double std)
{
    if (strncmp(t->name, "value_head.", 11) == 0) return 0;
    if (t->rows > 1) return (double)(float)(std * normal); /* one value for fp32 and fp64 masters */
    return ends_with(t->name, "bias") ? 0 : 1;
}

static void init_tensor(gr_weights* w, const gr_tensor* t, uint64_t key)
{
    double chunk[CHUNK] = {0}, std = 0.02;
    bool residual = ends_with(t->name, "o_proj.weight") || ends_with(t->name, "down_proj.weight");
    if (residual) std /= sqrt(2.0 * w->config.layers); /* the residual stream keeps its variance */
    int64_t total = (int64_t)t->rows * t->cols;
    for (int64_t i = 0; i < total; i += CHUNK) {
        int64_t n = GR_MIN(CHUNK, total - i);
        if (t->rows > 1) normals(chunk, key, i, n);
        for (int64_t j = 0; j < n; j++) chunk[j] = initial(t, chunk[j], std);
        gr_dev_write_acc(w->dev, gr_acc_at(w->dev, w->master, t->offset + i), chunk, n);
    }
}

void gr_weights_init(gr_weights* w, uint64_t seed)
{
    for (int i = 0; i < w->n_tensors; i++) {
        init_tensor(w, &w->tensor[i], gr_key_join(seed, (uint64_t)i));
    }
    gr_weights_publish(w);
}

/* ---- files ----------------------------------------------------------------------------------- */

typedef struct lister {
    gr_dev* dev;
    void* flat;
    const char* prefix;
    gr_safetensors_entry* entry; /* NULL: only counts */
    int n;
} lister;

/* The next rows x cols elements at *offset under a name of their own; rows == 1: a vector. */
static void list(lister* s, int layer, const char* name, int64_t* offset, int rows, int cols)
{
    if (s->entry != NULL) {
        gr_safetensors_entry* e = &s->entry[s->n];
        *e = (gr_safetensors_entry){.n_dims = rows > 1 ? 2 : 1,
                                    .data = gr_acc_at(s->dev, s->flat, *offset)};
        e->shape[0] = rows > 1 ? rows : cols;
        e->shape[1] = rows > 1 ? cols : 0;
        if (layer < 0) {
            (void)snprintf(e->name, sizeof e->name, "%s%s", s->prefix, name);
        } else {
            (void)snprintf(e->name, sizeof e->name, "%smodel.layers.%d.%s", s->prefix, layer, name);
        }
    }
    s->n++;
    *offset += (int64_t)rows * cols;
}

static void list_layer(lister* s, const gr_model_config* c, int l, gr_layer_offsets at)
{
    int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    list(s, l, "input_layernorm.weight", &at.attn_norm, 1, c->width);
    list(s, l, "self_attn.q_proj.weight", &at.qkv, q, c->width);
    list(s, l, "self_attn.k_proj.weight", &at.qkv, kv, c->width);
    list(s, l, "self_attn.v_proj.weight", &at.qkv, kv, c->width);
    if (c->qkv_bias) {
        list(s, l, "self_attn.q_proj.bias", &at.qkv_bias, 1, q);
        list(s, l, "self_attn.k_proj.bias", &at.qkv_bias, 1, kv);
        list(s, l, "self_attn.v_proj.bias", &at.qkv_bias, 1, kv);
    }
    if (c->qk_norm) {
        list(s, l, "self_attn.q_norm.weight", &at.q_norm, 1, c->head_dim);
        list(s, l, "self_attn.k_norm.weight", &at.k_norm, 1, c->head_dim);
    }
    list(s, l, "self_attn.o_proj.weight", &at.attn_out, c->width, q);
    list(s, l, "post_attention_layernorm.weight", &at.mlp_norm, 1, c->width);
    list(s, l, "mlp.gate_proj.weight", &at.gate_up, c->mlp, c->width);
    list(s, l, "mlp.up_proj.weight", &at.gate_up, c->mlp, c->width);
    list(s, l, "mlp.down_proj.weight", &at.down, c->width, c->mlp);
}

int gr_weights_entries(const gr_weights* w, void* flat, const char* prefix,
                       gr_safetensors_entry* entry)
{
    const gr_model_config* c = &w->config;
    lister s = {.dev = w->dev, .flat = flat, .prefix = prefix, .entry = entry};
    int64_t embed = w->embed, final_norm = w->final_norm, head = w->head, bias = w->value_bias;
    if (c->layers > 0) list(&s, -1, "model.embed_tokens.weight", &embed, c->vocab, c->width);
    for (int l = 0; l < c->layers; l++) list_layer(&s, c, l, w->layer[l]);
    if (c->layers > 0) list(&s, -1, "model.norm.weight", &final_norm, 1, c->width);
    if (c->value_heads > 0) {
        list(&s, -1, "value_head.weight", &head, c->value_heads, c->width);
        list(&s, -1, "value_head.bias", &bias, 1, c->value_heads);
        return s.n;
    }
    list(&s, -1, "lm_head.weight", &head, c->vocab, c->width);
    /* Tied: some programs write the embedding a second time. */
    if (c->tied && entry != NULL) entry[s.n - 1].data = NULL;
    return s.n;
}

static gr_safetensors_entry* master_entries(const gr_weights* w, int* n)
{
    *n = gr_weights_entries(w, w->master, "", NULL);
    gr_safetensors_entry* entry = malloc((size_t)*n * sizeof *entry);
    GR_ASSERT(entry != NULL, "out of memory");
    gr_weights_entries(w, w->master, "", entry);
    return entry;
}

gr_status gr_weights_save(const gr_weights* w, const char* path)
{
    int n = 0;
    gr_safetensors_entry* entry = master_entries(w, &n);
    gr_status st = gr_safetensors_write(path, w->dev, entry, n, GR_FILE_ACC);
    free(entry);
    return st;
}

gr_status gr_weights_load(gr_weights* w, const char* path)
{
    int n = 0;
    gr_safetensors_entry* entry = master_entries(w, &n);
    gr_status st = gr_safetensors_read(&path, 1, w->dev, entry, n);
    free(entry);
    if (st == GR_OK) gr_weights_publish(w);
    return st;
}

uint64_t gr_weights_hash(const gr_weights* w)
{
    char chunk[CHUNK * sizeof(double)];
    uint64_t hash = 0;
    gr_dev* dev = w->dev;
    for (int i = 0; i < w->n_tensors; i++) {
        const gr_tensor* t = &w->tensor[i];
        int64_t total = (int64_t)t->rows * t->cols;
        for (int64_t k = 0; k < total; k += CHUNK) {
            size_t bytes = (size_t)GR_MIN(CHUNK, total - k) * dev->acc_bytes;
            gr_dev_read(dev, chunk, gr_acc_at(dev, w->master, t->offset + k), bytes);
            hash = gr_hash64(chunk, bytes, hash);
        }
    }
    return hash;
}
