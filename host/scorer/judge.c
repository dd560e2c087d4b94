/* judge.c - scorers that ask a model: the policy itself, or another one with weights of its own.
 *
 *     judge          how likely the agent is to succeed from here (PATR's judge, arXiv:2607.15610):
 *                    blend level / 10 + (1 - blend) heuristic
 *     model_critic   what the last step was worth, with the reason (ProCeedRL's critic,
 *                    arXiv:2604.02006): level / 10
 *
 * The question is a text of its own: the task, the turns so far, what is asked; or, where the policy
 * judges itself and reads = path, what is asked alone, behind its own episode. Its answer is read
 * strictly (answer.h). Without one a judged state keeps its heuristic score, and a step is as good
 * as any, so that nobody intervenes. The words of both prompts are ours; the papers print none. */
#include "host/scorer/judge.h"

#include <string.h>

#define S gr_judge_settings
static const gr_setting table[] = {
    GR_SET_TEXT(S, weights, GR_WEIGHTS_DEFAULT, GR_WEIGHTS_HELP),
    GR_SET_REAL(S, blend, 0, 1, 0.7, "share of the model in a score, the rest is the heuristic's"),
    GR_SET_CHOICE(S, reads, "text|path", GR_JUDGE_READS_TEXT,
                  "a text about task and turns, or the question behind the episode as the policy "
                  "saw it, whose KV pages are shared"),
    GR_SET_INT(S, history, 0, 1000, 16, "turns in front of the last one that the model reads"),
    GR_SET_INT(S, max_tokens, 8, 65536, 256, "most tokens of an answer"),
    GR_SET_REAL(S, temperature, 0, 100, 0, "of answers; 0: the most probable one"),
    GR_SET_INT(S, max_calls, 0, 1e6, 0, "questions a tree; then none is asked; 0: any"),
    GR_SET_TEXT(S, model, "", "folder or GGUF file of the model that is asked; empty: the policy"),
    GR_SET_TEXT(S, chat, "auto", "chat format of judge.model, as model.chat"),
    GR_SET_BOOL(S, think, true, "judge.model may think before it answers, as model.think"),
};
#undef S
const gr_block gr_judge_block =
    GR_BLOCK(gr_judge_settings, "judge", "scorer.name=judge|model_critic", table);

/* ---- what the model reads -------------------------------------------------------------------- */

enum { ACTION_MAX = 4096 }; /* bytes of an action that it sees, terminator included */

static const char answer_with[] =
    "\nAnswer with one JSON object and nothing else, with a whole number from 0 to 10, like this:\n"
    "{\"critique\": \"one or two short sentences\", \"score\": 5}\n";

/* n bytes without the line ends behind them, then one. */
static void put_text(FILE* f, const char* text, int n)
{
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) n--;
    (void)fwrite(text, 1, (size_t)n, f);
    fputc('\n', f);
}

static void put_turn(FILE* f, const gr_tree* t, int node)
{
    char action[ACTION_MAX];
    int n = gr_decode(t->tokenizer, GR_PLAIN, t->token + t->token_begin[node], t->n_action[node],
                      action, sizeof action);
    fprintf(f, "Turn %d, action:\n", t->turn[node]);
    put_text(f, action, n);
    fprintf(f, "Turn %d, observation:\n", t->turn[node]);
    put_text(f, t->text + t->said_begin[node], t->n_said[node]);
}

/* The last n turns up to `node`. */
static void put_turns(FILE* f, const gr_tree* t, int node, int n)
{
    if (node <= 0 || n == 0) return;
    put_turns(f, t, t->parent[node], n - 1);
    put_turn(f, t, node);
}

static void put_task(FILE* f, const gr_tree* t, const gr_world* world, int node, int shown)
{
    fputs("What the agent was given:\n", f);
    fputs(world->prompt, f);
    put_text(f, t->text + t->said_begin[0], t->n_said[0]);
    if (t->turn[node] > shown) fputs("(turns are left out here)\n", f);
}

static bool ask_judge(const gr_tree* t, const gr_world* world, int node, int history, FILE* f)
{
    double certain = 0;
    if (gr_terminal_score(t, node, &certain)) return false;
    if (history == GR_HAS_READ) {
        fputs("\nBefore you go on, judge how the task is going.\n", f);
    } else {
        fputs("You judge how an agent is doing in the middle of a task.\n\n", f);
        put_task(f, t, world, node, history + 1);
        put_turns(f, t, node, history + 1);
    }
    fprintf(
        f,
        "\nTurn %d of at most %d is over. How likely is the agent to solve the task from here?\n"
        "0: it cannot any more. 3: it repeats itself or is off the track. 5: open.\n"
        "8: it is clearly getting there. 10: it is certain.\n",
        t->turn[node], t->turns_left[0]);
    fputs(answer_with, f);
    return true;
}

static bool ask_critic(const gr_tree* t, const gr_world* world, int node, int history, FILE* f)
{
    if (history == GR_HAS_READ) {
        fputs("\nBefore you go on, review your last action, knowing what came of it.\n", f);
    } else {
        fputs("You review one step of an agent, knowing what came of it.\n\n", f);
        put_task(f, t, world, node, history + 1);
        put_turns(f, t, t->parent[node], history);
        fputs("\nThe step to review:\n", f);
        put_turn(f, t, node);
    }
    fputs("\nWhat is this step worth?\n"
          "0 to 2: it does harm that cannot be undone, or was not understood.\n"
          "3 or 4: it brings nothing, or repeats what was done. 5 or 6: it explores.\n"
          "7 or 8: it is clear progress. 9 or 10: nothing better was possible.\n"
          "Say what is wrong with it and what to do instead.\n",
          f);
    fputs(answer_with, f);
    return true;
}

/* ---- scores ---------------------------------------------------------------------------------- */

static void as_heuristic(const void* settings, const gr_tree* t, const gr_world* world,
                         uint64_t key, const int32_t* node, int n, double* out)
{
    (void)key;
    for (int i = 0; i < n; i++) out[i] = gr_heuristic_score(settings, t, world, node[i]);
}

static double blend(const void* settings, double before, int level)
{
    const gr_judge_settings* s = settings;
    return s->blend * level / GR_LEVELS + (1 - s->blend) * before;
}

static void above_reproach(const void* settings, const gr_tree* t, const gr_world* world,
                           uint64_t key, const int32_t* node, int n, double* out)
{
    (void)settings;
    (void)t;
    (void)world;
    (void)key;
    (void)node;
    for (int i = 0; i < n; i++) out[i] = 1;
}

static double level_alone(const void* settings, double before, int level)
{
    (void)settings;
    (void)before;
    return level / (double)GR_LEVELS;
}

const gr_scorer gr_scorer_judge = {.name = "judge",
                                   .block = &gr_judge_block,
                                   .turn_cost = 1,
                                   .check = gr_heuristic_check,
                                   .score = as_heuristic,
                                   .question = ask_judge,
                                   .hear = blend};
const gr_scorer gr_scorer_model_critic = {.name = "model_critic",
                                          .block = &gr_judge_block,
                                          .turn_cost = 1,
                                          .score = above_reproach,
                                          .question = ask_critic,
                                          .hear = level_alone};
