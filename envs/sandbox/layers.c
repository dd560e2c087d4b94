#include "envs/sandbox/layers.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "envs/sandbox/files.h"

struct gr_layer {
    gr_layer* below; /* owned reference */
    int64_t refs, id;
    int depth;     /* layers from here down */
    int64_t bytes; /* of them, once frozen; of a copy, when it was the base's */
};

struct gr_base {
    gr_base* next;
    char* path; /* as it was asked for */
    int64_t refs, id;
};

static const char* const folders[] = {"tree", "rest", "tree.work", "rest.work"};

static gr_status failed(const char* what, const char* name)
{
    return GR_FAIL(errno == ENOSPC || errno == ENOMEM ? GR_ENOMEM : GR_EIO, "%s %.150s: %s", what,
                   name, strerror(errno));
}

/* A folder of the helper's own. There is no mask on modes here. */
static gr_status make_folder(const gr_layers* ls, const char* path, mode_t mode)
{
    if (gr_fault("sandbox.mkdir")) return GR_FAIL(GR_EIO, "create %s: injected fault", path);
    return mkdirat(ls->store, path, mode) == 0 ? GR_OK : failed("create", path);
}

/* A folder that commands see. */
static gr_status make_shown(const gr_layers* ls, const char* path, mode_t mode)
{
    GR_TRY(make_folder(ls, path, mode));
    if (ls->owner == 0 || fchownat(ls->store, path, ls->owner, ls->owner, 0) == 0) return GR_OK;
    return failed("own", path);
}

static int open_at(int at, const char* path)
{
    return openat(at, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* ---- bases ----------------------------------------------------------------------------------- */

/* A user namespace that maps the owner of a tree to ours: what a mount needs to show its files as
 * ours. It lives as long as the descriptor; the process that made it ends here. -1: no. */
static int owner_map(const struct stat* tree, uid_t owner)
{
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) != 0) return -1;
    pid_t pid = fork();
    if (pid == 0) {
        bool done = unshare(CLONE_NEWUSER) == 0 && write(ready[1], "", 1) == 1;
        while (done) (void)pause(); /* until killed */
        _exit(1);
    }
    char path[64], line[64], byte;
    int fd = -1;
    (void)close(ready[1]);
    bool good = pid > 0 && read(ready[0], &byte, 1) == 1;
    const unsigned id[] = {tree->st_uid, tree->st_gid};
    for (int i = 0; i < 2 && good; i++) {
        (void)snprintf(path, sizeof path, "/proc/%d/%cid_map", pid, "ug"[i]);
        int n = snprintf(line, sizeof line, "%u %u 1\n", id[i], owner);
        int map = open(path, O_WRONLY | O_CLOEXEC);
        good = map >= 0 && write(map, line, (size_t)n) == n;
        if (map >= 0) (void)close(map);
    }
    (void)snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
    if (good) fd = open(path, O_RDONLY | O_CLOEXEC);
    (void)close(ready[0]);
    if (pid > 0) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
    }
    return fd;
}

/* Mounts the tree read-only at `at` of the store, its files shown as ours. */
static bool mount_base(const gr_layers* ls, const char* tree, const char* at)
{
    struct stat s;
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    int source = open_tree(AT_FDCWD, tree, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    int map = -1;
    if (source < 0) return false;
    bool good = !gr_fault("sandbox.map") && fstat(source, &s) == 0;
    if (good && ls->remap) {
        map = owner_map(&s, ls->owner);
        good = map >= 0;
        attr.attr_set |= MOUNT_ATTR_IDMAP;
        attr.userns_fd = (unsigned)map;
    }
    good = good && mount_setattr(source, "", AT_EMPTY_PATH, &attr, sizeof attr) == 0 &&
           move_mount(source, "", ls->store, at, MOVE_MOUNT_F_EMPTY_PATH) == 0;
    if (map >= 0) (void)close(map);
    (void)close(source);
    return good;
}

/* What cannot be mounted so (file systems without owner maps) is copied once. */
static gr_status place_base(const gr_layers* ls, const char* tree, const char* at)
{
    struct stat s;
    int from = open(tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (from < 0) return GR_FAIL(GR_EARG, "%.200s: %s", tree, strerror(errno));
    gr_status st = fstat(from, &s) == 0 ? make_folder(ls, at, 0700) : failed("look at", tree);
    if (st == GR_OK && !mount_base(ls, tree, at)) {
        gr_log("sandbox: %s: no mount with another owner here; copied", tree);
        st = gr_files_remove(ls->store, at);
        if (st == GR_OK) st = gr_files_copy(from, ls->store, at, ls->owner);
    }
    (void)close(from);
    return st;
}

static void release_base(gr_layers* ls, gr_base* b)
{
    char at[32];
    if (b == NULL || --b->refs > 0) return;
    for (gr_base** link = &ls->base; *link != NULL; link = &(*link)->next) {
        if (*link != b) continue;
        *link = b->next;
        break;
    }
    (void)snprintf(at, sizeof at, "b/%lld", (long long)b->id);
    (void)umount2(at, MNT_DETACH);
    if (gr_files_remove(ls->store, at) != GR_OK) gr_log("sandbox: %s", gr_last_error_text());
    ls->n_bases--;
    free(b->path);
    free(b);
}

static gr_status hold_base(gr_layers* ls, const char* tree, gr_base** out)
{
    char at[32];
    for (gr_base* b = ls->base; b != NULL; b = b->next) {
        if (strcmp(b->path, tree) != 0) continue;
        b->refs++;
        *out = b;
        return GR_OK;
    }
    gr_base* b = calloc(1, sizeof *b);
    char* path = strdup(tree);
    GR_ASSERT(b != NULL && path != NULL, "out of memory");
    *b = (gr_base){.next = ls->base, .path = path, .refs = 1, .id = ls->next++};
    ls->base = b;
    ls->n_bases++;
    (void)snprintf(at, sizeof at, "b/%lld", (long long)b->id);
    gr_status st = place_base(ls, tree, at);
    if (st == GR_OK)
        *out = b;
    else
        release_base(ls, b);
    return st;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static void path_of(const gr_layer* l, const char* folder, char out[64])
{
    (void)snprintf(out, 64, "l/%lld%s%s", (long long)l->id, folder[0] ? "/" : "", folder);
}

static void release(gr_layers* ls, gr_layer* l)
{
    char path[64];
    while (l != NULL && --l->refs == 0) {
        gr_layer* below = l->below;
        path_of(l, "", path);
        if (gr_files_remove(ls->store, path) != GR_OK) gr_log("sandbox: %s", gr_last_error_text());
        ls->n_layers--;
        free(l);
        l = below;
    }
}

static gr_status new_layer(gr_layers* ls, gr_layer* below, gr_layer** out)
{
    char path[64];
    gr_layer* l = calloc(1, sizeof *l);
    GR_ASSERT(l != NULL, "out of memory");
    *l = (gr_layer){.refs = 1, .id = ls->next++, .depth = 1, .below = below};
    if (below != NULL) {
        below->refs++;
        l->depth += below->depth;
    }
    ls->n_layers++;
    path_of(l, "", path);
    gr_status st = make_folder(ls, path, 0711);
    if (st == GR_OK)
        *out = l;
    else
        release(ls, l);
    return st;
}

/* The top folder of an overlay shows the upper one's mode, so a new one takes after the old. */
static gr_status make_upper(const gr_layers* ls, const gr_layer* l, const char* which,
                            const char* like)
{
    char path[64];
    struct stat s;
    if (fstatat(ls->store, like, &s, 0) != 0) return failed("look at", like);
    path_of(l, which, path);
    return make_shown(ls, path, s.st_mode & 07777);
}

/* An empty layer to write in, above `below`, as the one beside it. */
static gr_status open_layer(gr_layers* ls, gr_layer* below, const char* like_tree,
                            const char* like_rest, gr_layer** out)
{
    char path[64];
    gr_layer* l = NULL;
    GR_TRY(new_layer(ls, below, &l));
    gr_status st = make_upper(ls, l, "tree", like_tree);
    if (st == GR_OK) st = make_upper(ls, l, "rest", like_rest);
    for (int i = 2; i < GR_COUNT(folders) && st == GR_OK; i++) {
        path_of(l, folders[i], path);
        st = make_folder(ls, path, 0700);
    }
    if (st == GR_OK)
        *out = l;
    else
        release(ls, l);
    return st;
}

static int64_t size_of(const gr_layers* ls, const gr_layer* l)
{
    char path[64];
    int64_t sum = 0;
    for (int i = 0; i < 2; i++) {
        path_of(l, folders[i], path);
        int fd = open_at(ls->store, path);
        if (fd < 0) continue;
        sum += gr_files_size(fd);
        (void)close(fd);
    }
    return sum;
}

/* ---- merging --------------------------------------------------------------------------------- */

static gr_status merge_into(const gr_layers* ls, const gr_layer* from, const gr_layer* into)
{
    char path[64];
    gr_status st = GR_OK;
    for (int i = 0; i < 2 && st == GR_OK; i++) {
        path_of(from, folders[i], path);
        int upper = open_at(ls->store, path);
        path_of(into, folders[i], path);
        int lower = open_at(ls->store, path);
        st = upper < 0 || lower < 0 ? failed("open", path)
                                    : gr_files_merge(upper, lower, ls->opaque);
        if (upper >= 0) (void)close(upper);
        if (lower >= 0) (void)close(lower);
    }
    return st;
}

/* One layer that shows what `top` and all below it show. */
static gr_status flatten(gr_layers* ls, const gr_layer* top, gr_layer** out)
{
    const gr_layer* way[2 * GR_LAYERS_DEEP];
    char path[64];
    int n = 0;
    for (const gr_layer* l = top; l != NULL && n < GR_COUNT(way); l = l->below) way[n++] = l;
    gr_layer* flat = NULL;
    GR_TRY(new_layer(ls, NULL, &flat));
    gr_status st = GR_OK;
    for (int i = 0; i < 2 && st == GR_OK; i++) {
        path_of(flat, folders[i], path);
        st = make_shown(ls, path, 0755);
    }
    while (n > 0 && st == GR_OK) st = merge_into(ls, way[--n], flat);
    flat->bytes = size_of(ls, flat);
    if (st == GR_OK)
        *out = flat;
    else
        release(ls, flat);
    return st;
}

/* ---- stacks ---------------------------------------------------------------------------------- */

static gr_status copy_between(gr_layers* ls, const char* from, const gr_layer* to,
                              const char* which)
{
    char path[64];
    path_of(to, which, path);
    int source = open_at(ls->store, from);
    if (source < 0) return failed("open", from);
    gr_status st = gr_files_copy(source, ls->store, path, ls->owner);
    (void)close(source);
    return st;
}

static gr_status copy_layer(gr_layers* ls, const char* tree, const char* rest, gr_layer** out)
{
    gr_layer* l = NULL;
    GR_TRY(new_layer(ls, NULL, &l));
    gr_status st = copy_between(ls, tree, l, "tree");
    if (st == GR_OK) st = copy_between(ls, rest, l, "rest");
    if (st == GR_OK)
        *out = l;
    else
        release(ls, l);
    return st;
}

gr_status gr_layers_new(gr_layers* ls, gr_stack* out, const char* tree)
{
    char base[32];
    gr_stack s = {0};
    GR_TRY(hold_base(ls, tree, &s.base));
    (void)snprintf(base, sizeof base, "b/%lld", (long long)s.base->id);
    gr_status st = ls->overlay ? open_layer(ls, NULL, base, "rest", &s.own)
                               : copy_layer(ls, base, "rest", &s.own);
    if (st == GR_OK && !ls->overlay) s.own->bytes = size_of(ls, s.own);
    if (st == GR_OK)
        *out = s;
    else
        gr_layers_drop(ls, &s);
    return st;
}

/* The parent's own layer, of so many bytes, becomes the highest frozen one, shared by both. */
static gr_status freeze(gr_layers* ls, gr_stack* s, int64_t bytes)
{
    char tree[64], rest[64];
    gr_layer *frozen = s->own, *fresh = NULL, *flat = NULL;
    path_of(frozen, "tree", tree);
    path_of(frozen, "rest", rest);
    frozen->bytes = bytes + (s->below != NULL ? s->below->bytes : 0);
    if (frozen->depth > GR_LAYERS_DEEP) GR_TRY(flatten(ls, frozen, &flat));
    gr_status st = open_layer(ls, flat != NULL ? flat : frozen, tree, rest, &fresh);
    release(ls, flat); /* the fresh one holds it */
    if (st != GR_OK) return st;
    release(ls, frozen);
    s->below = fresh->below; /* held by the fresh layer */
    s->own = fresh;
    return GR_OK;
}

gr_status gr_layers_fork(gr_layers* ls, gr_stack* from, gr_stack* to)
{
    char tree[64], rest[64];
    gr_stack s = {.base = from->base};
    int64_t bytes =
        ls->overlay ? size_of(ls, from->own) : 0; /* 0: nothing in it, not even empty files */
    if (bytes > 0) GR_TRY(freeze(ls, from, bytes));
    path_of(from->own, "tree", tree);
    path_of(from->own, "rest", rest);
    GR_TRY(ls->overlay ? open_layer(ls, from->below, tree, rest, &s.own)
                       : copy_layer(ls, tree, rest, &s.own));
    if (!ls->overlay) s.own->bytes = from->own->bytes;
    s.below = s.own->below;
    s.base->refs++;
    *to = s;
    return GR_OK;
}

void gr_layers_drop(gr_layers* ls, gr_stack* s)
{
    release(ls, s->own);
    release_base(ls, s->base);
    *s = (gr_stack){0};
}

void gr_layers_options(const gr_layers* ls, const gr_stack* s, const char* which,
                       char out[GR_LAYERS_OPTIONS])
{
    size_t n =
        (size_t)snprintf(out, GR_LAYERS_OPTIONS,
                         "%s,upperdir=l/%lld/%s,workdir=l/%lld/%s.work,lowerdir=", ls->options,
                         (long long)s->own->id, which, (long long)s->own->id, which);
    for (const gr_layer* l = s->below; l != NULL; l = l->below) {
        n +=
            (size_t)snprintf(out + n, GR_LAYERS_OPTIONS - n, "l/%lld/%s:", (long long)l->id, which);
    }
    if (strcmp(which, "tree") == 0)
        n += (size_t)snprintf(out + n, GR_LAYERS_OPTIONS - n, "b/%lld", (long long)s->base->id);
    else
        n += (size_t)snprintf(out + n, GR_LAYERS_OPTIONS - n, "%s", which);
    GR_ASSERT(n < GR_LAYERS_OPTIONS, "%d layers", gr_layers_depth(s));
}

void gr_layers_copy(const gr_stack* s, const char* which, char out[64])
{
    path_of(s->own, which, out);
}

int64_t gr_layers_size(const gr_layers* ls, const gr_stack* s)
{
    if (!ls->overlay) return size_of(ls, s->own) - s->own->bytes;
    return size_of(ls, s->own) + (s->below != NULL ? s->below->bytes : 0);
}

int gr_layers_depth(const gr_stack* s) { return s->below != NULL ? s->below->depth : 0; }

/* ---- open ------------------------------------------------------------------------------------ */

/* Does an overlay here hide a folder of its base, which takes the attributes of merging? */
static bool overlay_works(const gr_layers* ls)
{
    char text[200];
    bool made = true;
    static const char* const all[] = {"probe",    "probe/low",  "probe/low/a",
                                      "probe/up", "probe/work", "probe/on"};
    if (gr_fault("sandbox.overlay")) return false;
    for (int i = 0; i < GR_COUNT(all); i++) made = mkdirat(ls->store, all[i], 0700) == 0 && made;
    (void)snprintf(text, sizeof text, "%s,lowerdir=probe/low,upperdir=probe/up,workdir=probe/work",
                   ls->options);
    bool works = made && mount("overlay", "probe/on", "overlay", 0, text) == 0;
    if (works) {
        works = unlinkat(ls->store, "probe/on/a", AT_REMOVEDIR) == 0 &&
                mkdirat(ls->store, "probe/on/a", 0700) == 0;
        (void)umount2("probe/on", MNT_DETACH);
    }
    return gr_files_remove(ls->store, "probe") == GR_OK && works;
}

gr_status gr_layers_open(gr_layers* ls, int store, bool as_root, char* notice, size_t cap)
{
    *ls = (gr_layers){
        .store = store,
        .opaque = as_root ? "trusted.overlay.opaque" : "user.overlay.opaque",
        .options = as_root ? "redirect_dir=nofollow,index=off,metacopy=off" : "userxattr",
        .owner = as_root ? GR_SANDBOX_OWNER : 0,
        .remap = as_root,
        .next = 1,
    };
    (void)umask(0);
    GR_TRY(make_folder(ls, "l", 0755));
    GR_TRY(make_folder(ls, "b", 0755));
    GR_TRY(make_shown(ls, "rest", 0755)); /* the base of what persists besides the tree */
    GR_TRY(make_shown(ls, "rest/tmp", 01777));
    GR_TRY(make_shown(ls, "rest/home", 0700));
    ls->overlay = overlay_works(ls);
    if (!ls->overlay) (void)snprintf(notice, cap, "no overlay file system here: trees are copied");
    return GR_OK;
}
