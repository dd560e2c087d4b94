/* export.c - a checkpoint as a Hugging Face folder. */
#include <stdio.h>
#include <string.h>

#include "host/command/command.h"

typedef struct options {
    const char *run, *folder, *label;
    gr_file_dtype dtype;
} options;

static const struct argp_option option_list[] = {
    {"checkpoint", 'c', "NAME", 0,
     "Checkpoint of the run: a step, `best`, `initial` (default: newest)", 0},
    {"dtype", 'd', "NAME", 0, "fp32, bf16 or fp16 (default: model.dtype of the run)", 0},
    {0},
};

static error_t parse(int key, char* arg, struct argp_state* state)
{
    options* o = state->input;
    switch (key) {
    case 'c':
        o->label = arg;
        return 0;
    case 'd':
        o->dtype = strcmp(arg, "fp32") == 0   ? GR_FILE_F32
                   : strcmp(arg, "bf16") == 0 ? GR_FILE_BF16
                   : strcmp(arg, "fp16") == 0 ? GR_FILE_F16
                                              : GR_FILE_ACC;
        if (o->dtype == GR_FILE_ACC) argp_error(state, "--dtype %s: not fp32, bf16 or fp16", arg);
        return 0;
    case ARGP_KEY_ARG:
        if (o->folder != NULL) argp_usage(state);
        *(o->run == NULL ? &o->run : &o->folder) = arg;
        return 0;
    case ARGP_KEY_END:
        if (o->folder == NULL) argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {option_list,
                                 parse,
                                 "RUN|CHECKPOINT DIR",
                                 "Writes a checkpoint as a folder that transformers and vLLM load. "
                                 "The tokenizer and the generation config come along from the "
                                 "model that the run began with (model.path).\v"
                                 "Example:\n"
                                 "  grove export runs/frozenlake_smollm2 smollm2-frozenlake "
                                 "--dtype bf16\n",
                                 NULL,
                                 NULL,
                                 NULL};

static gr_status export(const options* o, gr_config* c, gr_run* run)
{
    const gr_command_words words = {.subject = o->run};
    GR_TRY(gr_command_open_run(run, c, o->run, o->label, GR_RUN_EVAL, &words));
    gr_file_dtype own = c->model.dtype == GR_BF16 ? GR_FILE_BF16 : GR_FILE_F32;
    GR_TRY(gr_export(&run->weights, o->folder, c->model.path[0] ? c->model.path : NULL,
                     o->dtype != GR_FILE_ACC ? o->dtype : own, GR_SHARD_BYTES));
    static const char* const name[] = {
        [GR_FILE_F32] = "fp32", [GR_FILE_BF16] = "bf16", [GR_FILE_F16] = "fp16"};
    printf("%s: %lld parameters in %s, weights of step %lld\n", o->folder,
           (long long)run->weights.n_params, name[o->dtype != GR_FILE_ACC ? o->dtype : own],
           (long long)run->state.step);
    return GR_OK;
}

static int run_export(int argc, char** argv)
{
    options o = {.dtype = GR_FILE_ACC};
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return 1;
    gr_config c;
    gr_run run = {0};
    gr_run_settings(&c);
    gr_status st = export(&o, &c, &run);
    gr_run_close(&run);
    gr_config_free(&c);
    return st == GR_OK ? 0 : gr_command_fail();
}

const gr_command gr_command_export = {"export", "write a checkpoint as a Hugging Face folder",
                                      run_export};
