/* Packing: what a row sees is its path, every trained token is in exactly one piece, and the folded
 * coefficients carry the loss of flat rows, written out here from its definition. */
#include "tests/woods.h"

/* ---- the loss of flat rows, by definition ---------------------------------------------------- */

static const struct {
    double low, high, dual, kl, entropy;
} objectives[] = {{0.2, 0.28, 0, 0, 0}, {0.2, 0.3, 3, 0.1, 0.01}};

/* Loss of one token of one row with weight 1, and its slope by the log-prob. */
static double token_loss(const woods* f, int u, double a, int objective, double* slope)
{
    double low = 1 - objectives[objective].low, high = 1 + objectives[objective].high;
    double dual = objectives[objective].dual;
    double q = exp(f->logp[u] - f->old_logp[u]), clipped = fmin(fmax(q, low), high);
    double loss = fmax(-q * a, -clipped * a), gap = f->ref_logp[u] - f->logp[u];
    *slope = -q * a >= -clipped * a ? -q * a : 0;
    if (a < 0 && dual > 0 && loss > -dual * a) loss = -dual * a, *slope = 0;
    *slope += objectives[objective].kl * (1 - exp(gap));
    return loss + objectives[objective].kl * (exp(gap) - gap - 1) -
           objectives[objective].entropy * f->entropy[u];
}

static int64_t trained_length(const gr_credit* c, int leaf)
{
    int64_t n = 0;
    for (; leaf > 0; leaf = c->tree->parent[leaf]) {
        for (int j = 0; j < c->tree->n_action[leaf]; j++) n += gr_credit_trained(c, leaf, j);
    }
    return n;
}

static int leaves_below(const gr_credit* c, int node)
{
    int n = 0;
    for (int l = 0; l < c->n_leaves; l++) {
        int i = c->leaf[l];
        while (i > node) i = c->tree->parent[i];
        n += i == node;
    }
    return n;
}

static bool member_counts(const gr_credit* c, const gr_config_loss* loss)
{
    return !c->idle || loss->count_idle_groups;
}

/* Sums over members, from scratch. */
static gr_denominators count(const woods* f, const gr_config_loss* loss)
{
    gr_denominators d = {0};
    for (int k = 0; k < TREES; k++) {
        const gr_credit* c = f->member[k];
        for (int l = 0; l < c->n_leaves && member_counts(c, loss); l++) {
            double y = (double)trained_length(c, c->leaf[l]);
            d.n_leaves++;
            d.leaf_tokens += y;
            d.split += c->split[l];
            d.split_tokens += c->split[l] * y;
        }
        for (int i = 1; i < c->tree->n_nodes && member_counts(c, loss); i++) {
            bool taught = leaves_below(c, i) > 0;
            for (int j = 0; j < c->tree->n_action[i] && taught; j++) {
                d.unique_tokens += gr_credit_trained(c, i, j);
            }
        }
    }
    return d;
}

/* Weight of one leaf's row at a token that n leaves share */
static double row_weight(const gr_config_loss* loss, const gr_denominators* d, double s, double y,
                         int n)
{
    bool split = loss->weighting == GR_WEIGHT_SPLIT;
    double w = 0;
    if (loss->weighting == GR_WEIGHT_ONCE_MEAN) return 1 / d->unique_tokens / n;
    if (loss->aggregation == GR_AGG_SEQ_MEAN_TOKEN_MEAN) w = 1 / (d->n_leaves * y);
    if (loss->aggregation == GR_AGG_TOKEN_MEAN) w = 1 / d->leaf_tokens;
    if (loss->aggregation == GR_AGG_CONSTANT) w = 1 / (d->n_leaves * (double)loss->length);
    if (split && loss->aggregation == GR_AGG_SEQ_MEAN_TOKEN_MEAN) w = s / (y * d->split);
    if (split && loss->aggregation == GR_AGG_TOKEN_MEAN) w = s / d->split_tokens;
    if (split && loss->aggregation == GR_AGG_CONSTANT) w = s / ((double)loss->length * d->split);
    return loss->weighting == GR_WEIGHT_INV_SQRT ? w / sqrt(n) : w;
}

static double flat_loss(const woods* f, const gr_config_loss* loss, int objective, double* slope)
{
    gr_denominators d = count(f, loss);
    double sum = 0;
    memset(slope, 0, TOKENS * sizeof *slope);
    for (int k = 0; k < TREES; k++) {
        const gr_credit* c = f->member[k];
        const gr_tree* t = c->tree;
        for (int l = 0; l < c->n_leaves && member_counts(c, loss); l++) {
            double y = (double)trained_length(c, c->leaf[l]);
            for (int i = c->leaf[l]; i > 0; i = t->parent[i]) {
                double w = row_weight(loss, &d, c->split[l], y, leaves_below(c, i));
                for (int j = 0; j < t->n_action[i]; j++) {
                    double ds = 0, a = gr_credit_token(c, l, i, j);
                    if (!gr_credit_trained(c, i, j)) continue;
                    int u = t->token[t->token_begin[i] + j];
                    sum += w * token_loss(f, u, a, objective, &ds);
                    slope[u] += w * ds;
                }
            }
        }
    }
    return sum;
}

/* ---- the loss of packed rows ----------------------------------------------------------------- */

static double packed_loss(const woods* f, const gr_pack* p, int objective, double* slope)
{
    double low = 1 - objectives[objective].low, high = 1 + objectives[objective].high, sum = 0;
    double dual = objectives[objective].dual > 0 ? objectives[objective].dual : (double)INFINITY;
    double kl = objectives[objective].kl;
    memset(slope, 0, TOKENS * sizeof *slope);
    for (int i = 0; i < p->n_pieces; i++) {
        const gr_batch* b = &p->piece[i];
        for (int r = 0; r < b->n_rows; r++) {
            int u = b->target[r];
            double q = exp(f->logp[u] - b->old_logp[r]), gap = f->ref_logp[u] - f->logp[u];
            sum -= b->a_pos[r] * fmin(q, high) + b->a_neg[r] * fmin(fmax(q, low), dual);
            sum += kl * b->w[r] * (exp(gap) - gap - 1);
            sum -= objectives[objective].entropy * b->w[r] * f->entropy[u];
            slope[u] -= q * (b->a_pos[r] * (q <= high) + b->a_neg[r] * (q >= low && q <= dual));
            slope[u] += kl * b->w[r] * (1 - exp(gap));
        }
    }
    return sum;
}

static double largest(const double* x, int n)
{
    double m = 0;
    for (int i = 0; i < n; i++) m = fmax(m, fabs(x[i]));
    return m;
}

static void assert_same_loss(const woods* f, const gr_pack* p, const gr_config_loss* loss)
{
    static double expected[TOKENS], got[TOKENS];
    for (int o = 0; o < GR_COUNT(objectives); o++) {
        double want = flat_loss(f, loss, o, expected), sum = packed_loss(f, p, o, got);
        assert_true(fabs(sum - want) <= 1e-12 * (1 + fabs(want)));
        double scale = largest(expected, f->n_tokens);
        for (int u = 0; u < f->n_tokens; u++) {
            assert_true(fabs(got[u] - expected[u]) <= 1e-12 * scale);
        }
    }
}

/* ---- the structure of a pack ----------------------------------------------------------------- */

static void check_row(const woods* f, const gr_batch* b, int r)
{
    int32_t path[1024];
    int u = b->target[r], n = context_of(f, u, path), at = 0;
    const gr_tree* t = &f->tree[f->tree_of[u]];
    assert_true(f->index_of[u] < t->n_action[f->node_of[u]] && t->train[f->node_of[u]]);
    assert_true(b->old_logp[r] == f->old_logp[u]);
    assert_true(b->w[r] > 0 && b->a_pos[r] >= 0 && b->a_neg[r] <= 0);
    assert_in_range(b->src[r], 0, b->n_tokens - 1);
    for (int j = 0; j <= b->src[r]; j++) {
        if (b->src[r] >= b->subtree_end[j]) continue; /* not visible */
        assert_true(at < n);
        assert_int_equal(b->token[j], path[at]);
        assert_int_equal(b->position[j], at);
        at++;
    }
    assert_int_equal(at, n);
}

static void check_pieces(const woods* f, const gr_pack* p, int max_tokens, bool flat)
{
    static int seen[TOKENS];
    int64_t rows = 0, tokens = 0;
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < p->n_pieces; i++) {
        const gr_batch* b = &p->piece[i];
        int longest = 0;
        assert_in_range(b->n_tokens, 1, max_tokens);
        assert_true(b->n_rows + b->n_values > 0 && b->n_rows <= b->n_tokens);
        for (int j = 0; j < b->n_tokens; j++) {
            assert_in_range(b->subtree_end[j], j + 1, b->n_tokens);
            longest = GR_MAX(longest, b->position[j] + 1);
        }
        assert_int_equal(b->max_path, longest);
        for (int r = 0; r < b->n_rows; r++) {
            check_row(f, b, r);
            seen[b->target[r]]++;
        }
        rows += b->n_rows;
        tokens += b->n_tokens;
    }
    assert_int_equal(p->trained, rows);
    assert_int_equal(p->tokens, tokens);
    for (int u = 0; u < f->n_tokens && !flat; u++) {
        const gr_credit* c = &f->credit[f->tree_of[u]];
        int node = f->node_of[u];
        bool action =
            f->index_of[u] < c->tree->n_action[node] && gr_credit_trained(c, node, f->index_of[u]);
        assert_int_equal(seen[u], action && !c->idle && leaves_below(c, node) > 0);
    }
}

/* Cutting changes where a row is, not what it carries. */
static void assert_same_rows(const gr_pack* a, const gr_pack* b)
{
    static const gr_batch* piece[TOKENS];
    static int row[TOKENS];
    for (int i = 0; i < a->n_pieces; i++) {
        for (int r = 0; r < a->piece[i].n_rows; r++) {
            piece[a->piece[i].target[r]] = &a->piece[i];
            row[a->piece[i].target[r]] = r;
        }
    }
    assert_int_equal(a->trained, b->trained);
    for (int i = 0; i < b->n_pieces; i++) {
        const gr_batch* y = &b->piece[i];
        for (int r = 0; r < y->n_rows; r++) {
            const gr_batch* x = piece[y->target[r]];
            int q = row[y->target[r]];
            assert_true(x->target[q] == y->target[r] && x->old_logp[q] == y->old_logp[r]);
            assert_true(x->a_pos[q] == y->a_pos[r] && x->a_neg[q] == y->a_neg[r]);
            assert_true(x->w[q] == y->w[r]);
        }
    }
}

static gr_denominators add_all(const woods* f, const gr_config_loss* loss)
{
    gr_denominators d = {0}, expected = count(f, loss);
    for (int k = 0; k < TREES; k++) gr_denominators_add(&d, f->member[k], loss);
    assert_true(d.n_leaves == expected.n_leaves && d.leaf_tokens == expected.leaf_tokens);
    assert_true(d.unique_tokens == expected.unique_tokens);
    assert_true(fabs(d.split - expected.split) < 1e-9);
    assert_true(fabs(d.split_tokens - expected.split_tokens) < 1e-9);
    return d;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void folded_loss_is_the_loss_of_flat_rows(void** state)
{
    (void)state;
    static woods f;
    gr_pack whole = {0}, cut = {0}, flat = {0};
    int many = 0, shared = 0;
    for (uint64_t key = 1; key <= 30; key++) {
        grow_woods(&f, &lively, key);
        for (int i = 0; i < GR_COUNT(losses); i++) {
            const gr_config_loss* loss = &losses[i];
            gr_denominators d = add_all(&f, loss);
            ASSERT_OK(gr_pack_make(&whole, f.member, TREES, loss, &d, TOKENS));
            check_pieces(&f, &whole, TOKENS, false);
            assert_in_range(whole.n_pieces, 0, 1);
            assert_same_loss(&f, &whole, loss);
            for (int max = 64; max < 400; max += 83) {
                ASSERT_OK(gr_pack_make(&cut, f.member, TREES, loss, &d, max));
                check_pieces(&f, &cut, max, false);
                assert_same_loss(&f, &cut, loss);
                assert_same_rows(&whole, &cut);
                assert_true(cut.trained == whole.trained && cut.tokens >= whole.tokens);
                assert_true(cut.trained_flat == whole.trained_flat);
                many += cut.n_pieces > 2;
            }
            ASSERT_OK(gr_pack_flat(&flat, f.member, TREES, loss, &d, TOKENS));
            check_pieces(&f, &flat, TOKENS, true);
            assert_same_loss(&f, &flat, loss);
            assert_true(flat.trained == whole.trained_flat);
            assert_true(flat.tokens == whole.tokens_flat);
            assert_true(flat.trained_flat == flat.trained);
            shared += flat.tokens > whole.tokens;
        }
    }
    assert_true(many > 500 && shared > 200);
    gr_pack_free(&whole);
    gr_pack_free(&cut);
    gr_pack_free(&flat);
    free_woods(&f);
}

/* Some turns are not trained, and histories are rendered anew: the children of some nodes answer a
 * context node of their own instead of their parent's tokens. */
static void folds_with_contexts_and_untrained_turns(void** state)
{
    (void)state;
    static woods f;
    gr_pack p = {0};
    int rendered = 0, untrained = 0;
    for (uint64_t key = 1; key <= 30; key++) {
        dice d = {.key = key + 500};
        grow_woods(&f, &lively, key);
        for (int k = 0; k < TREES; k++) {
            gr_tree* t = &f.tree[k];
            for (int i = 1; i < t->n_nodes; i++) {
                t->train[i] = t->train[i] && choose(&d, 5) > 0;
                untrained += !t->train[i];
                /* a failed node stands in for a rendered context: no leaf, no action */
                if (t->status[i] != GR_ERROR) continue;
                t->kind[i] = GR_CONTEXT;
                t->context[i] = -1;
                t->n_obs[i] += t->n_action[i];
                t->n_action[i] = 0;
                for (int c = t->parent[i] + 1; c < t->n_nodes; c++) {
                    if (t->parent[c] != t->parent[i] || c == i) continue;
                    t->context[c] = i;
                    rendered++;
                }
            }
        }
        number_tokens(&f, &d);
        credit_all(&f, key);
        for (int i = 0; i < GR_COUNT(losses); i++) {
            gr_denominators sums = add_all(&f, &losses[i]);
            for (int max = 64; max < 400; max += 120) {
                ASSERT_OK(gr_pack_make(&p, f.member, TREES, &losses[i], &sums, max));
                check_pieces(&f, &p, max, false);
                assert_same_loss(&f, &p, &losses[i]);
            }
            ASSERT_OK(gr_pack_flat(&p, f.member, TREES, &losses[i], &sums, 100));
            check_pieces(&f, &p, 100, true);
            assert_same_loss(&f, &p, &losses[i]);
        }
    }
    assert_true(rendered > 30 && untrained > 300);
    gr_pack_free(&p);
    free_woods(&f);
}

/* R[3], A1[2|2] and B1[3|2] under R, A2[2|1] and A3[2|2] under A1; tokens in packed order. */
static void worked_example(gr_tree* t)
{
    static const struct {
        int parent, n_action, n_obs, first;
    } node[] = {{0, 2, 2, 3}, {0, 3, 2, 14}, {1, 2, 1, 7}, {1, 2, 2, 10}};
    gr_tree_reset(t, 0, 0, 0, 0, 1, 0);
    gr_tree_add_root(t, (const int32_t[]){0, 1, 2}, 3, 2);
    for (int i = 0; i < GR_COUNT(node); i++) {
        int32_t token[8];
        double logp[8];
        for (int k = 0; k < 8; k++) token[k] = node[i].first + k, logp[k] = -0.125 * token[k];
        int n = gr_tree_add_child(t, node[i].parent, -1);
        gr_obs o = {.end = i == 0 ? GR_RUNNING : GR_END_TERMINAL};
        gr_tree_set_action(t, n, token, logp, node[i].n_action, 0);
        gr_tree_set_result(t, n, &o);
        gr_tree_set_obs(t, n, token + node[i].n_action, node[i].n_obs);
    }
    gr_tree_check(t);
}

static void assert_ints(const int32_t* got, const int32_t* expected, int n)
{
    for (int i = 0; i < n; i++) {
        if (got[i] != expected[i]) fail_msg("[%d]: %d, not %d", i, got[i], expected[i]);
    }
}

static void worked_example_has_these_arrays(void** state)
{
    (void)state;
    static const int32_t position[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 7, 8, 9, 10, 3, 4, 5, 6, 7};
    static const int32_t end[] = {19, 19, 19, 14, 14, 14, 14, 10, 10, 10,
                                  14, 14, 14, 14, 19, 19, 19, 19, 19};
    static const int32_t target[] = {3, 4, 7, 8, 10, 11, 14, 15, 16};
    static const int32_t src[] = {2, 3, 6, 7, 6, 10, 2, 14, 15};
    gr_tree t = {0};
    gr_credit c = {0};
    gr_pack p = {0};
    worked_example(&t);
    gr_credit_fill(&c, &t, &gr_estimator_grpo, NULL, 0);
    assert_true(c.n_leaves == 3 && c.idle); /* equal returns: advantages by hand */
    assert_true(c.leaf[0] == 2 && c.leaf[1] == 3 && c.leaf[2] == 4);
    assert_true(c.split[0] == 1 && c.split[1] == 0.5 && c.split[2] == 0.5);
    c.adv[0] = 0.5, c.adv[1] = 1, c.adv[2] = -2; /* B1, A2, A3 */
    c.idle = false;
    const gr_credit* member = &c;
    gr_denominators d = {0};
    gr_config_loss loss = losses[0];
    gr_denominators_add(&d, &c, &loss);
    assert_true(d.n_leaves == 3 && d.leaf_tokens == 11 && d.unique_tokens == 9);
    assert_true(d.split == 2 && d.split_tokens == 7);
    ASSERT_OK(gr_pack_make(&p, &member, 1, &loss, &d, 19));
    const gr_batch* b = p.piece;
    assert_true(p.n_pieces == 1 && b->n_tokens == 19 && b->n_rows == 9 && b->max_path == 11);
    assert_true(p.trained == 9 && p.trained_flat == 11 && p.tokens == 19 && p.tokens_flat == 29);
    for (int i = 0; i < 19; i++) assert_int_equal(b->token[i], i);
    assert_ints(b->position, position, 19);
    assert_ints(b->subtree_end, end, 19);
    assert_ints(b->target, target, 9);
    assert_ints(b->src, src, 9);
    /* |y| = 4, 4, 3: w = 1/12, 1/12, 1/9; rows A1 A1 A2 A2 A3 A3 B1 B1 B1 */
    for (int r = 0; r < 9; r++) {
        double pos[] = {1.0 / 12, 1.0 / 12, 0, 0.5 / 9}, neg[] = {-2.0 / 12, 0, -2.0 / 12, 0};
        double w[] = {1.0 / 6, 1.0 / 12, 1.0 / 12, 1.0 / 9};
        int node = GR_MIN(r / 2, 3);
        assert_true(fabs(b->a_pos[r] - pos[node]) < 1e-15);
        assert_true(fabs(b->a_neg[r] - neg[node]) < 1e-15);
        assert_true(fabs(b->w[r] - w[node]) < 1e-15);
        assert_true(b->old_logp[r] == -0.125 * target[r]);
    }
    gr_pack_free(&p);
    gr_credit_free(&c);
    gr_tree_free(&t);
}

static void worked_example_is_cut_at_nodes(void** state)
{
    (void)state;
    gr_tree t = {0};
    gr_credit c = {0};
    gr_pack p = {0};
    worked_example(&t);
    t.reward[2] = 1;
    gr_credit_fill(&c, &t, &gr_estimator_grpo, NULL, 0);
    const gr_credit* member = &c;
    gr_denominators d = {0};
    gr_denominators_add(&d, &c, &losses[0]);
    ASSERT_OK(gr_pack_make(&p, &member, 1, &losses[0], &d, 11));
    static const int32_t n[] = {10, 11, 8}, rows[] = {4, 2, 3};
    static const int32_t second[] = {0, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13};
    static const int32_t third[] = {0, 1, 2, 14, 15, 16, 17, 18};
    assert_int_equal(p.n_pieces, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(p.piece[i].n_tokens, n[i]);
        assert_int_equal(p.piece[i].n_rows, rows[i]);
        for (int j = 0; j < n[i]; j++) assert_int_equal(p.piece[i].position[j], j);
    }
    assert_ints(p.piece[1].token, second, 11);
    assert_ints(p.piece[2].token, third, 8);
    assert_int_equal(p.piece[1].src[0], 6);
    assert_true(p.tokens == 29 && p.trained == 9);
    /* one token less does not hold A3 with what precedes it */
    assert_int_equal(gr_pack_make(&p, &member, 1, &losses[0], &d, 10), GR_EARG);
    assert_non_null(strstr(gr_last_error_text(), "optimizer.microbatch_tokens=10"));
    assert_non_null(strstr(gr_last_error_text(), "11 tokens"));
    ASSERT_OK(gr_pack_make(&p, &member, 1, &losses[0], &d, 14)); /* and the pack is good again */
    assert_int_equal(p.n_pieces, 2);
    gr_pack_free(&p);
    gr_credit_free(&c);
    gr_tree_free(&t);
}

static void what_teaches_nothing_is_not_packed(void** state)
{
    (void)state;
    gr_tree t = {0};
    gr_credit c = {0};
    gr_pack p = {0};
    const gr_credit* member = &c;
    gr_config_loss loss = losses[1];
    /* root alone; all members in error; nothing trained: even if idle groups count */
    for (int kind = 0; kind < 3; kind++) {
        worked_example(&t);
        for (int i = 0; i < 5; i++) t.train[i] = kind != 2 && t.train[i];
        for (int i = 2; i < 5 && kind == 1; i++) t.status[i] = GR_ERROR;
        if (kind == 0) {
            gr_tree_reset(&t, 0, 0, 0, 0, 1, 0);
            gr_tree_add_root(&t, (const int32_t[]){1}, 1, 2);
        }
        for (int all = 0; all < 2; all++) {
            gr_denominators d = {0};
            loss.count_idle_groups = all;
            gr_credit_fill(&c, &t, &gr_estimator_grpo, NULL, 0);
            gr_denominators_add(&d, &c, &loss);
            assert_true(d.leaf_tokens == 0 && d.unique_tokens == 0);
            ASSERT_OK(gr_pack_make(&p, &member, 1, &loss, &d, 19));
            assert_true(p.n_pieces == 0 && p.trained == 0 && p.tokens == 0 && p.tokens_flat == 0);
            ASSERT_OK(gr_pack_flat(&p, &member, 1, &loss, &d, 19));
            assert_true(p.n_pieces == 0 && p.trained == 0);
        }
    }
    ASSERT_OK(gr_pack_make(&p, NULL, 0, &loss, &(gr_denominators){0}, 19));
    assert_int_equal(p.n_pieces, 0);
    gr_pack_free(&p);
    gr_credit_free(&c);
    gr_tree_free(&t);
}

/* An idle group is left out, KL and entropy included, unless count_idle_groups; then it has weights
 * and no advantages. A branch in error is left out in either case. */
static void idle_groups_and_errors_stay_outside(void** state)
{
    (void)state;
    gr_tree t = {0};
    gr_credit c = {0};
    gr_pack p = {0};
    const gr_credit* member = &c;
    gr_config_loss loss = losses[1];
    worked_example(&t);
    t.status[4] = GR_ERROR; /* A3 */
    gr_credit_fill(&c, &t, &gr_estimator_grpo, NULL, 1e-6);
    assert_true(c.idle && c.n_leaves == 2);
    for (int all = 0; all < 2; all++) {
        gr_denominators d = {0};
        loss.count_idle_groups = all;
        gr_denominators_add(&d, &c, &loss);
        assert_true(d.n_leaves == 2 * all && d.leaf_tokens == 7 * all);
        ASSERT_OK(gr_pack_make(&p, &member, 1, &loss, &d, 19));
        assert_int_equal(p.trained, 7 * all);
        if (!all) continue;
        const gr_batch* b = p.piece;
        assert_int_equal(b->n_tokens, 15);
        for (int i = 0; i < b->n_tokens; i++) assert_true(b->token[i] < 10 || b->token[i] > 13);
        for (int r = 0; r < 7; r++) {
            assert_true(b->a_pos[r] == 0 && b->a_neg[r] == 0);
            assert_true(fabs(b->w[r] - 1.0 / 7) < 1e-15);
        }
    }
    gr_pack_free(&p);
    gr_credit_free(&c);
    gr_tree_free(&t);
}

/* ---- scores never reach the batch ------------------------------------------------------------ */

/* Another scorer with the same order of nodes: the same decisions where nothing is pruned. */
static void cubed(const void* settings, const gr_tree* t, const gr_world* world, uint64_t key,
                  const int32_t* node, int n, double* out)
{
    gr_scorer_random.score(settings, t, world, key, node, n, out);
    for (int i = 0; i < n; i++) out[i] = out[i] * out[i] * out[i];
}

static uint64_t batch_hash(const gr_pack* p)
{
    uint64_t h = 0;
    for (int i = 0; i < p->n_pieces; i++) {
        const gr_batch* b = &p->piece[i];
        size_t n = (size_t)b->n_tokens, r = (size_t)b->n_rows;
        h = gr_hash64(b->token, n * sizeof *b->token, h);
        h = gr_hash64(b->position, n * sizeof *b->position, h);
        h = gr_hash64(b->subtree_end, n * sizeof *b->subtree_end, h);
        h = gr_hash64(b->src, r * sizeof *b->src, h);
        h = gr_hash64(b->target, r * sizeof *b->target, h);
        h = gr_hash64(b->old_logp, r * sizeof *b->old_logp, h);
        h = gr_hash64(b->a_pos, r * sizeof *b->a_pos, h);
        h = gr_hash64(b->a_neg, r * sizeof *b->a_neg, h);
        h = gr_hash64(b->w, r * sizeof *b->w, h);
    }
    return h;
}

static void another_scorer_with_equal_decisions_gives_equal_batches(void** state)
{
    (void)state;
    gr_tree t = {0};
    gr_credit c = {0};
    gr_pack p = {0};
    const gr_credit* member = &c;
    const gr_scorer other = {.name = "cubed", .score = cubed};
    void* settings = settings_of(gr_strategy_patr.block, "interval=2 alpha=1");
    grower g = {
        .world = &lively, .strategy = &gr_strategy_patr, .strategy_settings = settings, .group = 4};
    int differ = 0;
    for (uint64_t key = 1; key <= 40; key++) {
        uint64_t h[2];
        double sum[2] = {0};
        for (int k = 0; k < 2; k++) {
            gr_denominators d = {0};
            g.scorer = k == 0 ? &gr_scorer_random : &other;
            grow(&g, &t, key);
            for (int i = 0; i < t.n_nodes; i++) sum[k] += isnan(t.score[i]) ? 0 : t.score[i];
            gr_credit_fill(&c, &t, gr_estimators[key % 6], settings_for(gr_estimators[key % 6]),
                           1e-6);
            gr_denominators_add(&d, &c, &losses[0]);
            ASSERT_OK(gr_pack_make(&p, &member, 1, &losses[0], &d, 200));
            h[k] = batch_hash(&p);
        }
        assert_true(h[0] == h[1]);
        differ += sum[0] != sum[1];
    }
    assert_true(differ > 20);
    free(settings);
    gr_pack_free(&p);
    gr_credit_free(&c);
    gr_tree_free(&t);
}

/* ---- gradients through the network ----------------------------------------------------------- */

static const gr_loss_params full_loss = {
    .kind = GR_LOSS_POLICY,
    .clip_low = 0.2,
    .clip_high = 0.28,
    .dual_clip = 3,
    .kl = GR_KL_K3,
    .kl_coef = 0.2,
    .entropy_coef = 0.02,
    .temperature = 0.9f,
};

/* Gradient of a pack into grad (n_params); log-probs of its rows, in order, into logp. */
static double gradient_of(net* n, gr_pack* p, const gr_loss_params* params, double* grad,
                          double* logp)
{
    gr_loss_sums sums = {0};
    gr_optimizer_zero_grad(&n->opt);
    for (int i = 0; i < p->n_pieces; i++) {
        gr_batch* b = &p->piece[i];
        for (int r = 0; r < b->n_rows; r++) { /* a reference model that any packing knows */
            b->ref_logp[r] = b->old_logp[r] + 0.3 * sin(40 * b->old_logp[r]);
        }
        ASSERT_OK(gr_objective_step(&n->o, b, params, n->opt.grad, &sums));
        for (int r = 0; r < b->n_rows && logp != NULL; r++) *logp++ = n->o.host_logp[r];
    }
    gr_dev_read_acc(&n->dev, grad, n->opt.grad, n->w.n_params);
    return sums.loss;
}

/* Sampling log-probs that put the network's ratios on every side of the clips. */
static void set_policies(woods* f, net* n, dice* d, double* grad)
{
    static const double ratio[] = {0.4, 0.7, 0.9, 1.0, 1.1, 1.25, 1.4, 2.5, 3.5, 5};
    const gr_loss_params nll = {.kind = GR_LOSS_NLL, .temperature = full_loss.temperature};
    gr_config_loss loss = losses[1];
    gr_denominators sums = {0};
    gr_pack p = {0};
    int at = 0;
    loss.count_idle_groups = true; /* every leaf's path has rows */
    for (int k = 0; k < TREES; k++) {
        gr_tree* t = &f->tree[k];
        for (int64_t j = 0; j < t->n_tokens; j++) t->logp[j] = at++; /* names the token for now */
        gr_denominators_add(&sums, f->member[k], &loss);
    }
    ASSERT_OK(gr_pack_make(&p, f->member, TREES, &loss, &sums, MAX_TOKENS));
    gradient_of(n, &p, &nll, grad, f->logp);
    for (int i = 0, row = 0; i < p.n_pieces; i++) {
        for (int r = 0; r < p.piece[i].n_rows; r++, row++) {
            double move = log(ratio[choose(d, GR_COUNT(ratio))]);
            f->old_logp[(int)p.piece[i].old_logp[r]] = f->logp[row] - move;
        }
    }
    at = 0;
    for (int k = 0; k < TREES; k++) {
        for (int64_t j = 0; j < f->tree[k].n_tokens; j++) f->tree[k].logp[j] = f->old_logp[at++];
    }
    gr_pack_free(&p);
}

static void assert_same_gradient(const net* n, const double* got, const double* expected,
                                 double bound)
{
    for (int i = 0; i < n->w.n_tensors; i++) {
        const gr_tensor* x = &n->w.tensor[i];
        const double *a = got + x->offset, *b = expected + x->offset;
        int size = x->rows * x->cols;
        double scale = largest(b, size), worst = 0;
        for (int k = 0; k < size; k++) worst = fmax(worst, fabs(a[k] - b[k]));
        assert_true(scale > 0);
        if (!(worst <= bound * scale)) fail_msg("%s: %g of %g", x->name, worst, scale);
    }
}

static void compare_gradients(gr_dtype dtype, double bound)
{
    toy brief = lively; /* fp64 runs on the slow baseline */
    brief.horizon = 5;
    brief.max_action = brief.max_obs = 3;
    static woods f;
    net n;
    gr_pack p = {0};
    net_options o = {
        .config = small_config(), .dtype = dtype, .threads = 1, .max_tokens = MAX_TOKENS};
    o.config.vocab = 96;
    o.config.qk_norm = o.config.qkv_bias = true;
    net_open(&n, &o);
    net_randomise(&n, 5, 0.3);
    size_t bytes = (size_t)n.w.n_params * sizeof(double);
    double *whole = malloc(bytes), *other = malloc(bytes);
    int pieces = 0;
    for (uint64_t key = 1; key <= GR_COUNT(losses); key++) {
        dice d = {.key = key + 70};
        const gr_config_loss* loss = &losses[key - 1];
        gr_denominators sums = {0};
        grow_woods(&f, &brief, key + 70);
        for (int k = 0; k < TREES; k++) { /* as the world wrote them: tokens of the vocabulary */
            gr_tree* t = &f.tree[k];
            for (int64_t j = 0; j < t->n_tokens; j++) t->token[j] = choose(&d, o.config.vocab);
        }
        set_policies(&f, &n, &d, whole);
        for (int k = 0; k < TREES; k++) gr_denominators_add(&sums, f.member[k], loss);
        ASSERT_OK(gr_pack_make(&p, f.member, TREES, loss, &sums, MAX_TOKENS));
        double expected = gradient_of(&n, &p, &full_loss, whole, NULL);
        for (int way = 0; way < 2; way++) { /* cut, flat */
            gr_status st =
                way == 0 ? gr_pack_make(&p, f.member, TREES, loss, &sums, 40 + 30 * (int)(key % 3))
                         : gr_pack_flat(&p, f.member, TREES, loss, &sums, 512);
            ASSERT_OK(st);
            pieces += p.n_pieces;
            double got = gradient_of(&n, &p, &full_loss, other, NULL);
            assert_true(fabs(got - expected) <= bound * (1 + fabs(expected)));
            assert_same_gradient(&n, other, whole, bound);
        }
    }
    assert_true(pieces > 50); /* of 20 packs */
    free(whole);
    free(other);
    gr_pack_free(&p);
    free_woods(&f);
    net_close(&n);
}

static void gradients_do_not_depend_on_packing(void** state)
{
    (void)state;
    compare_gradients(GR_F64, 1e-12);
    compare_gradients(GR_F32, 1e-5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worked_example_has_these_arrays),
        cmocka_unit_test(worked_example_is_cut_at_nodes),
        cmocka_unit_test(folded_loss_is_the_loss_of_flat_rows),
        cmocka_unit_test(folds_with_contexts_and_untrained_turns),
        cmocka_unit_test(what_teaches_nothing_is_not_packed),
        cmocka_unit_test(idle_groups_and_errors_stay_outside),
        cmocka_unit_test(another_scorer_with_equal_decisions_gives_equal_batches),
        cmocka_unit_test(gradients_do_not_depend_on_packing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
