#include <stdio.h>
#include <stdlib.h>

#include "host/command/command.h"

typedef struct options {
    gr_command_words words;
    const char* label;
    int64_t tasks, samples;
    bool greedy, json;
} options;

static const struct argp_option option_list[] = {
    {"tasks", 't', "N", 0, "Held-out tasks (default: eval.tasks of the run)", 0},
    {"samples", 'k', "K", 0, "Episodes per task, for pass@k (default 1)", 0},
    {"greedy", 'g', NULL, 0, "Most probable token instead of sampling", 0},
    {"checkpoint", 'c', "NAME", 0,
     "Checkpoint of the run: a step, `best`, `initial` (default: newest)", 0},
    {"json", 'j', NULL, 0, "One JSON object instead of the table", 0},
    {0},
};

static error_t parse(int key, char* arg, struct argp_state* state)
{
    options* o = state->input;
    switch (key) {
    case 't':
        o->tasks = strtoll(arg, NULL, 10);
        if (o->tasks <= 0) argp_error(state, "--tasks %s: not a positive number", arg);
        return 0;
    case 'k':
        o->samples = strtoll(arg, NULL, 10);
        if (o->samples <= 0) argp_error(state, "--samples %s: not a positive number", arg);
        return 0;
    case 'g':
        o->greedy = true;
        return 0;
    case 'c':
        o->label = arg;
        return 0;
    case 'j':
        o->json = true;
        return 0;
    default:
        return gr_command_parse(&o->words, key, arg, state);
    }
}

static const struct argp argp = {
    option_list,
    parse,
    "RUN|CHECKPOINT [section.key=value ...]",
    "Success of a checkpoint on held-out tasks, with 95 % intervals and pass@k.\v"
    "Examples:\n"
    "  grove eval runs/frozenlake_patr --tasks 1000 --samples 8\n"
    "  grove eval runs/frozenlake_patr --checkpoint best --greedy\n"
    "  grove eval runs/frozenlake_patr eval.temperature=0.7 rollout.top_p=0.9\n",
    NULL,
    gr_command_help,
    NULL};

static void print(const options* o, const gr_eval_result* r)
{
    if (o->json) {
        printf(
            "{\"tasks\": %lld, \"samples\": %lld, \"success\": %.6g, \"success_low\": %.6g, "
            "\"success_high\": %.6g, \"pass_at_1\": %.6g, \"pass_at_k\": %.6g, \"return\": %.6g, "
            "\"turns\": %.6g, \"env_turns\": %lld, \"gen_tokens\": %lld, \"errors\": %lld}\n",
            (long long)r->tasks, (long long)r->samples, r->success, r->success_low, r->success_high,
            r->pass_at_k[0], r->pass_at_k[1], r->ret, r->turns, (long long)r->env_turns,
            (long long)r->gen_tokens, (long long)r->errors);
        return;
    }
    printf("tasks     %lld x %lld episodes\n", (long long)r->tasks, (long long)r->samples);
    printf("success   %.1f %%   [%.1f, %.1f]\n", 100 * r->success, 100 * r->success_low,
           100 * r->success_high);
    printf("pass@1    %.1f %%\n", 100 * r->pass_at_k[0]);
    if (r->samples > 1)
        printf("pass@%-4lld %.1f %%\n", (long long)r->samples, 100 * r->pass_at_k[1]);
    printf("return    %.4f\nturns     %.2f\ntokens    %lld\n", r->ret, r->turns,
           (long long)r->gen_tokens);
    if (r->errors > 0)
        printf("errors    %lld episodes lost by the world, counted as failures\n",
               (long long)r->errors);
}

static gr_status eval(const options* o, gr_config* c, gr_run* run)
{
    gr_eval_result r;
    GR_TRY(gr_command_open_run(run, c, o->words.subject, o->label, GR_RUN_EVAL, &o->words));
    if (run->train_settings.scorer->privileged) {
        return GR_FAIL(GR_EARG,
                       "scorer.name = %s knows what judges the tasks and is refused here; an "
                       "evaluation needs no scorer: add scorer.name=constant",
                       c->scorer.name);
    }
    gr_sampling sampling = {
        .temperature = (float)c->eval.temperature,
        .top_p = (float)c->rollout.top_p,
        .min_p = (float)c->rollout.min_p,
        .top_k = (int32_t)c->rollout.top_k,
        .greedy = o->greedy,
    };
    GR_TRY(gr_evaluate(run, GR_TEST, o->tasks > 0 ? o->tasks : c->eval.tasks,
                       o->samples > 0 ? o->samples : 1, &sampling, &r));
    print(o, &r);
    return GR_OK;
}

static int run_eval(int argc, char** argv)
{
    options o = {0};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return 1;
    gr_config c;
    gr_run run = {0};
    gr_run_settings(&c);
    gr_status st = eval(&o, &c, &run);
    gr_run_close(&run);
    gr_config_free(&c);
    return st == GR_OK ? 0 : gr_command_fail();
}

const gr_command gr_command_eval = {"eval", "success of a checkpoint on held-out tasks, pass@k",
                                    run_eval};
