/* rollout_judge.c - a scorer asks a model.
 *
 * A round that wants scores waits until its questions are answered. They go into the same batch as
 * everything else that waits, or into that of another model, and are keyed by the node that they
 * are about: what is answered does not depend on when it was asked. Question and answer stand in no
 * tree; what stays of them is the node's score and what was said about it.
 *
 * At most max_live questions of all trees are out at once, which bounds the engine's queue. */
#include <stdlib.h>

#include "host/rollout_state.h"
#include "host/scorer/answer.h"

enum { KEY_JUDGE = 0x6a75646765 };

#define ANSWER ((uint64_t)1 << 31) /* in a tag, where nodes have 31 bits */

bool gr_rollout_asks(const gr_rollout* r)
{
    return r->s->scorer->question != NULL && r->s->strategy->wants != NULL;
}

/* The question about a node as tokens, in r->judge_dialog.out. False: there is none. */
static bool render(gr_rollout* r, const gr_tree* t, int node, int history)
{
    char* text = NULL;
    size_t n = 0;
    FILE* f = open_memstream(&text, &n);
    GR_ASSERT(f != NULL, "out of memory");
    bool asks = r->s->scorer->question(t, gr_envs_world(r->envs), node, history, f);
    bool whole = fclose(f) == 0;
    GR_ASSERT(whole, "out of memory");
    if (asks) gr_dialog_ask(&r->judge_dialog, text, (int)n);
    free(text);
    return asks;
}

static bool fits(const gr_rollout* r)
{
    return r->judge_dialog.out.n + r->s->judge.max_tokens <= r->s->max_context;
}

static void submit(gr_rollout* r, const grower* g, int node)
{
    const gr_judge* j = &r->s->judge;
    const gr_chat_text* question = &r->judge_dialog.out;
    uint64_t uid = gr_key_join(g->tree->uid[node], KEY_JUDGE);
    int seq = gr_engine_open_seq(r->judge);
    GR_ASSERT(seq >= 0, "no KV sequence is left");
    gr_request request = {
        .tag = gr_rollout_tag(r, g, node) | ANSWER,
        .seq = seq,
        .n_context = question->n,
        .context = question->token,
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
    if (spent || !render(r, t, node, history)) {
        g->n_answered++;
        return;
    }
    t->scorer_calls++;
    while (!fits(r) && history > 0) (void)render(r, t, node, history /= 2);
    if (fits(r)) {
        submit(r, g, node);
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
    } else {
        t->unanswered++;
    }
    t->gen_tokens += a->n_tokens;
    t->critic_tokens += a->n_tokens;
    gr_engine_free_seq(r->judge, a->seq);
    r->n_judging--;
    g->n_answered++;
}
