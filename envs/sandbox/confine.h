/* confine.h - from a fresh process in fresh namespaces to a command that sees a sandbox. Level 1.
 *
 * Three barriers, each enough against most attacks: the command's namespaces hold nothing but its
 * own files and processes; it is a user without rights whose mounts belong to a namespace above its
 * own; and the filter refuses the calls with which either could be changed. */
#pragma once
#include "envs/sandbox/filter.h"
#include "envs/sandbox/layers.h"
#include "envs/sandbox/limits.h"

typedef struct gr_confinement {
    /* of the host */
    bool as_root; /* the helper has real root rights */
    bool overlay;
    uid_t owner;
    const struct sock_fprog* filter;
    const gr_groups* groups;
    const gr_sandbox_settings* limits;
    /* of the sandbox: overlay options of its trees, or the folders of its copies */
    const char* at; /* "/": the tree is the whole system */
    const char* work;
    const char* const* read;
    char tree[GR_LAYERS_OPTIONS], rest[GR_LAYERS_OPTIONS];
    /* of the command */
    const char* const* argv; /* NULL: print the hash of `work` */
    const char* const* env;
    const char* cwd; /* NULL: `work` */
    /* descriptors */
    int helper; /* the helper's process: readable once it is dead */
    int go;     /* one byte comes when the command may start */
    int in, out;
    int report; /* why it could not be started */
} gr_confinement;

/* Prepares what all commands share, in the store (the current folder): `skel`, the system as
 * commands see it, and the places where more is mounted. */
GR_MUST_CHECK gr_status gr_skeleton_make(void);
/* Makes the folder `path` ("/...") in the skeleton, where a tree can then be mounted. */
GR_MUST_CHECK gr_status gr_skeleton_place(const char* path);
/* Makes the folders of a relative path from its second part on. False: errno says why. */
bool gr_skeleton_way(const char* path);

/* In the first process of new mount, pid, net, ipc and uts namespaces: becomes the init of the
 * command. Its exit status is the command's, as a shell has it; ends with a report otherwise. */
GR_NORETURN void gr_confine(const gr_confinement* c);
