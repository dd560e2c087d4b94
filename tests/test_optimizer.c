/* AdamW over the flat buffers: against a plain double version, schedules, clipping, skipping, and a
 * loss that falls. */
#include "tests/net.h"

static gr_optimizer_settings settings(void)
{
    return (gr_optimizer_settings){.lr = 3e-3,
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .eps = 1e-8,
                                   .weight_decay = 0.1,
                                   .grad_clip = 1,
                                   .schedule = GR_COSINE,
                                   .final_ratio = 0.1,
                                   .warmup_steps = 3};
}

static gr_model_config config(void)
{
    gr_model_config c = small_config();
    c.qkv_bias = c.qk_norm = true, c.tied = false;
    return c;
}

/* ---- schedules ------------------------------------------------------------------------------- */

static void rates_follow_their_schedule(void** state)
{
    (void)state;
    gr_optimizer_settings s = {.lr = 2, .final_ratio = 0.25};
    const struct {
        gr_schedule schedule;
        double at_quarter, at_half, at_end;
    } want[] = {{GR_CONSTANT, 2, 2, 2},
                {GR_LINEAR, 1.625, 1.25, 0.5},
                {GR_COSINE, 0.5 + 1.5 * (0.5 + sqrt(0.125)), 1.25, 0.5}};
    for (int i = 0; i < GR_COUNT(want); i++) {
        s.schedule = want[i].schedule;
        assert_true(gr_optimizer_rate(&s, 0, 0) == 2);
        assert_true(fabs(gr_optimizer_rate(&s, 9, 0.25) - want[i].at_quarter) < 1e-14);
        assert_true(fabs(gr_optimizer_rate(&s, 9, 0.5) - want[i].at_half) < 1e-14);
        assert_true(fabs(gr_optimizer_rate(&s, 9, 1) - want[i].at_end) < 1e-14);
        assert_true(gr_optimizer_rate(&s, 9, 1.5) == gr_optimizer_rate(&s, 9, 1));
    }
    s.schedule = GR_CONSTANT, s.warmup_steps = 4;
    for (int step = 0; step < 8; step++) {
        assert_true(gr_optimizer_rate(&s, step, 0) == 2 * fmin(1, (step + 1) / 4.0));
    }
}

/* ---- against a plain version ----------------------------------------------------------------- */

typedef struct plain {
    double *x, *m, *v;
    int64_t step;
} plain;

/* Loshchilov & Hutter 2019, algorithm 2, with the gradient scaled to the clipping norm. */
static void plain_step(plain* o, const net* t, const gr_optimizer_settings* s, const double* g,
                       double lr)
{
    double norm = 0;
    for (int64_t i = 0; i < t->w.n_params; i++) norm += g[i] * g[i];
    norm = sqrt(norm);
    double scale = s->grad_clip > 0 && norm > s->grad_clip ? s->grad_clip / norm : 1;
    o->step++;
    for (int k = 0; k < t->w.n_tensors; k++) {
        const gr_tensor* x = &t->w.tensor[k];
        for (int64_t i = x->offset; i < x->offset + (int64_t)x->rows * x->cols; i++) {
            double d = g[i] * scale;
            o->m[i] = s->beta1 * o->m[i] + (1 - s->beta1) * d;
            o->v[i] = s->beta2 * o->v[i] + (1 - s->beta2) * d * d;
            double m = o->m[i] / (1 - pow(s->beta1, (double)o->step));
            double v = o->v[i] / (1 - pow(s->beta2, (double)o->step));
            o->x[i] -= lr * (m / (sqrt(v) + s->eps) + (x->decay ? s->weight_decay : 0) * o->x[i]);
        }
    }
}

static void set_gradient(net* t, double* g, rng* r, double size)
{
    gr_optimizer_zero_grad(&t->opt);
    memset(g, 0, (size_t)t->w.n_params * sizeof *g);
    for (int k = 0; k < t->w.n_tensors; k++) {
        const gr_tensor* x = &t->w.tensor[k];
        int64_t n = (int64_t)x->rows * x->cols;
        for (int64_t i = 0; i < n; i++) {
            g[x->offset + i] = (double)(float)(size * between(r, -1, 1));
        }
        gr_dev_write_acc(&t->dev, gr_acc_at(&t->dev, t->opt.grad, x->offset), g + x->offset, n);
    }
}

static double step_like_plain(gr_dtype dtype, double grad_clip)
{
    net t;
    rng r = {.key = 3};
    net_open(&t, &(net_options){.config = config(), .dtype = dtype, .threads = 2, .max_tokens = 8});
    gr_optimizer_settings s = settings();
    s.grad_clip = grad_clip;
    size_t n = (size_t)t.w.n_params;
    plain o = {.x = net_read(&t, t.w.master), .m = calloc(n, 8), .v = calloc(n, 8)};
    double *g = malloc(n * sizeof *g), worst = 0;
    for (int step = 0; step < 10; step++) {
        double norm, lr;
        bool skipped;
        set_gradient(&t, g, &r, step % 3 == 0 ? 1e-3 : 1e-1);
        ASSERT_OK(gr_optimizer_step(&t.opt, &s, step / 10.0, &norm, &lr, &skipped));
        assert_false(skipped);
        assert_true(lr == gr_optimizer_rate(&s, step, step / 10.0));
        plain_step(&o, &t, &s, g, lr);
    }
    assert_int_equal(t.opt.step, 10);
    assert_int_equal(t.w.version, 11);
    double* x = net_read(&t, t.w.master);
    for (size_t i = 0; i < n; i++) worst = fmax(worst, fabs(x[i] - o.x[i]));
    for (size_t i = 0; i < n; i++) { /* values follow the masters */
        double v, rounded;
        gr_dev_read_real(&t.dev, &v, gr_real_at(&t.dev, t.w.value, (int64_t)i), 1);
        gr_dev_write_real(&t.dev, t.o.acts.x_last, &x[i], 1);
        gr_dev_read_real(&t.dev, &rounded, t.o.acts.x_last, 1);
        assert_true(v == rounded);
    }
    free(x);
    free(g);
    free(o.x);
    free(o.m);
    free(o.v);
    net_close(&t);
    return worst;
}

static void steps_equal_plain_adamw(void** state)
{
    (void)state;
    for (int clip = 0; clip < 2; clip++) {
        assert_true(step_like_plain(GR_F64, clip) < 1e-14);
        assert_true(step_like_plain(GR_F32, clip) < 1e-6);
        assert_true(step_like_plain(GR_BF16, clip) < 1e-6); /* masters and moments are fp32 */
    }
}

static void the_norm_is_reported_before_clipping(void** state)
{
    (void)state;
    net t;
    rng r = {.key = 4};
    double norm, lr, sum = 0;
    bool skipped;
    net_open(&t,
             &(net_options){.config = config(), .dtype = GR_F64, .threads = 2, .max_tokens = 8});
    const gr_optimizer_settings s = settings();
    double* g = malloc((size_t)t.w.n_params * sizeof *g);
    set_gradient(&t, g, &r, 10);
    for (int64_t i = 0; i < t.w.n_params; i++) sum += g[i] * g[i];
    ASSERT_OK(gr_optimizer_step(&t.opt, &s, 0, &norm, &lr, &skipped));
    assert_true(fabs(norm / sqrt(sum) - 1) < 1e-12);
    free(g);
    net_close(&t);
}

static void a_norm_that_is_not_finite_changes_nothing(void** state)
{
    (void)state;
    net t;
    rng r = {.key = 5};
    net_open(&t,
             &(net_options){.config = config(), .dtype = GR_F32, .threads = 2, .max_tokens = 8});
    const gr_optimizer_settings s = settings();
    const double bad[] = {(double)NAN, HUGE_VAL, -HUGE_VAL};
    size_t bytes = (size_t)t.w.n_params * t.dev.acc_bytes;
    double* g = malloc((size_t)t.w.n_params * sizeof *g);
    void *m = malloc(bytes), *v = malloc(bytes);
    for (int i = 0; i < GR_COUNT(bad); i++) {
        double norm, lr;
        bool skipped = false;
        set_gradient(&t, g, &r, 1);
        ASSERT_OK(gr_optimizer_step(&t.opt, &s, 0, &norm, &lr, &skipped));
        assert_false(skipped);
        gr_dev_read(&t.dev, m, t.opt.m, bytes);
        gr_dev_read(&t.dev, v, t.opt.v, bytes);
        uint64_t hash = gr_weights_hash(&t.w), version = t.w.version;
        int64_t step = t.opt.step;
        set_gradient(&t, g, &r, 1);
        gr_dev_write_acc(&t.dev, gr_acc_at(&t.dev, t.opt.grad, 100 + i), &bad[i], 1);
        ASSERT_OK(gr_optimizer_step(&t.opt, &s, 0, &norm, &lr, &skipped));
        assert_true(skipped);
        assert_true(gr_weights_hash(&t.w) == hash && t.w.version == version);
        assert_int_equal(t.opt.step, step);
        assert_memory_equal(t.opt.m, m, bytes);
        assert_memory_equal(t.opt.v, v, bytes);
    }
    free(g);
    free(m);
    free(v);
    net_close(&t);
}

/* ---- learning -------------------------------------------------------------------------------- */

#define STEPS 10

/* Learns two fixed paths; the loss is the mean over their tokens. */
static void learn(gr_dtype dtype, int threads, bool recompute, double* loss, uint64_t* hash)
{
    net t;
    gr_model_config c = config();
    c.width = 64, c.mlp = 128, c.head_dim = 16;
    net_open(&t, &(net_options){.config = c,
                                .dtype = dtype,
                                .threads = threads,
                                .recompute = recompute,
                                .max_tokens = 256});
    const gr_loss_params nll = {.kind = GR_LOSS_NLL, .temperature = 1};
    gr_optimizer_settings s = settings();
    s.weight_decay = 0.01;
    forest* f = forest_new();
    for (int path = 0; path < 2; path++) {
        int last = -1;
        for (int i = 0; i < 100; i++) {
            last = forest_add(f, last, (i * (path + 2) + 5 * path) % 23, true);
        }
        forest_credit(f, last, 1, 1.0 / 198);
    }
    for (int step = 0; step < STEPS; step++) {
        double norm, lr;
        bool skipped;
        gr_loss_sums sums = {0};
        gr_optimizer_zero_grad(&t.opt);
        ASSERT_OK(gr_objective_step(&t.o, &f->b, &nll, t.opt.grad, &sums));
        ASSERT_OK(gr_optimizer_step(&t.opt, &s, (double)step / STEPS, &norm, &lr, &skipped));
        loss[step] = sums.loss;
    }
    *hash = gr_weights_hash(&t.w);
    free(f);
    net_close(&t);
}

static void the_loss_falls_the_same_way_every_time(void** state)
{
    (void)state;
    const gr_dtype dtypes[] = {GR_F32, GR_BF16};
    for (int k = 0; k < 2; k++) {
        double first[STEPS], again[STEPS];
        uint64_t hash = 0, hash_again = 0;
        learn(dtypes[k], 1, false, first, &hash);
        for (int i = 0; i < 4; i++) {
            learn(dtypes[k], 1 + i % 2, i / 2, again, &hash_again);
            assert_memory_equal(first, again, sizeof first);
            assert_true(hash == hash_again);
        }
        assert_true(fabs(first[0] - log(37)) < 0.1); /* knows nothing yet */
        for (int i = 1; i < STEPS; i++) assert_true(first[i] < first[i - 1]);
        print_message("%s: loss %.4f to %.4f in %d steps\n", k ? "bf16" : "fp32", first[0],
                      first[STEPS - 1], STEPS);
        assert_true(first[STEPS - 1] < first[0] - 0.3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_follow_their_schedule),
        cmocka_unit_test(steps_equal_plain_adamw),
        cmocka_unit_test(the_norm_is_reported_before_clipping),
        cmocka_unit_test(a_norm_that_is_not_finite_changes_nothing),
        cmocka_unit_test(the_loss_falls_the_same_way_every_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
