/* HiPER: what a turn says and means, and the credit of switches, subgoals and actions on trees,
 * against the recursion written out once more. */
#include "host/advantage/gae.h"
#include "host/hiper.h"
#include "tests/grow.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n); /* fuzz_plan.c */

/* ---- text --------------------------------------------------------------------------------------- */

typedef struct reading {
    const char* text;
    bool switched, valid;
    const char *subgoal, *action; /* what the next turn is shown; what the world gets */
} reading;

static void assert_reading(const reading* r, int tags)
{
    char out[512];
    gr_plan p;
    int n = (int)strlen(r->text), length = 0;
    gr_plan_parse(r->text, n, tags, &p);
    if (p.switched != r->switched || p.valid != r->valid) fail_msg("%s", r->text);
    const char* subgoal = gr_plan_subgoal(&p, r->text, tags, &length);
    assert_int_equal(length, strlen(r->subgoal));
    assert_memory_equal(subgoal, r->subgoal, (size_t)length);
    n = gr_plan_action(&p, r->text, n, "\n", out, sizeof out);
    assert_string_equal(out, r->action);
    assert_int_equal(n, strlen(r->action));
}

static void every_turn_has_a_meaning(void** state)
{
    (void)state;
    static const reading full[] = {
        {"<switch>KEEP</switch><subgoal>key</subgoal><action>left</action>", false, true, "key",
         "left\n"},
        {"<switch>SWITCH</switch><subgoal>the door</subgoal><action> up </action>", true, true,
         "the door", "up\n"},
        {"<switch>keep </switch>\n<subgoal> k </subgoal> <action>up</action>", false, true, "k",
         "up\n"},
        {"<switch>KEEP OR SWITCH</switch><subgoal>k</subgoal><action>up</action>", true, false, "",
         "up\n"},
        {"<switch>KEPE</switch><subgoal>k</subgoal><action>up</action>", true, false, "", "up\n"},
        {"<switch></switch><subgoal>k</subgoal><action>up</action>", false, false, "", "up\n"},
        {"<switch> </switch><subgoal>k</subgoal><action>up</action>", false, false, "", "up\n"},
        {"<subgoal>k</subgoal><action>up</action>", false, false, "None", "up\n"},
        {"<switch>SWITCH<subgoal>k</subgoal><action>up</action>", false, false, "None", "up\n"},
        {"<switch>SWITCH</switch><action>up</action>", true, false, "None", "up\n"},
        {"<switch>SWITCH</switch><subgoal>k</subgoal>", true, false, "k",
         "<switch>SWITCH</switch><subgoal>k</subgoal>"},
        {"<switch>SWITCH</switch><subgoal>k</subgoal><action>up", true, false, "k",
         "<switch>SWITCH</switch><subgoal>k</subgoal><action>up"},
        {"<switch>KEEP</switch><switch>SWITCH</switch><subgoal>a</subgoal><subgoal>b</subgoal>"
         "<action>up</action><action>left</action>",
         false, true, "a", "up\n"},
        {"<action>up</action><subgoal>k</subgoal><switch>KEEP</switch>", false, true, "k", "up\n"},
        {"<switch>KEEP</switch><subgoal>\xe9\x92\xa5</subgoal><action>up</action>", false, false,
         "\xe9\x92\xa5", "up\n"},
        {"<switch>KEEP</switch><subgoal>\xc3\xa9\xe2\x86\x92</subgoal><action>up</action>", false,
         true, "\xc3\xa9\xe2\x86\x92", "up\n"},
        {"<switch>KEEP</switch><subgoal>\xe4\xb7\xbf</subgoal><action>up</action>", false, true,
         "\xe4\xb7\xbf", "up\n"}, /* the code point before the Chinese ones, and the first */
        {"<switch>KEEP</switch><subgoal>\xe4\xb8\x80</subgoal><action>up</action>", false, false,
         "\xe4\xb8\x80", "up\n"},
        {"</switch><switch>KEEP</switch><subgoal></subgoal><action></action>", false, true, "",
         "\n"},
        {"left", false, false, "None", "left"},
        {"", false, false, "None", ""},
    };
    static const reading brief[] = {
        {"<s>K</s><g>key</g><a>left</a>", false, true, "key", "left\n"},
        {"<s>S</s><g>key</g><a>left</a>", true, true, "key", "left\n"},
        {"<s>KEEP</s><g>key</g><a>left</a>", true, false, "", "left\n"},
        {"<switch>KEEP</switch><g>key</g><a>left</a>", false, false, "None", "left\n"},
    };
    for (int i = 0; i < GR_COUNT(full); i++) assert_reading(&full[i], GR_TAGS_FULL);
    for (int i = 0; i < GR_COUNT(brief); i++) assert_reading(&brief[i], GR_TAGS_SHORT);
}

static void what_is_shown_names_the_last_subgoal(void** state)
{
    (void)state;
    char out[512], turn[128];
    gr_hiper_settings s = {.tags = GR_TAGS_SHORT};
    gr_plan_show(&s, NULL, 0, "P_\n", 3, out, sizeof out);
    assert_string_equal(out, "P_\n[None]\n");
    for (int tags = 0; tags < 2; tags++) {
        s.tags = tags;
        int n = gr_plan_write(tags, true, "key", "left\n", 5, "\n", turn, sizeof turn);
        assert_true(n > 0 &&
                    strcmp(turn + n - strlen(gr_plan_stop(tags)), gr_plan_stop(tags)) == 0);
        gr_plan_show(&s, turn, n, "P_\n", 3, out, sizeof out);
        assert_string_equal(out, tags ? "\nP_\n[key]\n" : "\nP_\nCurrent subgoal: key\n");
        assert_int_equal(gr_plan_write(tags, true, "key", "left", 4, "\n", out, sizeof out), n);
        assert_string_equal(out, turn); /* with or without the world's stop text */
        s.prompt = true;
        gr_plan_show(&s, NULL, 0, "P_\n", 3, out, sizeof out);
        assert_non_null(strstr(out, tags ? "<s>K " : "<switch>KEEP "));
    }
}

static void random_texts_never_surprise_the_reader(void** state)
{
    (void)state;
    static const char* const piece[] = {
        "<switch>", "</switch>", "<subgoal>", "</subgoal>", "<action>", "</action>",
        "KEEP",     "SWITCH",    "<s>",       "</s>",       "<g>",      "</g>",
        "<a>",      "</a>",      "K",         "S",          " ",        "\n",
        "\xe9\x92", "\xa5",      "key",       "<",          ">",        "left"};
    dice d = {.key = 11};
    char text[400];
    for (int trial = 0; trial < 20000; trial++) {
        int n = 1, pieces = choose(&d, 14);
        text[0] = (char)choose(&d, 4);
        for (int i = 0; i < pieces; i++) {
            const char* p = piece[choose(&d, GR_COUNT(piece))];
            memcpy(text + n, p, strlen(p));
            n += (int)strlen(p);
            if (choose(&d, 10) == 0) text[n++] = (char)choose(&d, 256);
        }
        LLVMFuzzerTestOneInput((const uint8_t*)text, (size_t)n);
    }
}

/* ---- trees that talk ---------------------------------------------------------------------------- */

static int say(dice* d, bool clean, char* text, int cap)
{
    static const char* const goals[] = {"a", "b", "c"};
    static const char* const odd[] = {"left",
                                      "<s>S</s><g>a</g>",
                                      "<s>KS</s><g>a</g><a>x</a>",
                                      "<g>b</g><a>x</a>",
                                      "<s></s><a>x</a>",
                                      "<s>K</s><a>x",
                                      "<a>x</a><s>S</s> <g>a</g>"};
    if (!clean && choose(d, 3) == 0) {
        return snprintf(text, (size_t)cap, "%s", odd[choose(d, GR_COUNT(odd))]);
    }
    return gr_plan_write(GR_TAGS_SHORT, choose(d, 3) == 0, goals[choose(d, 3)], "up\n", 3, "\n",
                         text, cap);
}

static void grow_branch(gr_tree* t, dice* d, int parent, bool clean, int depth)
{
    static const gr_node_status ends[] = {GR_PRUNED, GR_TRUNCATED, GR_TIME_LIMIT};
    char text[128];
    int32_t token[128];
    double logp[128];
    int node = gr_tree_add_child(t, parent, -1);
    int n = say(d, clean, text, sizeof text);
    (void)gr_encode(NULL, GR_PLAIN, text, n, token, 128);
    for (int i = 0; i < n; i++) logp[i] = -chance(d);
    gr_obs o = {.end = GR_RUNNING, .valid = true, .reward = 4 * chance(d) - 2};
    int children = depth == 0 ? 0 : choose(d, 5) == 0 ? 2 + choose(d, 2) : choose(d, 8) > 0;
    bool terminal = children == 0 && choose(d, 2);
    if (terminal) o.end = GR_END_TERMINAL;
    gr_tree_set_action(t, node, token, logp, n, 0);
    gr_tree_set_result(t, node, &o);
    gr_tree_set_obs(t, node, token, 1 + choose(d, 3));
    if (children == 0 && !terminal) gr_tree_close(t, node, ends[choose(d, 3)]);
    for (int i = 0; i < children; i++) grow_branch(t, d, node, clean, depth - 1);
}

static double any_value(int node, int offset, int head)
{
    return 2 * gr_uniform((uint64_t)node * 1000 + (uint64_t)offset, (uint64_t)head) - 1;
}

static void* settings_with(const char* pairs)
{
    char text[400];
    (void)snprintf(text, sizeof text, "tags=short %s", pairs);
    return settings_of(&gr_hiper_block, text);
}

static void credit_talk(gr_credit* c, gr_tree* t, uint64_t key, const gr_hiper_settings* s,
                        bool clean, double scale)
{
    dice d = {.key = key};
    gr_tree_reset(t, 0, 0, 0, 0, key, 0);
    gr_tree_add_root(t, (const int32_t[]){1, 2, 3}, 3, 40);
    for (int i = 0; i < 3; i++) grow_branch(t, &d, 0, clean, 7);
    gr_tree_check(t);
    for (int i = 0; i < t->n_nodes; i++) t->reward[i] *= scale;
    gr_credit_begin(c, t, &gr_estimator_hae, s);
    for (int i = 0; i < c->n_reads; i++) {
        c->read[i].value = scale * any_value(c->read[i].node, c->read[i].offset, c->read[i].head);
    }
    for (int i = 0; i < c->n_probes; i++) c->probe[i].logp = -3 * gr_uniform(key, (uint64_t)i);
    gr_credit_finish(c, &gr_estimator_hae, s, 0);
}

/* ---- the recursion, once more, on one path of a clean tree -------------------------------------- */

enum { TURNS = 16 };
typedef struct expected {
    int n;
    int32_t node[TURNS + 1];
    bool q[TURNS];
    int after[TURNS]; /* first action token behind the subgoal */
    double r[TURNS], low[TURNS], high[TURNS], prompt_low[TURNS], term[TURNS];
    double a_low[TURNS], a_high[TURNS], to_go[TURNS];
} expected;

static double value_before(const gr_tree* t, int node, int k, int head)
{
    int at = k > 0 ? node : t->parent[node];
    return any_value(at, k > 0 ? k - 1 : gr_node_tokens(t, at) - 1, head);
}

static void expect(const gr_hiper_settings* s, const gr_tree* t, int leaf, expected* e)
{
    char text[TURNS][128], subgoal[TURNS][8];
    int n = gr_tree_path_nodes(t, leaf, e->node, TURNS + 1) - 1;
    e->n = n;
    int kept = 0;
    for (int i = 0; i < n; i++) {
        int node = e->node[i + 1];
        gr_tree_action_text(t, node, text[i], 128);
        e->q[i] = text[i][3] == 'S'; /* <s>S</s><g>... */
        e->after[i] = (int)(strstr(text[i], "</g>") - text[i]) + 4;
        (void)snprintf(subgoal[i], 8, "%c", text[i][11]);
        e->r[i] = t->reward[node];
        kept += !e->q[i];
        e->low[i] = value_before(t, node, e->after[i], 0);
        e->high[i] = value_before(t, node, 0, 1);
        e->prompt_low[i] = value_before(t, node, 0, 0);
        e->term[i] = value_before(t, node, 0, 2);
    }
    for (int i = 0; i < n; i++) {
        if (!e->q[i] && s->keep == GR_KEEP_FIXED) e->r[i] -= s->keep_penalty;
        if (!e->q[i] && s->keep == GR_KEEP_NORMALISED && n > 1) {
            e->r[i] -= s->keep_penalty * ((double)kept / n) / kept;
        }
        bool strays = i > 0 && !e->q[i] && strcmp(subgoal[i], subgoal[i - 1]) != 0;
        if (strays) e->r[i] -= s->consistency_penalty;
    }
    bool done = t->status[leaf] == GR_TERMINAL, boots = s->bootstrap && !done;
    double next_low = 0, next_high = 0;
    int behind = -1; /* next boundary */
    for (int i = n - 1; i >= 0; i--) {
        bool last = i == n - 1, ends = last || i + 1 == behind; /* of its segment */
        double v = last ? (boots ? e->low[i] : 0) : ends ? e->high[i + 1] : e->low[i + 1];
        e->a_low[i] =
            e->r[i] + s->gamma * v - e->low[i] + (ends ? 0 : s->gamma * s->lambda_low * next_low);
        next_low = e->a_low[i];
        e->a_high[i] = 0;
        if (i > 0 && !e->q[i]) continue;
        int end = behind < 0 ? n : behind;
        double v_end = behind >= 0 ? e->high[behind] : boots ? e->high[i] : 0, sum = 0;
        for (int j = end - 1; j >= i; j--) {
            double rest = j == end - 1 ? v_end : e->to_go[j + 1];
            e->to_go[j] = e->r[j] + s->gamma * rest;
            sum = e->r[j] + s->gamma * sum;
        }
        double discount = pow(s->gamma, end - i);
        e->a_high[i] = sum + discount * v_end - e->high[i] + discount * s->lambda_high * next_high;
        next_high = e->a_high[i];
        behind = i;
    }
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-9 * (1 + fabs(a) + fabs(b)); }

static const gr_target* target_of(const gr_credit* c, int l, int node, int k, int head)
{
    const gr_tree* t = c->tree;
    int at = k > 0 ? node : t->parent[node];
    int offset = k > 0 ? k - 1 : gr_node_tokens(t, at) - 1;
    for (int64_t i = 0; i < c->n_targets; i++) {
        const gr_read* r = &c->read[c->target[i].read];
        bool same = r->node == at && r->offset == offset && r->head == head;
        if (same && c->target[i].leaf == l) return &c->target[i];
    }
    return NULL;
}

static double beta_of(const gr_credit* c, int node)
{
    double p[2] = {0, 0};
    for (int i = 0; i < c->n_probes; i++) {
        if (c->probe[i].node == node) p[c->probe[i].token == 'S'] = exp(c->probe[i].logp);
        assert_int_equal(c->probe[i].k, 3);
    }
    return p[1] / (p[0] + p[1]);
}

static void check_turn(const gr_hiper_settings* s, const gr_credit* c, int l, const expected* e,
                       int i)
{
    const gr_tree* t = c->tree;
    int node = e->node[i + 1];
    bool gain = s->switch_adv == GR_SWITCH_GAIN, starts = i == 0 || e->q[i];
    double a_switch = e->to_go[i] - e->term[i];
    if (gain) a_switch = (e->q[i] - beta_of(c, node)) * (e->high[i] - e->prompt_low[i]);
    for (int k = 0; k < t->n_action[node]; k++) { /* <s>S</s> <g>a</g> <a>up</a> */
        double want = k < 8 ? a_switch : k < e->after[i] ? e->a_high[i] : e->a_low[i];
        bool trained = k < 8 || k >= e->after[i] || starts;
        assert_int_equal(gr_credit_trained(c, node, k), trained);
        if (trained) assert_true(near(gr_credit_token(c, l, node, k), want));
    }
    const gr_target* low = target_of(c, l, node, e->after[i], 0);
    const gr_target* high = target_of(c, l, node, 0, 1);
    const gr_target* term = gain ? NULL : target_of(c, l, node, 0, 2);
    const gr_target* kept = target_of(c, l, node, 0, 0);
    assert_true(low != NULL && near(low->ret, e->a_low[i] + e->low[i]));
    assert_true((high != NULL) == starts && (kept != NULL) == (gain && !starts));
    if (high != NULL) assert_true(near(high->ret, e->a_high[i] + e->high[i]));
    if (kept != NULL) assert_true(near(kept->ret, low->ret));
    assert_true(gain || near(term->ret, e->to_go[i]));
}

static const char* const variants[] = {
    "normalise=false",
    "normalise=false gamma=0.9 lambda_low=0.7 lambda_high=0.5 bootstrap=true",
    "normalise=false switch_adv=gain keep=fixed keep_penalty=0.2 consistency_penalty=0.5",
    "normalise=false switch_adv=gain gamma=0.95 bootstrap=true",
};

static void credit_on_trees_is_that_of_every_path(void** state)
{
    (void)state;
    static expected e;
    gr_tree t = {0};
    gr_credit c = {0};
    int64_t turns = 0;
    for (uint64_t key = 1; key <= 80; key++) {
        gr_hiper_settings* s = settings_with(variants[key % GR_COUNT(variants)]);
        credit_talk(&c, &t, key, s, true, 1);
        for (int l = 0; l < c.n_leaves; l++) {
            expect(s, &t, c.leaf[l], &e);
            for (int i = 0; i < e.n; i++) check_turn(s, &c, l, &e, i);
            turns += e.n;
        }
        for (int head = 0; head < c.n_heads; head++) { /* each head: every leaf weighs 1 */
            double sum = 0;
            for (int64_t i = 0; i < c.n_targets; i++) {
                sum += c.read[c.target[i].read].head == head ? c.target[i].weight : 0;
            }
            assert_true(near(sum, c.n_leaves));
        }
        free(s);
    }
    assert_true(turns > 1000);
    gr_credit_free(&c);
    gr_tree_free(&t);
}

/* Whatever a turn says: what is trained is of some kind, a token of two kinds has both advantages,
 * and without a block of action the whole turn is one. */
static void odd_turns_are_trained_by_the_blocks_they_have(void** state)
{
    (void)state;
    gr_tree t = {0};
    gr_credit c = {0};
    int both = 0, untrained = 0;
    for (uint64_t key = 1; key <= 60; key++) {
        gr_hiper_settings* s = settings_with(variants[key % GR_COUNT(variants)]);
        credit_talk(&c, &t, key, s, false, 1);
        for (int l = 0; l < c.n_leaves; l++) {
            for (int i = c.leaf[l]; i > 0; i = t.parent[i]) {
                char text[128];
                gr_plan p;
                int n = gr_tree_action_text(&t, i, text, sizeof text);
                gr_plan_parse(text, n, GR_TAGS_SHORT, &p);
                const double* a = &c.path_adv[(c.path_begin[l] + t.turn[i] - 1) * 3];
                for (int k = 0; k < n; k++) {
                    int kinds = gr_plan_kinds(&p, k);
                    if (t.turn[i] > 1 && !p.switched) kinds &= ~GR_KIND_SUBGOAL;
                    double want = (kinds & GR_KIND_ACTION ? a[0] : 0) +
                                  (kinds & GR_KIND_SUBGOAL ? a[1] : 0) +
                                  (kinds & GR_KIND_SWITCH ? a[2] : 0);
                    both += kinds == (GR_KIND_ACTION | GR_KIND_SWITCH);
                    untrained += kinds == 0;
                    assert_int_equal(gr_credit_trained(&c, i, k), kinds != 0);
                    assert_true(gr_credit_token(&c, l, i, k) == want);
                }
            }
        }
        free(s);
    }
    assert_true(both > 100 && untrained > 100);
    gr_credit_free(&c);
    gr_tree_free(&t);
}

/* An invalid turn costs its penalty, and only that. */
static void invalid_turns_cost_their_penalty(void** state)
{
    (void)state;
    gr_tree t = {0};
    gr_credit a = {0}, b = {0};
    gr_hiper_settings* s = settings_with("normalise=false lambda_high=1 invalid_penalty=0");
    gr_hiper_settings fined = *s;
    fined.invalid_penalty = 0.25;
    int invalid = 0;
    for (uint64_t key = 1; key <= 30; key++) {
        credit_talk(&a, &t, key, s, false, 1);
        credit_talk(&b, &t, key, &fined, false, 1);
        for (int l = 0; l < a.n_leaves; l++) {
            double fines = 0;
            for (int i = a.leaf[l]; i > 0; i = t.parent[i]) {
                char text[128];
                gr_plan p;
                int n = gr_tree_action_text(&t, i, text, sizeof text);
                gr_plan_parse(text, n, GR_TAGS_SHORT, &p);
                fines += p.valid ? 0 : 0.25;
                invalid += !p.valid;
            }
            /* at lambda_high 1 the first subgoal's credit is the return of the whole path */
            double with = b.path_adv[b.path_begin[l] * 3 + 1];
            double without = a.path_adv[a.path_begin[l] * 3 + 1];
            assert_true(near(without - with, fines));
        }
    }
    assert_true(invalid > 100);
    free(s);
    gr_credit_free(&a);
    gr_credit_free(&b);
    gr_tree_free(&t);
}

static void kinds_are_normalised_each_for_itself(void** state)
{
    (void)state;
    static gr_tree t[2][2];
    static gr_credit c[2][2]; /* at two scales of rewards and values */
    for (uint64_t key = 1; key <= 20; key++) {
        gr_hiper_settings* s = settings_with(key % 2 ? "keep_penalty=0 consistency_penalty=0"
                                                     : "switch_adv=gain keep_penalty=0 "
                                                       "consistency_penalty=0");
        for (int z = 0; z < 2; z++) {
            for (int g = 0; g < 2; g++) {
                credit_talk(&c[z][g], &t[z][g], 2 * key + (uint64_t)g, s, true, z ? 7.5 : 1);
            }
            gr_credit_normalise(c[z], 2);
        }
        for (int kind = 0; kind < 3; kind++) {
            double n = 0, sum = 0, sq = 0;
            for (int g = 0; g < 2; g++) {
                for (int l = 0; l < c[0][g].n_leaves; l++) {
                    for (int i = c[0][g].leaf[l]; i > 0; i = t[0][g].parent[i]) {
                        int64_t at = (c[0][g].path_begin[l] + t[0][g].turn[i] - 1) * 3 + kind;
                        int k = kind == 0 ? t[0][g].n_action[i] - 1 : kind == 1 ? 8 : 0;
                        if (!gr_credit_trained(&c[0][g], i, k)) continue;
                        double a = c[0][g].path_adv[at];
                        n++, sum += a, sq += a * a;
                        assert_true(fabs(a - c[1][g].path_adv[at]) < 1e-6 * (1 + fabs(a)));
                    }
                }
            }
            assert_true(n > 0 && fabs(sum / n) < 1e-9 && fabs(sq / n - 1) < 1e-6);
        }
        free(s);
    }
    for (int z = 0; z < 4; z++) gr_credit_free(&c[z / 2][z % 2]), gr_tree_free(&t[z / 2][z % 2]);
}

/* ---- paths are credited each for itself --------------------------------------------------------- */

/* Depends on the tokens in front and on what is asked, as a model's answer does. */
static double answer(const gr_tree* t, int node, int offset, int what)
{
    int32_t token[4096];
    int n = node > 0 ? gr_tree_path_tokens(t, t->context[node], token, 4096 - 256) : 0;
    for (int k = 0; k <= offset; k++) token[n++] = t->token[t->token_begin[node] + k];
    return gr_uniform(gr_hash64(token, (size_t)n * sizeof *token, 1), (uint64_t)what);
}

/* A tree of the branches with these keys. */
static void credit_branches(gr_credit* c, gr_tree* t, const uint64_t* key, int n,
                            const gr_hiper_settings* s)
{
    gr_tree_reset(t, 0, 0, 0, 0, 1, 0);
    gr_tree_add_root(t, (const int32_t[]){1, 2, 3}, 3, 40);
    for (int b = 0; b < n; b++) {
        dice d = {.key = key[b]};
        grow_branch(t, &d, 0, false, 7);
    }
    gr_credit_begin(c, t, &gr_estimator_hae, s);
    for (int i = 0; i < c->n_reads; i++) {
        gr_read* r = &c->read[i];
        r->value = 2 * answer(t, r->node, r->offset, r->head) - 1;
    }
    for (int i = 0; i < c->n_probes; i++) {
        gr_probe* p = &c->probe[i];
        p->logp = -3 * answer(t, p->node, p->k - 1, p->token);
    }
    gr_credit_finish(c, &gr_estimator_hae, s, 0);
}

/* The leaves of branch x in one tree and of branch y in another have the same credit to the bit. */
static int assert_same_branch(const gr_credit* a, int x, const gr_credit* b, int y)
{
    int compared = 0, m = -1;
    for (int l = 0; l < a->n_leaves; l++) {
        if (a->tree->branch[a->leaf[l]] != x) continue;
        for (m++; m < b->n_leaves && b->tree->branch[b->leaf[m]] != y;) m++;
        assert_true(m < b->n_leaves);
        int64_t n = a->path_begin[l + 1] - a->path_begin[l];
        assert_int_equal(b->path_begin[m + 1] - b->path_begin[m], n);
        assert_memory_equal(a->path_adv + 3 * a->path_begin[l], b->path_adv + 3 * b->path_begin[m],
                            3 * (size_t)n * sizeof *a->path_adv);
        compared += (int)n;
    }
    return compared;
}

/* In another order, in another group, beside a copy of itself or alone: before it is normalised, a
 * path's credit is the same. */
static void a_path_is_credited_whatever_stands_beside_it(void** state)
{
    (void)state;
    gr_tree t = {0}, u = {0};
    gr_credit c = {0}, d = {0};
    int compared = 0;
    for (uint64_t i = 1; i <= 80; i++) {
        gr_hiper_settings* s = settings_with(variants[i % GR_COUNT(variants)]);
        const uint64_t key[] = {3 * i, 3 * i + 1, 3 * i + 2};
        const uint64_t turned[] = {key[2], key[0], key[2], key[1]};
        credit_branches(&c, &t, key, 3, s);
        credit_branches(&d, &u, turned, 4, s);
        compared += assert_same_branch(&c, 0, &d, 1);
        compared += assert_same_branch(&c, 1, &d, 3);
        compared += assert_same_branch(&c, 2, &d, 0);
        compared += assert_same_branch(&c, 2, &d, 2);
        for (int b = 0; b < 3; b++) {
            credit_branches(&d, &u, &key[b], 1, s);
            compared += assert_same_branch(&c, b, &d, 0);
        }
        free(s);
    }
    assert_true(compared > 3000);
    gr_credit_free(&c);
    gr_credit_free(&d);
    gr_tree_free(&t);
    gr_tree_free(&u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_turn_has_a_meaning),
        cmocka_unit_test(what_is_shown_names_the_last_subgoal),
        cmocka_unit_test(random_texts_never_surprise_the_reader),
        cmocka_unit_test(credit_on_trees_is_that_of_every_path),
        cmocka_unit_test(odd_turns_are_trained_by_the_blocks_they_have),
        cmocka_unit_test(invalid_turns_cost_their_penalty),
        cmocka_unit_test(kinds_are_normalised_each_for_itself),
        cmocka_unit_test(a_path_is_credited_whatever_stands_beside_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
