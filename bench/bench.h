/* bench.h - what the parts of `bench` share: words of the command line, order statistics, the end of
 * a line. Every part checks what it times against fp64 first, and prints one JSON line per case. */
#pragma once
#include "kernels/device.h"
#include "model/config.h"

typedef struct bench_part {
    const char *name, *what;
    void (*list)(void);                   /* cases, keys, defaults */
    gr_status (*run)(int n, char** word); /* words behind the part's name */
} bench_part;

extern const bench_part bench_op, bench_decode, bench_step;

typedef struct bench_options {
    gr_dev_options device;
    int repeats;
} bench_options;

/* A whole number of a part's own. */
typedef struct bench_key {
    const char* name;
    int* value;
    int least;
} bench_key;

/* Takes `word` if it is one of device=NAME, dtype=fp32|bf16, matmul=exact|bf16, attention=exact|fast,
 * threads=N, repeats=N, or one of the n keys; *taken says so. */
GR_MUST_CHECK gr_status bench_take(bench_options* o, const bench_key* key, int n, const char* word,
                                   bool* taken);
/* The same for all words of a part without other words. */
GR_MUST_CHECK gr_status bench_take_all(bench_options* o, const bench_key* key, int n_keys, int n,
                                       char** word);
void bench_list_keys(const bench_key* key, int n);

/* The model of `decode` and `step`: by default the shape of a 135M Llama, a tied head among it. */
gr_model_config bench_model(void);
#define BENCH_MODEL_KEYS(m)                                                                      \
    {"layers", &(m)->layers, 1}, {"width", &(m)->width, 2}, {"heads", &(m)->heads, 1},           \
        {"kv_heads", &(m)->kv_heads, 1}, {"head_dim", &(m)->head_dim, 2}, {"mlp", &(m)->mlp, 1}, \
    {                                                                                            \
        "vocab", &(m)->vocab, 2                                                                  \
    }

typedef struct bench_times {
    double median, p10, p90, best;
} bench_times;
bench_times bench_sort(double* seconds, int n); /* n >= 1 */

/* Ops of the device have run when they return, so that a clock around the call tells their time. */
bool bench_ops_block(const gr_dev* dev);

/* `"device": ..., "commit": ...}` and the end of the line. */
void bench_end_line(const gr_dev* dev);
