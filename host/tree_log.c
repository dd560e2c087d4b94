/* tree_log.c - one line of JSON per tree: what `grove inspect` draws and `grove replay` checks against.
 *
 * Tokens and log-probabilities are exact; texts are there to read, with U+FFFD for bytes that are no
 * UTF-8. Nothing depends on a clock, the batch or earlier interruptions. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/json.h"
#include "host/record.h"

/* Advantages of the leaves below each node. */
typedef struct below {
    double first, a_pos, a_neg;
    int n;
    bool equal;
} below;

static below* sum_below(const gr_credit* c)
{
    const gr_tree* t = c->tree;
    below* b = calloc((size_t)t->n_nodes, sizeof *b);
    GR_ASSERT(b != NULL, "out of memory");
    for (int l = 0; l < c->n_leaves; l++) {
        for (int node = c->leaf[l]; node >= 0; node = t->parent[node]) {
            double a = node > 0 || !c->per_path ? gr_credit_at(c, l, node) : 0;
            if (b[node].n++ == 0) b[node].first = a, b[node].equal = true;
            b[node].equal = b[node].equal && a == b[node].first;
            b[node].a_pos += fmax(a, 0);
            b[node].a_neg += fmin(a, 0);
        }
    }
    return b;
}

static void put_number(FILE* f, const char* key, double x)
{
    fprintf(f, ", \"%s\": ", key);
    gr_json_number(f, x);
}

static void put_tokens(FILE* f, const char* key, const int32_t* token, int n)
{
    fprintf(f, ", \"%s\": [", key);
    for (int i = 0; i < n; i++) fprintf(f, "%s%" PRId32, i > 0 ? ", " : "", token[i]);
    fputc(']', f);
}

/* Text of a node's tokens by one of the two functions of tree.h. */
static void put_text(FILE* f, const char* key, const gr_tree* t, int node, int n_tokens,
                     int (*text_of)(const gr_tree*, int, char*, int))
{
    int cap = 16 * n_tokens + 16; /* bytes of a token in any vocabulary, nearly always */
    char* text = malloc((size_t)cap);
    GR_ASSERT(text != NULL, "out of memory");
    int n = text_of(t, node, text, cap);
    fprintf(f, ", \"%s\": ", key);
    gr_json_text(f, text, (size_t)GR_MIN(n, cap - 1));
    free(text);
}

static void put_flag(FILE* f, const char* key, bool on)
{
    fprintf(f, ", \"%s\": %s", key, on ? "true" : "false");
}

/* Sums over the leaves below, before loss.weighting: what pushes the node's tokens up and down. */
static void put_advantage(FILE* f, const below* b)
{
    put_number(f, "advantage", b->equal ? b->first : (double)NAN);
    fprintf(f, ", \"leaves\": %d", b->n);
    put_number(f, "a_pos", b->a_pos);
    put_number(f, "a_neg", b->a_neg);
}

static void put_signals(FILE* f, const gr_tree* t, int node, int n)
{
    fputs(", \"signals\": [", f);
    for (int i = 0; i < n; i++) {
        if (i > 0) fputs(", ", f);
        gr_json_number(f, t->signal[(int64_t)node * GR_SIGNALS + i]);
    }
    fputc(']', f);
}

/* What belongs to steps that are judged and made again. */
static void put_attempt(FILE* f, const gr_tree* t, int node)
{
    if (t->n_note[node] > 0) {
        fputs(", \"critique\": ", f);
        gr_json_text(f, t->text + t->note_begin[node], (size_t)t->n_note[node]);
    }
    if (t->about[node] < 0) return;
    fprintf(f, ", \"about\": %d, \"logp_from\": \"%s\"", t->about[node],
            t->logp_from[node] == GR_LOGP_TRAINER ? "trainer" : "sampler");
    put_tokens(f, "told", t->told + t->told_begin[node], t->n_told[node]);
}

static void put_node(FILE* f, const gr_tree* t, int node, int n_signals, const below* b)
{
    const int32_t* token = t->token + t->token_begin[node];
    int n_action = t->n_action[node];
    fprintf(f, "{\"id\": %d, \"parent\": %d, \"turn\": %d, \"branch\": %d, \"ordinal\": %d", node,
            t->parent[node], t->turn[node], t->branch[node], t->ordinal[node]);
    fprintf(f, ", \"kind\": \"%s\", \"status\": \"%s\"", gr_node_kind_name[t->kind[node]],
            gr_node_status_name[t->status[node]]);
    put_text(f, "action", t, node, n_action, gr_tree_action_text);
    put_text(f, "observation", t, node, t->n_obs[node], gr_tree_obs_text);
    put_number(f, "score", t->score[node]);
    put_attempt(f, t, node);
    put_number(f, "reward", t->reward[node]);
    put_flag(f, "success", t->success[node]);
    put_flag(f, "stepped", t->stepped[node]);
    put_flag(f, "valid", t->valid[node]);
    put_flag(f, "train", t->train[node]);
    put_signals(f, t, node, n_signals);
    put_advantage(f, b);
    put_tokens(f, "tokens", token, n_action);
    fputs(", \"logp\": [", f);
    for (int i = 0; i < n_action; i++) {
        if (i > 0) fputs(", ", f);
        gr_json_number(f, t->logp[t->token_begin[node] + i]);
    }
    fputc(']', f);
    put_tokens(f, "obs_tokens", token + n_action, t->n_obs[node]);
    fprintf(f, ", \"uid\": \"%016" PRIx64 "\"}", t->uid[node]);
}

gr_status gr_tree_log_write(gr_run_log* log, const gr_credit* c, const gr_world* world)
{
    const gr_tree* t = c->tree;
    char* line = NULL;
    size_t n = 0;
    FILE* f = open_memstream(&line, &n);
    GR_ASSERT(f != NULL, "out of memory");
    below* b = sum_below(c);
    fprintf(f, "{\"step\": %" PRId64 ", \"group\": %d, \"attempt\": %d, \"task\": %" PRId64,
            t->step, t->slot, t->attempt, t->task);
    fputs(", \"signals\": [", f);
    for (int i = 0; i < world->n_signals; i++) {
        if (i > 0) fputs(", ", f);
        gr_json_text(f, world->signal[i], strlen(world->signal[i]));
    }
    fputs("], \"nodes\": [", f);
    for (int i = 0; i < t->n_nodes; i++) {
        if (i > 0) fputs(", ", f);
        put_node(f, t, i, world->n_signals, &b[i]);
    }
    fputs("]}\n", f);
    free(b);
    bool whole = fclose(f) == 0;
    GR_ASSERT(whole, "out of memory");
    errno = EIO;
    bool failed =
        gr_fault("record.write") || fwrite(line, 1, n, log->trees) != n || fflush(log->trees) != 0;
    free(line);
    if (!failed) return GR_OK;
    return GR_FAIL(GR_EIO, "%s: cannot write the log of trees: %s", log->dir, strerror(errno));
}
