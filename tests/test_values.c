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

/* ---- heads ------------------------------------------------------------------------------------- */

/* Scalar heads on a network's rows (shared), or with a trunk of their own. */
typedef struct heads {
    gr_arena host, device, work;
    gr_weights w;
    gr_optimizer opt;
    gr_value v;
    gr_objective o; /* with a trunk of its own */
    gr_value_pass pass;
    bool shared;
} heads;

static void heads_layout(heads* h, net* n, const gr_model_config* c)
{
    gr_weights_layout(&h->w, &n->dev, c, true, &h->host, &h->device);
    gr_optimizer_layout(&h->opt, &h->w, &h->device);
    gr_value_layout(&h->v, &h->w, MAX_TOKENS, &h->host, &h->work);
    if (h->shared) return;
    gr_objective_layout(&h->o, &h->w, MAX_TOKENS, c->max_context, true, false, &h->host, &h->work);
}

static void heads_open(heads* h, net* n, int n_heads, bool shared)
{
    memset(h, 0, sizeof *h);
    h->shared = shared;
    gr_model_config c = n->w.config;
    c.value_heads = n_heads;
    if (shared) c.layers = 0;
    heads_layout(h, n, &c);
    net_take(n, &h->host, true);
    net_take(n, &h->device, false);
    net_take(n, &h->work, false);
    heads_layout(h, n, &c);
    gr_weights_init(&h->w, 3);
    h->pass = (gr_value_pass){.value = &h->v, .params = {.coef = 0.7}, .grad = h->opt.grad};
    gr_objective_set_values(shared ? &n->o : &h->o, &h->pass);
}

static void heads_close(heads* h, net* n)
{
    free(h->host.base);
    gr_dev_free(&n->dev, h->device.base);
    gr_dev_free(&n->dev, h->work.base);
    n->o.values = NULL;
}

static void randomise(gr_weights* w, rng* r, double scale)
{
    for (int i = 0; i < w->n_tensors; i++) {
        const gr_tensor* x = &w->tensor[i];
        double centre = strstr(x->name, "norm") != NULL && x->rows == 1 ? 1 : 0;
        for (int64_t k = 0; k < (int64_t)x->rows * x->cols; k++) {
            double value = centre + scale * between(r, -1, 1);
            gr_dev_write_acc(w->dev, gr_acc_at(w->dev, w->master, x->offset + k), &value, 1);
        }
    }
    gr_weights_publish(w);
}

typedef struct questions {
    int32_t src[MAX_TOKENS], head[MAX_TOKENS];
    double target[MAX_TOKENS], weight[MAX_TOKENS], old[MAX_TOKENS];
} questions;

/* Value rows anywhere in the forest, some at the same place. */
static void ask_anywhere(forest* f, questions* q, rng* r, int n_heads)
{
    gr_batch* b = &f->b;
    b->value_src = q->src, b->value_head = q->head, b->value_old = q->old;
    b->value_target = q->target, b->value_weight = q->weight;
    b->n_values = 30;
    for (int i = 0; i < b->n_values; i++) {
        q->src[i] = below(r, i % 3 == 0 ? 4 : b->n_tokens);
        q->head[i] = below(r, n_heads);
        q->target[i] = between(r, -1, 1);
        q->old[i] = between(r, -1, 1);
        q->weight[i] = between(r, 0, 0.1);
    }
}

/* The whole loss; gradients of network and heads are left in their buffers. */
static double whole_loss(net* n, heads* h, forest* f)
{
    const gr_loss_params nll = {.kind = GR_LOSS_NLL, .temperature = 1};
    gr_loss_sums sums = {0};
    h->pass.sums = (gr_value_sums){0};
    gr_optimizer_zero_grad(&n->opt);
    gr_optimizer_zero_grad(&h->opt);
    ASSERT_OK(gr_objective_step(&n->o, &f->b, &nll, n->opt.grad, &sums));
    if (!h->shared) ASSERT_OK(gr_objective_step(&h->o, &f->b, NULL, h->opt.grad, &sums));
    return sums.loss + h->pass.params.coef * h->pass.sums.loss;
}

static double at_master(const gr_weights* w, int64_t i, const double* write)
{
    double value = 0;
    if (write != NULL) gr_dev_write_acc(w->dev, gr_acc_at(w->dev, w->master, i), write, 1);
    gr_dev_read_acc(w->dev, &value, gr_acc_at(w->dev, w->master, i), 1);
    return value;
}

/* Some elements of every tensor of w against central differences of the whole loss. */
static double worst_difference(net* n, heads* h, forest* f, gr_weights* w, const gr_optimizer* opt,
                               rng* r)
{
    const double step = 1e-5;
    double worst = 0;
    for (int i = 0; i < w->n_tensors; i++) {
        const gr_tensor* x = &w->tensor[i];
        for (int k = 0; k < 3; k++) {
            int64_t at = x->offset + below(r, x->rows * x->cols);
            double sum[2], slope = 0, value = at_master(w, at, NULL);
            for (int side = 0; side < 2; side++) {
                double moved = value + (side ? step : -step);
                at_master(w, at, &moved);
                gr_weights_publish(w);
                sum[side] = whole_loss(n, h, f);
            }
            at_master(w, at, &value);
            gr_weights_publish(w);
            whole_loss(n, h, f);
            gr_dev_read_acc(w->dev, &slope, gr_acc_at(w->dev, opt->grad, at), 1);
            double want = (sum[1] - sum[0]) / (2 * step);
            worst = fmax(worst, fabs(slope - want) / (1e-3 + fabs(want)));
        }
    }
    return worst;
}

static void value_gradients_are_those_of_finite_differences(void** state)
{
    (void)state;
    static questions q;
    for (int trial = 0; trial < 6; trial++) {
        rng r = {.key = 40 + (uint64_t)trial};
        bool shared = trial % 2;
        int n_heads = 1 + trial / 2;
        net n;
        heads h;
        net_options o = {
            .config = small_config(), .dtype = GR_F64, .threads = 1, .max_tokens = MAX_TOKENS};
        o.recompute = trial > 3;
        net_open(&n, &o);
        net_randomise(&n, 5, 0.3);
        heads_open(&h, &n, n_heads, shared);
        randomise(&h.w, &r, 0.3);
        h.pass.params.clip = trial == 0 ? 0 : 0.3;
        forest* f = forest_random(&r, n.w.config.vocab, 1, 1, 3);
        forest_set_policies(f, &n, &r);
        ask_anywhere(f, &q, &r, n_heads);
        double of_heads = worst_difference(&n, &h, f, &h.w, &h.opt, &r);
        double of_policy = worst_difference(&n, &h, f, &n.w, &n.opt, &r);
        print_message("%s, %d heads: worst relative error %.1e, of the policy %.1e\n",
                      shared ? "shared trunk" : "own trunk", n_heads, of_heads, of_policy);
        assert_true(of_heads < 1e-5 && of_policy < 1e-5);
        free(f);
        heads_close(&h, &n);
        net_close(&n);
    }
}

/* With a trunk of its own a value model never moves the policy; heads that begin at 0 say 0. */
static void heads_begin_at_0_and_own_trunks_leave_the_policy_alone(void** state)
{
    (void)state;
    static questions q;
    rng r = {.key = 77};
    net n;
    heads h;
    net_options o = {
        .config = small_config(), .dtype = GR_F32, .threads = 1, .max_tokens = MAX_TOKENS};
    net_open(&n, &o);
    net_randomise(&n, 5, 0.3);
    forest* f = forest_random(&r, n.w.config.vocab, 2, 2, 3);
    forest_set_policies(f, &n, &r);
    for (int shared = 0; shared < 2; shared++) {
        heads_open(&h, &n, 2, shared);
        ask_anywhere(f, &q, &r, 2);
        ASSERT_OK(gr_objective_read(shared ? &n.o : &h.o, &f->b, 1));
        for (int i = 0; i < f->b.n_values; i++) assert_true(q.old[i] == 0);
        randomise(&h.w, &r, 0.3);
        ASSERT_OK(gr_objective_read(shared ? &n.o : &h.o, &f->b, 1));
        whole_loss(&n, &h, f);
        double* with = net_read(&n, n.opt.grad);
        f->b.n_values = 0;
        whole_loss(&n, &h, f);
        double* without = net_read(&n, n.opt.grad);
        int64_t differ = 0;
        for (int64_t i = 0; i < n.w.n_params; i++) differ += with[i] != without[i];
        assert_true(shared ? differ > n.w.n_params / 2 : differ == 0);
        free(with);
        free(without);
        heads_close(&h, &n);
    }
    free(f);
    net_close(&n);
}

/* Reads answered by a network, then a step on the same weights: old and new values are equal to the
 * last bit, in any packing, so nothing is clipped; the gradient of a tree is that of its rows. */
static void values_of_trees_are_those_of_flat_rows(void** state)
{
    (void)state;
    static woods f;
    net n;
    heads h;
    gr_pack p = {0};
    net_options o = {
        .config = small_config(), .dtype = GR_F64, .threads = 1, .max_tokens = MAX_TOKENS};
    toy brief = lively;
    brief.horizon = 5;
    o.config.vocab = 96;
    net_open(&n, &o);
    net_randomise(&n, 5, 0.3);
    for (int trial = 0; trial < 6; trial++) {
        rng r = {.key = (uint64_t)trial};
        dice d = {.key = 8 + (uint64_t)trial};
        const gr_config_loss* loss = &losses[trial];
        gr_denominators sums = {0};
        grow_woods(&f, &brief, 6 + (uint64_t)trial % 3); /* the estimators that ask */
        heads_open(&h, &n, 1, trial % 2);
        randomise(&h.w, &r, 0.3);
        gr_objective* reader = h.shared ? &n.o : &h.o;
        for (int k = 0; k < TREES; k++) {
            gr_tree* t = &f.tree[k];
            for (int64_t j = 0; j < t->n_tokens; j++) t->token[j] = choose(&d, o.config.vocab);
        }
        ASSERT_OK(gr_pack_ask(&p, f.credit, TREES, 60));
        for (int i = 0, at = 0; i < p.n_pieces; at += p.piece[i++].n_values) {
            ASSERT_OK(gr_objective_read(reader, &p.piece[i], 1));
            for (int j = 0; j < p.piece[i].n_values; j++) {
                p.read[at + j]->value = p.piece[i].value_old[j];
            }
        }
        for (int k = 0; k < TREES; k++) gr_denominators_add(&sums, f.member[k], loss);
        double* grad[2] = {0};
        gr_value_sums got[2];
        for (int flat = 0; flat < 2; flat++) {
            gr_loss_sums unused = {0};
            gr_status st = flat ? gr_pack_flat(&p, f.member, TREES, loss, &sums, 300)
                                : gr_pack_make(&p, f.member, TREES, loss, &sums, MAX_TOKENS);
            ASSERT_OK(st);
            h.pass.sums = (gr_value_sums){0};
            h.pass.params.clip = flat ? 1e-9 : 0; /* a clip that nothing meets */
            gr_optimizer_zero_grad(&h.opt);
            gr_optimizer_zero_grad(&n.opt);
            for (int i = 0; i < p.n_pieces; i++) {
                gr_batch* b = &p.piece[i];
                b->n_rows = 0; /* the value loss alone */
                ASSERT_OK(gr_objective_step(reader, b, NULL, h.shared ? n.opt.grad : h.opt.grad,
                                            &unused));
                for (int j = 0; j < b->n_values; j++) {
                    double now = h.v.host[b->value_src[j] * 1];
                    assert_true(now == b->value_old[j]);
                }
            }
            got[flat] = h.pass.sums;
            grad[flat] = malloc((size_t)h.w.n_params * sizeof(double));
            gr_dev_read_acc(&n.dev, grad[flat], h.opt.grad, h.w.n_params);
        }
        double scale = 0, worst = 0;
        for (int64_t i = 0; i < h.w.n_params; i++) {
            scale = fmax(scale, fabs(grad[0][i]));
            worst = fmax(worst, fabs(grad[0][i] - grad[1][i]));
        }
        assert_true(scale > 0 && worst < 1e-12 * scale);
        assert_true(fabs(got[0].loss - got[1].loss) < 1e-12 && fabs(got[0].weight - 1) < 1e-12);
        free(grad[0]);
        free(grad[1]);
        heads_close(&h, &n);
    }
    gr_pack_free(&p);
    free_woods(&f);
    net_close(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(value_rows_carry_the_targets_of_every_leaf),
        cmocka_unit_test(questions_are_asked_once_on_their_paths),
        cmocka_unit_test(value_gradients_are_those_of_finite_differences),
        cmocka_unit_test(heads_begin_at_0_and_own_trunks_leave_the_policy_alone),
        cmocka_unit_test(values_of_trees_are_those_of_flat_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
