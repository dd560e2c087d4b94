/* sandbox.h - places where an agent's commands run, and how to ask for them. Level 1.
 *
 * A sandbox is a working tree that belongs to nobody else (a read-only base below, its own changes
 * above) and a private /tmp and home. A command sees these, the system's programs read-only, no
 * network and no other process; when it ends or its time is up, all it started is dead. What
 * persists from command to command are files alone, which is why a sandbox can be forked at any
 * moment between two commands, in microseconds, whatever its size.
 *
 * One helper process owns all sandboxes of a host, because namespaces and mounts belong to a
 * process with a single thread. main() starts it first (gr_sandbox_prestart), so that it is small
 * and has no threads; or `grove sandbox` serves other hosts. It dies with its users.
 *
 * Messages are frames as in envs/protocol.h: 4 bytes of length, big endian, then a JSON object,
 * then, where there is any, a NUL byte and raw bytes (the input or the output of a command).
 * Requests are started in the order they came; answers come as they are ready.
 *
 *   {"id":1,"op":"hello","version":1,"secret":"...","limits":{"live":256,...}}
 *     -> {"id":1,"version":1,"mode":"root","trees":"overlay","groups":"v1","notice":"..."}
 *   {"id":2,"op":"create","sandbox":1,"tree":"/cache/flask","at":"/testbed","read":["/opt/py39"]}
 *     -> {"id":2}
 *   {"id":3,"op":"run","sandbox":1,"argv":["bash","-c","make test"],"env":["CI=1"],
 *    "cwd":"/testbed","time_s":60,"head":5000,"tail":5000} NUL input
 *     -> {"id":3,"cause":"exited","code":2,"seconds":0.81,"bytes":71234,"head":5000} NUL output
 *   {"id":4,"op":"fork","sandbox":1,"to":2}
 *     -> {"id":4}
 *   {"id":5,"op":"hash","sandbox":1}
 *     -> {"id":5,"hash":"0123456789abcdef"}
 *   {"id":6,"op":"close","sandbox":2}
 *     -> {"id":6}
 *   {"id":7,"op":"ping"}
 *     -> {"id":7}
 *   what cannot be done
 *     -> {"id":8,"error":"256 sandboxes are live","class":"full"} */
#pragma once
#include "host/setting.h"

enum {
    GR_SANDBOX_VERSION = 1,
    GR_SANDBOX_FRAME_MAX = 64 << 20, /* most bytes of one frame */
    GR_SANDBOX_OUTPUT_MAX = 32 << 20 /* highest head + tail of one command */
};

/* ---- settings -------------------------------------------------------------------------------- */

typedef struct gr_sandbox_settings {
    int64_t live, running, memory_mb, pids, disk_mb, space_mb, output_mb;
    double cpus, patience_s;
    char sandbox_dir[GR_TEXT_MAX], cgroup[GR_TEXT_MAX];
    char sandbox_host[GR_TEXT_MAX], secret_file[GR_TEXT_MAX];
} gr_sandbox_settings;

/* The lines of the settings table of a world that uses sandboxes: S is its struct, f the member of
 * type gr_sandbox_settings. */
// clang-format off
#define GR_SANDBOX_SET(S, f, key, type, lo, hi, def, text, help) \
    { #key, type, offsetof(S, f.key), lo, hi, def, text, help }
#define GR_SANDBOX_SETTINGS(S, f) \
    GR_SANDBOX_SET(S, f, live, GR_INT, 1, 1e5, 256, NULL, "most sandboxes at a time"), \
    GR_SANDBOX_SET(S, f, running, GR_INT, 0, 4096, 0, NULL, \
                   "most commands at a time, others wait; 0: one per processor"), \
    GR_SANDBOX_SET(S, f, memory_mb, GR_INT, 16, 1 << 24, 2048, NULL, \
                   "memory of a sandbox, the files it wrote included, MiB"), \
    GR_SANDBOX_SET(S, f, pids, GR_INT, 4, 1e6, 256, NULL, "processes and threads of a command"), \
    GR_SANDBOX_SET(S, f, cpus, GR_REAL, 0.05, 4096, 1, NULL, "processors of a command"), \
    GR_SANDBOX_SET(S, f, disk_mb, GR_INT, 1, 1 << 24, 512, NULL, \
                   "files that a sandbox may add or change, MiB"), \
    GR_SANDBOX_SET(S, f, space_mb, GR_INT, 16, 1 << 24, 8192, NULL, \
                   "files of all sandboxes together, MiB"), \
    GR_SANDBOX_SET(S, f, output_mb, GR_INT, 1, 1 << 20, 64, NULL, \
                   "output at which a command is ended, MiB"), \
    GR_SANDBOX_SET(S, f, patience_s, GR_REAL, 0, 86400, 30, NULL, \
                   "seconds to try again while the host is full"), \
    GR_SANDBOX_SET(S, f, sandbox_dir, GR_TEXT, 0, 0, 0, "/tmp", \
                   "where the helper keeps its folder"), \
    GR_SANDBOX_SET(S, f, cgroup, GR_TEXT, 0, 0, 0, "/", \
                   "control group, below the mount, in which commands get theirs"), \
    GR_SANDBOX_SET(S, f, sandbox_host, GR_TEXT, 0, 0, 0, "", \
                   "HOST:PORT of `grove sandbox` there; empty: this host"), \
    GR_SANDBOX_SET(S, f, secret_file, GR_TEXT, 0, 0, 0, "", "file with the secret of sandbox_host")
// clang-format on

void gr_sandbox_defaults(gr_sandbox_settings* s); /* the defaults of the table */

/* ---- the helper ------------------------------------------------------------------------------ */

/* Forks the helper, which waits until somebody opens a connection and ends with this process. To be
 * called first in main, before libuv is used: a fork inherits libuv's locks. Without it,
 * gr_sandbox_open does it. */
GR_MUST_CHECK gr_status gr_sandbox_prestart(void);
/* Ends the helper and waits until it has removed everything. Connections to it are then GONE. */
void gr_sandbox_stop(void);

/* `grove sandbox`: serves other hosts at HOST:PORT, until SIGTERM or SIGINT, under these limits.
 * Who connects must know the line in secret_file. Prints its port to ready_fd once it listens (-1:
 * does not). Nothing is encrypted. */
GR_MUST_CHECK gr_status gr_sandbox_listen(const char* address, const gr_sandbox_settings* limits,
                                          int ready_fd);

/* ---- asking ---------------------------------------------------------------------------------- */

typedef enum gr_sandbox_op {
    GR_SANDBOX_HELLO,
    GR_SANDBOX_CREATE,
    GR_SANDBOX_RUN,
    GR_SANDBOX_FORK,
    GR_SANDBOX_HASH,
    GR_SANDBOX_CLOSE,
    GR_SANDBOX_PING,
    GR_N_SANDBOX_OPS
} gr_sandbox_op;

typedef enum gr_sandbox_class {
    GR_SANDBOX_OK,
    GR_SANDBOX_FULL,    /* too many sandboxes, after patience_s */
    GR_SANDBOX_REFUSED, /* the request is wrong: no such tree, no such sandbox, it is busy */
    GR_SANDBOX_BROKEN,  /* the host cannot: out of space, a mount or a clone failed */
    GR_SANDBOX_GONE,    /* the helper or the connection ended */
    GR_N_SANDBOX_CLASSES
} gr_sandbox_class;

typedef enum gr_sandbox_cause {
    GR_SANDBOX_EXITED, /* `code` as a shell has it: 128 + signal where a signal ended it */
    GR_SANDBOX_TIME,   /* its time was up */
    GR_SANDBOX_MEMORY, /* something in it was killed for memory; `code` still counts */
    GR_SANDBOX_DISK,   /* its files exceed disk_mb; the sandbox takes no more commands */
    GR_SANDBOX_OUTPUT, /* its output exceeded output_mb */
    GR_SANDBOX_STUCK,  /* killed, but the kernel does not let go of it; the sandbox is lost */
    GR_N_SANDBOX_CAUSES
} gr_sandbox_cause;

typedef struct gr_sandbox_tree {
    const char* tree;        /* absolute path of the base; nothing may change it while in use */
    const char* at;          /* where commands see it; "/": it is a whole system (a container's) */
    const char* work;        /* where commands start and what the hash is of; NULL: `at` */
    const char* const* read; /* more absolute paths to see read-only, NULL-terminated; NULL: none */
} gr_sandbox_tree;

typedef struct gr_sandbox_command {
    const char* const* argv; /* NULL-terminated; argv[0] is looked up in PATH */
    const char* const* env;  /* "NAME=value" added to a small clean environment; NULL: none */
    const char* cwd;         /* NULL: `work` of the tree */
    const char* input;       /* bytes of standard input; NULL: /dev/null */
    size_t n_input;
    double time_s;      /* from its start on */
    int64_t head, tail; /* of longer output, standard error included, keep so many bytes */
} gr_sandbox_command;

typedef struct gr_sandbox_reply {
    int64_t request; /* what the asking call returned */
    gr_sandbox_op op;
    int64_t sandbox; /* of a fork: the new one */
    gr_sandbox_class error;
    char reason[256]; /* unless OK, for people */
    gr_sandbox_cause cause;
    int code;
    double seconds;
    int64_t n_all;      /* bytes the command wrote */
    const char* output; /* the first n_head and the last n_output - n_head of them; raw bytes */
    size_t n_output, n_head;
    uint64_t hash; /* of names, kinds, modes and contents in `work` of the tree, without its .git */
} gr_sandbox_reply;

typedef struct gr_sandbox gr_sandbox; /* a connection; sandboxes end with it */

/* `limits` hold for the host and are those of the first connection of a helper; another's must be
 * the same. With `host`, they are the other host's own. */
GR_MUST_CHECK gr_status gr_sandbox_open(gr_sandbox** out, const gr_sandbox_settings* limits);
void gr_sandbox_close(gr_sandbox* s);
/* One line: how commands are confined here, and what this host does not allow. */
const char* gr_sandbox_describe(const gr_sandbox* s);

/* Each returns the number of its request, which gets exactly one reply. Sandboxes are numbered by
 * the caller, from 1; a number whose create or fork was refused, or which was closed, is free
 * again. One request at a time per sandbox; only close may come at any time: it ends a command,
 * which is then replied to as GONE. */
int64_t gr_sandbox_create(gr_sandbox* s, int64_t sandbox, const gr_sandbox_tree* tree);
int64_t gr_sandbox_run(gr_sandbox* s, int64_t sandbox, const gr_sandbox_command* command);
int64_t gr_sandbox_fork(gr_sandbox* s, int64_t sandbox, int64_t to);
int64_t gr_sandbox_hash(gr_sandbox* s, int64_t sandbox);
int64_t gr_sandbox_end(gr_sandbox* s, int64_t sandbox);
/* False when no reply is ready; with wait, only if nothing is asked. The reply's output is valid
 * until the next call. A helper that ended makes every reply GONE. */
bool gr_sandbox_poll(gr_sandbox* s, bool wait, gr_sandbox_reply* out);
/* For tools and tests: the reply to `request`; those to others that come meanwhile are dropped. */
void gr_sandbox_wait(gr_sandbox* s, int64_t request, gr_sandbox_reply* out);
