/* place.h - where a helper keeps its things, so that nothing is left when it is gone. Level 1.
 *
 * A folder DIR/grove-sandbox-XXXXXX holds a file `lock` and the mount point `store`. The lock is
 * held as long as the helper lives, by the kernel's account: a folder whose lock can be had is
 * what a killed helper left, and the next one removes it with its control groups. Files in the
 * store, mounts and processes end with the helper by themselves: its tmpfs and mounts are in its
 * own namespace, and each command is told by the kernel when its parent dies. */
#pragma once
#include "envs/sandbox/sandbox.h"

typedef struct gr_place {
    char folder[320], name[32]; /* name: the folder's last part, also that of its control groups */
    int lock, store;            /* descriptors; the store is the current folder too */
    bool as_root;               /* else in a user namespace of its own */
} gr_place;

/* Sweeps, makes the folder, enters new namespaces, mounts the store and goes there. For a process
 * with one thread that does nothing else afterwards. */
GR_MUST_CHECK gr_status gr_place_open(gr_place* p, const gr_sandbox_settings* s);
void gr_place_close(gr_place* p);
