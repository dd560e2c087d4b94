/* checkpoint.c - the state of a run in a folder that is either whole or ignored.
 *
 * Folder NAME appears in five acts, and a crash between any two of them leaves a whole checkpoint:
 *
 *     .NAME.part/      written aside, every file synced
 *     NAME -> .NAME.old, if a whole NAME is there already (labels such as best are used again)
 *     .NAME.part -> NAME, folder synced
 *     NAME/complete    sizes and hashes of the files: from here on NAME counts
 *     .NAME.old and older checkpoints are removed, each one's marker first */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "host/checkpoint_parts.h"
#include "host/durable.h"
#include "model/folder.h"

#define PATH_BYTES   1024
#define MARKER_BYTES 2048

static const char model_file[] = "model.safetensors";
static const char optimizer_file[] = "optimizer.safetensors";
static const char marker[] = "complete";
static const char value_file[] = "value.safetensors"; /* with a value model */
static const char value_optimizer_file[] = "value_optimizer.safetensors";
static const char* const files[] = {model_file,   optimizer_file, "config.json",
                                    "state.json", value_file,     value_optimizer_file};
enum { ALWAYS = 4 }; /* that many of them; the others together or not at all */

typedef char path[PATH_BYTES];

static gr_status join(path out, const char* folder, const char* name)
{
    int n = snprintf(out, PATH_BYTES, "%s/%s", folder, name);
    if (n < PATH_BYTES) return GR_OK;
    return GR_FAIL(GR_EARG, "%.80s...: path of %d bytes", folder, n);
}

/* ---- marker ---------------------------------------------------------------------------------- */

/* One line "<hash> <bytes> <file>" per file, then the hash of those lines. */
static gr_status write_marker(const char* folder)
{
    char text[MARKER_BYTES];
    path file;
    int n = 0;
    for (int i = 0; i < GR_COUNT(files); i++) {
        int64_t bytes = 0;
        uint64_t hash = 0;
        GR_TRY(join(file, folder, files[i]));
        if (i >= ALWAYS && !gr_exists(file)) continue;
        GR_TRY(gr_hash_file(file, &bytes, &hash));
        n += snprintf(text + n, sizeof text - (size_t)n, "%016" PRIx64 " %" PRId64 " %s\n", hash,
                      bytes, files[i]);
    }
    n += snprintf(text + n, sizeof text - (size_t)n, "%016" PRIx64 "\n",
                  gr_hash64(text, (size_t)n, 0));
    GR_TRY(join(file, folder, marker));
    return gr_replace_file(file, text, (size_t)n);
}

static gr_status check_file(const char* folder, const char* name, uint64_t hash, int64_t bytes)
{
    path file;
    int64_t bytes_now = 0;
    uint64_t hash_now = 0;
    GR_TRY(join(file, folder, name));
    GR_TRY(gr_hash_file(file, &bytes_now, &hash_now));
    if (bytes_now != bytes) {
        return GR_FAIL(GR_EDATA, "%s: damaged: %" PRId64 " bytes, %" PRId64 " were written", file,
                       bytes_now, bytes);
    }
    if (hash_now == hash) return GR_OK;
    return GR_FAIL(GR_EDATA, "%s: damaged: its content is not what was written", file);
}

/* Compares the files of a folder with its marker. */
static gr_status verify(const char* folder)
{
    char text[MARKER_BYTES];
    path file;
    size_t n = 0;
    GR_TRY(join(file, folder, marker));
    if (!gr_exists(file)) {
        return GR_FAIL(GR_EDATA, "%s: incomplete: it has no file `%s`", folder, marker);
    }
    GR_TRY(gr_read_file(file, text, sizeof text, &n));
    char want[24] = "";
    size_t body = n > 17 ? n - 17 : 0;
    (void)snprintf(want, sizeof want, "%016" PRIx64 "\n", gr_hash64(text, body, 0));
    if (strcmp(text + body, want) != 0) return GR_FAIL(GR_EDATA, "%s: damaged", file);
    const char* line = text;
    for (int i = 0; i < GR_COUNT(files); i++) {
        char name[64];
        uint64_t hash = 0;
        int64_t bytes = 0;
        int used = 0;
        bool listed =
            sscanf(line, "%" SCNx64 " %" SCNd64 " %63s\n%n", &hash, &bytes, name, &used) == 3;
        if (!listed && i == ALWAYS) break;
        if (!listed || strcmp(name, files[i]) != 0) {
            return GR_FAIL(GR_EDATA, "%s: no line for %s", file, files[i]);
        }
        GR_TRY(check_file(folder, name, hash, bytes));
        line += used;
    }
    return GR_OK;
}

static bool marked(const char* folder)
{
    path file;
    (void)snprintf(file, sizeof file, "%.*s/%s", PATH_BYTES - 16, folder, marker);
    return gr_exists(file);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The step of a folder called by digits alone, else -1. */
static int64_t step_of(const char* name)
{
    size_t n = strspn(name, "0123456789");
    return n > 0 && n < 18 && name[n] == 0 ? strtoll(name, NULL, 10) : -1;
}

static void name_of(char out[64], const char* label, int64_t step)
{
    bool by_step = label == NULL || step_of(label) >= 0;
    if (by_step)
        (void)snprintf(out, 64, "%06" PRId64, label != NULL ? step_of(label) : step);
    else
        (void)snprintf(out, 64, "%s", label);
}

/* Steps of the checkpoints in `folder`, newest first; the caller frees them. */
static int list_steps(const char* folder, bool with_unmarked, int64_t** step)
{
    int64_t n = 0, cap = 0;
    *step = NULL;
    DIR* dir = opendir(folder);
    if (dir == NULL) return 0;
    for (const struct dirent* e; (e = readdir(dir)) != NULL;) {
        path sub;
        int64_t s = step_of(e->d_name);
        if (s < 0 || snprintf(sub, sizeof sub, "%s/%s", folder, e->d_name) >= PATH_BYTES) continue;
        if (!with_unmarked && !marked(sub)) continue;
        GR_RESERVE(*step, cap, n + 1);
        int64_t at = n++;
        for (; at > 0 && (*step)[at - 1] < s; at--) (*step)[at] = (*step)[at - 1];
        (*step)[at] = s;
    }
    (void)closedir(dir);
    return (int)n;
}

/* ---- save ------------------------------------------------------------------------------------ */

/* Both moments as the tensors of one file; the caller frees the list. */
static gr_safetensors_entry* list_moments(const gr_weights* w, const gr_optimizer* o, int* n)
{
    int half = gr_weights_entries(w, o->m, "m.", NULL);
    gr_safetensors_entry* entry = malloc(2 * (size_t)half * sizeof *entry);
    GR_ASSERT(entry != NULL, "out of memory");
    gr_weights_entries(w, o->m, "m.", entry);
    gr_weights_entries(w, o->v, "v.", entry + half);
    *n = 2 * half;
    return entry;
}

static gr_status save_moments(const gr_weights* w, const gr_optimizer* o, const char* file)
{
    int n = 0;
    gr_safetensors_entry* entry = list_moments(w, o, &n);
    gr_status st = gr_safetensors_write(file, w->dev, entry, n, GR_FILE_ACC);
    free(entry);
    return st;
}

static gr_status write_model(const char* folder, const gr_weights* w, const gr_optimizer* o,
                             const char* name, const char* moments)
{
    path file;
    GR_TRY(join(file, folder, name));
    GR_TRY(gr_weights_save(w, file));
    GR_TRY(gr_sync(file));
    GR_TRY(join(file, folder, moments));
    GR_TRY(save_moments(w, o, file));
    return gr_sync(file);
}

static gr_status write_files(const char* folder, const gr_train_state* s, const gr_weights* w,
                             const gr_optimizer* o, const gr_optimizer* critic)
{
    GR_TRY(gr_make_folders(folder));
    GR_TRY(write_model(folder, w, o, model_file, optimizer_file));
    if (critic != NULL) {
        GR_TRY(write_model(folder, critic->w, critic, value_file, value_optimizer_file));
    }
    GR_TRY(gr_model_config_save(folder, &w->config));
    GR_TRY(gr_state_save(folder, s, o->step, critic != NULL ? critic->step : 0));
    return gr_sync(folder);
}

/* The folder of `name` becomes the one written aside; what it was stays readable until the end. */
static gr_status put_in_place(const char* parent, const char* name, const char* aside,
                              const char* old)
{
    path place;
    GR_TRY(join(place, parent, name));
    if (marked(place)) {
        GR_TRY(gr_remove_folder(old, marker));
        GR_TRY(gr_rename(place, old));
    } else {
        GR_TRY(gr_remove_folder(place, NULL));
    }
    GR_TRY(gr_rename(aside, place));
    GR_TRY(gr_sync(parent));
    return write_marker(place);
}

/* Removes all but the `keep` newest checkpoints up to `step`. Those of later steps belong to a future that
 * did not happen; those without a marker were being written, or removed, when a process ended. */
static gr_status prune(const char* parent, int64_t step, int keep)
{
    int64_t* all = NULL;
    gr_status st = GR_OK;
    int n = list_steps(parent, true, &all), kept = 0;
    for (int i = 0; i < n && st == GR_OK; i++) {
        path folder;
        char name[64];
        name_of(name, NULL, all[i]);
        GR_GOTO(st, join(folder, parent, name), out);
        bool whole = all[i] <= step && marked(folder);
        if (whole && (keep == 0 || kept++ < keep)) continue;
        st = gr_remove_folder(folder, marker);
    }
out:
    free(all);
    return st;
}

/* Removes what earlier attempts left aside. Called when no save is under way. */
static gr_status sweep(const char* parent)
{
    gr_status st = GR_OK;
    DIR* dir = opendir(parent);
    for (const struct dirent* e; st == GR_OK && dir != NULL && (e = readdir(dir)) != NULL;) {
        path place, hidden;
        char name[64];
        int n = 0;
        const char* dot = strrchr(e->d_name, '.');
        if (e->d_name[0] != '.' || dot == e->d_name) continue;
        bool part = strcmp(dot, ".part") == 0, old = strcmp(dot, ".old") == 0;
        n = (int)(dot - e->d_name) - 1;
        if ((!part && !old) || n <= 0 || n >= (int)sizeof name) continue;
        (void)snprintf(name, sizeof name, "%.*s", n, e->d_name + 1);
        GR_GOTO(st, join(place, parent, name), out);
        GR_GOTO(st, join(hidden, parent, e->d_name), out);
        if (part || marked(place)) st = gr_remove_folder(hidden, marker);
    }
out:
    if (dir != NULL) (void)closedir(dir);
    return st;
}

gr_status gr_checkpoint_save(const char* run_dir, const gr_train_state* s, const gr_weights* w,
                             const gr_optimizer* o, const gr_optimizer* critic, const char* label,
                             int keep)
{
    path parent, aside, old;
    char name[64], hidden[80];
    name_of(name, label, s->step);
    GR_TRY(join(parent, run_dir, "checkpoints"));
    (void)snprintf(hidden, sizeof hidden, ".%s.part", name);
    GR_TRY(join(aside, parent, hidden));
    (void)snprintf(hidden, sizeof hidden, ".%s.old", name);
    GR_TRY(join(old, parent, hidden));
    GR_TRY(gr_make_folders(parent));
    GR_TRY(gr_remove_folder(aside, NULL));
    gr_status st = write_files(aside, s, w, o, critic);
    if (st != GR_OK) { /* gives its space back: the disk may be full */
        char reason[1024];
        (void)snprintf(reason, sizeof reason, "%s", gr_last_error_text());
        gr_status removed = gr_remove_folder(aside, NULL);
        (void)removed;
        return GR_FAIL(st, "%s", reason);
    }
    GR_TRY(put_in_place(parent, name, aside, old));
    /* The checkpoint stands; what cannot be removed now is tried again the next time. */
    st = sweep(parent);
    if (st == GR_OK && label == NULL) st = prune(parent, s->step, keep);
    if (st != GR_OK) gr_log("warning: %s", gr_last_error_text());
    return GR_OK;
}

gr_status gr_checkpoint_forget(const char* run_dir, int64_t after)
{
    path parent;
    GR_TRY(join(parent, run_dir, "checkpoints"));
    return prune(parent, after, 0);
}

/* ---- find ------------------------------------------------------------------------------------ */

/* The folder `name` if its files are what was written, else "". */
static void find_sound(const char* parent, const char* name, path out)
{
    out[0] = 0;
    path folder;
    if (snprintf(folder, sizeof folder, "%s/%s", parent, name) >= PATH_BYTES || !marked(folder)) {
        return;
    }
    if (verify(folder) == GR_OK)
        memcpy(out, folder, sizeof folder);
    else
        gr_log("warning: checkpoint passed over: %s", gr_last_error_text());
}

gr_status gr_checkpoint_find(const char* run_dir, const char* label, char* out, size_t cap)
{
    path parent, found = "";
    char name[64], hidden[80];
    int64_t* step = NULL;
    out[0] = 0;
    GR_TRY(join(parent, run_dir, "checkpoints"));
    int n = label == NULL ? list_steps(parent, false, &step) : 1;
    for (int i = 0; i < n && found[0] == 0; i++) {
        name_of(name, label, label == NULL ? step[i] : -1);
        find_sound(parent, name, found);
    }
    free(step);
    if (label != NULL && found[0] == 0) { /* a crash came while it was being replaced */
        (void)snprintf(hidden, sizeof hidden, ".%s.old", name);
        find_sound(parent, hidden, found);
    }
    if (strlen(found) >= cap) return GR_FAIL(GR_EARG, "%s: path too long", found);
    (void)snprintf(out, cap, "%s", found);
    return GR_OK;
}

bool gr_checkpoint_any(const char* run_dir)
{
    path parent;
    int64_t* step = NULL;
    (void)snprintf(parent, sizeof parent, "%.*s/checkpoints", PATH_BYTES - 16, run_dir);
    int n = list_steps(parent, false, &step);
    free(step);
    return n > 0;
}

/* ---- load ------------------------------------------------------------------------------------ */

static gr_status load_moments(const gr_weights* w, gr_optimizer* o, const char* folder,
                              const char* name)
{
    path file;
    int n = 0;
    GR_TRY(join(file, folder, name));
    gr_safetensors_entry* entry = list_moments(w, o, &n);
    gr_status st = gr_safetensors_read(&(const char*){file}, 1, w->dev, entry, n);
    free(entry);
    return st;
}

static void copy_masters(gr_weights* w, const void* from)
{
    double chunk[512];
    for (int i = 0; i < w->n_tensors; i++) {
        int64_t begin = w->tensor[i].offset;
        int64_t end = begin + (int64_t)w->tensor[i].rows * w->tensor[i].cols;
        for (int64_t k = begin; k < end; k += GR_COUNT(chunk)) {
            size_t bytes = (size_t)GR_MIN(GR_COUNT(chunk), end - k) * w->dev->acc_bytes;
            gr_dev_read(w->dev, chunk, gr_acc_at(w->dev, from, k), bytes);
            gr_dev_write(w->dev, gr_acc_at(w->dev, w->master, k), chunk, bytes);
        }
    }
}

/* Masters of w into the buffer of o's gradient. */
static gr_status load_aside(const gr_weights* w, gr_optimizer* o, const char* folder,
                            const char* name)
{
    path file;
    GR_TRY(join(file, folder, name));
    int n = gr_weights_entries(w, o->grad, "", NULL);
    gr_safetensors_entry* entry = malloc((size_t)n * sizeof *entry);
    GR_ASSERT(entry != NULL, "out of memory");
    gr_weights_entries(w, o->grad, "", entry);
    gr_status st = gr_safetensors_read(&(const char*){file}, 1, w->dev, entry, n);
    free(entry);
    return st;
}

/* Weights wait in the gradients' buffers until the moments are read too, so that damage changes
 * neither. */
static gr_status load_tensors(gr_weights* w, gr_optimizer* o, gr_optimizer* critic,
                              const char* folder)
{
    if (o == NULL) return gr_folder_load(w, folder);
    GR_TRY(load_aside(w, o, folder, model_file));
    if (critic != NULL) GR_TRY(load_aside(critic->w, critic, folder, value_file));
    GR_TRY(load_moments(w, o, folder, optimizer_file));
    if (critic != NULL) {
        GR_TRY(load_moments(critic->w, critic, folder, value_optimizer_file));
        copy_masters(critic->w, critic->grad);
        gr_weights_publish(critic->w);
    }
    copy_masters(w, o->grad);
    gr_weights_publish(w);
    return gr_dev_sync(w->dev);
}

gr_status gr_checkpoint_load(const char* folder, gr_train_state* s, gr_weights* w, gr_optimizer* o,
                             gr_optimizer* critic)
{
    path state_file;
    gr_train_state state = {0};
    int64_t updates = 0, value_updates = 0;
    if (folder[0] == 0) return GR_FAIL(GR_EDATA, "no complete checkpoint is there to load");
    GR_TRY(join(state_file, folder, "state.json"));
    /* A model from elsewhere has neither state nor marker; weights are all that is asked of it. */
    bool foreign = !marked(folder) && !gr_exists(state_file);
    if (!foreign) GR_TRY(verify(folder));
    if (s != NULL || o != NULL) GR_TRY(gr_state_load(folder, &state, &updates, &value_updates));
    GR_TRY(load_tensors(w, o, critic, folder));
    if (s != NULL) *s = state;
    if (o != NULL) o->step = updates;
    if (critic != NULL) critic->step = value_updates;
    return GR_OK;
}
