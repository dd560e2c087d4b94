/* Memory on a GPU by arithmetic: the figures that the design was made with, and that parts add up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "host/gpu_plan.h"
#include "model/weights.h"

#define GIB  1073741824.0
#define H200 ((int64_t)143771 << 20) /* bytes, as its driver says */

static const gr_model_config qwen_7b = {.layers = 28,
                                        .width = 3584,
                                        .heads = 28,
                                        .kv_heads = 4,
                                        .head_dim = 128,
                                        .mlp = 18944,
                                        .vocab = 152064,
                                        .qkv_bias = true};
static const gr_model_config qwen_05b = {.layers = 24,
                                         .width = 896,
                                         .heads = 14,
                                         .kv_heads = 2,
                                         .head_dim = 64,
                                         .mlp = 4864,
                                         .vocab = 151936,
                                         .qkv_bias = true,
                                         .tied = true};

static void near(double got, double want, double tolerance)
{
    if (fabs(got - want) > tolerance) fail_msg("%g, not %g", got, want);
}

/* Qwen2.5-7B on one H200, store everything, micro-batches of 8192 tokens. */
static void a_7b_model_fits_one_card(void** state)
{
    (void)state;
    static const double states[GR_GPU_STATES] = {127.7, 113.5, 99.3, 85.1, 70.9};
    const gr_gpu_request r = {.card_bytes = H200, .microbatch_tokens = 8192, .kv_tokens = 562000};
    gr_gpu_plan p;
    gr_gpu_plan_make(&p, &qwen_7b, &r);
    near((double)p.n_params / 1e9, 7.616, 0.001);
    near((double)p.usable / GIB, 137.4, 0.05);
    for (int i = 0; i < GR_GPU_STATES; i++) near((double)p.way[i].states / GIB, states[i], 0.06);
    near((double)p.token / 1e6, 4.45, 0.01);
    near((double)p.activations / GIB, 33.9, 0.1);
    near((double)p.head / GIB, 0.3, 0.02);
    assert_int_equal(p.kv_token, 57344);
    assert_false(p.way[0].fits || p.way[1].fits);
    assert_true(p.way[2].fits && p.way[3].fits && p.way[4].fits && p.chosen == 2);
    assert_true(p.way[4].kv_tokens > 1120000);
    gr_gpu_plan_log(&p, &r);
}

/* Qwen2.5-0.5B on 24 GB: everything in fp32. */
static void a_small_model_fits_a_small_card(void** state)
{
    (void)state;
    gr_gpu_request r = {.card_bytes = 24000000000, .microbatch_tokens = 8192, .kv_tokens = 200000};
    gr_gpu_plan p;
    gr_gpu_plan_make(&p, &qwen_05b, &r);
    near((double)p.n_params / 1e9, 0.494, 0.001);
    assert_int_equal(p.chosen, 0);
    gr_gpu_plan_log(&p, &r);
    r.card_bytes = 4000000000;
    gr_gpu_plan_make(&p, &qwen_05b, &r);
    assert_int_equal(p.chosen, -1);
    r.card_bytes = 1000; /* less than what the driver takes */
    gr_gpu_plan_make(&p, &qwen_05b, &r);
    assert_true(p.chosen == -1 && p.usable == 0 && p.way[0].kv_tokens == 0);
}

static void layer_inputs_take_less(void** state)
{
    (void)state;
    gr_gpu_request r = {.card_bytes = H200, .microbatch_tokens = 16384, .kv_tokens = 1000};
    gr_gpu_plan all, inputs;
    gr_gpu_plan_make(&all, &qwen_7b, &r);
    near((double)all.activations / GIB, 67.9, 0.2);
    r.recompute = true;
    gr_gpu_plan_make(&inputs, &qwen_7b, &r);
    near((double)inputs.token / 1e6, 0.2, 0.001);
    near((double)inputs.activations / GIB, 3.1 + 2.4, 0.1); /* inputs, and one layer alive */
    r.reference = true;
    gr_gpu_plan_make(&all, &qwen_7b, &r);
    near((double)(all.way[3].total - inputs.way[3].total) / GIB, 14.2, 0.05);
}

/* The weights' own layout counts the same parameters. */
static void parameters_are_those_of_the_layout(void** state)
{
    (void)state;
    for (uint64_t i = 0; i < 200; i++) {
        uint32_t r[4];
        gr_philox(3, 0, i, r);
        gr_model_config c = {.layers = 1 + (int)(r[0] % 4),
                             .width = 2 + (int)(r[1] % 30),
                             .kv_heads = 1 + (int)(r[2] % 3),
                             .head_dim = 2 + 2 * (int)(r[3] % 8),
                             .mlp = 1 + (int)(r[0] >> 8 & 31),
                             .vocab = 3 + (int)(r[1] >> 8 & 63),
                             .qkv_bias = r[2] >> 8 & 1,
                             .qk_norm = r[2] >> 9 & 1,
                             .tied = r[2] >> 10 & 1};
        c.heads = c.kv_heads * (1 + (int)(r[3] >> 8 & 3));
        gr_dev dev;
        gr_weights w;
        gr_arena host = {0}, device = {0};
        assert_int_equal(gr_dev_open(&dev, &(gr_dev_options){.name = "cpu", .threads = 1}), GR_OK);
        gr_weights_layout(&w, &dev, &c, false, &host, &device);
        host = (gr_arena){.base = calloc(1, host.used), .cap = host.used};
        device.used = 0;
        gr_weights_layout(&w, &dev, &c, false, &host, &device);
        int64_t n = 0;
        for (int k = 0; k < w.n_tensors; k++) n += (int64_t)w.tensor[k].rows * w.tensor[k].cols;
        assert_int_equal(n, gr_model_params(&c));
        free(host.base);
        gr_dev_close(&dev);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_7b_model_fits_one_card),
        cmocka_unit_test(a_small_model_fits_a_small_card),
        cmocka_unit_test(layer_inputs_take_less),
        cmocka_unit_test(parameters_are_those_of_the_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
