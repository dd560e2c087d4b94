/* hiper.c - HiPER's three blocks: settings, reading, showing, writing. */
#include "host/hiper.h"

#include <string.h>
#include <strings.h>

#define S gr_hiper_settings
static const gr_setting settings[] = {
    GR_SET_CHOICE(S, tags, "full|short", GR_TAGS_FULL,
                  "<switch>KEEP</switch><subgoal>..., or <s>K</s><g>... for byte models"),
    GR_SET_BOOL(S, prompt, true, "the first observation begins with what a turn must look like"),
    GR_SET_CHOICE(S, switch_adv, "term_head|gain", GR_SWITCH_TERM_HEAD,
                  "advantage of KEEP or SWITCH: return of the segment against a third head, or "
                  "(q - beta)(V_high - V_low) of the subgoal before"),
    GR_SET_REAL(S, gamma, 0, 1, 1, "discount per turn"),
    GR_SET_REAL(S, lambda_low, 0, 1, 1, "weight of later errors within a segment"),
    GR_SET_REAL(S, lambda_high, 0, 1, 0.95, "weight of later segments' errors"),
    GR_SET_CHOICE(S, keep, "normalised|fixed", GR_KEEP_NORMALISED,
                  "keep_penalty is that of a path of KEEP turns alone, or of each KEEP turn"),
    GR_SET_REAL(S, keep_penalty, 0, 1e6, 0.03, "taken from rewards for keeping a subgoal"),
    GR_SET_REAL(S, consistency_penalty, 0, 1e6, 0.03,
                "taken from a turn that says KEEP and writes another subgoal"),
    GR_SET_REAL(S, invalid_penalty, 0, 1e6, 0.01, "taken from a turn that is not well formed"),
    GR_SET_BOOL(S, bootstrap, false,
                "a path that was cut off goes on from its last values instead of 0"),
    GR_SET_BOOL(S, normalise, true,
                "advantages get mean 0 and deviation 1 for each kind of token over a step's turns"),
};
const gr_block gr_hiper_block = GR_BLOCK(S, "hiper", "rollout.interface=hiper", settings);
#undef S

typedef struct tag {
    const char *open, *close;
} tag;
typedef struct syntax {
    tag change, subgoal, action;
    const char *keep, *change_word;
    const char *before, *after; /* around the subgoal that is shown */
} syntax;

static const syntax forms[] = {
    {{"<switch>", "</switch>"},
     {"<subgoal>", "</subgoal>"},
     {"<action>", "</action>"},
     "KEEP",
     "SWITCH",
     "Current subgoal: ",
     "\n"},
    {{"<s>", "</s>"}, {"<g>", "</g>"}, {"<a>", "</a>"}, "K", "S", "[", "]\n"},
};

static const char none[] = "None";

const char* gr_plan_stop(int tags) { return forms[tags].action.close; }

const char* gr_plan_word(int tags, bool switched)
{
    return switched ? forms[tags].change_word : forms[tags].keep;
}

/* ---- reading ------------------------------------------------------------------------------------ */

/* Where `what` begins in text[from, n), or -1. */
static int find(const char* text, int from, int n, const char* what)
{
    const char* at = memmem(text + from, (size_t)(n - from), what, strlen(what));
    return at != NULL ? (int)(at - text) : -1;
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static gr_span trim(const char* text, gr_span s)
{
    while (s.begin < s.end && is_blank(text[s.begin])) s.begin++;
    while (s.begin < s.end && is_blank(text[s.end - 1])) s.end--;
    return s;
}

static void find_block(const char* text, int n, const tag* t, gr_span* block, gr_span* inside)
{
    *block = *inside = (gr_span){-1, -1};
    int open = find(text, 0, n, t->open);
    if (open < 0) return;
    int begin = open + (int)strlen(t->open), close = find(text, begin, n, t->close);
    if (close < 0) return;
    *block = (gr_span){open, close + (int)strlen(t->close)};
    *inside = trim(text, (gr_span){begin, close});
}

static bool says(const char* text, gr_span s, const char* word)
{
    size_t n = strlen(word);
    return s.begin >= 0 && (size_t)(s.end - s.begin) == n &&
           strncasecmp(text + s.begin, word, n) == 0;
}

/* Whether a code point of U+4E00 to U+9FFF stands in the text: three bytes, E4 B8 80 to E9 BF BF. */
static bool has_chinese(const char* text, int n)
{
    for (int i = 0; i + 2 < n; i++) {
        const unsigned char a = (unsigned char)text[i], b = (unsigned char)text[i + 1],
                            c = (unsigned char)text[i + 2];
        if (a < 0xe4 || a > 0xe9 || (b & 0xc0) != 0x80 || (c & 0xc0) != 0x80) continue;
        if (a > 0xe4 || b >= 0xb8) return true;
    }
    return false;
}

void gr_plan_parse(const char* text, int n, int tags, gr_plan* out)
{
    const syntax* f = &forms[tags];
    find_block(text, n, &f->change, &out->switch_block, &out->word);
    find_block(text, n, &f->subgoal, &out->subgoal_block, &out->subgoal);
    find_block(text, n, &f->action, &out->action_block, &out->action);
    bool keep = says(text, out->word, f->keep), change = says(text, out->word, f->change_word);
    out->switched = !keep && out->word.begin >= 0 && out->word.end > out->word.begin;
    out->valid = (keep || change) && out->subgoal_block.begin >= 0 &&
                 out->action_block.begin >= 0 && !has_chinese(text, n);
}

static bool within(gr_span s, int byte) { return s.begin >= 0 && byte >= s.begin && byte < s.end; }

int gr_plan_kinds(const gr_plan* p, int byte)
{
    bool action = p->action_block.begin < 0 || within(p->action_block, byte);
    return (action ? GR_KIND_ACTION : 0) | (within(p->subgoal_block, byte) ? GR_KIND_SUBGOAL : 0) |
           (within(p->switch_block, byte) ? GR_KIND_SWITCH : 0);
}

const char* gr_plan_subgoal(const gr_plan* p, const char* text, int tags, int* n)
{
    *n = (int)sizeof none - 1;
    if (p->switch_block.begin < 0 || p->subgoal_block.begin < 0) return none;
    bool legal =
        says(text, p->word, forms[tags].keep) || says(text, p->word, forms[tags].change_word);
    *n = legal ? p->subgoal.end - p->subgoal.begin : 0;
    return text + p->subgoal.begin;
}

/* ---- writing ------------------------------------------------------------------------------------ */

typedef struct sink {
    char* at;
    int n, cap;
} sink;

static void put(sink* s, const char* text, int n)
{
    n = GR_MIN(n, s->cap - 1 - s->n);
    if (n > 0) {
        memcpy(s->at + s->n, text, (size_t)n);
        s->n += n;
    }
    s->at[s->n] = 0;
}

static void put_text(sink* s, const char* text) { put(s, text, (int)strlen(text)); }

int gr_plan_action(const gr_plan* p, const char* text, int n, const char* stop, char* out, int cap)
{
    sink s = {.at = out, .cap = cap};
    if (p->action_block.begin < 0) {
        put(&s, text, n);
        return s.n;
    }
    put(&s, text + p->action.begin, p->action.end - p->action.begin);
    put_text(&s, stop);
    return s.n;
}

static void put_instructions(sink* s, const syntax* f)
{
    put_text(s, "Answer with three blocks and nothing else:\n");
    put_text(s, f->change.open);
    put_text(s, f->keep);
    put_text(s, " to go on with the current subgoal, or ");
    put_text(s, f->change_word);
    put_text(s, " to set a new one");
    put_text(s, f->change.close);
    put_text(s, f->subgoal.open);
    put_text(s, "the subgoal: unchanged, or a new and short one");
    put_text(s, f->subgoal.close);
    put_text(s, f->action.open);
    put_text(s, "one action");
    put_text(s, f->action.close);
    put_text(s, "\n");
}

int gr_plan_show(const gr_hiper_settings* h, const char* text, int n, const char* obs, int n_obs,
                 char* out, int cap)
{
    const syntax* f = &forms[h->tags];
    sink s = {.at = out, .cap = cap};
    const char* subgoal = none;
    int n_subgoal = (int)sizeof none - 1;
    if (text == NULL) {
        if (h->prompt) put_instructions(&s, f);
    } else {
        gr_plan p;
        gr_plan_parse(text, n, h->tags, &p);
        subgoal = gr_plan_subgoal(&p, text, h->tags, &n_subgoal);
        put_text(&s, "\n");
    }
    put(&s, obs, n_obs);
    put_text(&s, f->before);
    put(&s, subgoal, n_subgoal);
    put_text(&s, f->after);
    return s.n;
}

int gr_plan_write(int tags, bool switched, const char* subgoal, const char* action, int n_action,
                  const char* stop, char* out, int cap)
{
    const syntax* f = &forms[tags];
    sink s = {.at = out, .cap = cap};
    int n_stop = (int)strlen(stop);
    bool stopped =
        n_action >= n_stop && memcmp(action + n_action - n_stop, stop, (size_t)n_stop) == 0;
    put_text(&s, f->change.open);
    put_text(&s, gr_plan_word(tags, switched));
    put_text(&s, f->change.close);
    put_text(&s, f->subgoal.open);
    put_text(&s, subgoal);
    put_text(&s, f->subgoal.close);
    put_text(&s, f->action.open);
    put(&s, action, stopped ? n_action - n_stop : n_action);
    put_text(&s, f->action.close);
    return s.n;
}
