/* The network as a whole: gradients against finite differences, trees against flat rows, sampling
 * against training, memory against its plan. */
#include "tests/net.h"

#include "tests/allocations.h"

/* ---- gradients ------------------------------------------------------------------------------- */

static const gr_loss_params full_loss = {
    .kind = GR_LOSS_POLICY,
    .clip_low = 0.2,
    .clip_high = 0.3,
    .dual_clip = 3,
    .kl = GR_KL_K3,
    .kl_coef = 0.3,
    .entropy_coef = 0.05,
    .temperature = 0.8f,
};

static double loss_of(net* t, const gr_batch* b, const gr_loss_params* p)
{
    gr_loss_sums sums = {0};
    gr_optimizer_zero_grad(&t->opt);
    ASSERT_OK(gr_objective_step(&t->o, b, p, t->opt.grad, &sums));
    return sums.loss;
}

/* Fourth-order central difference of the loss by one parameter. */
static double slope(net* t, const gr_batch* b, const gr_loss_params* p, int64_t at, double h)
{
    static const struct {
        double step, weight;
    } stencil[] = {{-2, 1}, {-1, -8}, {1, 8}, {2, -1}};
    void* x = gr_acc_at(&t->dev, t->w.master, at);
    double centre = 0, sum = 0;
    gr_dev_read_acc(&t->dev, &centre, x, 1);
    for (int i = 0; i < GR_COUNT(stencil); i++) {
        double moved = centre + stencil[i].step * h;
        gr_dev_write_acc(&t->dev, x, &moved, 1);
        gr_weights_publish(&t->w);
        sum += stencil[i].weight * loss_of(t, b, p);
    }
    gr_dev_write_acc(&t->dev, x, &centre, 1);
    gr_weights_publish(&t->w);
    return sum / (12 * h);
}

static double largest(const double* x, int64_t n)
{
    double m = 0;
    for (int64_t i = 0; i < n; i++) m = fmax(m, fabs(x[i]));
    return m;
}

/* Random coordinates of every tensor, and its largest one. Returns the worst error relative to the
 * tensor's largest gradient. */
static double gradient_error(net* t, const gr_batch* b, const gr_loss_params* p, rng* r)
{
    double worst = 0;
    loss_of(t, b, p);
    double* g = net_read(t, t->opt.grad);
    for (int i = 0; i < t->w.n_tensors; i++) {
        const gr_tensor* x = &t->w.tensor[i];
        int64_t n = (int64_t)x->rows * x->cols;
        double size = largest(g + x->offset, n);
        assert_true(size > 1e-5); /* a tensor without gradient would test nothing */
        for (int k = 0; k < 3; k++) {
            int64_t at = x->offset + below(r, (int)n);
            for (int64_t j = 0; k == 0 && j < n; j++) {
                if (fabs(g[x->offset + j]) == size) at = x->offset + j;
            }
            double error = fabs(g[at] - slope(t, b, p, at, 1e-4)) / size;
            if (error > 1e-8) {
                print_message("%s[%lld]: gradient %g, error %g\n", x->name,
                              (long long)(at - x->offset), g[at], error);
            }
            worst = fmax(worst, error);
        }
    }
    free(g);
    return worst;
}

static gr_model_config shape(int i)
{
    gr_model_config c = small_config();
    switch (i) {
    case 1:
        c.tied = false, c.qkv_bias = true;
        break;
    case 2:
        c.qk_norm = true, c.kv_heads = 1;
        break;
    case 3:
        c.tied = false, c.qk_norm = true, c.qkv_bias = true, c.kv_heads = 4;
        break;
    case 4:
        c.layers = 3, c.width = 17, c.mlp = 19, c.head_dim = 6;
        break;
    default:
        break;
    }
    return c;
}

static void gradients_match_finite_differences(void** state)
{
    (void)state;
    rng r = {.key = 1};
    for (int i = 0; i < 5; i++) {
        net t;
        net_open(&t, &(net_options){.config = shape(i),
                                    .dtype = GR_F64,
                                    .threads = 1,
                                    .recompute = i % 2 == 1,
                                    .max_tokens = 400});
        net_randomise(&t, 10 + (uint64_t)i, 0.5);
        forest* f = forest_random(&r, t.w.config.vocab, 1, 2, 4);
        forest_set_policies(f, &t, &r);
        double worst = gradient_error(&t, &f->b, &full_loss, &r);
        print_message("shape %d: %d tokens, worst relative error %.1e\n", i, f->b.n_tokens, worst);
        assert_true(worst <= 1e-8);
        free(f);
        net_close(&t);
    }
}

static void recompute_gives_the_same_bits(void** state)
{
    (void)state;
    const gr_dtype dtypes[] = {GR_F32, GR_BF16, GR_F64};
    for (int i = 0; i < 3; i++) {
        rng r = {.key = 5};
        forest* f = forest_random(&r, 37, 2, 2, 4);
        double* grad[2];
        int64_t n = 0;
        for (int recompute = 0; recompute < 2; recompute++) {
            net t;
            net_open(&t, &(net_options){.config = shape(3),
                                        .dtype = dtypes[i],
                                        .threads = 1,
                                        .recompute = recompute,
                                        .max_tokens = 400});
            rng again = {.key = 6};
            net_randomise(&t, 3, 0.5);
            forest_set_policies(f, &t, &again);
            loss_of(&t, &f->b, &full_loss);
            grad[recompute] = net_read(&t, t.opt.grad);
            n = t.w.n_params;
            net_close(&t);
        }
        assert_memory_equal(grad[0], grad[1], (size_t)n * sizeof(double));
        assert_true(largest(grad[0], n) > 0);
        free(grad[0]);
        free(grad[1]);
        free(f);
    }
}

/* ---- the tree equals its flat rows ----------------------------------------------------------- */

static double norm_of(const double* a, const double* b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = a[i] - (b != NULL ? b[i] : 0);
        sum += d * d;
    }
    return sqrt(sum);
}

static gr_loss_params random_loss(rng* r)
{
    gr_loss_params p = full_loss;
    p.kl = (gr_kl)below(r, 4);
    p.dual_clip = below(r, 2) ? 3 : 0;
    p.entropy_coef = below(r, 2) ? 0.05 : 0;
    p.temperature = (float)between(r, 0.5, 1.5);
    return p;
}

/* Largest relative difference over the tensors' gradients and the weighted sums. */
static double tree_error(net* t, const forest* tree, const forest* flat, const gr_loss_params* p)
{
    gr_loss_sums a = {0}, b = {0};
    gr_optimizer_zero_grad(&t->opt);
    ASSERT_OK(gr_objective_step(&t->o, &tree->b, p, t->opt.grad, &a));
    double* ga = net_read(t, t->opt.grad);
    gr_optimizer_zero_grad(&t->opt);
    ASSERT_OK(gr_objective_step(&t->o, &flat->b, p, t->opt.grad, &b));
    double* gb = net_read(t, t->opt.grad);
    const double pair[][2] = {{a.loss, b.loss},       {a.weight, b.weight},
                              {a.entropy, b.entropy}, {a.kl_old, b.kl_old},
                              {a.kl_ref, b.kl_ref},   {a.max_abs_dlogp, b.max_abs_dlogp}};
    /* A token that leaves of both signs share counts as cut with all its weight if one sign is. */
    assert_true(a.clip_low >= b.clip_low - 1e-9 && a.clip_high >= b.clip_high - 1e-9);
    assert_true(b.clip_low > 0 && b.clip_high > 0);
    double worst = 0;
    for (int i = 0; i < GR_COUNT(pair); i++) {
        worst = fmax(worst, fabs(pair[i][0] - pair[i][1]) / fmax(fabs(pair[i][1]), 0.1));
    }
    for (int i = 0; i < t->w.n_tensors; i++) {
        const gr_tensor* x = &t->w.tensor[i];
        int64_t n = (int64_t)x->rows * x->cols;
        double size = norm_of(gb + x->offset, NULL, n);
        assert_true(size > 0);
        worst = fmax(worst, norm_of(ga + x->offset, gb + x->offset, n) / size);
    }
    free(ga);
    free(gb);
    return worst;
}

static void trees_equal_flat_rows(void** state)
{
    (void)state;
    const struct {
        gr_dtype dtype;
        double bound;
    } at[] = {{GR_F64, 1e-12}, {GR_F32, 1e-5}};
    for (int i = 0; i < GR_COUNT(at); i++) {
        double worst = 0, tokens = 0, flat_tokens = 0;
        rng r = {.key = 2};
        for (int k = 0; k < 8; k++) {
            net t;
            net_open(&t, &(net_options){.config = shape(k % 5),
                                        .dtype = at[i].dtype,
                                        .threads = 2,
                                        .recompute = k % 2,
                                        .max_tokens = MAX_TOKENS});
            net_randomise(&t, 20 + (uint64_t)k, 0.5);
            forest* tree = forest_random(&r, t.w.config.vocab, 1 + k % 3, 3, 5);
            forest_set_policies(tree, &t, &r);
            forest* flat = forest_flatten(tree);
            const gr_loss_params p = random_loss(&r);
            worst = fmax(worst, tree_error(&t, tree, flat, &p));
            tokens += tree->b.n_tokens, flat_tokens += flat->b.n_tokens;
            free(tree);
            free(flat);
            net_close(&t);
        }
        print_message("%s: %.0f tree tokens for %.0f flat ones, worst relative difference %.1e\n",
                      at[i].dtype == GR_F64 ? "fp64" : "fp32", tokens, flat_tokens, worst);
        assert_true(worst <= at[i].bound);
    }
}

/* ---- sampling equals training ---------------------------------------------------------------- */

#define MAX_LEAVES 64
#define MAX_PAGES  16
#define MAX_ROWS   300

/* Every leaf of a forest as a page table. Full pages that two paths have in common are shared; rows
 * are the tokens that fill some page, each once. */
typedef struct paged {
    int32_t page[MAX_LEAVES][MAX_PAGES];
    int n_pages, n_rows;
    struct {
        int leaf, position, token;
    } row[MAX_TOKENS];
} paged;

static void paged_make(paged* p, const forest* f)
{
    int page_of[MAX_TOKENS]; /* by the last token of a full page */
    memset(page_of, -1, sizeof page_of);
    memset(p, 0, sizeof *p);
    assert_true(f->n_leaves <= MAX_LEAVES && f->b.max_path <= MAX_PAGES * GR_PAGE);
    for (int l = 0; l < f->n_leaves; l++) {
        int path[MAX_PAGES * GR_PAGE], len = f->position[f->leaf[l].end] + 1;
        for (int i = f->leaf[l].end; i >= 0; i = f->parent[i]) path[f->position[i]] = i;
        for (int first = 0; first < len; first += GR_PAGE) {
            int last = first + GR_PAGE - 1;
            int* known = last < len ? &page_of[path[last]] : NULL;
            p->page[l][first / GR_PAGE] = known != NULL && *known >= 0 ? *known : p->n_pages;
            if (known != NULL && *known >= 0) continue;
            if (known != NULL) *known = p->n_pages;
            p->n_pages++;
            for (int i = first; i < len && i <= last; i++) {
                p->row[p->n_rows].leaf = l;
                p->row[p->n_rows].position = i;
                p->row[p->n_rows++].token = path[i];
            }
        }
    }
}

/* One forward over rows order[0 .. n): plan rows are sorted by leaf and position, tasks hold at
 * most `group` rows of one leaf. */
typedef struct page_batch {
    int32_t token[MAX_ROWS], position[MAX_ROWS], slot[MAX_ROWS], row[MAX_ROWS], n_keys[MAX_ROWS];
    gr_page_unit unit[MAX_ROWS * MAX_PAGES];
    gr_page_task task[MAX_ROWS];
    gr_page_plan plan;
} page_batch;

static const paged* sort_by;
static const int* sort_order;
static int by_leaf(const void* a, const void* b)
{
    int i = sort_order[*(const int32_t*)a], j = sort_order[*(const int32_t*)b];
    int leaves = sort_by->row[i].leaf - sort_by->row[j].leaf;
    return leaves != 0 ? leaves : sort_by->row[i].position - sort_by->row[j].position;
}

static void plan_task(page_batch* b, const paged* p, const int* order, int begin, int end)
{
    gr_page_plan* plan = &b->plan;
    gr_page_task* task = &b->task[plan->n_tasks++];
    *task = (gr_page_task){begin, end, plan->n_units, plan->n_units, b->n_keys[end - 1]};
    int leaf = p->row[order[b->row[begin]]].leaf, from = begin;
    for (int first = 0; first < task->max_keys; first += GR_PAGE) {
        while (b->n_keys[from] <= first) from++;
        b->unit[plan->n_units++] = (gr_page_unit){p->page[leaf][first / GR_PAGE], first, from, end};
    }
    task->unit_end = plan->n_units;
}

static void page_batch_make(page_batch* b, const paged* p, const forest* f, const int* order, int n,
                            int group)
{
    for (int i = 0; i < n; i++) {
        int leaf = p->row[order[i]].leaf, position = p->row[order[i]].position;
        b->token[i] = f->token[p->row[order[i]].token];
        b->position[i] = position;
        b->slot[i] = p->page[leaf][position / GR_PAGE] * GR_PAGE + position % GR_PAGE;
        b->row[i] = i;
    }
    sort_by = p, sort_order = order;
    qsort(b->row, (size_t)n, sizeof *b->row, by_leaf);
    for (int i = 0; i < n; i++) b->n_keys[i] = b->position[b->row[i]] + 1;
    b->plan = (gr_page_plan){b->row, b->n_keys, b->unit, b->task, n, 0, 0};
    for (int begin = 0, end = 0; begin < n; begin = end) {
        int leaf = p->row[order[b->row[begin]]].leaf;
        while (end < n && end - begin < group && p->row[order[b->row[end]]].leaf == leaf) end++;
        plan_task(b, p, order, begin, end);
    }
}

/* A network that samples: its own activations and pool beside the trainer's. */
typedef struct sampler {
    net* t;
    gr_acts acts;
    gr_arena host, device;
    void *pool, *hidden, *scratch, *logp; /* hidden: (tokens, c), gathered */
} sampler;

static void sampler_layout(sampler* s, int n_pages, int n_tokens)
{
    gr_dev* dev = &s->t->dev;
    const gr_model_config* c = &s->t->w.config;
    gr_acts_layout(&s->acts, &s->t->w, MAX_ROWS, c->max_context, false, false, &s->host,
                   &s->device);
    size_t page = dev->ops->kv_page_bytes(dev, c->kv_heads, c->head_dim);
    s->pool = gr_arena_push(&s->device, (size_t)c->layers * (size_t)n_pages, page);
    s->hidden = gr_arena_push(&s->device, (size_t)n_tokens * (size_t)c->width, dev->real_bytes);
    s->logp = gr_arena_push(&s->device, (size_t)n_tokens, dev->acc_bytes);
    s->scratch =
        gr_arena_push(&s->device, dev->ops->head_scratch(dev, n_tokens, c->width, c->vocab), 1);
}

static void sampler_open(sampler* s, net* t, int n_pages, int n_tokens)
{
    memset(s, 0, sizeof *s);
    s->t = t;
    sampler_layout(s, n_pages, n_tokens);
    net_take(t, &s->host, true);
    net_take(t, &s->device, false);
    memset(s->device.base, 0xff, s->device.cap); /* nothing may depend on what was there */
    sampler_layout(s, n_pages, n_tokens);
}

static void sampler_close(sampler* s)
{
    free(s->host.base);
    gr_dev_free(&s->t->dev, s->device.base);
}

/* Forwards all rows in batches of `batch`, and gathers their hidden states by token. */
static void sample_all(sampler* s, const forest* f, const paged* p, const int* order, int batch,
                       int group)
{
    page_batch* b = malloc(sizeof *b);
    size_t row_bytes = (size_t)s->t->w.config.width * s->t->dev.real_bytes;
    memset(s->hidden, 0, (size_t)f->b.n_tokens * row_bytes);
    for (int first = 0; first < p->n_rows; first += batch) {
        int n = GR_MIN(batch, p->n_rows - first);
        page_batch_make(b, p, f, order + first, n, group);
        gr_rows rows = {
            .token = b->token,
            .position = b->position,
            .n = n,
            .pages = &b->plan,
            .pool = s->pool,
            .pool_pages = p->n_pages,
            .slot = b->slot,
        };
        gr_transformer_forward(&s->t->w, &rows, &s->acts);
        for (int i = 0; i < n; i++) {
            size_t to = (size_t)p->row[order[first + i]].token;
            memcpy((char*)s->hidden + to * row_bytes, (char*)s->acts.hidden + (size_t)i * row_bytes,
                   row_bytes);
        }
    }
    free(b);
}

static void sample_logp(sampler* s, const forest* f, float temperature, double* out)
{
    gr_dev* dev = &s->t->dev;
    const gr_model_config* c = &s->t->w.config;
    gr_sampling* how = calloc((size_t)f->b.n_rows, sizeof *how);
    for (int u = 0; u < f->b.n_rows; u++) how[u].temperature = temperature, how[u].top_p = 1;
    dev->ops->head(dev, s->logp, NULL, NULL, s->hidden, s->t->w.packed_head.fwd, f->src, f->target,
                   how, NULL, NULL, f->b.n_rows, c->width, c->vocab, s->scratch);
    gr_dev_read_acc(dev, out, s->logp, f->b.n_rows);
    free(how);
}

static gr_model_config parity_config(void)
{
    gr_model_config c = small_config();
    c.width = 48, c.head_dim = 16, c.mlp = 80, c.vocab = 101, c.qk_norm = true, c.qkv_bias = true;
    c.max_context = MAX_PAGES * GR_PAGE;
    return c;
}

/* Rows in leaf order, or by position, which mixes the leaves. */
static void make_order(int* order, const paged* p, bool by_position)
{
    int n = 0;
    for (int at = 0; n < p->n_rows; at++) {
        for (int i = 0; i < p->n_rows; i++) {
            if (by_position ? p->row[i].position == at : i == at) order[n++] = i;
        }
    }
}

static void check_parity(gr_dtype dtype, int threads, const forest* f, const paged* p,
                         double* logp_bits)
{
    net t;
    sampler s;
    int order[MAX_TOKENS];
    double logp[MAX_TOKENS];
    gr_loss_params params = full_loss;
    params.temperature = 0.7f;
    net_open(&t, &(net_options){.config = parity_config(),
                                .dtype = dtype,
                                .threads = threads,
                                .max_tokens = MAX_TOKENS});
    net_randomise(&t, 4, 0.2);
    sampler_open(&s, &t, p->n_pages, f->b.n_tokens);
    loss_of(&t, &f->b, &params);
    size_t logp_bytes = (size_t)f->b.n_rows * sizeof(double);
    if (threads == 1) memcpy(logp_bits, t.o.host_logp, logp_bytes);
    assert_memory_equal(t.o.host_logp, logp_bits, logp_bytes);
    const int batches[] = {1, 2, 7, 300};
    for (int i = 0; i < 16; i++) {
        make_order(order, p, i & 4);
        sample_all(&s, f, p, order, batches[i % 4], i & 8 ? 1 : GR_TASK_ROWS);
        assert_memory_equal(s.hidden, t.o.acts.hidden,
                            (size_t)f->b.n_tokens * (size_t)t.w.config.width * t.dev.real_bytes);
        sample_logp(&s, f, params.temperature, logp);
        assert_memory_equal(logp, logp_bits, logp_bytes);
    }
    sampler_close(&s);
    net_close(&t);
}

static void sampling_equals_training(void** state)
{
    (void)state;
    rng r = {.key = 8};
    forest* f = forest_random(&r, parity_config().vocab, 3, 3, 13);
    paged* p = malloc(sizeof *p);
    double* logp = malloc(MAX_TOKENS * sizeof *logp);
    paged_make(p, f);
    print_message("%d tokens, longest path %d, %d leaves, %d page rows in %d pages\n",
                  f->b.n_tokens, f->b.max_path, f->n_leaves, p->n_rows, p->n_pages);
    assert_true(p->n_rows > f->b.n_tokens && f->b.max_path > 2 * GR_PAGE);
    for (int threads = 1; threads <= 2; threads++) {
        check_parity(GR_F32, threads, f, p, logp);
    }
    for (int threads = 1; threads <= 2; threads++) {
        check_parity(GR_BF16, threads, f, p, logp);
    }
    free(logp);
    free(p);
    free(f);
}

/* gr_objective_logp, the reference model's forward, measures the same bits as the training step. */
static void logp_alone_equals_training(void** state)
{
    (void)state;
    const gr_dtype dtypes[] = {GR_F32, GR_BF16, GR_F64};
    rng r = {.key = 9};
    forest* f = forest_random(&r, parity_config().vocab, 2, 3, 9);
    for (int i = 0; i < 3; i++) {
        net train, eval;
        net_options s = {
            .config = parity_config(), .dtype = dtypes[i], .threads = 2, .max_tokens = MAX_TOKENS};
        net_open(&train, &s);
        s.eval = true;
        net_open(&eval, &s);
        double logp[MAX_TOKENS];
        loss_of(&train, &f->b, &full_loss);
        ASSERT_OK(gr_objective_logp(&eval.o, &f->b, full_loss.temperature, logp));
        assert_memory_equal(logp, train.o.host_logp, (size_t)f->b.n_rows * sizeof *logp);
        net_close(&train);
        net_close(&eval);
    }
    free(f);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void nothing_allocates_after_the_first_step(void** state)
{
    (void)state;
    if (!COUNTS_ALLOCATIONS) skip();
    free(malloc(8));
    assert_true(allocations > 0);
    const gr_dtype dtypes[] = {GR_F32, GR_BF16};
    rng r = {.key = 9};
    forest* f = forest_random(&r, parity_config().vocab, 2, 3, 9);
    for (int i = 0; i < 4; i++) {
        net t;
        double norm, lr;
        bool skipped;
        const gr_optimizer_settings adam = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
        net_open(&t, &(net_options){.config = parity_config(),
                                    .dtype = dtypes[i / 2],
                                    .threads = 2,
                                    .recompute = i % 2,
                                    .max_tokens = MAX_TOKENS});
        long before = 0;
        for (int step = 0; step < 4; step++) {
            if (step == 1) before = allocations;
            loss_of(&t, &f->b, &full_loss);
            ASSERT_OK(gr_optimizer_step(&t.opt, &adam, 0, &norm, &lr, &skipped));
        }
        assert_int_equal(allocations - before, 0);
        net_close(&t);
    }
    free(f);
}

static void memory_equals_its_plan(void** state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < 8; k++) {
            net t;
            net_open(&t, &(net_options){.config = shape(i),
                                        .dtype = k & 1 ? GR_BF16 : GR_F32,
                                        .recompute = k & 2,
                                        .eval = k & 4,
                                        .max_tokens = 100});
            const gr_arena* a[] = {&t.host, &t.device, &t.work};
            for (int j = 0; j < 3; j++) {
                assert_int_equal(a[j]->used, a[j]->cap);
                assert_int_equal(a[j]->peak, a[j]->cap);
            }
            net_close(&t);
        }
    }
}

/* Activations may hold anything before a step, so their block can serve other phases. */
static void activations_need_no_clearing(void** state)
{
    (void)state;
    rng r = {.key = 12};
    forest *f = forest_random(&r, 37, 2, 2, 5), *small = forest_random(&r, 37, 1, 1, 2);
    for (int recompute = 0; recompute < 2; recompute++) {
        net t;
        net_open(&t, &(net_options){.config = shape(3),
                                    .dtype = GR_F32,
                                    .threads = 2,
                                    .recompute = recompute,
                                    .max_tokens = MAX_TOKENS});
        net_randomise(&t, 3, 0.5);
        double first = loss_of(&t, &f->b, &full_loss);
        double* clean = net_read(&t, t.opt.grad);
        loss_of(&t, &small->b, &full_loss);
        memset(t.work.base, 0xff, t.work.cap);
        assert_true(loss_of(&t, &f->b, &full_loss) == first);
        double* dirty = net_read(&t, t.opt.grad);
        assert_memory_equal(clean, dirty, (size_t)t.w.n_params * sizeof *clean);
        free(clean);
        free(dirty);
        net_close(&t);
    }
    free(f);
    free(small);
}

static void a_batch_that_predicts_nothing_changes_nothing(void** state)
{
    (void)state;
    net t;
    net_open(&t, &(net_options){.config = shape(0), .dtype = GR_F32, .max_tokens = 100});
    forest* f = forest_new();
    gr_loss_sums sums = {0}, zero = {0};
    for (int i = 0, last = -1; i < 20; i++) last = forest_add(f, last, i, false);
    ASSERT_OK(gr_objective_step(&t.o, &f->b, &full_loss, t.opt.grad, &sums));
    assert_memory_equal(&sums, &zero, sizeof sums);
    double* g = net_read(&t, t.opt.grad);
    assert_true(largest(g, t.w.n_params) == 0);
    free(g);
    free(f);
    net_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(recompute_gives_the_same_bits),
        cmocka_unit_test(trees_equal_flat_rows),
        cmocka_unit_test(sampling_equals_training),
        cmocka_unit_test(logp_alone_equals_training),
        cmocka_unit_test(nothing_allocates_after_the_first_step),
        cmocka_unit_test(memory_equals_its_plan),
        cmocka_unit_test(activations_need_no_clearing),
        cmocka_unit_test(a_batch_that_predicts_nothing_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
