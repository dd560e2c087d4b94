#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "host/command/command.h"
#include "host/gpu_plan.h"

typedef struct options {
    gr_command_words words;
    bool dry_run;
    double card; /* GiB of a GPU to plan for; 0: none */
} options;

static const struct argp_option option_list[] = {
    {"dry-run", 'n', NULL, 0, "Print resolved settings, objective and memory plan; do nothing", 0},
    {"card", 'G', "GIB", 0, "With --dry-run: the plan for one GPU of that memory, there or not", 0},
    {0},
};

static error_t parse(int key, char* arg, struct argp_state* state)
{
    options* o = state->input;
    switch (key) {
    case 'n':
        o->dry_run = true;
        return 0;
    case 'G':
        o->card = strtod(arg, NULL);
        if (!(o->card >= 1 && o->card <= 65536))
            argp_error(state, "--card %s: no size in GiB", arg);
        return 0;
    case ARGP_KEY_END:
        if (o->card > 0 && !o->dry_run) argp_error(state, "--card: only with --dry-run");
        return 0;
    default:
        return gr_command_parse(&o->words, key, arg, state);
    }
}

static const struct argp argp = {
    option_list,
    parse,
    "CONFIG.json [section.key=value ...]",
    "Trains a model as the configuration says. The same command again resumes an interrupted run.\v"
    "Examples:\n"
    "  grove train configs/frozenlake_patr.json\n"
    "  grove train configs/frozenlake_flat.json run.seed=3 run.name=flat_3 optimizer.lr=8e-4\n"
    "  grove train configs/frozenlake_patr.json --dry-run\n"
    "  grove train CONFIG.json model.path=Qwen2.5-7B --dry-run --card 140.4\n",
    NULL,
    gr_command_help,
    NULL};

static void on_signal(int number)
{
    (void)number;
    gr_train_stop();
}

static void print_settings(const gr_config* c)
{
    char* json = gr_config_print(c);
    printf("%s\n", json);
    free(json);
}

/* Nothing of the run is opened, its device least of all. */
static gr_status plan_card(const options* o, const gr_config* c, const char* dir)
{
    gr_model_config m;
    gr_gpu_plan p;
    GR_TRY(gr_run_shape(c, dir, &m));
    const gr_gpu_request r = {
        .card_bytes = (int64_t)(o->card * (1 << 30)),
        .microbatch_tokens = c->optimizer.microbatch_tokens,
        .kv_tokens = c->rollout.kv_pages * GR_PAGE,
        .recompute = c->model.recompute,
        .reference = c->loss.kl != GR_KL_NONE,
    };
    print_settings(c);
    gr_gpu_plan_make(&p, &m, &r);
    gr_gpu_plan_log(&p, &r);
    return GR_OK;
}

static gr_status train(const options* o, gr_config* c, gr_run* run)
{
    GR_TRY(gr_config_load(c, o->words.subject, o->words.n_overrides, o->words.override));
    GR_TRY(gr_config_check_train(c));
    const char* dir = c->model.path[0] ? c->model.path : c->warmstart.load;
    if (o->card > 0) return plan_card(o, c, dir);
    GR_TRY(gr_run_open(run, c, GR_RUN_TRAIN, dir, o->dry_run));
    if (o->dry_run) print_settings(c);
    if ((!c->log.quiet && !c->log.json) || o->dry_run) gr_run_describe(run);
    if (o->dry_run) return GR_OK;
    struct sigaction stop = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    (void)sigaction(SIGINT, &stop, NULL); /* a second signal ends at once */
    (void)sigaction(SIGTERM, &stop, NULL);
    return gr_train(run);
}

static int run_train(int argc, char** argv)
{
    options o = {0};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return 1;
    gr_config c;
    gr_run run = {0};
    gr_run_settings(&c);
    gr_status st = train(&o, &c, &run);
    gr_run_close(&run);
    gr_config_free(&c);
    return st == GR_OK ? 0 : gr_command_fail();
}

const gr_command gr_command_train = {"train", "train a model, or resume an interrupted run",
                                     run_train};
