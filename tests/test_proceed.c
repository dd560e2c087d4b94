/* ProCeedRL: which steps are taken back and which attempt stays, against the rule read off finished
 * trees; that a rewind is the state before; what demonstrations weigh; and that a run with them
 * trains at parity. */
#include "tests/grow.h"
#define GROUPS 5
#include "tests/rolled.h"

static const toy lively = {.p_up = 0.5,
                           .goal = 2,
                           .horizon = 8,
                           .p_end = 0.08,
                           .p_error = 0.05,
                           .p_cut = 0.05,
                           .max_action = 3,
                           .max_obs = 3};

typedef struct rule {
    int threshold, tries, max_refined, group, watched;
    bool last;
    int64_t cap;
} rule;

static void grow_by(const rule* u, gr_tree* t, uint64_t key)
{
    char pairs[256];
    (void)snprintf(pairs, sizeof pairs, "threshold=%d tries=%d max_refined=%d share=%.17g keep=%s",
                   u->threshold, u->tries, u->max_refined, (double)u->watched / u->group,
                   u->last ? "last" : "better");
    void* s = settings_of(gr_strategy_proceed.block, pairs);
    grower g = {.world = &lively,
                .strategy = &gr_strategy_proceed,
                .strategy_settings = s,
                .scorer = &gr_scorer_random,
                .group = u->group,
                .turn_cap = u->cap,
                .order = key + 7,
                .check = key % 8 == 0,
                .states = true};
    grow(&g, t, key);
    free(s);
}

static bool is_attempt(const gr_tree* t, int i, int node)
{
    return t->parent[i] == t->parent[node] && t->branch[i] == t->branch[node];
}

static int worth(const gr_tree* t, int i)
{
    bool broken = t->kind[i] != GR_POLICY && t->about[i] >= 0 && !t->stepped[i];
    return broken || isnan(t->score[i]) ? -1 : (int)lround(10 * t->score[i]);
}

/* The attempts at one turn, of which `node` is the first. Returns how often it was made again. */
static int assert_attempts(const rule* u, const gr_tree* t, int node)
{
    int n = 0, kept = -1, last = node, best = -1;
    for (int i = node; i < t->n_nodes; i++) {
        if (!is_attempt(t, i, node)) continue;
        assert_int_equal(gr_tree_attempt(t, i), n++);
        assert_int_equal(t->turn[i], t->turn[node]); /* a rewind does not advance the turn */
        assert_int_equal(t->context[i], t->parent[node]);
        assert_int_equal(t->about[i], i == node ? -1 : node);
        if (t->kind[i] == GR_REJECTED)
            assert_true(!t->train[i] && t->status[i] != GR_INNER);
        else
            assert_int_equal(kept, -1), kept = i;
        last = i;
        best = GR_MAX(best, worth(t, i));
    }
    assert_true(kept >= 0 && n <= u->tries + 1);
    assert_int_equal(t->kind[kept], kept == node ? GR_POLICY : GR_DEMO);
    if (n == 1) return 0;
    for (int i = node; i < last; i++) { /* all but the last did not pass */
        if (is_attempt(t, i, node)) assert_true(worth(t, i) <= u->threshold);
    }
    bool passes = t->success[last] || worth(t, last) > u->threshold;
    if (passes || (u->last && worth(t, last) >= 0)) {
        assert_int_equal(kept, last);
        return n - 1;
    }
    assert_int_equal(worth(t, kept), best);
    for (int i = kept + 1; i < t->n_nodes; i++) { /* of equal ones the last */
        if (is_attempt(t, i, node)) assert_true(worth(t, i) < best);
    }
    return n - 1;
}

/* Every turn that was judged, failed, and could be made again was. */
static void assert_nothing_passed_over(const rule* u, const gr_tree* t, int node,
                                       const int* refined)
{
    gr_node_status s = t->status[node];
    bool judged = t->stepped[node] && !t->success[node] && s != GR_TRUNCATED && s != GR_ERROR;
    bool limited = u->max_refined > 0 && refined[t->branch[node]] >= u->max_refined;
    if (u->cap > 0 || limited || !judged) return;
    assert_false(isnan(t->score[node]));
    bool again = false;
    for (int i = node + 1; i < t->n_nodes; i++) again = again || is_attempt(t, i, node);
    assert_int_equal(again, worth(t, node) <= u->threshold);
}

static void attempts_follow_the_rule(void** state)
{
    (void)state;
    gr_tree t = {0};
    int again = 0, kept_first = 0, restored_live = 0, unpaid = 0;
    for (uint64_t key = 1; key <= 400; key++) {
        dice d = {.key = key};
        rule u = {.threshold = choose(&d, 12) - 1,
                  .tries = 1 + choose(&d, 3),
                  .max_refined = choose(&d, 3) ? 0 : 1 + choose(&d, 3),
                  .group = 1 + choose(&d, 6),
                  .last = choose(&d, 3) == 0};
        u.watched = choose(&d, u.group + 1);
        u.cap = key % 3 ? 0 : 4 * u.group + choose(&d, 60);
        grow_by(&u, &t, key);
        int refined[16] = {0};
        for (int i = 1; i < t.n_nodes; i++) {
            if (gr_tree_attempt(&t, i) > 0) continue;
            int n = assert_attempts(&u, &t, i);
            bool watched = t.branch[i] < u.watched && u.threshold >= 0;
            if (!watched) assert_true(n == 0 && t.kind[i] == GR_POLICY && isnan(t.score[i]));
            if (watched) assert_nothing_passed_over(&u, &t, i, refined);
            refined[t.branch[i]] += n > 0;
            again += n;
            kept_first += n > 0 && t.kind[i] == GR_POLICY;
            bool open = t.stepped[i] && t.status[i] == GR_INNER;
            unpaid += u.cap > 0 && watched && open && isnan(t.score[i]);
            restored_live += n > 0 && t.kind[i] == GR_POLICY && t.status[i] == GR_INNER;
        }
        for (int b = 0; b < u.group && u.max_refined > 0; b++) {
            assert_true(refined[b] <= u.max_refined);
        }
        int32_t leaf[64];
        int n_leaves = gr_tree_leaves(&t, leaf, 64);
        for (int l = 0; l < n_leaves; l++) {
            for (int i = leaf[l]; i > 0; i = t.parent[i]) assert_true(t.kind[i] != GR_REJECTED);
        }
    }
    assert_true(again > 500 && kept_first > 50 && restored_live > 20 && unpaid > 50);
    gr_tree_free(&t);
}

/* Nothing can be at -1 or below; everything is at 10 or below. */
static void thresholds_at_both_ends(void** state)
{
    (void)state;
    gr_tree a = {0}, b = {0};
    for (uint64_t key = 1; key <= 40; key++) {
        rule never = {.threshold = -1, .tries = 1, .group = 4, .watched = 4};
        grow_by(&never, &a, key);
        grower flat = {.world = &lively,
                       .strategy = &gr_strategy_flat,
                       .scorer = &gr_scorer_random,
                       .group = 4,
                       .order = key + 7};
        grow(&flat, &b, key);
        assert_true(hash_of(&a) == hash_of(&b) && a.scorer_calls == 0);
        rule none = {.threshold = 10, .tries = 1, .group = 4, .watched = 0};
        grow_by(&none, &a, key);
        assert_true(hash_of(&a) == hash_of(&b));
    }
    gr_tree_free(&a);
    gr_tree_free(&b);
}

static void the_share_of_demonstrations_moves_with_the_run(void** state)
{
    (void)state;
    gr_proceed_settings s = {.share = 0.5, .final_share = -1};
    for (int i = 0; i <= 10; i++) assert_int_equal(gr_proceed_demos(&s, 8, i / 10.0), 4);
    s.final_share = 0;
    assert_int_equal(gr_proceed_demos(&s, 8, 0), 4);
    assert_int_equal(gr_proceed_demos(&s, 8, 0.5), 2);
    assert_int_equal(gr_proceed_demos(&s, 8, 1), 0);
}

/* ---- in the loss ----------------------------------------------------------------------------- */

/* phi p (1 - p) is 0 at both ends and 1/4 at its most; it scales the surrogate and nothing else. */
static void rows_weigh_what_the_method_says(void** state)
{
    (void)state;
    enum { N = 64 };
    static double logp[N], old[N], pos[N], neg[N], w[N], pos0[N], neg0[N], old0[N];
    static bool demo[N];
    for (uint64_t key = 0; key < 200; key++) {
        dice d = {.key = key + 1};
        gr_proceed_settings s = {.loss = choose(&d, 2),
                                 .ratio = choose(&d, 2),
                                 .weight = choose(&d, 2),
                                 .phi_scale = 1 + choose(&d, 4),
                                 .mu = chance(&d)};
        for (int u = 0; u < N; u++) {
            double p = u == 0 ? 1 : u == 1 ? 0.5 : chance(&d);
            logp[u] = u == 2 ? -1000 : log(p);
            old0[u] = old[u] = logp[u] - chance(&d);
            pos0[u] = pos[u] = chance(&d);
            neg0[u] = neg[u] = -chance(&d);
            w[u] = chance(&d);
            demo[u] = u < 3 || choose(&d, 2);
        }
        gr_batch b = {
            .n_rows = N, .old_logp = old, .a_pos = pos, .a_neg = neg, .w = w, .demo = demo};
        gr_demos_apply(&s, &b, logp);
        bool sft = s.loss == GR_DEMO_SFT;
        for (int u = 0; u < N; u++) {
            double p = exp(logp[u]), f = s.weight == GR_PHI ? s.phi_scale * (p - p * p) : 1;
            double want_pos = !demo[u] ? (sft ? 1 - s.mu : 1) * pos0[u]
                              : sft    ? f * s.mu * w[u]
                                       : f * pos0[u];
            double want_neg = !demo[u] ? (sft ? 1 - s.mu : 1) * neg0[u] : sft ? 0 : f * neg0[u];
            assert_true(fabs(pos[u] - want_pos) < 1e-12 && fabs(neg[u] - want_neg) < 1e-12);
            bool now = demo[u] && (sft || s.ratio == GR_RATIO_ONE);
            assert_true(old[u] == (now ? logp[u] : old0[u]));
            if (s.weight == GR_PHI && (u == 0 || u == 2)) assert_true(pos[u] == 0 && neg[u] == 0);
            if (s.weight == GR_PHI && u == 1 && !sft) {
                assert_true(fabs(pos[u] - s.phi_scale * 0.25 * pos0[u]) < 1e-15);
            }
        }
    }
}

/* A row is known by its token. */
static double row_of(const gr_pack* p, int32_t token, double* a)
{
    for (int i = 0; i < p->n_pieces; i++) {
        const gr_batch* b = &p->piece[i];
        for (int u = 0; u < b->n_rows; u++) {
            if (b->target[u] != token) continue;
            *a = b->a_pos[u] + b->a_neg[u];
            return b->w[u];
        }
    }
    *a = 0;
    return 0;
}

/* Demonstrations of failed paths, or of those without advantage, have no row; all other rows are
 * what they were, baseline included. Without demonstrations masks change nothing. */
static void masks_leave_out_demonstrations_alone(void** state)
{
    (void)state;
    static const gr_config_loss loss = {.aggregation = GR_AGG_TOKEN_MEAN};
    gr_tree t = {0};
    gr_credit c = {0};
    gr_pack all = {0}, some = {0};
    int masked = 0, kept = 0;
    for (uint64_t key = 1; key <= 150; key++) {
        rule u = {.threshold = 5, .tries = 2, .group = 6, .watched = key % 5 ? 3 : 0};
        grow_by(&u, &t, key);
        for (int i = 0; i < t.n_tokens; i++) t.token[i] = i;
        gr_credit_fill(&c, &t, &gr_estimator_grpo, NULL, 1e-6);
        const gr_credit* member[] = {&c};
        gr_denominators d = {0};
        gr_denominators_add(&d, &c, &loss);
        c.demo_mask = GR_DEMO_ALWAYS;
        assert_int_equal(gr_pack_make(&all, member, 1, &loss, &d, 4096), GR_OK);
        c.demo_mask = key % 2 ? GR_DEMO_IF_SUCCESS : GR_DEMO_IF_POSITIVE;
        assert_int_equal(gr_pack_make(&some, member, 1, &loss, &d, 4096), GR_OK);
        if (u.watched == 0) assert_int_equal(some.trained, all.trained);
        for (int l = 0; l < c.n_leaves && !c.idle; l++) {
            bool fails = key % 2 ? !t.success[c.leaf[l]] : c.adv[l] <= 0;
            for (int i = c.leaf[l]; i > 0; i = t.parent[i]) {
                double a = 0, b = 0, w = row_of(&all, (int32_t)t.token_begin[i], &a);
                bool gone = t.kind[i] == GR_DEMO && fails;
                double v = row_of(&some, (int32_t)t.token_begin[i], &b);
                assert_true(v == (gone ? 0 : w) && b == (gone ? 0 : a));
                masked += gone;
                kept += !gone;
            }
        }
        c.demo_mask = GR_DEMO_ALWAYS;
    }
    assert_true(masked > 50 && kept > 500);
    gr_tree_free(&t);
    gr_credit_free(&c);
    gr_pack_free(&all);
    gr_pack_free(&some);
}

static int node_of(const gr_tree* t, int64_t token)
{
    int node = 0;
    while (token >= t->token_begin[node] + gr_node_tokens(t, node)) node++;
    return node;
}

/* Attempts that were taken back are in no row and in no row's context; and where no step was made
 * again, the rows stay what they are, bit for bit. */
static void what_was_taken_back_is_in_no_row(void** state)
{
    (void)state;
    static const gr_config_loss loss = {.aggregation = GR_AGG_TOKEN_MEAN};
    static const gr_proceed_settings s = {.weight = GR_PHI, .phi_scale = 4};
    gr_tree t = {0};
    gr_credit c = {0};
    gr_pack all = {0};
    int rejected = 0, plain = 0;
    for (uint64_t key = 1; key <= 150; key++) {
        rule u = {.threshold = 5, .tries = 2, .group = 6, .watched = key % 3 ? 3 : 0};
        grow_by(&u, &t, key);
        for (int i = 0; i < t.n_tokens; i++) t.token[i] = i;
        for (int i = 0; i < t.n_nodes; i++) rejected += t.kind[i] == GR_REJECTED;
        gr_credit_fill(&c, &t, &gr_estimator_grpo, NULL, 1e-6);
        const gr_credit* member[] = {&c};
        gr_denominators d = {0};
        gr_denominators_add(&d, &c, &loss);
        assert_int_equal(gr_pack_make(&all, member, 1, &loss, &d, 4096), GR_OK);
        for (int i = 0; i < all.n_pieces; i++) {
            gr_batch* b = &all.piece[i];
            size_t bytes = (size_t)b->n_rows * sizeof *b->a_pos;
            for (int k = 0; k < b->n_tokens; k++) {
                assert_true(t.kind[node_of(&t, b->token[k])] != GR_REJECTED);
            }
            if (u.watched > 0) continue;
            uint64_t pos = gr_hash64(b->a_pos, bytes, 0), neg = gr_hash64(b->a_neg, bytes, 0);
            uint64_t old = gr_hash64(b->old_logp, bytes, 0);
            gr_demos_apply(&s, b, b->old_logp);
            assert_true(gr_hash64(b->a_pos, bytes, 0) == pos);
            assert_true(gr_hash64(b->a_neg, bytes, 0) == neg);
            assert_true(gr_hash64(b->old_logp, bytes, 0) == old);
            plain += b->n_rows;
        }
    }
    assert_true(rejected > 200 && plain > 500);
    gr_tree_free(&t);
    gr_credit_free(&c);
    gr_pack_free(&all);
}

/* ---- with a model and a world ---------------------------------------------------------------- */

static void open_run(fixture* f, int n_more, const char* const* more)
{
    static const char* const small[] = {"model.layers=1",
                                        "model.width=32",
                                        "model.heads=2",
                                        "model.kv_heads=2",
                                        "model.mlp=48",
                                        "env.name=frozenlake",
                                        "frozenlake.max_turns=6",
                                        "rollout.strategy=proceed",
                                        "scorer.name=rule_critic",
                                        "rollout.group=4",
                                        "rollout.max_turn_tokens=6",
                                        "rollout.max_context=1024",
                                        "warmstart.steps=40",
                                        "warmstart.batch=8",
                                        "warmstart.lr=1e-2",
                                        "log.quiet=true",
                                        "run.steps=3",
                                        "rollout.groups_per_step=5"};
    const char* all[32];
    int n = 0;
    for (; n < GR_COUNT(small); n++) all[n] = small[n];
    for (int i = 0; i < n_more; i++) all[n++] = more[i];
    ASSERT_OK(try_open(f, n, all));
    ASSERT_OK(gr_warmstart(&f->run)); /* it spells actions */
    gr_engine_reset(&f->run.engine);
}

/* Played by hand from the reset, the path to `node` meets the states that the tree says. */
static void assert_states(fixture* f, const gr_tree* t, int node)
{
    int32_t path[16];
    char text[256];
    gr_env_reply e;
    int n = gr_tree_path_nodes(t, node, path, GR_COUNT(path));
    int handle = gr_envs_reset(f->run.envs, GR_TRAIN, t->task, 1, 0);
    for (int i = 0; i < n; i++) {
        if (i > 0) {
            int length = gr_tree_action_text(t, path[i], text, sizeof text);
            gr_envs_step(f->run.envs, handle, text, length, 0);
        }
        assert_true(gr_envs_poll(f->run.envs, &e, true) && e.error == GR_ENV_OK);
        assert_true(e.obs->hash == t->state_hash[path[i]]);
    }
    gr_envs_free(f->run.envs, handle);
}

/* What stands behind the rejected action is no part of any path. */
static void assert_told(const gr_tree* t, int node, const char* told)
{
    char text[1024];
    int n = gr_decode(NULL, GR_PLAIN, t->told + t->told_begin[node], t->n_told[node], text, 1024);
    bool critique = strcmp(told, "critique") == 0, nothing = strcmp(told, "nothing") == 0;
    assert_int_equal(n > 0, !nothing);
    assert_int_equal(strstr(text, "taken back") != NULL, critique);
    if (n > 0) assert_non_null(strstr(text, "P")); /* the map once more */
    n = gr_tree_action_text(t, node, text, sizeof text);
    assert_null(strstr(text, "taken back"));
    n = gr_tree_obs_text(t, node, text, sizeof text);
    assert_null(strstr(text, "taken back"));
}

static void a_rewind_is_the_state_before(void** state)
{
    (void)state;
    static const char* const told[] = {"critique", "undone", "nothing"};
    for (int k = 0; k < 4; k++) {
        char words[64];
        fixture f;
        (void)snprintf(words, sizeof words, "proceed.told=%s", told[k % 3]);
        const char* more[] = {"proceed.tries=2", k < 3 ? words : "proceed.refiner=expert"};
        open_run(&f, GR_COUNT(more), more);
        roll(&f);
        int demos = 0, rejected = 0;
        for (int i = 0; i < GROUPS; i++) {
            const gr_tree* t = &f.tree[i];
            for (int j = 1; j < t->n_nodes; j++) {
                if (t->stepped[j]) assert_states(&f, t, j);
                demos += t->kind[j] == GR_DEMO;
                rejected += t->kind[j] == GR_REJECTED;
                if (t->about[j] >= 0 && k < 3) assert_told(t, j, told[k]);
                if (t->kind[j] == GR_REJECTED) assert_true(t->n_note[j] > 0 || t->about[j] >= 0);
            }
            assert_int_equal(t->refiner_tokens > 0, k < 3);
        }
        assert_true(rejected > 10 && demos + rejected > 20);
        close_run(&f);
    }
}

/* Told nothing, the refiner is the policy in its own context, so what it sampled with is what is
 * measured, bit for bit; behind a critique it is not. Steps of the policy keep what they have. */
static void demonstrations_are_measured_in_their_clean_context(void** state)
{
    (void)state;
    static const char* const told[] = {"proceed.told=critique", "proceed.told=nothing"};
    for (int k = 0; k < 2; k++) {
        fixture f;
        open_run(&f, 1, &told[k]);
        roll(&f);
        int differs = 0, measured = 0;
        gr_credit c[GROUPS] = {0};
        double* before[GROUPS];
        for (int i = 0; i < GROUPS; i++) {
            const gr_tree* t = &f.tree[i];
            before[i] = calloc((size_t)t->n_tokens, sizeof(double));
            memcpy(before[i], t->logp, (size_t)t->n_tokens * sizeof(double));
            gr_credit_begin(&c[i], t, &gr_estimator_grpo, NULL);
            gr_demos_ask(&f.run.demos, &c[i]);
        }
        assert_int_equal(gr_pack_ask(&f.run.pack, c, GROUPS, 4096), GR_OK);
        assert_int_equal(gr_critic_answer(&f.run.critic, &f.run.objective, &f.run.pack, 1), GR_OK);
        for (int i = 0; i < GROUPS; i++) {
            gr_tree* t = &f.tree[i];
            gr_demos_hear(&f.run.demos, &c[i], t);
            for (int j = 1; j < t->n_nodes; j++) {
                for (int u = 0; u < t->n_action[j]; u++) {
                    int64_t at = t->token_begin[j] + u;
                    if (t->kind[j] != GR_DEMO) assert_true(t->logp[at] == before[i][at]);
                    measured += t->kind[j] == GR_DEMO;
                    differs += t->logp[at] != before[i][at];
                }
                bool demo = t->kind[j] == GR_DEMO;
                assert_int_equal(t->logp_from[j], demo ? GR_LOGP_TRAINER : GR_LOGP_SAMPLER);
            }
            gr_credit_free(&c[i]);
            free(before[i]);
        }
        assert_true(measured > 20);
        if (k == 1)
            assert_int_equal(differs, 0);
        else
            assert_true(differs > measured / 2);
        close_run(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attempts_follow_the_rule),
        cmocka_unit_test(thresholds_at_both_ends),
        cmocka_unit_test(the_share_of_demonstrations_moves_with_the_run),
        cmocka_unit_test(rows_weigh_what_the_method_says),
        cmocka_unit_test(masks_leave_out_demonstrations_alone),
        cmocka_unit_test(what_was_taken_back_is_in_no_row),
        cmocka_unit_test(a_rewind_is_the_state_before),
        cmocka_unit_test(demonstrations_are_measured_in_their_clean_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
