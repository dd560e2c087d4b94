#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/command/command.h"

typedef struct options {
    gr_command_words words;
    const char *label, *prompt, *stop;
    int tokens, samples;
    double temperature;
    uint64_t seed;
    bool greedy;
} options;

static const struct argp_option option_list[] = {
    {"prompt", 'p', "TEXT", 0, "Text to continue; - reads standard input", 0},
    {"tokens", 't', "N", 0, "Most tokens of a continuation (default 64)", 0},
    {"samples", 'k', "K", 0, "Continuations, all forked from one prefill (default 1)", 0},
    {"temperature", 'T', "X", 0, "Sampling temperature (default 1)", 0},
    {"greedy", 'g', NULL, 0, "Most probable token instead of sampling", 0},
    {"seed", 's', "N", 0, "Seed of the sampler (default 0)", 0},
    {"stop", 'e', "TEXT", 0, "End a continuation after this text", 0},
    {"checkpoint", 'c', "NAME", 0,
     "Checkpoint of the run: a step, `best`, `initial` (default: newest)", 0},
    {0},
};

static error_t parse(int key, char* arg, struct argp_state* state)
{
    options* o = state->input;
    switch (key) {
    case 'p':
        o->prompt = arg;
        return 0;
    case 't':
        o->tokens = atoi(arg);
        if (o->tokens <= 0) argp_error(state, "--tokens %s: not a positive number", arg);
        return 0;
    case 'k':
        o->samples = atoi(arg);
        if (o->samples <= 0) argp_error(state, "--samples %s: not a positive number", arg);
        return 0;
    case 'T':
        o->temperature = strtod(arg, NULL);
        if (!(o->temperature > 0)) argp_error(state, "--temperature %s: must be above 0", arg);
        return 0;
    case 'g':
        o->greedy = true;
        return 0;
    case 's':
        o->seed = strtoull(arg, NULL, 10);
        return 0;
    case 'e':
        o->stop = arg;
        return 0;
    case 'c':
        o->label = arg;
        return 0;
    default:
        return gr_command_parse(&o->words, key, arg, state);
    }
}

static const struct argp argp = {
    option_list,
    parse,
    "RUN|CHECKPOINT|MODEL [section.key=value ...]",
    "Continues a prompt with the model of a checkpoint, of a model folder or of a GGUF file. Where "
    "model.chat names a format, the prompt is what a user says and the continuation the answer.\v"
    "Examples:\n"
    "  grove generate models/smollm2-135m model.chat=auto --greedy -p 'What is the capital of "
    "France?'\n"
    "  printf 'P__H\\n____\\n_H__\\n___G\\n' | grove generate runs/frozenlake_patr -p - "
    "--samples 4\n"
    "  grove generate runs/frozenlake_patr -p $'P_\\n_G\\n' --greedy\n",
    NULL,
    gr_command_help,
    NULL};

static gr_status read_prompt(const options* o, char* text, size_t cap, int* n)
{
    if (o->prompt == NULL) return GR_FAIL(GR_EARG, "--prompt is missing");
    if (strcmp(o->prompt, "-") == 0) {
        *n = (int)fread(text, 1, cap, stdin);
    } else {
        *n = (int)GR_MIN(strlen(o->prompt), cap);
        memcpy(text, o->prompt, (size_t)*n);
    }
    if (*n == 0) return GR_FAIL(GR_EARG, "--prompt: the prompt is empty");
    return GR_OK;
}

static void print(const gr_run* run, const gr_reply* a)
{
    char text[65536];
    double logp = 0;
    int length =
        gr_decode(run->tokenizer, GR_MARKUP, a->token, a->n_tokens, text, (int)sizeof text);
    for (int i = 0; i < a->n_tokens; i++) logp += a->logp[i];
    printf("--- %d: %d tokens, log-probability %.3f\n", a->child, a->n_tokens, logp);
    gr_command_print_lines(text, (size_t)length, "");
}

/* Returns the tokens that the prompt takes, of which at most `cap` are written. Without a chat format it
 * is markup: who writes it may spell special tokens. */
static int encode(gr_dialog* d, const char* text, int n_text, int32_t* token, int cap)
{
    const gr_tokenizer* t = d->format.tokenizer;
    int n = 0;
    if (d->format.chat != NULL) {
        static const gr_world silent = {.prompt = ""};
        gr_dialog_open(d, &silent, text, n_text);
        memcpy(token, d->out.token, (size_t)GR_MIN(d->out.n, cap) * sizeof *token);
        return d->out.n;
    }
    if (gr_tokenizer_bos(t) >= 0) token[n++] = gr_tokenizer_bos(t);
    return n + gr_encode(t, GR_MARKUP, text, n_text, token + n, cap - n);
}

/* What comes back is printed as it comes. */
static gr_status decode(gr_run* run, int64_t* tokens)
{
    gr_reply a;
    while (!gr_engine_idle(&run->engine)) {
        GR_TRY(gr_engine_step(&run->engine));
        while (gr_engine_poll(&run->engine, &a)) {
            print(run, &a);
            *tokens += a.n_tokens;
        }
    }
    return GR_OK;
}

static gr_status generate(const options* o, gr_config* c, gr_run* run)
{
    char text[4096];
    int32_t token[4096];
    uint64_t uid[256];
    int n = 0;
    GR_TRY(read_prompt(o, text, sizeof text, &n));
    GR_TRY(gr_command_open_run(run, c, o->words.subject, o->label, GR_RUN_EVAL, &o->words));
    gr_dialog d;
    gr_dialog_init(&d, &run->train_settings.dialog);
    n = encode(&d, text, n, token, GR_COUNT(token));
    if (n >= run->weights.config.max_context || n > GR_COUNT(token)) {
        gr_dialog_free(&d);
        return GR_FAIL(GR_EARG, "--prompt: %d tokens do not fit rollout.max_context = %d", n,
                       run->weights.config.max_context);
    }
    int samples = GR_MIN(o->samples, GR_COUNT(uid));
    for (int i = 0; i < samples; i++) uid[i] = gr_key_join(o->seed, (uint64_t)i);
    gr_request r = {
        .seq = gr_engine_open_seq(&run->engine),
        .context = token,
        .n_context = n,
        .n_children = samples,
        .uid = uid,
        .sampling = {.temperature = (float)o->temperature,
                     .top_p = (float)c->rollout.top_p,
                     .min_p = (float)c->rollout.min_p,
                     .top_k = (int32_t)c->rollout.top_k,
                     .greedy = o->greedy},
        .max_tokens = GR_MIN(o->tokens, (int)c->rollout.max_turn_tokens),
        .purpose = GR_FOR_EVAL,
    };
    if (d.format.chat != NULL) gr_dialog_stop(&d, o->stop, &r);
    if (o->stop != NULL) r.stop = o->stop;
    gr_engine_submit(&run->engine, &r);
    gr_dialog_free(&d);
    double begin = gr_now_s();
    int64_t tokens = 0;
    GR_TRY(decode(run, &tokens));
    fprintf(stderr, "%d of %d tokens, prompt of %d, %.0f tokens/s\n", (int)tokens,
            samples * o->tokens, n, (double)tokens / fmax(gr_now_s() - begin, 1e-9));
    return GR_OK;
}

static int run_generate(int argc, char** argv)
{
    options o = {.tokens = 64, .samples = 1, .temperature = 1};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return 1;
    gr_config c;
    gr_run run = {0};
    gr_run_settings(&c);
    /* A continuation may be longer than an action of the run. */
    char cap[64];
    (void)snprintf(cap, sizeof cap, "rollout.max_turn_tokens=%d", o.tokens);
    if (o.words.n_overrides < GR_COUNT(o.words.override)) {
        o.words.override[o.words.n_overrides++] = cap;
    }
    gr_status st = generate(&o, &c, &run);
    gr_run_close(&run);
    gr_config_free(&c);
    return st == GR_OK ? 0 : gr_command_fail();
}

const gr_command gr_command_generate = {"generate", "continue a prompt with a trained model",
                                        run_generate};
