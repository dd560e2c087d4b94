/* sandbox.c - the sandboxes of this host, for trainers on others. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "envs/sandbox/sandbox.h"
#include "host/command/command.h"

typedef struct block_values {
    gr_sandbox_settings limits;
} block_values;

static const gr_setting settings[] = {GR_SANDBOX_SETTINGS(block_values, limits)};
static const gr_block block = GR_BLOCK(block_values, "sandbox", NULL, settings);

static error_t parse(int key, char* arg, struct argp_state* state)
{
    return gr_command_parse(state->input, key, arg, state);
}

static char* help(int key, const char* text, void* input)
{
    char* out = NULL;
    size_t n = 0;
    (void)input;
    if (key != ARGP_KEY_HELP_EXTRA) return (char*)(uintptr_t)text; /* argp keeps it as it was */
    FILE* f = open_memstream(&out, &n);
    if (f == NULL) return NULL;
    gr_config c;
    gr_config_init(&c);
    gr_config_register(&c, &block);
    fprintf(f, "Settings, as sandbox.key=value:\n");
    gr_config_help(&c, "sandbox", f);
    gr_config_free(&c);
    (void)fclose(f);
    return out;
}

static const struct argp argp = {NULL,
                                 parse,
                                 "HOST:PORT sandbox.secret_file=FILE [sandbox.KEY=VALUE ...]",
                                 "Serves sandboxes for the commands of agents to trainers on "
                                 "other hosts, which name it in sandbox_host and know the line in "
                                 "secret_file. The trees that they ask for are this host's. "
                                 "Prints its port; ends with SIGTERM or Ctrl-C. Nothing is "
                                 "encrypted: use it in a network you trust, or through a tunnel.\v"
                                 "Example:\n"
                                 "  grove sandbox 10.0.0.7:7400 sandbox.secret_file=key "
                                 "sandbox.live=512\n",
                                 NULL,
                                 help,
                                 NULL};

/* What only the asking side has is refused here, as any setting without effect. */
static gr_status check(const gr_command_words* w)
{
    static const char* const theirs[] = {"sandbox.sandbox_host=", "sandbox.patience_s="};
    for (int i = 0; i < w->n_overrides; i++) {
        const char* word = w->override[i];
        bool ours = strncmp(word, "sandbox.", strlen("sandbox.")) == 0;
        for (int k = 0; k < GR_COUNT(theirs); k++) {
            ours = ours && strncmp(word, theirs[k], strlen(theirs[k])) != 0;
        }
        if (!ours) return GR_FAIL(GR_EARG, "%s: has no effect here", word);
    }
    return GR_OK;
}

static gr_status serve(const gr_command_words* w, gr_config* c)
{
    GR_TRY(check(w));
    GR_TRY(gr_config_load(c, NULL, w->n_overrides, w->override));
    const block_values* v = gr_config_block(c, "sandbox");
    if (v->limits.secret_file[0] == 0) {
        return GR_FAIL(GR_EARG, "sandbox.secret_file: needed: nobody else keeps strangers out");
    }
    return gr_sandbox_listen(w->subject, &v->limits, STDOUT_FILENO);
}

static int run_sandbox(int argc, char** argv)
{
    gr_command_words w = {0};
    if (argp_parse(&argp, argc, argv, 0, NULL, &w) != 0) return 1;
    gr_config c;
    gr_config_init(&c);
    gr_config_register(&c, &block);
    gr_status st = serve(&w, &c);
    gr_config_free(&c);
    return st == GR_OK ? 0 : gr_command_fail();
}

const gr_command gr_command_sandbox = {"sandbox", "serve sandboxes to trainers on other hosts",
                                       run_sandbox};
