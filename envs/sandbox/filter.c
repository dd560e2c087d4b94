#include "envs/sandbox/filter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Refused whatever the arguments. */
static const int refused[] = {
    /* mounts and roots */
    SCMP_SYS(mount),
    SCMP_SYS(umount2),
    SCMP_SYS(pivot_root),
    SCMP_SYS(chroot),
    SCMP_SYS(open_tree),
    SCMP_SYS(move_mount),
    SCMP_SYS(fsopen),
    SCMP_SYS(fsconfig),
    SCMP_SYS(fsmount),
    SCMP_SYS(fspick),
    SCMP_SYS(mount_setattr),
    SCMP_SYS(swapon),
    SCMP_SYS(swapoff),
    SCMP_SYS(quotactl),
    SCMP_SYS(quotactl_fd),
    /* namespaces; clone is looked at below */
    SCMP_SYS(unshare),
    SCMP_SYS(setns),
    /* other processes' memory and descriptors */
    SCMP_SYS(ptrace),
    SCMP_SYS(process_vm_readv),
    SCMP_SYS(process_vm_writev),
    SCMP_SYS(process_madvise),
    SCMP_SYS(kcmp),
    SCMP_SYS(pidfd_getfd),
    /* files by number, past every path */
    SCMP_SYS(open_by_handle_at),
    SCMP_SYS(name_to_handle_at),
    /* code and probes in the kernel, and its large, young interfaces */
    SCMP_SYS(bpf),
    SCMP_SYS(perf_event_open),
    SCMP_SYS(userfaultfd),
    SCMP_SYS(io_uring_setup),
    SCMP_SYS(io_uring_enter),
    SCMP_SYS(io_uring_register),
    SCMP_SYS(init_module),
    SCMP_SYS(finit_module),
    SCMP_SYS(delete_module),
    SCMP_SYS(create_module),
    SCMP_SYS(kexec_load),
    SCMP_SYS(kexec_file_load),
    SCMP_SYS(seccomp),
    SCMP_SYS(fanotify_init),
    SCMP_SYS(lookup_dcookie),
    SCMP_SYS(vmsplice),
    /* keys are shared with the user's other processes */
    SCMP_SYS(add_key),
    SCMP_SYS(request_key),
    SCMP_SYS(keyctl),
    /* the machine: clock, power, ports, log, accounting, NUMA pages of others */
    SCMP_SYS(reboot),
    SCMP_SYS(settimeofday),
    SCMP_SYS(clock_settime),
    SCMP_SYS(adjtimex),
    SCMP_SYS(clock_adjtime),
    SCMP_SYS(iopl),
    SCMP_SYS(ioperm),
    SCMP_SYS(syslog),
    SCMP_SYS(acct),
    SCMP_SYS(vhangup),
    SCMP_SYS(move_pages),
    SCMP_SYS(migrate_pages),
    SCMP_SYS(uselib),
    SCMP_SYS(nfsservctl),
    SCMP_SYS(sysfs),
    SCMP_SYS(_sysctl),
    SCMP_SYS(modify_ldt),
};

/* Families of sockets that local programs need; the others are old code nobody looks at. */
static const int families[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK};

enum {
    NEWEST = 450, /* the last number that libseccomp 2.5.4 knows, the same on all architectures */
    FUTURE = 1024,
};

static int refuse_by_argument(scmp_filter_ctx f)
{
    int rc = 0;
    static const unsigned bits[] = {CLONE_NEWNS,   CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC,
                                    CLONE_NEWUSER, CLONE_NEWPID,    CLONE_NEWNET};
    for (int i = 0; i < GR_COUNT(bits) && rc == 0; i++) {
        rc = seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                              SCMP_A0(SCMP_CMP_MASKED_EQ, bits[i], bits[i]));
    }
    /* its flags lie in memory, where no filter looks; the C library then falls back to clone */
    if (rc == 0) rc = seccomp_rule_add(f, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    /* typing into the terminal of whoever started us */
    static const unsigned typing[] = {TIOCSTI, TIOCLINUX};
    for (int i = 0; i < GR_COUNT(typing) && rc == 0; i++) {
        rc = seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(ioctl), 1,
                              SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffffu, typing[i]));
    }
    /* the kernel takes the lower half of the argument, so the upper one must not matter */
    for (int family = 0; family < 64 && rc == 0; family++) {
        bool known = false;
        for (int i = 0; i < GR_COUNT(families); i++) known |= family == families[i];
        if (known) continue;
        rc = seccomp_rule_add(f, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1,
                              SCMP_A0(SCMP_CMP_MASKED_EQ, 0xffffffffu, (scmp_datum_t)family));
    }
    return rc;
}

static int add_rules(scmp_filter_ctx f)
{
    int rc = 0;
    for (int i = 0; i < GR_COUNT(refused) && rc == 0; i++) {
        if (refused[i] < 0) continue; /* not on this architecture */
        rc = seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), refused[i], 0);
    }
    for (int nr = NEWEST + 1; nr < FUTURE && rc == 0; nr++) {
        rc = seccomp_rule_add(f, SCMP_ACT_ERRNO(ENOSYS), nr, 0);
    }
    if (rc == 0) rc = refuse_by_argument(f);
    if (rc == 0) rc = seccomp_attr_set(f, SCMP_FLTATR_CTL_OPTIMIZE, 2); /* a binary tree */
    return rc;
}

static gr_status read_program(int fd, struct sock_fprog* out)
{
    struct stat s;
    if (fstat(fd, &s) != 0 || s.st_size == 0) return GR_FAIL(GR_EIO, "seccomp: empty filter");
    void* bytes = malloc((size_t)s.st_size);
    GR_ASSERT(bytes != NULL, "out of memory");
    if (pread(fd, bytes, (size_t)s.st_size, 0) != s.st_size) {
        free(bytes);
        return GR_FAIL(GR_EIO, "seccomp: %s", strerror(errno));
    }
    out->len = (unsigned short)((size_t)s.st_size / sizeof(struct sock_filter));
    out->filter = bytes;
    return GR_OK;
}

gr_status gr_filter_compile(struct sock_fprog* out)
{
    if (gr_fault("sandbox.filter")) return GR_FAIL(GR_EIO, "seccomp: injected fault");
    scmp_filter_ctx f = seccomp_init(SCMP_ACT_ALLOW); /* kills calls of other architectures */
    int fd = memfd_create("filter", MFD_CLOEXEC);
    int rc = f == NULL ? -ENOMEM : add_rules(f);
    if (rc == 0) rc = seccomp_export_bpf(f, fd);
    gr_status st = rc == 0 ? read_program(fd, out) : GR_FAIL(GR_EIO, "seccomp: %s", strerror(-rc));
    if (f != NULL) seccomp_release(f);
    if (fd >= 0) (void)close(fd);
    return st;
}

bool gr_filter_load(const struct sock_fprog* filter)
{
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, filter) == 0;
}
