/* replay.c - samples one node of a logged tree again, from its weights, context and uid. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/command/command.h"
#include "host/json.h"

typedef struct options {
    gr_command_words words;
    int64_t step, group, node;
} options;

static const struct argp_option option_list[] = {
    {"node", 'n', "STEP:GROUP:NODE", 0, "The node, as numbered by `grove inspect`", 0},
    {0},
};

static error_t parse(int key, char* arg, struct argp_state* state)
{
    options* o = state->input;
    long long step, group, node;
    switch (key) {
    case 'n':
        if (sscanf(arg, "%lld:%lld:%lld", &step, &group, &node) != 3) {
            argp_error(state, "--node %s: not STEP:GROUP:NODE", arg);
        }
        o->step = step, o->group = group, o->node = node;
        return 0;
    case ARGP_KEY_END:
        if (o->step < 0) argp_usage(state);
        return 0;
    default:
        return gr_command_parse(&o->words, key, arg, state);
    }
}

static const struct argp argp = {option_list,
                                 parse,
                                 "RUN",
                                 "Samples one node of a logged tree again and compares tokens and "
                                 "log-probabilities. Exact where the "
                                 "weights of that step are kept; else the steps from the nearest "
                                 "earlier checkpoint are made again.\v"
                                 "Example:\n"
                                 "  grove replay runs/frozenlake_patr --node 40:3:7\n",
                                 NULL,
                                 NULL,
                                 NULL};

/* What the log says about the node. */
typedef struct record {
    cJSON* tree; /* owned */
    const cJSON* node;
    int32_t* context;
    int64_t context_cap;
    int n_context;
    bool sampled_elsewhere; /* the logged log-probs are those of another context */
} record;

static int64_t whole(const cJSON* object, const char* key)
{
    return gr_json_whole(cJSON_GetObjectItemCaseSensitive(object, key));
}

static const cJSON* find(const cJSON* nodes, int64_t id)
{
    const cJSON* node;
    cJSON_ArrayForEach(node, nodes) if (id >= 0 && whole(node, "id") == id) return node;
    return NULL;
}

static void append_tokens(record* r, const cJSON* node, const char* key)
{
    const cJSON* token;
    cJSON_ArrayForEach(token, cJSON_GetObjectItemCaseSensitive(node, key))
    {
        GR_RESERVE(r->context, r->context_cap, r->n_context + 1);
        r->context[r->n_context++] = token->valueint;
    }
}

/* Tokens from the root to the end of `id`: a node's action tokens are logged, observations are text. */
static void append_path(record* r, const cJSON* nodes, int64_t id)
{
    const cJSON* node = find(nodes, id);
    if (node == NULL) return;
    int64_t parent = whole(node, "parent");
    if (parent >= 0 && parent < id) append_path(r, nodes, parent); /* damage makes no cycle */
    append_tokens(r, node, "tokens");
    append_tokens(r, node, "obs_tokens");
}

/* A step that was made again was sampled behind the action it took the place of and what was told
 * about that. */
static gr_status append_attempt(record* r, const cJSON* nodes)
{
    const cJSON* about = find(nodes, whole(r->node, "about"));
    const cJSON* told = cJSON_GetObjectItemCaseSensitive(r->node, "told");
    if (about == NULL) return GR_OK;
    if (cJSON_GetArraySize(told) > 0) {
        append_tokens(r, about, "tokens");
        append_tokens(r, r->node, "told");
    }
    const char* from = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(r->node, "logp_from"));
    r->sampled_elsewhere = from != NULL && strcmp(from, "trainer") == 0;
    return GR_OK;
}

static gr_status read_record(const options* o, record* r)
{
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/trees.jsonl", o->words.subject);
    FILE* f = fopen(path, "re");
    if (f == NULL) return GR_FAIL(GR_EIO, "%s: %s", path, strerror(errno));
    gr_line_reader reader = {.file = f, .path = path};
    gr_status st;
    while ((st = gr_command_next_line(&reader, &r->tree)) == GR_OK && r->tree != NULL) {
        if (whole(r->tree, "step") == o->step && whole(r->tree, "group") == o->group) {
            break;
        }
        cJSON_Delete(r->tree);
    }
    free(reader.line);
    (void)fclose(f);
    GR_TRY(st);
    const cJSON* nodes = cJSON_GetObjectItemCaseSensitive(r->tree, "nodes");
    r->node = find(nodes, o->node);
    if (r->node == NULL || whole(r->node, "parent") < 0) {
        return GR_FAIL(GR_EARG, "%s: no acting node %lld:%lld:%lld", path, (long long)o->step,
                       (long long)o->group, (long long)o->node);
    }
    append_path(r, nodes, whole(r->node, "parent"));
    return append_attempt(r, nodes);
}

/* Brings the run to the weights that sampled `step`: those after step - 1 steps. */
static gr_status reach(gr_run* run, gr_config* c, const options* o)
{
    char label[32], path[1024];
    int64_t want = o->step - 1, at = -1;
    for (int64_t s = want; s >= 0 && at < 0; s--) {
        (void)snprintf(label, sizeof label, "%06lld", (long long)s);
        GR_TRY(gr_checkpoint_find(o->words.subject, label, path, sizeof path));
        if (path[0] != 0) at = s;
    }
    if (at < 0) { /* the weights before step 1 are kept under a name of their own */
        (void)snprintf(label, sizeof label, "initial");
        GR_TRY(gr_checkpoint_find(o->words.subject, label, path, sizeof path));
        if (path[0] != 0) at = 0;
    }
    if (at < 0) {
        return GR_FAIL(GR_EARG,
                       "%s: no checkpoint at or before step %lld is kept "
                       "(checkpoint.every, checkpoint.keep)",
                       o->words.subject, (long long)want);
    }
    GR_TRY(gr_command_open_run(run, c, o->words.subject, label, GR_RUN_TRAIN, &o->words));
    if (at < want) {
        printf("weights of step %lld are not kept: making %lld steps again from %lld\n",
               (long long)want, (long long)(want - at), (long long)at);
    }
    return gr_train_again(run, want - at);
}

static void print_comparison(const gr_run* run, const record* r, const gr_reply* a)
{
    const cJSON* tokens = cJSON_GetObjectItemCaseSensitive(r->node, "tokens");
    const cJSON* logps = cJSON_GetObjectItemCaseSensitive(r->node, "logp");
    int n = cJSON_GetArraySize(tokens);
    bool same = n == a->n_tokens;
    double worst = 0;
    for (int i = 0; i < n && i < a->n_tokens; i++) {
        same = same && cJSON_GetArrayItem(tokens, i)->valueint == a->token[i];
        worst = fmax(worst, fabs(cJSON_GetArrayItem(logps, i)->valuedouble - a->logp[i]));
    }
    char text[65536];
    int length =
        gr_decode(run->tokenizer, GR_MARKUP, a->token, a->n_tokens, text, (int)sizeof text);
    printf("context   %d tokens\naction    ", r->n_context);
    gr_command_print_text(text, (size_t)length, (size_t)length);
    printf("\ntokens    %s\n", same ? "equal" : "DIFFER");
    if (r->sampled_elsewhere) {
        printf("log-probs in the log are those of the path, where these tokens were not sampled\n");
        return;
    }
    printf("log-probs %s (largest difference %.3g)\n", same && worst == 0 ? "equal" : "differ",
           worst);
}

static gr_status replay(const options* o, gr_config* c, gr_run* run, record* r)
{
    GR_TRY(read_record(o, r));
    GR_TRY(reach(run, c, o));
    uint64_t uid =
        strtoull(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(r->node, "uid")), NULL, 16);
    const gr_rollout_settings* s = &run->train_settings;
    gr_request request = {.seq = gr_engine_open_seq(&run->engine),
                          .context = r->context,
                          .n_context = r->n_context,
                          .n_children = 1,
                          .uid = &uid,
                          .sampling = s->sampling,
                          .max_tokens = s->max_turn_tokens,
                          .purpose = GR_FOR_TRAIN};
    gr_dialog dialog;
    gr_dialog_init(&dialog, &s->dialog);
    gr_dialog_stop(&dialog, gr_rollout_stop(s, gr_envs_world(run->envs)), &request);
    gr_engine_submit(&run->engine, &request);
    gr_reply a;
    while (!gr_engine_idle(&run->engine)) {
        GR_TRY(gr_engine_step(&run->engine));
        while (gr_engine_poll(&run->engine, &a)) print_comparison(run, r, &a);
    }
    return GR_OK;
}

static int run_replay(int argc, char** argv)
{
    options o = {.step = -1};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return 1;
    gr_config c;
    gr_run run = {0};
    record r = {0};
    gr_run_settings(&c);
    gr_status st = replay(&o, &c, &run, &r);
    cJSON_Delete(r.tree);
    free(r.context);
    gr_run_close(&run);
    gr_config_free(&c);
    return st == GR_OK ? 0 : gr_command_fail();
}

const gr_command gr_command_replay = {"replay", "sample one node of a logged tree again",
                                      run_replay};
