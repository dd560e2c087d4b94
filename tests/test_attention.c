/* Attention over pages and packed trees: against plain sums in fp64, against each other bit for bit,
 * and the backward against finite differences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/kernels.h"
#ifdef GR_TEST_SIMT
#include "tests/simt/machine.h"
#endif

/* ---- random trees ---------------------------------------------------------------------------------- */

typedef struct forest {
    int32_t n, max_path;
    int32_t *end, *parent, *length; /* (n) subtree_end; token before on the path; keys seen */
} forest;

/* Tokens follow each other or step back to an earlier one of the path: a fork, or a new root. */
static forest random_forest(rng* r, int32_t n, double fork)
{
    const size_t bytes = (size_t)n * sizeof(int32_t);
    forest f = {.n = n, .end = malloc(bytes), .parent = malloc(bytes), .length = malloc(bytes)};
    int32_t* path = malloc(bytes);
    int32_t depth = 0;
    for (int32_t i = 0; i < n; i++) {
        if (depth > 0 && uniform(r) < fork) {
            const int32_t to =
                below(r, 3) > 0 ? depth - 1 - below(r, GR_MIN(depth, 20)) : below(r, depth);
            while (depth > to) f.end[path[--depth]] = i;
        }
        f.parent[i] = depth == 0 ? -1 : path[depth - 1];
        path[depth++] = i;
        f.length[i] = depth;
        f.max_path = GR_MAX(f.max_path, depth);
    }
    while (depth > 0) f.end[path[--depth]] = n;
    free(path);
    return f;
}

static void free_forest(forest* f)
{
    free(f->end);
    free(f->parent);
    free(f->length);
}

/* ---- one problem on one device ------------------------------------------------------------------------- */

typedef struct shape {
    int h, hk, d;
} shape;
static const shape shapes[] = {{9, 3, 64}, {4, 4, 16}, {8, 1, 128}, {6, 2, 2},  {2, 1, 3},
                               {3, 3, 20}, {4, 2, 33}, {14, 2, 64}, {110, 1, 5}};

typedef struct problem {
    gr_dev dev;
    forest tree;
    shape s;
    float scale;
    tensor q, k, v;
    void *o, *stat; /* of attention_tree */
    double* host_o;
} problem;

static void run_tree(problem* p)
{
    gr_dev* dev = &p->dev;
    const int64_t n = p->tree.n;
    const size_t bytes =
        dev->ops->attention_tree_scratch(dev, n, p->s.h, p->s.hk, p->s.d, p->tree.max_path);
    void* scratch = new_scratch(dev, bytes);
    dev->ops->attention_tree(dev, p->o, p->stat, p->q.dev, p->k.dev, p->v.dev, p->tree.end, n,
                             p->s.h, p->s.hk, p->s.d, p->scale, p->tree.max_path, scratch);
    free_scratch(dev, scratch, bytes);
    gr_dev_read_real(dev, p->host_o, p->o, n * p->s.h * p->s.d);
}

static double* read_real(gr_dev* dev, const void* x, int64_t n)
{
    double* host = malloc((size_t)n * sizeof *host);
    gr_dev_read_real(dev, host, x, n);
    return host;
}

static bool open_problem(problem* p, const table* t, int threads, rng* r, shape s, int32_t n,
                         double fork)
{
    if (!open_table(&p->dev, t, threads)) return false;
    p->s = s;
    p->scale = (float)(1.5 / sqrt(s.d));
    p->tree = random_forest(r, n, fork);
    p->q = random_real(&p->dev, r, (int64_t)n * s.h * s.d, 2);
    p->k = random_real(&p->dev, r, (int64_t)n * s.hk * s.d, 2);
    p->v = random_real(&p->dev, r, (int64_t)n * s.hk * s.d, 1);
    p->o = new_real(&p->dev, p->q.n);
    p->stat = new_acc(&p->dev, (int64_t)n * s.h * 2);
    p->host_o = malloc((size_t)p->q.n * sizeof(double));
    run_tree(p);
    return true;
}

static void close_problem(problem* p)
{
    assert_int_equal(gr_dev_sync(&p->dev), GR_OK);
    free_forest(&p->tree);
    free_tensor(&p->dev, &p->q);
    free_tensor(&p->dev, &p->k);
    free_tensor(&p->dev, &p->v);
    gr_dev_free(&p->dev, p->o);
    gr_dev_free(&p->dev, p->stat);
    free(p->host_o);
    gr_dev_close(&p->dev);
}

/* ---- plain sums ------------------------------------------------------------------------------------------ */

static double dot(const double* a, const double* b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static bool sees(const forest* f, int32_t i, int32_t j) { return j <= i && i < f->end[j]; }

/* Probabilities of row i, head a over all keys: 0 where it does not see them. */
static void reference_row(const problem* p, int32_t i, int a, double* prob)
{
    const shape s = p->s;
    const double* q = p->q.host + ((int64_t)i * s.h + a) * s.d;
    const int b = a / (s.h / s.hk);
    double max = -HUGE_VAL, sum = 0;
    for (int32_t j = 0; j <= i; j++) {
        prob[j] = sees(&p->tree, i, j)
                      ? (double)p->scale * dot(q, p->k.host + ((int64_t)j * s.hk + b) * s.d, s.d)
                      : -HUGE_VAL;
        max = fmax(max, prob[j]);
    }
    for (int32_t j = 0; j <= i; j++) sum += prob[j] = exp(prob[j] - max);
    for (int32_t j = 0; j <= i; j++) prob[j] /= sum;
}

static void assert_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * fmax(1, fabs(want))))
        fail_msg("got %.17g, want %.17g, tolerance %g", got, want, tolerance);
}

static void check_forward(const problem* p, double tolerance)
{
    const shape s = p->s;
    double* prob = malloc((size_t)p->tree.n * sizeof(double));
    for (int32_t i = 0; i < p->tree.n; i++)
        for (int a = 0; a < s.h; a++) {
            reference_row(p, i, a, prob);
            for (int c = 0; c < s.d; c++) {
                double want = 0;
                for (int32_t j = 0; j <= i; j++)
                    want += prob[j] * p->v.host[((int64_t)j * s.hk + a / (s.h / s.hk)) * s.d + c];
                assert_near(p->host_o[((int64_t)i * s.h + a) * s.d + c], want, tolerance);
            }
        }
    free(prob);
}

static void tree_matches_plain_sums(void** state)
{
    (void)state;
    rng r = {.key = 1};
    for (int t = 0; t < GR_COUNT(tables); t++)
        for (int i = 0; i < GR_COUNT(shapes); i++) {
            const int32_t n = 1 + below(&r, trim(i == 0 ? 300 : 90));
            problem p;
            if (!open_problem(&p, &tables[t], 2, &r, shapes[i], n, 0.3 * uniform(&r))) continue;
            check_forward(&p, tables[t].tolerance);
            close_problem(&p);
        }
}

/* R[3], A1[2|2] and B1[3|2] under R, A2[2|1] and A3[2|2] under A1, in depth-first order. */
static void mask_example(void** state)
{
    (void)state;
    static const int32_t end[19] = {19, 19, 19, 14, 14, 14, 14, 10, 10, 10,
                                    14, 14, 14, 14, 19, 19, 19, 19, 19};
    static const char* const seen[19] = {"1",
                                         "11",
                                         "111",
                                         "1111",
                                         "11111",
                                         "111111",
                                         "1111111",
                                         "11111111",
                                         "111111111",
                                         "1111111111",
                                         "11111110001",
                                         "111111100011",
                                         "1111111000111",
                                         "11111110001111",
                                         "111000000000001",
                                         "1110000000000011",
                                         "11100000000000111",
                                         "111000000000001111",
                                         "1110000000000011111"};
    rng r = {.key = 2};
    problem p;
    assert_true(open_problem(&p, &tables[0], 1, &r, (shape){2, 1, 4}, 19, 0));
    memcpy(p.tree.end, end, sizeof end);
    for (int32_t i = 0; i < 19; i++)
        for (int32_t j = 0; j <= i; j++) assert_int_equal(sees(&p.tree, i, j), seen[i][j] == '1');
    run_tree(&p);
    check_forward(&p, 1e-12);
    close_problem(&p);
}

/* ---- pages -------------------------------------------------------------------------------------------------- */

enum { MAX_ROWS = 300 };

/* Every token's keys lie in pages; stretches of tokens without a fork append to one list. */
typedef struct paging {
    void* pool;     /* full of NaN at first */
    int32_t** page; /* (n) pages of the path that ends at the token, shared by the stretch */
    int32_t *list, *free_page; /* storage of the lists; pages in random order */
    int64_t used;
    int32_t n_pages, n_taken;
} paging;

static int pages_of(int32_t keys) { return (keys + GR_PAGE - 1) / GR_PAGE; }

static int32_t take_page(paging* g)
{
    GR_ASSERT(g->n_taken < g->n_pages);
    return g->free_page[g->n_taken++];
}

static bool starts_stretch(const forest* f, int32_t i)
{
    return i == 0 || f->end[i] != f->end[i - 1];
}

static void open_paging(paging* g, problem* p, rng* r)
{
    const forest* f = &p->tree;
    int64_t lists = 0;
    memset(g, 0, sizeof *g);
    for (int32_t i = 0; i < f->n; i++) {
        if (!starts_stretch(f, i)) continue;
        lists += pages_of(f->max_path);
        g->n_pages += 3;
    }
    g->n_pages += pages_of(f->n);
    g->page = malloc((size_t)f->n * sizeof *g->page);
    g->list = malloc((size_t)lists * sizeof *g->list);
    g->free_page = malloc((size_t)g->n_pages * sizeof *g->free_page);
    for (int32_t i = 0; i < g->n_pages; i++) {
        const int j = below(r, i + 1);
        g->free_page[i] = g->free_page[j];
        g->free_page[j] = i;
    }
    const size_t bytes = (size_t)g->n_pages * p->dev.ops->kv_page_bytes(&p->dev, p->s.hk, p->s.d);
    g->pool = dev_bytes(&p->dev, bytes);
    dev_fill(&p->dev, g->pool, 0xff, bytes);
}

static void close_paging(paging* g, problem* p)
{
    gr_dev_free(&p->dev, g->pool);
    free(g->page);
    free(g->list);
    free(g->free_page);
}

/* The page list of a stretch that starts at token i: full pages are shared, a partial one is copied,
 * from the parent's list or from one that went on from the same parent. */
static void fork_pages(paging* g, problem* p, rng* r, int32_t i)
{
    const forest* f = &p->tree;
    int32_t* list = g->list + g->used;
    g->used += pages_of(f->max_path);
    const int32_t before = f->length[i] - 1;
    int32_t donor = f->parent[i];
    for (int32_t j = donor + 1; donor >= 0 && j < i; j++)
        if (f->parent[j] == f->parent[i] && below(r, 2) == 0) donor = j;
    for (int32_t k = 0; k < pages_of(before); k++) list[k] = g->page[donor][k];
    if (before % GR_PAGE != 0) {
        int32_t* last = list + before / GR_PAGE;
        const int32_t pair[2] = {*last, take_page(g)};
        int32_t* d_pair = dev_copy(&p->dev, pair, sizeof pair);
        p->dev.ops->kv_copy(&p->dev, g->pool, d_pair, 1, 1, g->n_pages, p->s.hk, p->s.d);
        gr_dev_free(&p->dev, d_pair);
        *last = pair[1];
    }
    g->page[i] = list;
}

/* Appends tokens [first, last) of one stretch. */
static void append(paging* g, problem* p, rng* r, int32_t first, int32_t last)
{
    const forest* f = &p->tree;
    int32_t* slot = malloc((size_t)(last - first) * sizeof *slot);
    for (int32_t i = first; i < last; i++) {
        if (starts_stretch(f, i))
            fork_pages(g, p, r, i);
        else
            g->page[i] = g->page[i - 1];
        const int32_t at = f->length[i] - 1;
        if (at % GR_PAGE == 0) g->page[i][at / GR_PAGE] = take_page(g);
        slot[i - first] = g->page[i][at / GR_PAGE] * GR_PAGE + at % GR_PAGE;
    }
    const int64_t at = (int64_t)first * p->s.hk * p->s.d;
    int32_t* d_slot = dev_copy(&p->dev, slot, (size_t)(last - first) * sizeof *slot);
    p->dev.ops->kv_append(&p->dev, g->pool, gr_real_at(&p->dev, p->k.dev, at),
                          gr_real_at(&p->dev, p->v.dev, at), d_slot, last - first, p->s.hk, p->s.d);
    gr_dev_free(&p->dev, d_slot);
    free(slot);
}

/* ---- plans ---------------------------------------------------------------------------------------------------- */

typedef struct plan_space {
    gr_page_plan plan;
    int32_t row[MAX_ROWS], n_keys[MAX_ROWS];
    gr_page_task task[MAX_ROWS];
    gr_page_unit* unit;
} plan_space;

/* Plan rows [begin, end) as one task: at each depth a unit for each stretch of rows on one page. */
static void plan_task(plan_space* x, const paging* g, const int32_t* token, int begin, int end)
{
    gr_page_plan* p = &x->plan;
    gr_page_task* t = &x->task[p->n_tasks++];
    *t = (gr_page_task){.row_begin = begin, .row_end = end, .unit_begin = p->n_units};
    for (int r = begin; r < end; r++) t->max_keys = GR_MAX(t->max_keys, x->n_keys[r]);
    for (int depth = 0; depth < pages_of(t->max_keys); depth++)
        for (int r = begin; r < end; r++) {
            if (x->n_keys[r] <= depth * GR_PAGE) continue;
            const int32_t page = g->page[token[x->row[r]]][depth];
            gr_page_unit* last = p->n_units > t->unit_begin ? x->unit + p->n_units - 1 : NULL;
            if (last != NULL && last->first_key == depth * GR_PAGE && last->page == page &&
                last->row_end == r)
                last->row_end = r + 1;
            else
                x->unit[p->n_units++] = (gr_page_unit){page, depth * GR_PAGE, r, r + 1};
        }
    t->unit_end = p->n_units;
}

/* Query row i is token[i]. Plan rows in the same order or in any other, cut anywhere. */
static void make_plan(plan_space* x, const problem* p, const paging* g, rng* r,
                      const int32_t* token, int n, bool shuffle)
{
    int64_t units = 0;
    for (int i = 0; i < n; i++) {
        const int j = shuffle ? below(r, i + 1) : i;
        x->row[i] = x->row[j];
        x->row[j] = i;
        units += pages_of(p->tree.length[token[i]]);
    }
    for (int i = 0; i < n; i++) x->n_keys[i] = p->tree.length[token[x->row[i]]];
    x->unit = malloc((size_t)units * sizeof *x->unit);
    x->plan = (gr_page_plan){
        .row = x->row, .n_keys = x->n_keys, .unit = x->unit, .task = x->task, .n_rows = n};
    for (int begin = 0, end; begin < n; begin = end) {
        const int most = below(r, 2) == 0 ? GR_TASK_ROWS : 1 + below(r, GR_TASK_ROWS);
        end = GR_MIN(begin + most, n);
        plan_task(x, g, token, begin, end);
    }
}

static void assert_near_row(problem* p, const void* o, int32_t token, double tolerance)
{
    const int64_t width = (int64_t)p->s.h * p->s.d;
    double got[2048];
    GR_ASSERT(width <= GR_COUNT(got));
    gr_dev_read_real(&p->dev, got, o, width);
    for (int64_t c = 0; c < width; c++)
        assert_near(got[c], p->host_o[token * width + c], tolerance);
}

/* Rows of these tokens through pages: the bits of attention_tree, or, with a tolerance, near them. */
static void check_batch(problem* p, const paging* g, rng* r, const int32_t* token, int n,
                        bool shuffle, double tolerance)
{
    gr_dev* dev = &p->dev;
    const int64_t width = (int64_t)p->s.h * p->s.d;
    const size_t row_bytes = (size_t)width * dev->real_bytes;
    plan_space x;
    make_plan(&x, p, g, r, token, n, shuffle);
    int max_keys = 0;
    for (int i = 0; i < n; i++) max_keys = GR_MAX(max_keys, x.n_keys[i]);
    void *q = new_real(dev, n * width), *o = new_real(dev, n * width);
    for (int i = 0; i < n; i++)
        dev_move(dev, gr_real_at(dev, q, i * width), gr_real_at(dev, p->q.dev, token[i] * width),
                 row_bytes);
    const size_t bytes = dev->ops->attention_paged_scratch(dev, p->s.h, p->s.hk, p->s.d, max_keys);
    void* scratch = new_scratch(dev, bytes);
    dev->ops->attention_paged(dev, o, q, g->pool, &x.plan, p->s.h, p->s.hk, p->s.d, p->scale,
                              scratch);
    free_scratch(dev, scratch, bytes);
    for (int i = 0; i < n; i++) {
        const void* got = gr_real_at(dev, o, i * width);
        if (tolerance > 0)
            assert_near_row(p, got, token[i], tolerance);
        else
            assert_true(
                dev_same(dev, got, dev, gr_real_at(dev, p->o, token[i] * width), row_bytes));
    }
    gr_dev_free(dev, q);
    gr_dev_free(dev, o);
    free(x.unit);
}

/* Appends the tree as sampling does, in pieces of a stretch, and attends some of the pieces at once. */
static void fill_pages(problem* p, paging* g, rng* r)
{
    int32_t token[MAX_ROWS];
    for (int32_t first = 0, last; first < p->tree.n; first = last) {
        const int32_t size = 1 + below(r, below(r, 3) == 0 ? 100 : 4);
        const int32_t most = GR_MIN(first + size, p->tree.n);
        for (last = first + 1; last < most && !starts_stretch(&p->tree, last);) last++;
        append(g, p, r, first, last);
        for (int32_t i = first; i < last; i++) token[i - first] = i;
        if (below(r, 4) == 0) check_batch(p, g, r, token, last - first, false, 0);
    }
}

static int by_number(const void* a, const void* b)
{
    return *(const int32_t*)a - *(const int32_t*)b;
}

static int64_t pages_have_the_bits_of_trees(const table* t, rng* r, shape s, int32_t n, int threads)
{
    problem p;
    if (!open_problem(&p, t, threads, r, s, n, 0.15 * uniform(r))) return 0;
    paging g;
    open_paging(&g, &p, r);
    fill_pages(&p, &g, r);
    int64_t rows = 0;
    for (int round = 0; round < 4; round++) {
        int32_t token[MAX_ROWS];
        const int n_rows = round == 0 ? trim(MAX_ROWS) : 1 + below(r, below(r, trim(MAX_ROWS)) + 1);
        for (int i = 0; i < n_rows; i++) token[i] = below(r, n);
        if (round % 2 == 0) qsort(token, (size_t)n_rows, sizeof *token, by_number);
        check_batch(&p, &g, r, token, n_rows, round == 3, 0);
        rows += n_rows;
    }
    close_paging(&g, &p);
    close_problem(&p);
    return rows;
}

static void pages_equal_trees(void** state)
{
    (void)state;
    rng r = {.key = 3};
    int64_t rows = 0;
    for (int t = 0; t < GR_COUNT(tables); t++)
        for (int i = 0; i < GR_COUNT(shapes); i++)
            rows += pages_have_the_bits_of_trees(&tables[t], &r, shapes[i],
                                                 20 + below(&r, trim(300)), 1 + i % 2);
    print_message("%lld rows of random batches, and the rows of prefills and decodes\n",
                  (long long)rows);
}

/* Sequences of many pages: whole spans of them, with forks behind. */
static void long_paths_equal_trees(void** state)
{
    (void)state;
    rng r = {.key = 4};
    for (int t = 0; t < GR_COUNT(tables); t++) {
        problem p;
        if (!open_problem(&p, &tables[t], 2, &r, (shape){3, 1, 64}, 900, 0.005)) continue;
        paging g;
        open_paging(&g, &p, &r);
        append(&g, &p, &r, 0, 1);
        for (int32_t i = 1; i < 900; i++) append(&g, &p, &r, i, i + 1);
        int32_t token[MAX_ROWS];
        const int n_rows = trim(MAX_ROWS), step = 900 / n_rows;
        for (int i = 0; i < n_rows; i++) token[i] = step * i;
        check_batch(&p, &g, &r, token, n_rows, false, 0);
        for (int i = 0; i < n_rows; i++) token[i] = 900 - n_rows + i;
        check_batch(&p, &g, &r, token, n_rows, false, 0);
        close_paging(&g, &p);
        close_problem(&p);
    }
}

#ifdef GR_TEST_GPU
/* Fast plans may cut paths anywhere. */
static void free_plans_are_near_trees(void** state)
{
    (void)state;
    rng r = {.key = 7};
    for (int t = 1; t < GR_COUNT(tables); t++) {
        problem p;
        assert_true(open_problem(&p, &tables[t], 1, &r, (shape){6, 2, 64}, 300, 0.03));
        paging g;
        open_paging(&g, &p, &r);
        fill_pages(&p, &g, &r);
        p.dev.attention = GR_ATTENTION_FAST;
        int32_t token[MAX_ROWS];
        for (int i = 0; i < 60; i++) token[i] = 5 * i;
        check_batch(&p, &g, &r, token, 60, false, 2 * tables[t].tolerance);
        for (int i = 0; i < 5; i++) token[i] = 240 + 11 * i;
        check_batch(&p, &g, &r, token, 5, false, 2 * tables[t].tolerance);
        close_paging(&g, &p);
        close_problem(&p);
    }
}
#endif

#ifdef GR_TEST_SIMT
/* What the layers of a batch call, one after another; what else a layer does writes the workspace. */
static void run_layers(problem* p, const gr_page_plan* plan, const void* pool, void* o,
                       void* grad[3])
{
    enum { LAYERS = 3, FILL = 1 << 14 };
    gr_dev* dev = &p->dev;
    const gr_ops* op = dev->ops;
    const int64_t n = p->tree.n;
    const int h = p->s.h, hk = p->s.hk, d = p->s.d;
    void* scratch = dev_bytes(dev, op->attention_tree_scratch(dev, n, h, hk, d, p->tree.max_path));
    void *x = new_acc(dev, FILL), *sum = dev_bytes(dev, sizeof(double));
    for (int l = 0; l < LAYERS; l++) {
        op->sumsq(dev, sum, x, FILL);
        if (plan != NULL)
            op->attention_paged(dev, o, p->q.dev, pool, plan, h, hk, d, p->scale, scratch);
        else if (grad == NULL)
            op->attention_tree(dev, o, p->stat, p->q.dev, p->k.dev, p->v.dev, p->tree.end, n, h, hk,
                               d, p->scale, p->tree.max_path, scratch);
        else
            op->attention_tree_bwd(dev, grad[0], grad[1], grad[2], p->q.dev, p->o, p->stat,
                                   p->q.dev, p->k.dev, p->v.dev, p->tree.end, n, h, hk, d, p->scale,
                                   p->tree.max_path, scratch);
    }
    gr_dev_free(dev, x);
    gr_dev_free(dev, sum);
    gr_dev_free(dev, scratch);
}

/* Layers read the plan that the first of them sent. Another batch sends another one; so does the same
 * batch after it. */
static void a_plan_is_sent_once_for_all_layers(void** state)
{
    (void)state;
    rng r = {.key = 12};
    for (int t = 1; t < GR_COUNT(tables); t++) {
        problem p;
        paging g;
        plan_space x[2];
        int32_t token[MAX_ROWS];
        assert_true(open_problem(&p, &tables[t], 1, &r, (shape){4, 2, 16}, 150, 0.05));
        open_paging(&g, &p, &r);
        fill_pages(&p, &g, &r);
        for (int i = 0; i < 150; i++) token[i] = i;
        make_plan(&x[0], &p, &g, &r, token, 150, false);
        make_plan(&x[1], &p, &g, &r, token, 149, false);
        const size_t bytes = (size_t)p.q.n * p.dev.real_bytes;
        void* o = dev_bytes(&p.dev, bytes);
        void* grad[3] = {new_real(&p.dev, p.q.n), new_real(&p.dev, p.k.n), new_real(&p.dev, p.k.n)};
        static const int batch[] = {0, 0, 1, 0, 2, 3, 2, 0}, sent[] = {1, 0, 1, 1, 1, 0, 0, 1};
        for (int i = 0; i < GR_COUNT(batch); i++) {
            const int64_t before = simt_uploads();
            run_layers(&p, batch[i] < 2 ? &x[batch[i]].plan : NULL, g.pool, o,
                       batch[i] == 3 ? grad : NULL);
            assert_int_equal(simt_uploads() - before, sent[i]);
            const size_t same = batch[i] == 1 ? bytes / 150 * 149 : bytes;
            assert_true(dev_same(&p.dev, o, &p.dev, p.o, same));
        }
        for (int i = 0; i < 3; i++) gr_dev_free(&p.dev, grad[i]);
        gr_dev_free(&p.dev, o);
        free(x[0].unit);
        free(x[1].unit);
        close_paging(&g, &p);
        close_problem(&p);
    }
}

/* Many short paths, so that the plan is large: it goes to scratch, at each call. */
static void a_plan_too_large_for_its_room_goes_to_scratch(void** state)
{
    (void)state;
    enum { N = 3800, CALLS = 3 };
    rng r = {.key = 14};
    problem p;
    double prob[N];
    assert_true(open_problem(&p, &tables[1], 1, &r, (shape){1, 1, 2}, N, 1));
    for (int i = 0; i < 50; i++) {
        const int32_t row = below(&r, N);
        double want[2] = {0};
        reference_row(&p, row, 0, prob);
        for (int32_t j = 0; j <= row; j++)
            for (int c = 0; c < 2; c++) want[c] += prob[j] * p.v.host[2 * j + c];
        for (int c = 0; c < 2; c++)
            assert_near(p.host_o[2 * row + c], want[c], tables[1].tolerance);
    }
    const int64_t before = simt_uploads();
    run_layers(&p, NULL, NULL, p.o, NULL);
    assert_int_equal(simt_uploads() - before, CALLS);
    double* again = read_real(&p.dev, p.o, p.q.n);
    assert_memory_equal(again, p.host_o, (size_t)p.q.n * sizeof *again);
    free(again);
    close_problem(&p);
}
#endif

static void copies_reach_every_layer(void** state)
{
    (void)state;
    gr_dev dev;
    assert_true(open_table(&dev, &tables[1], 1));
    enum { LAYERS = 3, PAGES = 5, HK = 2, D = 6 };
    const size_t page = dev.ops->kv_page_bytes(&dev, HK, D);
    assert_true(page >= (size_t)2 * GR_PAGE * HK * D * dev.real_bytes);
    unsigned char* pool = dev_bytes(&dev, LAYERS * PAGES * page);
    for (int i = 0; i < LAYERS * PAGES; i++) dev_fill(&dev, pool + (size_t)i * page, i, page);
    const int32_t pair[4] = {0, 3, 2, 1};
    int32_t* d_pair = dev_copy(&dev, pair, sizeof pair);
    dev.ops->kv_copy(&dev, pool, d_pair, 2, LAYERS, PAGES, HK, D);
    assert_int_equal(gr_dev_sync(&dev), GR_OK);
    static const int from[PAGES] = {0, 2, 2, 0, 4};
    unsigned char* host = dev_read(&dev, pool, LAYERS * PAGES * page);
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < PAGES; i++)
            for (size_t b = 0; b < page; b++)
                assert_int_equal(host[(size_t)(l * PAGES + i) * page + b], l * PAGES + from[i]);
    free(host);
    gr_dev_free(&dev, d_pair);
    gr_dev_free(&dev, pool);
    gr_dev_close(&dev);
}

/* Rows in one call and row by row, last first, give the same pool; nothing else of it is written. */
static void appends_write_their_slots(const table* t, rng* r, shape s)
{
    enum { PAGES = 7, ROWS = 50, SLOTS = PAGES * GR_PAGE };
    gr_dev dev;
    if (!open_table(&dev, t, 1)) return;
    const size_t bytes = PAGES * dev.ops->kv_page_bytes(&dev, s.hk, s.d);
    const int64_t row = (int64_t)s.hk * s.d;
    tensor k = random_real(&dev, r, ROWS * row, 2), v = random_real(&dev, r, ROWS * row, 2);
    unsigned char *pool = dev_bytes(&dev, bytes), *other = dev_bytes(&dev, bytes);
    int32_t slot[SLOTS];
    for (int i = 0; i < SLOTS; i++) {
        const int j = below(r, i + 1);
        slot[i] = slot[j];
        slot[j] = i;
    }
    int32_t* d_slot = dev_copy(&dev, slot, sizeof slot);
    dev_fill(&dev, pool, 0xff, bytes);
    dev_fill(&dev, other, 0xff, bytes);
    dev.ops->kv_append(&dev, pool, k.dev, v.dev, d_slot, ROWS, s.hk, s.d);
    for (int i = ROWS - 1; i >= 0; i--)
        dev.ops->kv_append(&dev, other, gr_real_at(&dev, k.dev, i * row),
                           gr_real_at(&dev, v.dev, i * row), d_slot + i, 1, s.hk, s.d);
    assert_int_equal(gr_dev_sync(&dev), GR_OK);
    assert_true(dev_same(&dev, pool, &dev, other, bytes));
    unsigned char* host = dev_read(&dev, pool, bytes);
    int64_t kept = 0; /* elements still NaN */
    static const unsigned char nan[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    for (size_t at = 0; at < bytes; at += dev.real_bytes)
        kept += memcmp(host + at, nan, dev.real_bytes) == 0;
    free(host);
    assert_int_equal(kept, (SLOTS - ROWS) * 2 * row);
    gr_dev_free(&dev, pool);
    gr_dev_free(&dev, other);
    gr_dev_free(&dev, d_slot);
    free_tensor(&dev, &k);
    free_tensor(&dev, &v);
    gr_dev_close(&dev);
}

static void appends_go_where_they_belong(void** state)
{
    (void)state;
    rng r = {.key = 6};
    for (int t = 0; t < GR_COUNT(tables); t++)
        for (int i = 0; i < GR_COUNT(shapes); i++)
            appends_write_their_slots(&tables[t], &r, shapes[i]);
}

/* ---- backward -------------------------------------------------------------------------------------------------- */

typedef struct gradient {
    tensor dout;
    void *dq, *dk, *dv;
    double *q, *k, *v; /* host copies */
} gradient;

static gradient run_backward(problem* p, rng* r)
{
    gr_dev* dev = &p->dev;
    const int64_t n = p->tree.n;
    gradient g = {.dout = random_real(dev, r, p->q.n, 1),
                  .dq = new_real(dev, p->q.n),
                  .dk = new_real(dev, p->k.n),
                  .dv = new_real(dev, p->k.n)};
    const size_t bytes =
        dev->ops->attention_tree_scratch(dev, n, p->s.h, p->s.hk, p->s.d, p->tree.max_path);
    void* scratch = new_scratch(dev, bytes);
    dev->ops->attention_tree_bwd(dev, g.dq, g.dk, g.dv, g.dout.dev, p->o, p->stat, p->q.dev,
                                 p->k.dev, p->v.dev, p->tree.end, n, p->s.h, p->s.hk, p->s.d,
                                 p->scale, p->tree.max_path, scratch);
    free_scratch(dev, scratch, bytes);
    g.q = read_real(dev, g.dq, p->q.n);
    g.k = read_real(dev, g.dk, p->k.n);
    g.v = read_real(dev, g.dv, p->k.n);
    return g;
}

static void free_gradient(problem* p, gradient* g)
{
    free_tensor(&p->dev, &g->dout);
    gr_dev_free(&p->dev, g->dq);
    gr_dev_free(&p->dev, g->dk);
    gr_dev_free(&p->dev, g->dv);
    free(g->q);
    free(g->k);
    free(g->v);
}

/* Loss = sum of dout o, as a function of one input. */
static double loss_with(problem* p, const gradient* g, tensor* x, int64_t at, double value)
{
    const double kept = x->host[at];
    x->host[at] = value;
    gr_dev_write_real(&p->dev, x->dev, x->host, x->n);
    run_tree(p);
    x->host[at] = kept;
    gr_dev_write_real(&p->dev, x->dev, x->host, x->n);
    double loss = 0;
    for (int64_t i = 0; i < p->q.n; i++) loss += g->dout.host[i] * p->host_o[i];
    return loss;
}

static void check_difference(problem* p, const gradient* g, tensor* x, const double* dx, rng* r)
{
    const int64_t at = (int64_t)(uniform(r) * (double)x->n);
    const double h = 1e-3, v = x->host[at];
    const double near = loss_with(p, g, x, at, v + h) - loss_with(p, g, x, at, v - h);
    const double far = loss_with(p, g, x, at, v + 2 * h) - loss_with(p, g, x, at, v - 2 * h);
    assert_near(dx[at], (8 * near - far) / (12 * h), 1e-7);
}

static void backward_matches_finite_differences(void** state)
{
    (void)state;
    rng r = {.key = 5};
    for (int i = 0; i < GR_COUNT(shapes); i++) {
        problem p;
        const int32_t n = 1 + below(&r, 100);
        assert_true(open_problem(&p, &tables[0], 2, &r, shapes[i], n, 0.2 * uniform(&r)));
        gradient g = run_backward(&p, &r);
        for (int k = 0; k < 6; k++) {
            check_difference(&p, &g, &p.q, g.q, &r);
            check_difference(&p, &g, &p.k, g.k, &r);
            check_difference(&p, &g, &p.v, g.v, &r);
        }
        free_gradient(&p, &g);
        close_problem(&p);
    }
}

static void assert_close(const double* got, const double* want, int64_t n, double tolerance)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) assert_near(got[i] / most, want[i] / most, tolerance);
}

/* The same problem on fp64 and on another table. */
static void backward_agrees_on_all_tables(void** state)
{
    (void)state;
    for (int t = 1; t < GR_COUNT(tables); t++)
        for (int i = 0; i < GR_COUNT(shapes); i++) {
            const uint64_t key = 100 + (uint64_t)i;
            const int32_t n = trim(100 + 100 * (i % 4));
            problem p, exact;
            rng r = {.key = key}, r64 = {.key = key};
            if (!open_problem(&p, &tables[t], 2, &r, shapes[i], n, 0.05)) continue;
            assert_true(open_problem(&exact, &tables[0], 1, &r64, shapes[i], n, 0.05));
            tensor *from[3] = {&p.q, &p.k, &p.v}, *to[3] = {&exact.q, &exact.k, &exact.v};
            for (int x = 0; x < 3; x++)
                gr_dev_write_real(&exact.dev, to[x]->dev, from[x]->host, from[x]->n);
            run_tree(&exact);
            gradient g = run_backward(&p, &r), want = run_backward(&exact, &r64);
            const double tolerance = tables[t].dtype == GR_BF16 ? 2e-2 : 2e-5;
            assert_close(g.q, want.q, p.q.n, tolerance);
            assert_close(g.k, want.k, p.k.n, tolerance);
            assert_close(g.v, want.v, p.k.n, tolerance);
            free_gradient(&p, &g);
            free_gradient(&exact, &want);
            close_problem(&p);
            close_problem(&exact);
        }
}

#ifndef GR_TEST_GPU /* which has one thread and one instruction set */
/* ---- the same bits ------------------------------------------------------------------------------------------------ */

static void assert_same_bits(const table* a, int threads_a, const table* b, int threads_b, int i)
{
    problem p[2];
    gradient g[2];
    const table* t[2] = {a, b};
    const int threads[2] = {threads_a, threads_b};
    for (int side = 0; side < 2; side++) {
        rng r = {.key = 200 + (uint64_t)i};
        const int32_t n = 50 + below(&r, 500);
        if (!open_problem(&p[side], t[side], threads[side], &r, shapes[i], n, 0.1)) return;
        g[side] = run_backward(&p[side], &r);
    }
    const size_t q_bytes = (size_t)p[0].q.n * p[0].dev.real_bytes;
    const size_t k_bytes = (size_t)p[0].k.n * p[0].dev.real_bytes;
    gr_dev *x = &p[0].dev, *y = &p[1].dev;
    assert_true(dev_same(x, p[0].o, y, p[1].o, q_bytes));
    assert_true(
        dev_same(x, p[0].stat, y, p[1].stat, (size_t)(p[0].tree.n * p[0].s.h * 2) * x->acc_bytes));
    assert_true(dev_same(x, g[0].dq, y, g[1].dq, q_bytes));
    assert_true(dev_same(x, g[0].dk, y, g[1].dk, k_bytes));
    assert_true(dev_same(x, g[0].dv, y, g[1].dv, k_bytes));
    for (int side = 0; side < 2; side++) {
        free_gradient(&p[side], &g[side]);
        close_problem(&p[side]);
    }
}

static void threads_do_not_matter(void** state)
{
    (void)state;
    for (int t = 0; t < GR_COUNT(tables); t++)
        for (int i = 0; i < GR_COUNT(shapes); i++)
            assert_same_bits(&tables[t], 1, &tables[t], 2 + i % 2, i);
}

static void avx2_and_avx512_agree(void** state)
{
    (void)state;
    for (int i = 0; i < GR_COUNT(shapes); i++) {
        assert_same_bits(&tables[2], 1, &tables[3], 2, i);
        assert_same_bits(&tables[5], 2, &tables[6], 1, i);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tree_matches_plain_sums),
        cmocka_unit_test(mask_example),
        cmocka_unit_test(pages_equal_trees),
        cmocka_unit_test(long_paths_equal_trees),
#ifdef GR_TEST_GPU
        cmocka_unit_test(free_plans_are_near_trees),
#endif
#ifdef GR_TEST_SIMT
        cmocka_unit_test(a_plan_is_sent_once_for_all_layers),
        cmocka_unit_test(a_plan_too_large_for_its_room_goes_to_scratch),
#endif
        cmocka_unit_test(copies_reach_every_layer),
        cmocka_unit_test(appends_go_where_they_belong),
        cmocka_unit_test(backward_matches_finite_differences),
        cmocka_unit_test(backward_agrees_on_all_tables),
#ifndef GR_TEST_GPU
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(avx2_and_avx512_agree),
#endif
    };
    return device_is_here() ? cmocka_run_group_tests(tests, NULL, NULL) : SKIPPED;
}
