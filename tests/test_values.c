/* Values from question to gradient: what is asked is asked once and on its path, targets reach the
 * value rows of any packing, and the heads learn by the squared error's gradient. */
#include "tests/woods.h"

/* Value rows of a pack against the targets of its credits: per token that is read, what pulls at it
 * and how strongly. Names tokens, so a read is known by the token it follows. */
static void check_values(const woods* f, const gr_pack* p)
{
    static double weight[TOKENS], pull[TOKENS];
    double leaves = 0, total = 0;
    memset(weight, 0, sizeof weight);
    memset(pull, 0, sizeof pull);
    for (int k = 0; k < TREES; k++) leaves += f->credit[k].n_heads > 0 ? f->credit[k].n_leaves : 0;
    for (int i = 0; i < p->n_pieces; i++) {
        const gr_batch* b = &p->piece[i];
        for (int r = 0; r < b->n_values; r++) {
            assert_in_range(b->value_src[r], 0, b->n_tokens - 1);
            int u = b->token[b->value_src[r]];
            weight[u] += b->value_weight[r];
            pull[u] += b->value_weight[r] * (b->value_target[r] - b->value_old[r]);
            total += b->value_weight[r];
        }
    }
    for (int k = 0; k < TREES; k++) {
        const gr_credit* c = &f->credit[k];
        for (int64_t i = 0; i < c->n_targets; i++) {
            const gr_read* read = &c->read[c->target[i].read];
            int u = c->tree->token[c->tree->token_begin[read->node] + read->offset];
            double w = c->target[i].weight / leaves;
            weight[u] -= w;
            pull[u] -= w * (c->target[i].ret - read->value);
        }
    }
    assert_true(total == 0 || fabs(total - 1) < 1e-12); /* one head: each leaf weighs 1 / N */
    for (int u = 0; u < f->n_tokens; u++) {
        assert_true(fabs(weight[u]) < 1e-12 && fabs(pull[u]) < 1e-12);
    }
}

/* However the trees are packed, whole, cut or as flat rows. */
static void value_rows_carry_the_targets_of_every_leaf(void** state)
{
    (void)state;
    static woods f;
    gr_pack p = {0};
    int64_t rows = 0;
    for (uint64_t key = 6; key <= 60; key++) {
        if (credits[key % GR_COUNT(credits)].estimator->ask == NULL) continue;
        grow_woods(&f, &lively, key);
        gr_denominators d = {0};
        const gr_config_loss* loss = &losses[key % GR_COUNT(losses)];
        for (int k = 0; k < TREES; k++) gr_denominators_add(&d, f.member[k], loss);
        for (int max = 64; max < 400; max += 83) {
            ASSERT_OK(gr_pack_make(&p, f.member, TREES, loss, &d, max));
            check_values(&f, &p);
        }
        ASSERT_OK(gr_pack_flat(&p, f.member, TREES, loss, &d, 100));
        check_values(&f, &p);
        for (int i = 0; i < p.n_pieces; i++) rows += p.piece[i].n_values;
    }
    assert_true(rows > 3000);
    gr_pack_free(&p);
    free_woods(&f);
}

/* What is asked stands behind the tokens that it asks about, once. */
static void questions_are_asked_once_on_their_paths(void** state)
{
    (void)state;
    static woods f;
    gr_pack p = {0};
    int64_t reads = 0, probes = 0;
    for (uint64_t key = 6; key <= 60; key++) {
        dice d = {.key = key};
        if (credits[key % GR_COUNT(credits)].estimator->ask == NULL) continue;
        grow_woods(&f, &lively, key);
        for (int k = 0; k < TREES; k++) {
            for (int i = 1; i < f.tree[k].n_nodes; i++) {
                if (choose(&d, 2)) gr_credit_ask_logp(&f.credit[k], i, choose(&d, 2), 7);
            }
        }
        ASSERT_OK(gr_pack_ask(&p, f.credit, TREES, 64 + 60 * choose(&d, 4)));
        int value = 0, row = 0;
        for (int i = 0; i < p.n_pieces; i++) {
            const gr_batch* b = &p.piece[i];
            for (int r = 0; r < b->n_values; r++) {
                const gr_read* read = p.read[value++];
                int u = b->token[b->value_src[r]], length = 0;
                assert_true(f.node_of[u] == read->node && f.index_of[u] == read->offset);
                assert_true(b->value_head[r] == read->head);
                for (int j = 0; j <= b->value_src[r]; j++)
                    length += b->value_src[r] < b->subtree_end[j];
                assert_int_equal(length, b->position[b->value_src[r]] + 1);
                p.read[value - 1]->value = -1; /* answered */
            }
            for (int r = 0; r < b->n_rows; r++) {
                const gr_probe* probe = p.probe[row++];
                const gr_tree* t = NULL;
                for (int k = 0; k < TREES; k++) {
                    bool own = probe >= f.credit[k].probe &&
                               probe < f.credit[k].probe + f.credit[k].n_probes;
                    if (own) t = &f.tree[k];
                }
                int32_t path[1024];
                int n = context_of(&f, t->token[t->token_begin[probe->node]], path) + probe->k;
                assert_int_equal(b->position[b->src[r]], n - 1);
                assert_int_equal(b->target[r], 7);
            }
        }
        for (int k = 0; k < TREES; k++) {
            reads += f.credit[k].n_reads, probes += f.credit[k].n_probes;
            value -= f.credit[k].n_reads, row -= f.credit[k].n_probes;
            for (int i = 0; i < f.credit[k].n_reads; i++) {
                assert_true(f.credit[k].read[i].value == -1);
            }
        }
        assert_true(value == 0 && row == 0);
    }
    assert_true(reads > 2000 && probes > 400);
    gr_pack_free(&p);
    free_woods(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(value_rows_carry_the_targets_of_every_leaf),
        cmocka_unit_test(questions_are_asked_once_on_their_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
