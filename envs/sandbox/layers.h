/* layers.h - the files of sandboxes: read-only bases, and layers of changes above them. Level 1.
 *
 *      own (writable)   own             a fork freezes what the parent has changed; parent and
 *            |           |              child go on with empty layers of their own above it
 *            +- frozen --+
 *                 |                     layers are counted; one that nothing stands on is removed
 *               base                    past GR_LAYERS_DEEP they are merged into one
 *
 * A layer is a folder l/N of the store with the upper and work folders of two overlays: the working
 * tree (tree, tree.work) and what else persists, /tmp and home (rest, rest.work). Overlays are
 * mounted by each command, in its own namespace, and vanish with it; so a fork is some mkdirs. The
 * store is a tmpfs in the helper's namespace and vanishes with the helper. Without overlay, a layer
 * holds full copies. */
#pragma once
#include <sys/types.h>

#include "host/base.h"

enum {
    GR_LAYERS_DEEP = 64,      /* most frozen layers below a sandbox */
    GR_LAYERS_OPTIONS = 4096, /* bytes of an overlay's options: what mount(2) takes */
    GR_SANDBOX_OWNER = 60800, /* user and group of commands, where the helper is root: a number
                                   that neither Debian nor systemd gives to anybody */
};

typedef struct gr_layer gr_layer;
typedef struct gr_base gr_base;

typedef struct gr_layers {
    int store;           /* the current folder, with l/ and b/ in it */
    bool overlay;        /* else copies */
    const char* opaque;  /* attribute of folders that hide; tells the two kinds of overlay apart */
    const char* options; /* overlay options that go with it */
    uid_t owner;         /* of files in sandboxes, as the helper sees it */
    bool remap;          /* bases belong to somebody else and are shown as the owner's */
    int64_t next;
    int64_t n_layers, n_bases; /* present ones, for tests and the books */
    gr_base* base;             /* list */
} gr_layers;

typedef struct gr_stack { /* the files of one sandbox */
    gr_base* base;
    gr_layer* below; /* the highest frozen one; NULL: none */
    gr_layer* own;
} gr_stack;

/* `store` is an open, empty folder and the current one. Finds out what this kernel lets us do with
 * it; `as_root` tells whether the helper has real root rights. What is missing is written to
 * `notice`. */
GR_MUST_CHECK gr_status gr_layers_open(gr_layers* ls, int store, bool as_root, char* notice,
                                       size_t cap);
GR_MUST_CHECK gr_status gr_layers_new(gr_layers* ls, gr_stack* out, const char* tree);
GR_MUST_CHECK gr_status gr_layers_fork(gr_layers* ls, gr_stack* from, gr_stack* to);
void gr_layers_drop(gr_layers* ls, gr_stack* s);

/* Overlay options of one of the two trees, "tree" or "rest". */
void gr_layers_options(const gr_layers* ls, const gr_stack* s, const char* which,
                       char out[GR_LAYERS_OPTIONS]);
/* Folder of a full copy, relative to the store (where there is no overlay). */
void gr_layers_copy(const gr_stack* s, const char* which, char out[64]);
/* Bytes that this sandbox has added to its base, frozen layers included. */
int64_t gr_layers_size(const gr_layers* ls, const gr_stack* s);
int gr_layers_depth(const gr_stack* s);
