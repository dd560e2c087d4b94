/* rollout_judge.c - a scorer asks a model.
 *
 * A round that wants scores waits until its questions are answered. They go into the same batch as
 * everything else that waits, or into that of another model, and are keyed by the node that they
 * are about: what is answered does not depend on when it was asked. Question and answer stand in no
 * tree; what stays of them is the node's score and what was said about it.
 *
 * A model of its own, or one that reads a text, begins anew with every question. The policy can also
 * answer behind its own episode (GR_HAS_READ), of which only the last observation is read again:
 *
 *     path ... [action][observation once more, question]  -> answer
 *     path ... [action][observation]                         the episode, which knows nothing of it
 *
 * At most max_live questions of all trees are out at once, which bounds the engine's queue. */
#include <stdlib.h>
#include <string.h>

#include "host/rollout_state.h"
#include "host/scorer/answer.h"

enum { KEY_JUDGE = 0x6a75646765 };

#define ANSWER ((uint64_t)1 << 31) /* in a tag, where nodes have 31 bits */

bool gr_rollout_asks(const gr_rollout* r)
{
    return r->s->scorer->question != NULL && r->s->strategy->wants != NULL;
}

static int begin_anew(gr_rollout* r, const char* text, size_t n)
{
    const gr_chat_text* out = &r->judge_dialog.out;
    gr_dialog_ask(&r->judge_dialog, text, (int)n);
    GR_RESERVE(r->path, r->path_cap, out->n);
    memcpy(r->path, out->token, (size_t)out->n * sizeof *r->path);
    return out->n;
}

static int go_on(gr_rollout* r, const gr_tree* t, int node, const char* text, size_t n)
{
    gr_dialog_observe(&r->judge_dialog, t->token + t->token_begin[node], t->n_action[node], text,
                      (int)n, false);
    return gr_rollout_behind_action(r, t, node, &r->judge_dialog.out);
}

/* The context of the question about a node into r->path; returns its length, 0: there is none. */
static int render(gr_rollout* r, const gr_tree* t, int node, int history)
{
    char* text = NULL;
    size_t n = 0;
    int n_context = 0;
    FILE* f = open_memstream(&text, &n);
    GR_ASSERT(f != NULL, "out of memory");
    if (history == GR_HAS_READ) {
        (void)fwrite(t->text + t->said_begin[node], 1, (size_t)t->n_said[node], f);
    }
    bool asks = r->s->scorer->question(t, gr_envs_world(r->envs), node, history, f);
    bool whole = fclose(f) == 0;
    GR_ASSERT(whole, "out of memory");
    if (asks) {
        n_context = history == GR_HAS_READ ? go_on(r, t, node, text, n) : begin_anew(r, text, n);
    }
    free(text);
    return n_context;
}

static bool fits(const gr_rollout* r, int n_context)
{
    return n_context + r->s->judge.max_tokens <= r->s->max_context;
}

static void submit(gr_rollout* r, const grower* g, int node, int n_context)
{
    const gr_judge* j = &r->s->judge;
    uint64_t uid = gr_key_join(g->tree->uid[node], KEY_JUDGE);
    int seq = j->history == GR_HAS_READ ? gr_rollout_open_behind(r, g->tree, node, n_context)
                                        : gr_engine_open_seq(r->judge);
    GR_ASSERT(seq >= 0, "no KV sequence is left");
    gr_request request = {
        .tag = gr_rollout_tag(r, g, node) | ANSWER,
        .seq = seq,
        .n_context = n_context,
        .context = r->path,
        .n_children = 1,
        .uid = &uid,
        .sampling = j->sampling,
        .max_tokens = j->max_tokens,
        .purpose = GR_FOR_JUDGE,
    };
    gr_dialog_stop(&r->judge_dialog, "}", &request);
    gr_engine_submit(r->judge, &request);
    gr_engine_free_seq(r->judge, seq); /* lives until the request has been read */
    r->n_judging++;
}

/* A question that is too long is asked with less history. */
static void ask(gr_rollout* r, grower* g, int node)
{
    gr_tree* t = g->tree;
    const gr_judge* j = &r->s->judge;
    int history = j->history;
    bool spent = j->max_calls > 0 && t->scorer_calls >= j->max_calls;
    int n = spent ? 0 : render(r, t, node, history);
    if (n == 0) {
        g->n_answered++;
        return;
    }
    t->scorer_calls++;
    while (!fits(r, n) && history > 0) n = render(r, t, node, history /= 2);
    if (fits(r, n)) {
        submit(r, g, node, n);
    } else {
        t->unanswered++;
        g->n_answered++;
    }
}

bool gr_rollout_judge(gr_rollout* r, grower* g)
{
    while (g->n_asked < g->n_questions && r->n_judging < r->judge->max_live) {
        ask(r, g, g->question[g->n_asked++]);
    }
    return g->n_answered == g->n_questions;
}

bool gr_rollout_is_answer(const gr_reply* a) { return (a->tag & ANSWER) != 0; }

void gr_rollout_on_answer(gr_rollout* r, const gr_reply* a)
{
    grower* g = &r->grower[a->tag >> 32];
    gr_tree* t = g->tree;
    int node = (int)(a->tag & (ANSWER - 1));
    GR_RESERVE(r->answer, r->answer_cap, 16 * (int64_t)a->n_tokens + 16);
    int n = gr_dialog_text(&r->judge_dialog, a->token, a->n_tokens, r->answer, (int)r->answer_cap);
    gr_answer answer;
    if (gr_answer_read(r->answer, (size_t)n, &answer)) {
        t->score[node] = r->s->scorer->hear(r->s->scorer_settings, t->score[node], answer.level);
        gr_tree_set_note(t, node, answer.critique, answer.n_critique);
    } else { /* its words are kept for who reads the log */
        gr_tree_set_note(t, node, r->answer, GR_MIN(n, GR_CRITIQUE_MAX - 1));
        t->unanswered++;
    }
    t->gen_tokens += a->n_tokens;
    t->critic_tokens += a->n_tokens;
    gr_engine_free_seq(r->judge, a->seq);
    r->n_judging--;
    g->n_answered++;
}
