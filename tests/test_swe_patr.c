/* PATR on repositories, from the sampler to the update, and every number of the ledger counted again.
 *
 * The policy is that of swe_play.h. One of the tasks has lost its sources and fails at every
 * reset. The commands that were asked for, counted in the table, and trees.jsonl say what
 * metrics.jsonl must say. Prints the rows of bench/results/swe-patr.md. */
#include "tests/swe_play.h"

#include <cjson/cJSON.h>
#include <math.h>

#include "host/json.h"

#define STEPS     4
#define INTERVAL  2 /* patr.interval */
#define CHILDREN  2 /* patr.children */
#define MAX_TURNS 6
#define EPSILON   1e-6 /* advantage.eps */

/* ---- counting again ---------------------------------------------------------------------- */

typedef struct count { /* of one step, or of the run */
    int64_t trees, taught, nodes, turns, tokens, scored, leaves, forks, lost, failed_resets;
    int64_t trained, trained_flat; /* action tokens in the loss: each once, and once per leaf */
    int64_t kept_turns;            /* turns on the way to a leaf that counts ... */
    int64_t path_turns;            /* ... once for each of these leaves */
    int64_t status[GR_N_STATUSES];
    double solved;
} count;

static count total;
static int64_t siblings_of_lost; /* leaves that count, in trees that lost a branch */

typedef struct node { /* a line's node, read back */
    int parent, turn, n_tokens, n_children, leaves, byte;
    gr_node_status status;
    bool stepped, scored, teaches;
    double reward, advantage;
} node;

static double number(const cJSON* o, const char* key)
{
    const cJSON* item = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsNumber(item) ? item->valuedouble : (double)NAN;
}

static int first_of(const cJSON* tokens)
{
    const cJSON* first = cJSON_GetArrayItem(tokens, 0);
    return first == NULL ? -1 : first->valueint;
}

static int read_nodes(const cJSON* list, node* out, int cap)
{
    const cJSON* o;
    int n = 0;
    cJSON_ArrayForEach(o, list)
    {
        assert_true(n < cap);
        node* x = &out[n++];
        const char* status = cJSON_GetStringValue(cJSON_GetObjectItem(o, "status"));
        *x = (node){.parent = (int)number(o, "parent"),
                    .turn = (int)number(o, "turn"),
                    .n_tokens = cJSON_GetArraySize(cJSON_GetObjectItem(o, "tokens")),
                    .leaves = (int)number(o, "leaves"),
                    .byte = first_of(cJSON_GetObjectItem(o, "tokens")),
                    .stepped = cJSON_IsTrue(cJSON_GetObjectItem(o, "stepped")),
                    .scored = !isnan(number(o, "score")),
                    .reward = number(o, "reward"),
                    .advantage = number(o, "advantage")};
        while (strcmp(gr_node_status_name[x->status], status) != 0) x->status++;
        if (x->parent >= 0) out[x->parent].n_children++;
    }
    return n;
}

static bool counts(const node* x)
{
    return x->n_children == 0 && x->parent >= 0 && x->status != GR_ERROR;
}

/* Advantages are those of the counted leaves alone: what was lost is in no baseline. */
static bool check_advantages(const node* x, int n)
{
    double sum = 0, square = 0;
    int leaves = 0;
    bool taught = false;
    for (int i = 0; i < n; i++) {
        if (!counts(&x[i])) continue;
        leaves++;
        sum += x[i].reward;
    }
    for (int i = 0; i < n; i++) {
        if (counts(&x[i])) square += (x[i].reward - sum / leaves) * (x[i].reward - sum / leaves);
    }
    double deviation = leaves > 1 ? sqrt(square / (leaves - 1)) : 0;
    for (int i = 0; i < n; i++) {
        if (!counts(&x[i])) continue;
        double a = deviation > 0 ? (x[i].reward - sum / leaves) / (deviation + EPSILON) : 0;
        assert_true(fabs(a - x[i].advantage) < 1e-9);
        taught = taught || a != 0;
    }
    return taught;
}

static void count_tree(count* c, const node* x, int n)
{
    int lost = 0, leaves = 0;
    bool taught = check_advantages(x, n);
    c->trees++;
    c->taught += taught;
    c->failed_resets += x[0].status == GR_ERROR;
    c->nodes += n - 1;
    for (int i = 1; i < n; i++) {
        c->turns += x[i].stepped;
        c->kept_turns += x[i].leaves > 0;
        c->tokens += x[i].n_tokens;
        c->scored += x[i].scored;
        c->status[x[i].status]++;
        lost += x[i].status == GR_ERROR;
        if (x[i].n_children > 1) { /* forks are where checkpoints are, and have their children */
            assert_int_equal(x[i].turn % INTERVAL, 0);
            assert_int_equal(x[i].n_children, CHILDREN);
            c->forks++;
        }
        if (x[i].status == GR_PRUNED) assert_int_equal(x[i].turn % INTERVAL, 0);
        if (x[i].status == GR_LOOP) assert_int_equal(x[i].byte, x[x[i].parent].byte);
        assert_true(x[i].status != GR_ERROR || (!x[i].stepped && x[i].leaves == 0));
        if (taught && x[i].leaves > 0) c->trained += x[i].n_tokens;
        if (!counts(&x[i])) continue;
        leaves++;
        c->path_turns += x[i].turn;
        c->solved += x[i].reward;
        for (int up = i; taught && up > 0; up = x[up].parent) c->trained_flat += x[up].n_tokens;
    }
    c->leaves += leaves;
    c->lost += lost;
    if (lost > 0) siblings_of_lost += leaves;
}

/* What the log of trees says of each step. */
static void recount(count* step)
{
    char path[200];
    (void)snprintf(path, sizeof path, "%s/patr", scratch);
    char *text = slurp(path, "trees.jsonl", NULL), *rest = NULL;
    assert_non_null(text);
    for (char* line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        static node x[512];
        cJSON* o = cJSON_Parse(line);
        int at = (int)number(o, "step") - 1;
        assert_in_range(at, 0, STEPS - 1);
        int n = read_nodes(cJSON_GetObjectItem(o, "nodes"), x, GR_COUNT(x));
        count_tree(&step[at], x, n);
        count_tree(&total, x, n);
        cJSON_Delete(o);
    }
    free(text);
}

#define ASSERT_SAYS(m, name, value)                                                            \
    do {                                                                                       \
        double says_ = number(m, name), is_ = (double)(value);                                 \
        if (!(fabs(says_ - is_) < 1e-9)) fail_msg("%s: %.9g, counted %.9g", name, says_, is_); \
    } while (0)

static void add(count* sum, const count* c)
{
    sum->turns += c->turns;
    sum->tokens += c->tokens;
    sum->scored += c->scored;
    sum->trained += c->trained;
    sum->trained_flat += c->trained_flat;
}

static void check_step(const cJSON* m, const count* c, const count* so_far)
{
    ASSERT_SAYS(m, "budget/env_turns", so_far->turns);
    ASSERT_SAYS(m, "budget/charged_turns", so_far->turns); /* a heuristic costs no turns */
    ASSERT_SAYS(m, "budget/gen_tokens", so_far->tokens);
    ASSERT_SAYS(m, "budget/scorer_calls", so_far->scored);
    ASSERT_SAYS(m, "budget/loss_tokens", so_far->trained);
    ASSERT_SAYS(m, "budget/loss_tokens_flat", so_far->trained_flat);
    ASSERT_SAYS(m, "errors/timeout", c->lost);
    ASSERT_SAYS(m, "errors/refused", c->failed_resets);
    ASSERT_SAYS(m, "errors/crash", 0);
    ASSERT_SAYS(m, "errors/protocol", 0);
    ASSERT_SAYS(m, "tree/leaves", (double)c->leaves / (double)c->trees);
    ASSERT_SAYS(m, "group/frac_zero_adv", 1 - (double)c->taught / (double)c->trees);
    assert_true(number(m, "perf/saved_prefill_tok") > 0);
    if (c->taught > 0) {
        ASSERT_SAYS(m, "parity/max_abs_dlogp", 0);
        assert_true(number(m, "tree/token_ratio") > 1);
    }
    printf("| %d | %lld | %lld | %lld | %lld | %lld | %lld | %lld | %lld | %lld | %lld | %lld |"
           " %.2f | %.3f |\n",
           (int)number(m, "step"), (long long)c->trees, (long long)c->leaves, (long long)c->turns,
           (long long)c->path_turns, (long long)c->forks, (long long)c->status[GR_PRUNED],
           (long long)c->status[GR_LOOP], (long long)c->lost, (long long)c->failed_resets,
           (long long)c->trained, (long long)c->trained_flat, number(m, "tree/token_ratio"),
           c->solved / (double)c->leaves);
}

static void every_number_is_that_of_the_trees(void** state)
{
    (void)state;
    static count step[STEPS];
    count so_far = {0};
    char path[200];
    recount(step);
    (void)snprintf(path, sizeof path, "%s/patr", scratch);
    char *text = slurp(path, "metrics.jsonl", NULL), *rest = NULL;
    assert_non_null(text);
    puts("| step | trees | leaves | turns | turns of their paths | forks | pruned | loop | lost | "
         "failed resets | tokens in the loss | as flat rows | sharing | solved |\n"
         "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for (char* line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        cJSON* m = cJSON_Parse(line);
        int at = (int)number(m, "step");
        if (at > 0) {
            add(&so_far, &step[at - 1]);
            check_step(m, &step[at - 1], &so_far);
        }
        cJSON_Delete(m);
    }
    free(text);
}

/* What was asked of the world is what the trees hold. */
static void every_command_is_in_a_tree(void** state)
{
    (void)state;
    int64_t all = 0;
    for (int i = 0; i < N_MOVES; i++) {
        printf("%s%s %lld", i > 0 ? ", " : "commands: ", moves[i].name, (long long)asked[i]);
        all += asked[i];
    }
    puts("");
    assert_int_equal(all, total.turns + total.lost);
    assert_int_equal(n_forks, total.nodes);
    assert_int_equal(n_resets, total.trees);
    assert_true(total.lost >= asked[HANG]);
    assert_true(asked[HANG] > 0 && total.failed_resets > 0);
}

/* All that PATR does, happened; and a branch that was lost took no other one with it. */
static void branches_fork_stop_and_share(void** state)
{
    (void)state;
    assert_true(total.forks > 0);
    assert_true(total.path_turns > total.kept_turns); /* prefixes are taken once */
    assert_true(total.trained_flat > total.trained);
    assert_true(total.status[GR_PRUNED] + total.status[GR_LOOP] > 0);
    assert_true(total.status[GR_TERMINAL] > 0 && total.status[GR_TIME_LIMIT] > 0);
    assert_int_equal(total.status[GR_OPEN] + total.status[GR_ACTING], 0);
    assert_true(total.solved > 0 && total.taught > 0);
    assert_true(siblings_of_lost > 0);
}

static char* shown; /* on stderr by the run */

static void the_closing_table_names_the_errors(void** state)
{
    (void)state;
    char line[200];
    (void)snprintf(line, sizeof line, "trajectories lost by the world   timeout %lld, refused %lld",
                   (long long)total.lost, (long long)total.failed_resets);
    if (strstr(shown, line) == NULL) fail_msg("no `%s` in: %s", line, shown);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_is_that_of_the_trees),
        cmocka_unit_test(every_command_is_in_a_tree),
        cmocka_unit_test(branches_fork_stop_and_share),
        cmocka_unit_test(the_closing_table_names_the_errors),
    };
    gr_world world;
    int failed = 0;
    if (make_scratch(NULL) != 0) return 1;
    make_tasks();
    static const char* const more[] = {
        "heuristic.weights=opened=0.25 tested=0.25 edited=0.25 improved=0.25 trouble=-0.25"};
    if (open_run(STEPS, GR_COUNT(more), more)) {
        play_for_the_model(&world);
        lose_one_task();
        hush();
        gr_status st = gr_train(&run);
        shown = loud();
        if (st != GR_OK) fail_msg("%s", gr_last_error());
        failed = cmocka_run_group_tests(tests, NULL, NULL);
        free(shown);
    }
    gr_run_close(&run);
    gr_config_free(&config);
    gr_sandbox_stop();
    gr_swe_set_free(&tasks);
    (void)remove_scratch(NULL);
    return failed;
}
