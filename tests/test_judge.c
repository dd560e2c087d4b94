/* Models that judge: what their answers must look like, what they are shown, and that rollouts with
 * them are the same whatever the batch, count every token, and do nothing where no answer comes.
 *
 * A network that answers is made by hand: without layers that do anything, the head sees the last
 * byte alone, so it is a Markov chain over bytes. The chain {"score":D} forks at each quote, so at
 * temperature 1 one answer in four is whole and has a level of 0 to 9. */
#include <inttypes.h>

#include "host/json.h"
#include "host/scorer/answer.h"
#include "tests/grow.h"
#define GROUPS 4
#include "tests/rolled.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n); /* fuzz_answer.c */

/* ---- answers --------------------------------------------------------------------------------- */

static int any_text(dice* d, char* text, int cap)
{
    static const char* const piece[] = {"it ",          "\"",  "\\",    "\n", "{", "}",  "\xc3\xa9",
                                        "\xe4\xb8\x80", "```", "score", ":",  "7", "\t", "/"};
    int n = 0, pieces = choose(d, choose(d, 4) ? 12 : 900);
    for (int i = 0; i < pieces; i++) {
        const char* p = piece[choose(d, GR_COUNT(piece))];
        if (n + (int)strlen(p) >= cap) break;
        memcpy(text + n, p, strlen(p));
        n += (int)strlen(p);
    }
    return n;
}

/* What stands around an answer, with and without a code block. */
static const char* const front[] = {"", " \n", "<think>so {it} is\n</think>\n",
                                    "Well: ", "```json\n"};
static const char* const behind[] = {"", "\n", "  \t\n", "\n", "\n```\n"};

static void answers_survive_what_surrounds_them(void** state)
{
    (void)state;
    static char critique[4000];
    dice d = {.key = 3};
    int cut = 0;
    for (int trial = 0; trial < 3000; trial++) {
        char* text = NULL;
        size_t length = 0;
        int level = choose(&d, 11), around = choose(&d, GR_COUNT(front)), first = choose(&d, 2);
        int n = any_text(&d, critique, sizeof critique);
        FILE* f = open_memstream(&text, &length);
        fprintf(f, "%s{", front[around]);
        if (first) fprintf(f, "\"score\": %d, ", level);
        if (choose(&d, 2)) fputs("\"phase\": {\"n\": [1, 2]}, ", f);
        fputs("\"critique\": ", f);
        gr_json_text(f, critique, (size_t)n);
        if (!first) fprintf(f, ", \"score\" :%d.0", level);
        fprintf(f, "}%s", behind[around]);
        (void)fclose(f);
        gr_answer a;
        if (!gr_answer_read(text, length, &a)) fail_msg("%s", text);
        assert_int_equal(a.level, level);
        assert_int_equal(strlen(a.critique), a.n_critique);
        assert_memory_equal(a.critique, critique, (size_t)a.n_critique);
        if (n < GR_CRITIQUE_MAX) assert_int_equal(a.n_critique, n);
        if (a.n_critique < n) { /* between characters */
            cut++;
            assert_true(a.n_critique > GR_CRITIQUE_MAX - 5);
            assert_true(((unsigned char)critique[a.n_critique] & 0xc0) != 0x80);
        }
        free(text);
    }
    assert_true(cut > 100);
}

static void what_is_no_answer_gives_no_level(void** state)
{
    (void)state;
    static const char* const text[] = {"",
                                       "7",
                                       "score: 7",
                                       "{}",
                                       "{\"score\": 7",
                                       "{\"score\": 7} I think",
                                       "{\"score\": 7}```json",
                                       "{\"score\": -1}",
                                       "{\"score\": 11}",
                                       "{\"score\": 7.5}",
                                       "{\"score\": 1e300}",
                                       "{\"score\": \"7\"}",
                                       "{\"score\": null}",
                                       "{\"score\": true}",
                                       "{\"score\": [7]}",
                                       "{\"Score\": 7}",
                                       "{\"score\": 7, \"score\": 7}",
                                       "{\"score\": 7, \"critique\": 5}",
                                       "{\"score\": 7, \"critique\": \"a\", \"critique\": \"b\"}",
                                       "{\"answer\": {\"score\": 7}}",
                                       "[{\"score\": 7}]",
                                       "{'score': 7}",
                                       "```{\"score\": 7}````"};
    gr_answer a = {.level = -7};
    for (int i = 0; i < GR_COUNT(text); i++) {
        if (gr_answer_read(text[i], strlen(text[i]), &a)) fail_msg("%s", text[i]);
        assert_int_equal(a.level, -7);
    }
}

static void random_texts_never_surprise_the_reader(void** state)
{
    (void)state;
    static const char* const piece[] = {"{",         "}",
                                        "\"score\"", ":",
                                        "7",         "10",
                                        ",",         "\"critique\"",
                                        "[",         "]",
                                        "\"a\"",     " ",
                                        "\n",        "-",
                                        "e",         "\\u0000",
                                        "\"",        "\\",
                                        "```",       ".",
                                        "null",      "{\"score\":3",
                                        "}"};
    dice d = {.key = 12};
    char text[800];
    int whole = 0;
    for (int trial = 0; trial < 30000; trial++) {
        int n = 0, pieces = choose(&d, choose(&d, 50) ? 14 : 50);
        for (int i = 0; i < pieces; i++) {
            const char* p = piece[choose(&d, GR_COUNT(piece))];
            memcpy(text + n, p, strlen(p));
            n += (int)strlen(p);
            if (choose(&d, 20) == 0) text[n++] = (char)choose(&d, 256);
        }
        gr_answer a;
        whole += gr_answer_read(text, (size_t)n, &a);
        LLVMFuzzerTestOneInput((const uint8_t*)text, (size_t)n);
    }
    assert_true(whole > 100);
}

/* ---- questions ------------------------------------------------------------------------------- */

static const gr_world facts = {.name = "toy", .prompt = "Prompt!\n", .stop = "\n"};

static void say(gr_tree* t, int node)
{
    char said[32];
    int32_t token[32];
    double logp[32] = {0};
    if (node > 0) {
        int n = snprintf(said, sizeof said, "act<%" PRIx64 ">\n", t->uid[node]);
        for (int i = 0; i < n; i++) token[i] = said[i];
        gr_tree_set_action(t, node, token, logp, n, 0);
    }
    gr_tree_set_result(t, node, &(gr_obs){.valid = true});
    int n = snprintf(said, sizeof said, "see<%" PRIx64 ">\n", t->uid[node]);
    gr_tree_set_said(t, node, said, n);
}

static bool mentions(const char* text, const char* what, uint64_t uid)
{
    char name[32];
    (void)snprintf(name, sizeof name, "%s<%" PRIx64 ">\n", what, uid);
    return strstr(text, name) != NULL;
}

/* Turns of the path, as many as the history holds, and of no other node. */
static void assert_question(const gr_scorer* s, const gr_tree* t, int node, int history)
{
    char* text = NULL;
    size_t n = 0;
    FILE* f = open_memstream(&text, &n);
    assert_true(s->question(t, &facts, node, history, f));
    (void)fclose(f);
    assert_non_null(strstr(text, "Prompt!\nsee<"));
    assert_true(mentions(text, "see", t->uid[0]));
    assert_true(text[n - 1] == '\n' && strstr(text, "\"score\"") != NULL);
    bool left_out = t->turn[node] > history + 1;
    assert_int_equal(strstr(text, "left out") != NULL, left_out);
    for (int i = 1; i < t->n_nodes; i++) {
        int up = node;
        while (up > i) up = t->parent[up];
        bool shown = up == i && t->turn[node] - t->turn[i] <= history;
        assert_int_equal(mentions(text, "act", t->uid[i]), shown);
        assert_int_equal(mentions(text, "see", t->uid[i]), shown);
    }
    free(text);
}

static void questions_show_the_path_and_nothing_else(void** state)
{
    (void)state;
    gr_tree t = {0};
    for (uint64_t key = 1; key <= 40; key++) {
        dice d = {.key = key};
        gr_tree_reset(&t, 0, 0, 0, 0, key, 0);
        gr_tree_add_root(&t, (const int32_t[]){1}, 1, 30);
        say(&t, 0);
        for (int i = 0; i < 20; i++) {
            int node = gr_tree_add_child(&t, choose(&d, t.n_nodes), -1);
            if (node > 0) say(&t, node);
        }
        for (int i = 1; i < t.n_nodes; i++) {
            assert_question(&gr_scorer_judge, &t, i, choose(&d, 6));
            assert_question(&gr_scorer_model_critic, &t, i, choose(&d, 6));
        }
    }
    gr_tree_free(&t);
}

/* ---- a network that answers ------------------------------------------------------------------ */

enum { WIDTH = 64 };

/* The rows of a Hadamard matrix: orthogonal, of length 8. */
static float hadamard(int row, int column)
{
    return __builtin_popcount((unsigned)(row & column)) % 2 ? -1.0F : 1.0F;
}

static int row_of(int byte)
{
    static const char spoken[] = "\n{\"score:}0123456789";
    const char* at = byte > 0 ? strchr(spoken, byte) : NULL;
    return at != NULL ? 1 + (int)(at - spoken) : WIDTH - 1;
}

static void put_rows(gr_weights* w, int64_t offset, const float* x, int64_t n)
{
    assert_int_equal(w->dev->acc_bytes, sizeof *x);
    gr_dev_write(w->dev, gr_acc_at(w->dev, w->master, offset), x, (size_t)n * sizeof *x);
}

static void teach_to_answer(gr_weights* w)
{
    static const char* const after[] = {"\n{", "{\"", "\"s", "\":", "sc",
                                        "co",  "or",  "re",  "e\"", "}\n"};
    static float embed[GR_BYTE_VOCAB * WIDTH], head[GR_BYTE_VOCAB * WIDTH], none[WIDTH * 256];
    assert_true(w->config.width == WIDTH && w->config.vocab == GR_BYTE_VOCAB &&
                w->head != w->embed);
    memset(head, 0, sizeof head);
    memset(none, 0, sizeof none);
    for (int x = 0; x < GR_BYTE_VOCAB; x++) {
        for (int c = 0; c < WIDTH; c++) embed[x * WIDTH + c] = hadamard(row_of(x), c);
    }
    for (int c = 0; c < WIDTH; c++) { /* a following byte has a logit of 24, others one of 0 */
        const float strength = 24.0F / WIDTH;
        for (int i = 0; i < GR_COUNT(after); i++) {
            head[after[i][1] * WIDTH + c] += strength * embed[after[i][0] * WIDTH + c];
        }
        for (int x = '0'; x <= '9'; x++) {
            head[x * WIDTH + c] += strength * embed[':' * WIDTH + c];
            head['}' * WIDTH + c] += strength * embed[x * WIDTH + c];
        }
    }
    put_rows(w, w->embed, embed, GR_COUNT(embed));
    put_rows(w, w->head, head, GR_COUNT(head));
    for (int l = 0; l < w->config.layers; l++) { /* attention and MLP add nothing */
        int64_t q = (int64_t)w->config.heads * w->config.head_dim;
        put_rows(w, w->layer[l].attn_out, none, WIDTH * q);
        put_rows(w, w->layer[l].down, none, (int64_t)WIDTH * w->config.mlp);
    }
    gr_weights_publish(w);
}

/* ---- rollouts -------------------------------------------------------------------------------- */

static const char* const small[] = {"device.threads=1",         "model.layers=1",
                                    "model.width=64",           "model.heads=2",
                                    "model.kv_heads=2",         "model.mlp=48",
                                    "env.name=frozenlake",      "frozenlake.max_turns=6",
                                    "rollout.group=4",          "rollout.max_turn_tokens=6",
                                    "rollout.max_context=2048", "optimizer.microbatch_tokens=4096",
                                    "log.quiet=true",           "run.steps=2",
                                    "rollout.groups_per_step=4"};

static const char* const asking[] = {"rollout.strategy=proceed", "scorer.name=model_critic",
                                     "judge.temperature=1", "judge.max_tokens=24"};

static gr_status try_run(fixture* f, bool asks, int n_more, const char* const* more)
{
    const char* all[40];
    int n = 0;
    for (; n < GR_COUNT(small); n++) all[n] = small[n];
    for (int i = 0; i < GR_COUNT(asking) && asks; i++) all[n++] = asking[i];
    for (int i = 0; i < n_more; i++) all[n++] = more[i];
    return try_open(f, n, all);
}

typedef enum policy { RANDOM, ANSWERS } policy;

/* A run whose scorer asks a model. */
static void open_run(fixture* f, policy p, int n_more, const char* const* more)
{
    ASSERT_OK(try_run(f, true, n_more, more));
    if (p == ANSWERS)
        teach_to_answer(&f->run.weights);
    else
        gr_weights_publish(&f->run.weights);
    gr_engine_reset(&f->run.engine);
}

/* Independent rollouts of random weights that nobody judges. */
static void open_plain(fixture* f, const char* context)
{
    const char* more[] = {"rollout.strategy=flat", context};
    ASSERT_OK(try_run(f, false, GR_COUNT(more), more));
    gr_weights_publish(&f->run.weights);
    gr_engine_reset(&f->run.engine);
}

static uint64_t forest_hash(const fixture* f)
{
    uint64_t h = 0;
    for (int i = 0; i < GROUPS; i++) {
        const gr_tree* t = &f->tree[i];
        const int64_t ledger[] = {t->gen_tokens, t->critic_tokens, t->scorer_calls, t->unanswered};
        h = gr_key_join(h, hash_of(t));
        h = gr_hash64(t->score, (size_t)t->n_nodes * sizeof *t->score, h);
        h = gr_hash64(ledger, sizeof ledger, h);
    }
    return h;
}

static gr_tree sums_of(const fixture* f)
{
    gr_tree sum = {0};
    for (int i = 0; i < GROUPS; i++) {
        sum.gen_tokens += f->tree[i].gen_tokens;
        sum.critic_tokens += f->tree[i].critic_tokens;
        sum.scorer_calls += f->tree[i].scorer_calls;
        sum.unanswered += f->tree[i].unanswered;
    }
    return sum;
}

/* Levels are whole, low ones lead to another attempt, and every sampled token is in the ledger. */
static void assert_judged(const gr_tree* t)
{
    int64_t asked = 0, unanswered = 0, actions = 0;
    for (int i = 1; i < t->n_nodes; i++) {
        actions += t->n_action[i];
        if (isnan(t->score[i])) continue;
        int level = gr_level(t->score[i]);
        assert_true(level >= 0 && level <= GR_LEVELS && t->score[i] == level / (double)GR_LEVELS);
        asked++;
        unanswered += level == GR_LEVELS; /* the network says 0 to 9 */
        bool again = false;
        for (int j = i + 1; j < t->n_nodes; j++) {
            again = again || (t->parent[j] == t->parent[i] && t->branch[j] == t->branch[i]);
        }
        if (gr_tree_attempt(t, i) == 0) assert_int_equal(again, level <= 4);
    }
    assert_int_equal(t->scorer_calls, asked);
    assert_int_equal(t->unanswered, unanswered);
    assert_int_equal(t->gen_tokens, actions + t->critic_tokens);
}

/* Rolls and checks; returns the hash. What was forwarded for contexts is added to *prefill. */
static uint64_t judge_itself(const char* reads, const char* const* way, int64_t* prefill)
{
    const char* more[] = {reads, way[0], way[1]};
    fixture f;
    open_run(&f, ANSWERS, GR_COUNT(more), more);
    roll(&f);
    gr_tree sum = sums_of(&f);
    for (int i = 0; i < GROUPS; i++) assert_judged(&f.tree[i]);
    double share = (double)sum.unanswered / (double)sum.scorer_calls;
    assert_true(sum.scorer_calls > 25 && share > 0.6 && share < 0.9); /* 3/4 */
    assert_int_equal(f.run.engine.counts.gen_tokens[GR_FOR_JUDGE], sum.critic_tokens);
    *prefill += f.run.engine.counts.prefill_tokens;
    uint64_t hash = forest_hash(&f);
    close_run(&f);
    return hash;
}

static void the_policy_judges_itself_whatever_the_batch(void** state)
{
    (void)state;
    static const char* const reads[] = {"judge.reads=text", "judge.reads=path"};
    static const char* const ways[][2] = {{"rollout.max_live=64", "rollout.max_rows=512"},
                                          {"rollout.max_live=1", "rollout.max_rows=512"},
                                          {"rollout.max_live=7", "rollout.max_rows=16"},
                                          {"rollout.max_live=3", "rollout.kv_pages=260"}};
    int64_t prefill[2] = {0, 0};
    for (int k = 0; k < 2; k++) {
        uint64_t first = judge_itself(reads[k], ways[0], &prefill[k]);
        for (int w = 1; w < GR_COUNT(ways); w++) {
            int64_t other = 0;
            assert_true(judge_itself(reads[k], ways[w], &other) == first);
        }
    }
    assert_true(4 * prefill[1] < 3 * prefill[0]); /* the episode was there already */
}

/* Random weights say nothing that could be read, and a critic whose questions are longer than its
 * context says nothing at all: the trees are those of independent rollouts, bit for bit. */
static void a_critic_without_an_answer_changes_nothing(void** state)
{
    (void)state;
    static const char* const how[][2] = {{"judge.temperature=1", "rollout.max_context=2048"},
                                         {"judge.temperature=0", "rollout.max_context=2048"},
                                         {"judge.temperature=1", "rollout.max_context=512"}};
    for (int k = 0; k < GR_COUNT(how); k++) {
        fixture f, plain;
        open_run(&f, RANDOM, 2, how[k]);
        open_plain(&plain, how[k][1]);
        roll(&f);
        roll(&plain);
        for (int i = 0; i < GROUPS; i++) {
            assert_true(hash_of(&f.tree[i]) == hash_of(&plain.tree[i]));
        }
        gr_tree sum = sums_of(&f);
        assert_true(sum.scorer_calls > 20 && sum.unanswered == sum.scorer_calls);
        assert_int_equal(sum.critic_tokens > 0, k < 2);
        close_run(&f);
        close_run(&plain);
    }
}

static double heuristic_of(const fixture* f, const gr_tree* t, int node)
{
    return gr_heuristic_score(f->run.train_settings.scorer_settings, t, gr_envs_world(f->run.envs),
                              node);
}

/* A level and the heuristic make a score together; without a level the heuristic is the score. */
static void a_judge_is_blended_with_the_heuristic(void** state)
{
    (void)state;
    static const char* const more[] = {"rollout.strategy=patr", "patr.interval=2",
                                       "scorer.name=judge", "judge.blend=0.6"};
    fixture f;
    open_run(&f, ANSWERS, GR_COUNT(more), more);
    roll(&f);
    int blended = 0, alone = 0;
    for (int i = 0; i < GROUPS; i++) {
        const gr_tree* t = &f.tree[i];
        for (int k = 1; k < t->n_nodes; k++) {
            if (isnan(t->score[k])) continue;
            double h = heuristic_of(&f, t, k), level = (t->score[k] - 0.4 * h) / 0.06;
            if (t->score[k] == h) {
                alone++;
            } else {
                blended++;
                assert_true(fabs(level - round(level)) < 1e-9 && level > -0.5 && level < 9.5);
            }
        }
        assert_true(t->unanswered <= alone);
    }
    gr_tree sum = sums_of(&f);
    assert_int_equal(sum.scorer_calls, blended + alone);
    assert_true(blended > 3 && alone > 10);
    close_run(&f);
}

/* A tree asks no more than it may, and what it asks is what it would have asked first. */
static void questions_are_rationed(void** state)
{
    (void)state;
    static const char* const few[] = {"judge.max_calls=3"};
    fixture f;
    open_run(&f, ANSWERS, 1, few);
    roll(&f);
    for (int i = 0; i < GROUPS; i++) {
        assert_int_equal(f.tree[i].scorer_calls, 3);
        int judged = 0;
        for (int k = 1; k < f.tree[i].n_nodes; k++) judged += f.tree[i].score[k] < 1;
        assert_true(judged <= 3);
    }
    close_run(&f);
}

/* ---- another model --------------------------------------------------------------------------- */

/* A folder with the network that answers, as a setting. */
static const char* answering_model(void)
{
    static char setting[160];
    fixture f;
    int n = snprintf(setting, sizeof setting, "judge.model=");
    (void)snprintf(setting + n, sizeof setting - (size_t)n, "%s/judge", scratch);
    if (access(setting + n, R_OK) == 0) return setting;
    open_run(&f, ANSWERS, 0, NULL);
    ASSERT_OK(gr_export(&f.run.weights, setting + n, NULL, GR_FILE_F32, GR_SHARD_BYTES));
    close_run(&f);
    return setting;
}

/* The policy's random weights do not answer, the other model does, in an engine of its own. */
static void another_model_judges(void** state)
{
    (void)state;
    const char* setting = answering_model();
    fixture f;
    uint64_t first = 0;
    for (int way = 0; way < 2; way++) {
        const char* more[] = {setting, "judge.chat=none",
                              way ? "rollout.max_live=2" : "rollout.max_live=64"};
        open_run(&f, RANDOM, GR_COUNT(more), more);
        roll(&f);
        gr_tree sum = sums_of(&f);
        for (int i = 0; i < GROUPS; i++) assert_judged(&f.tree[i]);
        assert_true(sum.scorer_calls > 25 && sum.unanswered < sum.scorer_calls);
        assert_int_equal(f.run.engine.counts.gen_tokens[GR_FOR_JUDGE], 0);
        assert_int_equal(f.run.judge.engine.counts.gen_tokens[GR_FOR_JUDGE], sum.critic_tokens);
        assert_true(f.run.plan.judge > (size_t)f.run.judge.weights.n_params * sizeof(float));
        if (way == 0) first = forest_hash(&f);
        assert_true(forest_hash(&f) == first);
        close_run(&f);
    }
}

static void assert_refused(const char* a, const char* b, const char* why)
{
    const char* more[] = {a, b};
    fixture f;
    assert_true(try_run(&f, true, 2, more) != GR_OK);
    if (strstr(gr_last_error(), why) == NULL) fail_msg("%s", gr_last_error());
    close_run(&f);
}

static void settings_without_effect_are_refused(void** state)
{
    (void)state;
    assert_refused("rollout.strategy=flat", "judge.history=2", "asks for no scores");
    assert_refused("judge.model=/nowhere", "judge.chat=none", "/nowhere");
    assert_refused("judge.max_tokens=2048", "run.seed=1", "judge.max_tokens = 2048 leaves no room");
    assert_refused("judge.chat=none", "run.seed=1", "judge.chat");
    assert_refused("judge.blend=0.5", "run.seed=1", "judge.blend");
    assert_refused("judge.reads=path", "judge.history=3", "judge.history");
    assert_refused("judge.reads=path", "judge.model=/nowhere", "judge.reads");
    assert_refused("scorer.name=judge", "judge.weights=progres=1", "judge.weights");
}

/* ---- a run ----------------------------------------------------------------------------------- */

static double last_metric(const char* path, const char* name)
{
    static char line[20000];
    char key[64];
    FILE* f = fopen(path, "re");
    assert_non_null(f);
    double value = (double)NAN;
    (void)snprintf(key, sizeof key, "\"%s\": ", name);
    while (fgets(line, sizeof line, f) != NULL) {
        const char* at = strstr(line, key);
        if (at != NULL) value = strtod(at + strlen(key), NULL);
    }
    (void)fclose(f);
    return value;
}

/* Answers cost turns and tokens of the budget and stand in no row that is trained. */
static void a_run_pays_for_its_critic(void** state)
{
    (void)state;
    char dir[80], path[128];
    fixture f;
    (void)snprintf(dir, sizeof dir, "run.dir=%s", scratch);
    const char* more[] = {dir,
                          "run.name=critic",
                          answering_model(),
                          "judge.chat=none",
                          "warmstart.steps=2",
                          "warmstart.batch=4",
                          "eval.tasks=0"};
    ASSERT_OK(try_run(&f, true, GR_COUNT(more), more));
    ASSERT_OK(gr_train(&f.run));
    const gr_train_state* s = &f.run.state;
    (void)snprintf(path, sizeof path, "%s/critic/metrics.jsonl", scratch);
    assert_true(s->scorer_calls > 20 && s->critic_tokens > s->scorer_calls);
    assert_int_equal(s->charged_turns, s->env_turns + s->scorer_calls);
    assert_true(last_metric(path, "budget/critic_tokens") == (double)s->critic_tokens);
    assert_true(last_metric(path, "critic/unanswered_frac") > 0.5);
    assert_true(last_metric(path, "critic/unanswered_frac") < 0.95);
    close_run(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_survive_what_surrounds_them),
        cmocka_unit_test(what_is_no_answer_gives_no_level),
        cmocka_unit_test(random_texts_never_surprise_the_reader),
        cmocka_unit_test(questions_show_the_path_and_nothing_else),
        cmocka_unit_test(the_policy_judges_itself_whatever_the_batch),
        cmocka_unit_test(a_critic_without_an_answer_changes_nothing),
        cmocka_unit_test(a_judge_is_blended_with_the_heuristic),
        cmocka_unit_test(questions_are_rationed),
        cmocka_unit_test(another_model_judges),
        cmocka_unit_test(settings_without_effect_are_refused),
        cmocka_unit_test(a_run_pays_for_its_critic),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
