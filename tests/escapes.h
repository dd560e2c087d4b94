/* escapes.h - ways out of a sandbox, for its tests and for the table in bench/results. Each is a
 * text for bash that prints ESCAPED if it worked. */
#pragma once

typedef struct escape {
    const char *name, *text;
} escape;

/* A system call by number; prints ESCAPED, or the error. */
#define CALL(number, arguments)                                                                \
    "python3 -c 'import ctypes, os; l = ctypes.CDLL(None, use_errno=True); b = b\"x\" * 512\n" \
    "if l.syscall(" #number ", " arguments ") >= 0: print(\"ESCAPED\")\n"                      \
    "else: print(os.strerror(ctypes.get_errno()))'"
#define NEW_USER "0x10000000"

static const escape escapes[] = {
    /* mounts and namespaces */
    {"mount a file system", "mount -t tmpfs x /tmp && echo ESCAPED"},
    {"mount, by system call", CALL(165, "b\"x\", b\"/tmp\", b\"tmpfs\", 0, None")},
    {"mount, by the new calls", CALL(430, "b\"tmpfs\", 0")},
    {"make / writable",
     "mount -o remount,rw /; mount -o remount,bind,rw /usr; touch /usr/x && echo ESCAPED"},
    {"unmount /proc/sys", "umount /proc/sys && echo ESCAPED"},
    {"namespaces of its own", "unshare -Urm true && echo ESCAPED"},
    {"a user namespace, by clone", CALL(56, NEW_USER " | 17, 0, 0, 0, 0")},
    {"a user namespace, by clone3", CALL(435, "b, 88")},
    {"enter the init's namespaces", "nsenter -t 1 -m true && echo ESCAPED"},
    {"change the root", CALL(161, "b\"/tmp\"")},
    {"files by handle", CALL(304, "3, b, 0")},
    /* processes */
    {"trace the init", CALL(101, "16, 1, 0, 0")},
    {"trace a child", CALL(101, "0, 0, 0, 0")},
    {"read a process's memory", CALL(310, "1, b, 1, b, 1, 0")},
    {"write /proc/1/mem", "python3 -c 'open(\"/proc/1/mem\", \"r+b\"); print(\"ESCAPED\")'"},
    {"read /proc/1/environ", "cat /proc/1/environ && echo ESCAPED"},
    {"open the init's descriptors", "ls /proc/1/fd && echo ESCAPED"},
    {"kill the init", "kill -9 1; sleep 0.05; kill -STOP 1; sleep 0.05; echo still here"},
    {"see other processes",
     "test $(ls -d /proc/[0-9]* | wc -l) -gt 6 && echo ESCAPED || echo only its own"},
    {"be spared by the OOM killer", "echo -500 >/proc/self/oom_score_adj && echo ESCAPED"},
    {"higher limits", "ulimit -Hn 1000000 && echo ESCAPED; ulimit -f unlimited && echo ESCAPED"},
    {"a better priority", "renice -n -5 $$ && echo ESCAPED"},
    /* rights */
    {"a set-user-id shell", "cp /bin/bash /tmp/b && chmod 4755 /tmp/b && /tmp/b -pc 'grep -q "
                            "CapEff.*[1-9a-f] /proc/self/status "
                            "&& echo ESCAPED || echo no rights'"},
    {"su", "su -c 'grep -q CapEff.*[1-9a-f] /proc/self/status && echo ESCAPED'"},
    {"file capabilities", "cp /bin/cat /tmp/c; setcap cap_sys_admin+ep /tmp/c && echo ESCAPED"},
    {"another user", "python3 -c 'import os; os.setuid(1); print(\"ESCAPED\")'"},
    {"read /etc/shadow", "cat /etc/shadow && echo ESCAPED"},
    {"write /etc/passwd", "echo x >>/etc/passwd && echo ESCAPED"},
    {"write into /usr", "cp /bin/true /usr/bin/evil && echo ESCAPED"},
    {"a disk device", "mknod /tmp/d b 8 0 && echo ESCAPED; mknod ./m c 1 1 && echo ESCAPED"},
    /* /proc and /sys */
    {"core_pattern", "echo '|/tmp/x' >/proc/sys/kernel/core_pattern && echo ESCAPED"},
    {"sysrq", "echo h >/proc/sysrq-trigger && test -s /proc/sysrq-trigger && echo ESCAPED"},
    {"the kernel's memory", "head -c 1 /proc/kcore | grep -q . && echo ESCAPED"},
    {"its own user map", "echo '0 0 1' >/proc/self/uid_map && echo ESCAPED"},
    {"control groups",
     "mkdir -p /sys/fs/cgroup/x && echo ESCAPED; ls /sys/fs/cgroup/* && echo ESCAPED"},
    /* network */
    {"a connection", "timeout 2 bash -c '>/dev/tcp/1.1.1.1/53' && echo ESCAPED"},
    {"a name", "timeout 2 getent hosts deb.debian.org && echo ESCAPED || echo no such name"},
    {"a host's server", "timeout 2 bash -c '>/dev/tcp/127.0.0.1/22' && echo ESCAPED"},
    {"raw packets", "python3 -c 'import socket; socket.socket(17, 3); print(\"ESCAPED\")'"},
    {"a raw socket", "python3 -c 'import socket; socket.socket(2, 3, 1); print(\"ESCAPED\")'"},
    {"an odd socket", "python3 -c 'import socket; socket.socket(40, 1); print(\"ESCAPED\")'"},
    {"an interface", "ip link add d0 type dummy && echo ESCAPED"},
    /* the kernel's wide interfaces */
    {"bpf", CALL(321, "0, b, 72")},
    {"perf", CALL(298, "b, 0, -1, -1, 0")},
    {"userfaultfd", CALL(323, "0")},
    {"io_uring", CALL(425, "8, b")},
    {"keys", CALL(250, "0, -3, 1")},
    {"a module", CALL(175, "b, 8, b\"\"")},
    {"kexec", CALL(246, "0, 0, 0, 0")},
    {"the clock", CALL(227, "0, b")},
    {"ports", CALL(172, "3")},
    {"the kernel's log", CALL(103, "3, b, 512")},
    {"a filter of its own", CALL(317, "1, 0, b")},
    {"a call newer than the filter", CALL(467, "0, 0, 0, 0, 0")},
    {"calls of another architecture", CALL(0x40000027, "0")},
    {"type into the terminal",
     "python3 -c 'import fcntl; fcntl.ioctl(0, 0x5412, b\"x\"); print(\"ESCAPED\")'"},
};
