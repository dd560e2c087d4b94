/* The page pool against sequences that are plain lists of tokens, and the attention plan against what
 * each row sees. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "model/kv.h"

typedef struct rng {
    uint64_t key, at;
} rng;
static int below(rng* r, int n) { return (int)(gr_uniform(r->key, r->at++) * n); }

/* ---- the model ----------------------------------------------------------------------------------- */

enum { MAX_PAGES = 4096, MAX_SEQS = 256, MAX_CONTEXT = 1100 };

typedef struct model_seq {
    bool used;
    bool written; /* since the last forward: it may be forked; before that, freed */
    bool shared;  /* and forked since then */
    int n;
    int32_t token[MAX_CONTEXT];
} model_seq;

typedef struct world {
    gr_kv kv;
    gr_kv_plan plan;
    gr_arena arena;
    int max_context;
    model_seq seq[MAX_SEQS];
    int32_t page[MAX_PAGES][GR_PAGE]; /* what the device holds: one number per key */
    struct {
        int32_t seq, slot, token;
    } row[MAX_PAGES * GR_PAGE]; /* of the next forward */
    int n_rows;
    int32_t next_token;
    int full, forks, copies, cuts;
} world;

static void world_layout(world* w, int n_pages, int n_seqs, int max_context, int max_rows)
{
    gr_kv_layout(&w->kv, n_pages, n_seqs, max_context, &w->arena);
    gr_kv_plan_layout(&w->plan, &w->kv, max_rows, &w->arena);
}

static world* world_open(int n_pages, int n_seqs, int max_context, int max_rows)
{
    GR_ASSERT(n_pages <= MAX_PAGES && n_seqs <= MAX_SEQS && max_context <= MAX_CONTEXT);
    world* w = calloc(1, sizeof *w);
    w->max_context = max_context;
    world_layout(w, n_pages, n_seqs, max_context, max_rows);
    w->arena.cap = w->arena.used;
    w->arena.base = malloc(w->arena.cap);
    memset(w->arena.base, 0xa5, w->arena.cap); /* arenas are not promised to be zero */
    w->arena.used = 0;
    world_layout(w, n_pages, n_seqs, max_context, max_rows);
    return w;
}

static void world_close(world* w)
{
    free(w->arena.base);
    free(w);
}

/* The device's part. Copies of one run happen at once: all are read before any is written. */
static void flush(world* w)
{
    static int32_t read[MAX_PAGES][GR_PAGE];
    gr_kv* kv = &w->kv;
    for (int first = 0, end; first < kv->n_pairs; first = end) {
        end = gr_kv_copy_run(kv, first);
        assert_true(end > first && end <= kv->n_pairs);
        w->cuts += end < kv->n_pairs;
        for (int i = first; i < end; i++) {
            memcpy(read[i], w->page[kv->pair[2 * i]], sizeof read[i]);
        }
        for (int i = end - 1; i >= first; i--) {
            memcpy(w->page[kv->pair[2 * i + 1]], read[i], sizeof read[i]);
        }
    }
    w->copies += kv->n_pairs;
    kv->n_pairs = 0;
    for (int i = 0; i < w->n_rows; i++) {
        w->page[w->row[i].slot / GR_PAGE][w->row[i].slot % GR_PAGE] = w->row[i].token;
    }
    w->n_rows = 0;
    for (int i = 0; i < kv->n_seqs; i++) w->seq[i].written = w->seq[i].shared = false;
}

static void check_lengths(const world* w)
{
    for (int i = 0; i < w->kv.n_seqs; i++) {
        assert_int_equal(w->kv.seq[i].used, w->seq[i].used);
        if (w->seq[i].used) assert_int_equal(gr_kv_len(&w->kv, i), w->seq[i].n);
    }
    gr_kv_check(&w->kv);
}

static void check_contents(const world* w)
{
    for (int i = 0; i < w->kv.n_seqs; i++) {
        for (int k = 0; k < w->seq[i].n; k++) {
            int page = w->kv.seq[i].page[k / GR_PAGE];
            assert_int_equal(w->page[page][k % GR_PAGE], w->seq[i].token[k]);
        }
    }
}

/* ---- random actions ------------------------------------------------------------------------------ */

static int pick(const world* w, rng* r, bool may_be_written)
{
    for (int tries = 0; tries < 4 * w->kv.n_seqs; tries++) {
        int s = below(r, w->kv.n_seqs);
        if (w->seq[s].used && (may_be_written || !w->seq[s].written)) return s;
    }
    return -1;
}

static int act_open(world* w)
{
    int s = gr_kv_open(&w->kv);
    if (s < 0) return -1;
    assert_false(w->seq[s].used);
    w->seq[s].used = true;
    w->seq[s].n = 0;
    return s;
}

static int act_fork(world* w, int from, int len)
{
    int n_free = w->kv.n_free, s = gr_kv_fork(&w->kv, from, len);
    assert_int_equal(w->kv.n_free, n_free); /* a fork takes no page */
    if (s < 0) return -1;
    w->seq[from].shared = w->seq[from].written;
    w->seq[s] = w->seq[from];
    w->seq[s].n = len;
    w->forks++;
    return s;
}

static bool act_append(world* w, int s, int n)
{
    static int32_t slot[MAX_CONTEXT];
    gr_kv* kv = &w->kv;
    int need = gr_kv_need(kv, s, n), n_free = kv->n_free, n_pairs = kv->n_pairs;
    if (!gr_kv_append(kv, s, n, slot)) {
        assert_true(need > n_free);
        assert_true(kv->n_free == n_free && kv->n_pairs == n_pairs);
        w->full++;
        return false;
    }
    assert_int_equal(need, n_free - kv->n_free);
    for (int i = 0; i < n; i++) {
        int32_t token = w->next_token++;
        w->seq[s].token[w->seq[s].n++] = token;
        w->row[w->n_rows].seq = s;
        w->row[w->n_rows].slot = slot[i];
        w->row[w->n_rows++].token = token;
    }
    w->seq[s].written = n > 0;
    return true;
}

static void act_truncate(world* w, int s, int len)
{
    gr_kv_truncate(&w->kv, s, len);
    w->seq[s].n = len;
}

/* The rows that a sequence was to write go with it. */
static void act_free(world* w, int s)
{
    gr_kv_free(&w->kv, s);
    int n = 0;
    for (int i = 0; i < w->n_rows; i++) {
        if (w->row[i].seq != s) w->row[n++] = w->row[i];
    }
    w->n_rows = n;
    w->seq[s].used = false;
    w->seq[s].n = 0;
}

static void act_version(world* w)
{
    flush(w);
    gr_kv_set_version(&w->kv, w->kv.version + 1);
    for (int i = 0; i < w->kv.n_seqs; i++) w->seq[i].n = 0;
    assert_int_equal(w->kv.n_free, w->kv.n_pages);
}

static void act(world* w, rng* r)
{
    int kind = below(r, 1000), s = pick(w, r, false);
    if (kind < 60) {
        act_open(w);
    } else if (kind < 300) {
        int from = pick(w, r, true);
        if (from >= 0) act_fork(w, from, below(r, w->seq[from].n + 1));
    } else if (kind < 700) {
        if (s < 0) return;
        int room = GR_MIN(w->max_context - w->seq[s].n, 3 * GR_PAGE);
        act_append(w, s, below(r, room + 1));
    } else if (kind < 800) {
        if (s >= 0) act_truncate(w, s, below(r, w->seq[s].n + 1)); /* 0: what an eviction does */
    } else if (kind < 920) {
        int any = pick(w, r, true);
        if (any >= 0 && !w->seq[any].shared) act_free(w, any);
    } else if (kind < 997) {
        flush(w);
        check_contents(w);
    } else {
        act_version(w);
    }
}

static void random_actions_match_plain_lists(void** state)
{
    (void)state;
    int full = 0, forks = 0, copies = 0, cuts = 0;
    for (uint64_t key = 1; key <= 8; key++) {
        rng r = {.key = key};
        world* w = world_open(6 + below(&r, 60), 3 + below(&r, 20), 5 + below(&r, 120), 1);
        for (int i = 0; i < 5000; i++) {
            act(w, &r);
            check_lengths(w);
        }
        flush(w);
        check_contents(w);
        assert_true(w->kv.pages_peak <= w->kv.n_pages);
        for (int s = 0; s < w->kv.n_seqs; s++) {
            if (w->seq[s].used) act_free(w, s);
        }
        assert_true(w->kv.n_free == w->kv.n_pages && w->kv.n_free_seq == w->kv.n_seqs);
        full += w->full, forks += w->forks, copies += w->copies, cuts += w->cuts;
        world_close(w);
    }
    print_message("40000 actions: pool full %d times, %d forks, %d copies, %d cuts\n", full, forks,
                  copies, cuts);
    assert_true(full > 100 && forks > 1000 && copies > 300 && cuts > 0);
}

static void reset_gives_everything_back(void** state)
{
    (void)state;
    rng r = {.key = 99};
    world* w = world_open(40, 8, 100, 1);
    for (int i = 0; i < 300; i++) act(w, &r);
    gr_kv_reset(&w->kv);
    gr_kv_check(&w->kv);
    assert_true(w->kv.n_free == 40 && w->kv.n_free_seq == 8 && w->kv.n_pairs == 0);
    assert_int_equal(gr_kv_open(&w->kv), 0);
    world_close(w);
}

/* ---- plan ---------------------------------------------------------------------------------------- */

static void check_units(const gr_page_plan* p, const gr_page_task* t)
{
    static int seen[MAX_PAGES]; /* number of the check that met the page last */
    static int check;
    check++;
    int max_keys = 0;
    for (int u = t->unit_begin; u < t->unit_end; u++) {
        const gr_page_unit* x = &p->unit[u];
        assert_true(x->row_begin >= t->row_begin && x->row_begin < x->row_end &&
                    x->row_end <= t->row_end);
        assert_true(u == t->unit_begin || x[-1].first_key <= x->first_key);
        assert_true(seen[x->page] != check); /* each page once */
        seen[x->page] = check;
    }
    for (int r = t->row_begin; r < t->row_end; r++) max_keys = GR_MAX(max_keys, p->n_keys[r]);
    assert_int_equal(t->max_keys, max_keys);
}

/* The units that hold a row are exactly the pages that its keys lie in, in path order. */
static void check_row(const world* w, const gr_page_plan* p, const gr_page_task* t, int r, int seq)
{
    int key = 0;
    for (int u = t->unit_begin; u < t->unit_end; u++) {
        const gr_page_unit* x = &p->unit[u];
        if (r < x->row_begin || r >= x->row_end) continue;
        assert_int_equal(x->first_key, key);
        assert_int_equal(x->page, w->kv.seq[seq].page[key / GR_PAGE]);
        key += GR_PAGE;
    }
    assert_true(key >= p->n_keys[r] && key < p->n_keys[r] + GR_PAGE);
}

static void check_plan(world* w, const int32_t* seq, const int32_t* n_keys, int n_rows)
{
    gr_kv_plan_make(&w->plan, &w->kv, seq, n_keys, n_rows);
    const gr_page_plan* p = &w->plan.plan;
    bool* met = calloc((size_t)n_rows + 1, sizeof *met);
    assert_int_equal(p->n_rows, n_rows);
    int row = 0, unit = 0;
    for (const gr_page_task* t = p->task; t < p->task + p->n_tasks; t++) {
        assert_true(t->row_begin == row && t->unit_begin == unit && t->row_end > row);
        assert_true(t->row_end - t->row_begin <= GR_TASK_ROWS);
        row = t->row_end, unit = t->unit_end;
        check_units(p, t);
        for (int r = t->row_begin; r < t->row_end; r++) {
            int q = p->row[r];
            assert_true(q >= 0 && q < n_rows && !met[q]);
            met[q] = true;
            assert_int_equal(p->n_keys[r], n_keys[q]);
            check_row(w, p, t, r, seq[q]);
        }
    }
    assert_true(row == n_rows && unit == p->n_units);
    free(met);
}

static void plan_lists_what_each_row_sees(void** state)
{
    (void)state;
    enum { ROWS = 300 };
    int32_t seq[ROWS], n_keys[ROWS];
    rng r = {.key = 5};
    for (int round = 0; round < 40; round++) {
        world* w = world_open(20 + below(&r, 800), 2 + below(&r, 60), 20 + below(&r, 700), ROWS);
        for (int i = 0; i < 400; i++) {
            act(w, &r);
            if (i % 20 != 0) continue;
            int n = 0, want = below(&r, below(&r, ROWS) + 1);
            for (int k = 0; k < want; k++) {
                int s = pick(w, &r, true);
                if (s < 0 || w->seq[s].n == 0) continue;
                seq[n] = s;
                n_keys[n++] = 1 + below(&r, w->seq[s].n);
            }
            check_plan(w, seq, n_keys, n);
        }
        world_close(w);
    }
}

/* Sequences without a common page fill the pool: the most units there can be. */
static void plan_storage_holds_the_worst_case(void** state)
{
    (void)state;
    enum { SEQS = 40, LEN = 200 };
    int32_t seq[SEQS * 5], n_keys[SEQS * 5];
    world* w = world_open(SEQS * ((LEN + GR_PAGE - 1) / GR_PAGE), SEQS, LEN, SEQS * 5);
    for (int s = 0; s < SEQS; s++) {
        act_open(w);
        assert_true(act_append(w, s, LEN));
    }
    assert_int_equal(w->kv.n_free, 0);
    for (int i = 0; i < SEQS * 5; i++) seq[i] = i / 5, n_keys[i] = LEN - i % 5;
    check_plan(w, seq, n_keys, SEQS * 5);
    assert_true(w->plan.plan.n_units >= w->kv.n_pages);
    check_plan(w, seq, n_keys, 1);
    world_close(w);
}

/* Tasks are cut between trees, and a prefill is cut into several. */
static void plan_cuts_where_little_is_shared(void** state)
{
    (void)state;
    enum { TREES = 4, LEAVES = 7, LONG = 500 };
    int32_t seq[LONG], n_keys[LONG];
    world* w = world_open(1000, 64, 600, LONG);
    int n = 0;
    for (int t = 0; t < TREES; t++) {
        int root = act_open(w);
        act_append(w, root, 100);
        for (int l = 0; l < LEAVES; l++) {
            seq[l * TREES + t] = act_fork(w, root, 100);
            n_keys[l * TREES + t] = 101;
            n++;
        }
    }
    flush(w);
    for (int i = 0; i < n; i++) act_append(w, seq[i], 1);
    check_plan(w, seq, n_keys, n);
    const gr_page_plan* p = &w->plan.plan;
    for (int t = 0; t < p->n_tasks; t++) { /* one first page for all rows: one tree */
        const gr_page_unit* first = &p->unit[p->task[t].unit_begin];
        assert_true(first->row_end == p->task[t].row_end);
    }
    assert_true(p->n_units <= p->n_tasks * 6 + TREES * LEAVES);

    int s = act_open(w);
    act_append(w, s, LONG);
    for (int i = 0; i < LONG; i++) seq[i] = s, n_keys[i] = i + 1;
    check_plan(w, seq, n_keys, LONG);
    assert_true(p->n_tasks >= 6);
    world_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_actions_match_plain_lists),
        cmocka_unit_test(reset_gives_everything_back),
        cmocka_unit_test(plan_lists_what_each_row_sees),
        cmocka_unit_test(plan_storage_holds_the_worst_case),
        cmocka_unit_test(plan_cuts_where_little_is_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
