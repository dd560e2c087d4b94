#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "envs/sandbox/sandbox.h"
#include "host/command/command.h"
#include "kernels/device.h"

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

/* True if nobody reads standard output any more, as under `| head`: that is no fault of ours. */
static bool reader_left(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

/* At exit, --help included: what was printed has arrived, or the status says that it has not. */
static void check_output(void)
{
    errno = 0;
    if ((fflush(stdout) == 0 && !ferror(stdout)) || reader_left()) return;
    const char* reason = errno != 0 ? strerror(errno) : "not all of it was taken";
    fprintf(stderr, "grove: standard output: cannot write: %s\n", reason);
    _exit(1);
}

int main(int argc, char** argv)
{
    (void)atexit(check_output);
    (void)setenv("ARGP_HELP_FMT", "rmargin=100", 0); /* argp leaves the table of settings alone */
    (void)signal(SIGPIPE, SIG_IGN); /* a closed pipe or a full disk is an error of the call */
    (void)signal(SIGXFSZ, SIG_IGN);
    argp_err_exit_status = 1;
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        overview(argc < 2 ? stderr : stdout);
        return argc < 2;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("grove %s\n", GR_VERSION);
        for (int i = 0; gr_dev_built(i) != NULL; i++) printf("%s\n", gr_dev_built(i));
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
