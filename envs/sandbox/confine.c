#include "envs/sandbox/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "envs/sandbox/files.h"

enum { PATH_CAP = 4096, FAILED = 125, NOT_FOUND = 127, MANY_ENV = 256 };

/* ---- reports --------------------------------------------------------------------------------- */

static int report_fd;

GR_NORETURN static void give_up(const char* what, const char* name)
{
    char text[200];
    int n = snprintf(text, sizeof text, "%s %.100s: %s", what, name, strerror(errno));
    (void)!write(report_fd, text, (size_t)GR_MIN(n, (int)sizeof text - 1));
    _exit(FAILED);
}

static void need(bool good, const char* what, const char* name)
{
    if (!good || gr_fault("sandbox.confine")) give_up(what, name);
}

static bool write_text(const char* path, const char* text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) (void)close(fd);
    return good;
}

/* ---- mounts: relative to the store, before the root changes ---------------------------------- */

static void show_read_only(const char* from, const char* to)
{
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    int fd = open_tree(AT_FDCWD, from, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    need(fd >= 0 && mount_setattr(fd, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr, sizeof attr) == 0 &&
             move_mount(fd, "", AT_FDCWD, to, MOVE_MOUNT_F_EMPTY_PATH) == 0,
         "show", from);
    (void)close(fd);
}

static void mount_layers(const gr_confinement* c, const char* options, const char* to)
{
    unsigned long flags = MS_NOSUID | MS_NODEV;
    if (c->overlay) {
        need(mount("overlay", to, "overlay", flags, options) == 0, "overlay on", to);
        return;
    }
    need(mount(options, to, NULL, MS_BIND, NULL) == 0, "show", options);
    need(mount(NULL, to, NULL, MS_REMOUNT | MS_BIND | flags, NULL) == 0, "guard", to);
}

static void show(const char* from, const char* to)
{
    need(mount(from, to, NULL, MS_BIND | MS_REC, NULL) == 0, "show", to);
}

/* Paths in the new root. They are short: places were made for them (skeleton.c). */
static void path_in(const char* root, const char* path, char out[PATH_CAP])
{
    int n = snprintf(out, PATH_CAP, "%s%s%s", root, path[0] == '/' ? "" : "/", path);
    if (n >= PATH_CAP) errno = ENAMETOOLONG;
    need(n < PATH_CAP, "find", path);
}

/* What of /proc speaks of the machine rather than of processes: seen, not changed; or not seen. */
static void mount_proc(const char* root)
{
    static const char* const fixed[] = {"sys", "sysrq-trigger", "irq", "bus", "fs"};
    static const char* const hidden[] = {"kcore", "keys", "kmsg", "timer_list", "sched_debug"};
    char at[PATH_CAP], file[PATH_CAP], null[PATH_CAP];
    path_in(root, "proc", at);
    path_in(root, "dev/null", null);
    need(mount("proc", at, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0, "mount", "proc");
    for (int i = 0; i < GR_COUNT(fixed); i++) {
        path_in(at, fixed[i], file);
        if (access(file, F_OK) == 0) show_read_only(file, file);
    }
    for (int i = 0; i < GR_COUNT(hidden); i++) {
        path_in(at, hidden[i], file);
        if (access(file, F_OK) == 0) show(null, file);
    }
}

static void mount_devices(const gr_confinement* c, const char* root)
{
    char at[PATH_CAP], options[64];
    if (strcmp(root, "skel") != 0) {
        path_in(root, "dev", at);
        (void)mkdir(at, 0755);
        show("skel/dev", at);
        path_in(root, "proc", at);
        (void)mkdir(at, 0755);
    }
    path_in(root, "dev/pts", at);
    need(mount("devpts", at, "devpts", MS_NOSUID | MS_NOEXEC,
               "newinstance,ptmxmode=0666,mode=620") == 0,
         "mount", "devpts");
    path_in(root, "dev/shm", at);
    (void)snprintf(options, sizeof options, "mode=1777,size=%lldm", (long long)c->limits->disk_mb);
    need(mount("tmpfs", at, "tmpfs", MS_NOSUID | MS_NODEV, options) == 0, "mount", "shm");
}

static void mount_all(const gr_confinement* c)
{
    char at[PATH_CAP];
    bool whole = strcmp(c->at, "/") == 0;
    const char* root = whole ? "whole" : "skel";
    if (!whole) {
        mount_layers(c, c->rest, "stage");
        show("stage/tmp", "skel/tmp");
        show("stage/home", "skel/root");
    }
    path_in(root, whole ? "" : c->at, at);
    mount_layers(c, c->tree, at);
    mount_devices(c, root);
    for (int i = 0; c->read != NULL && c->read[i] != NULL; i++) {
        path_in(root, c->read[i], at);
        need(gr_skeleton_way(at), "find a place for", c->read[i]); /* it may lie in /tmp */
        show_read_only(c->read[i], at);
    }
    mount_proc(root);
    if (!whole) {
        need(mount(NULL, root, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID, NULL) == 0,
             "guard", root);
    }
    need(chdir(root) == 0 && syscall(SYS_pivot_root, ".", ".") == 0, "enter", root);
    need(umount2(".", MNT_DETACH) == 0 && chdir("/") == 0, "leave", "the old root");
}

/* A network of its own with nothing in it but the way to itself, which tests of servers need. */
static void raise_loopback(void)
{
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    (void)ioctl(fd, SIOCSIFFLAGS, &lo);
    (void)close(fd);
}

/* ---- rights ---------------------------------------------------------------------------------- */

static bool set_rights(uint32_t all)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{all, all, 0}, {all, all, 0}};
    if (all != 0 && syscall(SYS_capget, &head, data) == 0) {
        for (int i = 0; i < 2; i++) data[i].effective = data[i].permitted;
    }
    return syscall(SYS_capset, &head, data) == 0;
}

/* As root, becomes a user without rights, but keeps the rights for a moment: to enter a user
 * namespace where unprivileged users may not. In it that user is called root again, as programs
 * like it, and may do nothing to the mounts, which belong to the namespace above. */
static void become_nobody(const gr_confinement* c)
{
    char map[64];
    if (c->as_root) {
        need(setgroups(0, NULL) == 0 && prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0 &&
                 setresgid(c->owner, c->owner, c->owner) == 0 &&
                 setresuid(c->owner, c->owner, c->owner) == 0 && set_rights(~0u),
             "become", "another user");
    }
    need(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0 && unshare(CLONE_NEWUSER) == 0, "enter",
         "a user namespace");
    (void)snprintf(map, sizeof map, "0 %u 1\n", c->owner);
    need(write_text("/proc/self/setgroups", "deny") && write_text("/proc/self/uid_map", map) &&
             write_text("/proc/self/gid_map", map),
         "map", "users");
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++) {
        need(prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) == 0, "drop", "rights");
    }
    need(prctl(PR_SET_SECUREBITS,
               SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |
                   SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED |
                   SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED,
               0, 0, 0) == 0,
         "lock", "rights");
    need(set_rights(0), "drop", "rights");
    need(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0, "hide", "the init"); /* /proc/1/mem */
}

/* ---- the command ----------------------------------------------------------------------------- */

static void set_environment(const gr_confinement* c)
{
    static const char* const basic[] = {
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME=/root",
        "USER=root",
        "LOGNAME=root",
        "SHELL=/bin/bash",
        "LANG=C.UTF-8",
        "TERM=dumb",
        "PAGER=cat",
        "TMPDIR=/tmp",
    };
    (void)clearenv();
    for (int pass = 0; pass < 2; pass++) {
        const char* const* from = pass == 0 ? basic : c->env;
        int n = pass == 0 ? GR_COUNT(basic) : MANY_ENV;
        for (int i = 0; i < n && from != NULL && from[i] != NULL; i++) {
            char* text = strdup(from[i]);
            char* value = text != NULL ? strchr(text, '=') : NULL;
            if (value == NULL) continue;
            *value = 0;
            (void)setenv(text, value + 1, 1);
        }
    }
}

static void print_hash(const char* at)
{
    int fd = open(at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    need(fd >= 0, "open", at);
    printf("%016llx", (unsigned long long)gr_files_hash(fd));
    (void)fflush(stdout);
    _exit(0);
}

GR_NORETURN static void run_command(const gr_confinement* c)
{
    (void)setsid();
    report_fd = fcntl(c->report, F_DUPFD_CLOEXEC, 16);
    int in = fcntl(c->in, F_DUPFD_CLOEXEC, 16), out = fcntl(c->out, F_DUPFD_CLOEXEC, 16);
    need(report_fd >= 0 && in >= 0 && out >= 0, "move", "descriptors");
    need(dup2(in, 0) == 0 && dup2(out, 1) == 1 && dup2(out, 2) == 2, "set", "descriptors");
    const int keep = report_fd;
    (void)close_range(3, (unsigned)keep - 1, 0);
    (void)close_range((unsigned)keep + 1, ~0u, 0);
    const char* cwd = c->cwd != NULL ? c->cwd : c->work;
    need(chdir(cwd) == 0, "go to", cwd);
    if (c->argv == NULL) print_hash(c->work);
    gr_limits_apply(c->groups, c->limits);
    set_environment(c);
    (void)execvp(c->argv[0], (char* const*)(uintptr_t)c->argv);
    (void)dprintf(2, "%s: %s\n", c->argv[0], strerror(errno));
    _exit(NOT_FOUND);
}

/* The init: reaps whatever is orphaned, and when the command ends, ends; all others die with it. */
GR_NORETURN static void wait_for(pid_t command)
{
    int status = 0;
    pid_t pid;
    (void)close_range(0, ~0u, 0);
    do pid = wait(&status);
    while (pid != command && (pid > 0 || errno == EINTR));
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* From here on the kernel kills us when the helper dies. It forgets that when rights change. */
static void die_with_helper(const gr_confinement* c)
{
    struct pollfd helper = {.fd = c->helper, .events = POLLIN};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (poll(&helper, 1, 0) != 0) _exit(FAILED); /* it died before that */
}

static void await_start(const gr_confinement* c)
{
    char byte;
    sigset_t none;
    die_with_helper(c);
    if (read(c->go, &byte, 1) != 1) _exit(FAILED);
    for (int s = 1; s < NSIG; s++) (void)signal(s, SIG_DFL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)umask(022);
}

GR_NORETURN void gr_confine(const gr_confinement* c)
{
    report_fd = c->report;
    await_start(c);
    (void)write_text("/proc/self/oom_score_adj", "1000"); /* rather this than the trainer */
    (void)unshare(CLONE_NEWCGROUP);
    (void)sethostname("sandbox", strlen("sandbox"));
    mount_all(c);
    raise_loopback();
    become_nobody(c);
    die_with_helper(c);
    need(gr_filter_load(c->filter), "load", "the filter");
    pid_t command = fork();
    need(command >= 0, "start", "the command");
    if (command == 0) run_command(c);
    wait_for(command);
}
