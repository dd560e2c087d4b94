#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "envs/sandbox/sandbox.h"
#include "host/command/command.h"

static void overview(FILE* f)
{
    fprintf(f,
            "grove %s - trains language-model agents on multi-turn tasks by tree rollouts\n\n"
            "usage: grove COMMAND [OPTIONS] ...\n\n",
            GR_VERSION);
    for (int i = 0; gr_commands[i] != NULL; i++) {
        fprintf(f, "  %-10s %s\n", gr_commands[i]->name, gr_commands[i]->summary);
    }
    fprintf(f, "\nexamples:\n"
               "  grove train configs/frozenlake_patr.json\n"
               "  grove train configs/frozenlake_patr.json run.seed=2 run.name=second --dry-run\n"
               "  grove inspect runs/frozenlake_patr\n\n"
               "`grove COMMAND --help` lists options and settings.\n");
}

/* The helper that owns sandboxes is forked while this process is small and has one thread. It
 * sleeps until a world asks for something. */
static int run(const gr_command* command, int argc, char** argv)
{
    if (gr_sandbox_prestart() != GR_OK) gr_log("grove: %s", gr_last_error_text());
    int status = command->run(argc, argv);
    gr_sandbox_stop();
    return status;
}

int main(int argc, char** argv)
{
    (void)signal(SIGPIPE, SIG_IGN); /* a closed pipe or a full disk is an error of the call */
    (void)signal(SIGXFSZ, SIG_IGN);
    argp_err_exit_status = 1;
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        overview(argc < 2 ? stderr : stdout);
        return argc < 2;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("grove %s\n", GR_VERSION);
        return 0;
    }
    for (int i = 0; gr_commands[i] != NULL; i++) {
        if (strcmp(argv[1], gr_commands[i]->name) != 0) continue;
        char name[64];
        (void)snprintf(name, sizeof name, "grove %s", argv[1]);
        argv[1] = name;
        return run(gr_commands[i], argc - 1, argv + 1);
    }
    fprintf(stderr, "grove: no command `%s`; `grove --help` lists them\n", argv[1]);
    return 1;
}
