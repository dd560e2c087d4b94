/* folder.c - one safetensors file, several and their index, or a GGUF file. */
#include "model/folder.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/json.h"
#include "model/gguf_weights.h"

#define PATH_BYTES 1024
#define MAX_SHARDS 1000

static const char single_file[] = "model.safetensors";
static const char index_file[] = "model.safetensors.index.json";

static gr_status join(char out[PATH_BYTES], const char* folder, const char* name)
{
    int n = snprintf(out, PATH_BYTES, "%s/%s", folder, name);
    if (n < PATH_BYTES) return GR_OK;
    return GR_FAIL(GR_EARG, "%.80s...: path of %d bytes", folder, n);
}

static gr_safetensors_entry* list_masters(const gr_weights* w, int* n)
{
    *n = gr_weights_entries(w, w->master, "", NULL);
    gr_safetensors_entry* entry = malloc((size_t)*n * sizeof *entry);
    GR_ASSERT(entry != NULL, "out of memory");
    gr_weights_entries(w, w->master, "", entry);
    return entry;
}

/* ---- loading --------------------------------------------------------------------------------- */

typedef struct shards {
    char (*path)[PATH_BYTES];
    const char* at[MAX_SHARDS]; /* into path */
    int n;
} shards;

/* Adds the file of one tensor unless it is listed. */
static gr_status add_shard(shards* s, const char* index, const char* folder, const cJSON* item)
{
    char path[PATH_BYTES];
    const char* name = cJSON_GetStringValue(item);
    if (name == NULL || name[0] == 0 || name[0] == '.' || strchr(name, '/') != NULL) {
        return GR_FAIL(GR_EDATA, "%s: tensor `%.96s`: no file of this folder is named", index,
                       item->string);
    }
    GR_TRY(join(path, folder, name));
    for (int i = 0; i < s->n; i++) {
        if (strcmp(s->path[i], path) == 0) return GR_OK;
    }
    if (s->n == MAX_SHARDS) return GR_FAIL(GR_EDATA, "%s: more than %d files", index, MAX_SHARDS);
    memcpy(s->path[s->n], path, sizeof path);
    s->at[s->n] = s->path[s->n];
    s->n++;
    return GR_OK;
}

static gr_status read_index(shards* s, const char* index, const char* folder)
{
    cJSON* root = NULL;
    GR_TRY(gr_json_read(index, &root));
    gr_status st = GR_OK;
    const cJSON *item = NULL, *map = cJSON_GetObjectItemCaseSensitive(root, "weight_map");
    cJSON_ArrayForEach(item, map)
    {
        if (item->string == NULL) continue; /* an array: nothing is found in it */
        GR_GOTO(st, add_shard(s, index, folder, item), out);
    }
    if (s->n == 0) st = GR_FAIL(GR_EDATA, "%s: `weight_map` names no file", index);
out:
    cJSON_Delete(root);
    return st;
}

static bool is_gguf(const char* name)
{
    size_t n = strlen(name);
    return n > 5 && strcmp(name + n - 5, ".gguf") == 0;
}

gr_status gr_folder_gguf(const char* path, char* out, size_t cap)
{
    char file[PATH_BYTES];
    struct stat info;
    out[0] = 0;
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode)) {
        if (snprintf(out, cap, "%s", path) < (int)cap) return GR_OK;
        return GR_FAIL(GR_EARG, "%.80s...: the path is too long", path);
    }
    GR_TRY(join(file, path, "config.json"));
    DIR* dir = access(file, F_OK) == 0 ? NULL : opendir(path);
    gr_status st = GR_OK;
    for (const struct dirent* e; dir != NULL && st == GR_OK && (e = readdir(dir)) != NULL;) {
        if (!is_gguf(e->d_name)) continue;
        if (out[0] != 0) {
            st = GR_FAIL(GR_EARG, "%s: several GGUF files; name one of them", path);
        } else if (snprintf(out, cap, "%s/%s", path, e->d_name) >= (int)cap) {
            st = GR_FAIL(GR_EARG, "%.80s...: the path is too long", path);
        }
    }
    if (dir != NULL) (void)closedir(dir);
    return st;
}

static gr_status load_gguf(gr_weights* w, const char* path)
{
    gr_gguf g;
    GR_TRY(gr_gguf_open(&g, path));
    gr_status st = gr_gguf_load(w, &g);
    gr_gguf_close(&g);
    return st;
}

gr_status gr_folder_load(gr_weights* w, const char* folder)
{
    char path[PATH_BYTES];
    GR_TRY(gr_folder_gguf(folder, path, sizeof path));
    if (path[0] != 0) return load_gguf(w, path);
    GR_TRY(join(path, folder, index_file));
    if (access(path, F_OK) != 0) {
        GR_TRY(join(path, folder, single_file));
        return gr_weights_load(w, path);
    }
    shards s = {.path = malloc(MAX_SHARDS * sizeof *s.path)};
    GR_ASSERT(s.path != NULL, "out of memory");
    gr_status st = read_index(&s, path, folder);
    if (st == GR_OK) {
        int n = 0;
        gr_safetensors_entry* entry = list_masters(w, &n);
        st = gr_safetensors_read(s.at, s.n, w->dev, entry, n);
        free(entry);
    }
    free(s.path);
    if (st == GR_OK) gr_weights_publish(w);
    return st;
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* Entries [first, returned) go into one file. */
static int shard_end(const gr_weights* w, const gr_safetensors_entry* entry, int n, int first,
                     gr_file_dtype dtype, int64_t shard_bytes)
{
    int64_t bytes = 0;
    int i = first;
    for (; i < n; i++) {
        if (entry[i].data == NULL) continue;
        int64_t more = gr_safetensors_bytes(w->dev, &entry[i], dtype);
        if (bytes > 0 && bytes + more > shard_bytes) break;
        bytes += more;
    }
    return i;
}

static gr_status write_index(const char* folder, cJSON* map, double total)
{
    char path[PATH_BYTES];
    cJSON* root = cJSON_CreateObject();
    cJSON_AddNumberToObject(cJSON_AddObjectToObject(root, "metadata"), "total_size", total);
    cJSON_AddItemToObject(root, "weight_map", map);
    char* text = cJSON_Print(root);
    GR_ASSERT(text != NULL, "out of memory");
    cJSON_Delete(root);
    gr_status st = join(path, folder, index_file);
    FILE* f = st == GR_OK ? fopen(path, "wb") : NULL;
    if (st == GR_OK && f == NULL) {
        st = GR_FAIL(GR_EIO, "%s: cannot create: %s", path, strerror(errno));
    }
    if (f != NULL) {
        bool bad = fputs(text, f) < 0;
        if (fclose(f) != 0 || bad) {
            st = GR_FAIL(GR_EIO, "%s: cannot write: %s", path, strerror(errno));
        }
    }
    free(text);
    return st;
}

static gr_status save_shards(const gr_weights* w, const char* folder,
                             const gr_safetensors_entry* entry, int n, gr_file_dtype dtype,
                             int64_t shard_bytes)
{
    int n_shards = 0;
    for (int i = 0; i < n; n_shards++) i = shard_end(w, entry, n, i, dtype, shard_bytes);
    char path[PATH_BYTES], name[64];
    if (n_shards == 1) {
        GR_TRY(join(path, folder, single_file));
        return gr_safetensors_write(path, w->dev, entry, n, dtype);
    }
    cJSON* map = cJSON_CreateObject();
    double total = 0;
    gr_status st = GR_OK;
    for (int i = 0, end, k = 1; i < n; i = end, k++) {
        end = shard_end(w, entry, n, i, dtype, shard_bytes);
        (void)snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", k, n_shards);
        for (int j = i; j < end; j++) {
            if (entry[j].data == NULL) continue;
            cJSON_AddStringToObject(map, entry[j].name, name);
            total += (double)gr_safetensors_bytes(w->dev, &entry[j], dtype);
        }
        GR_GOTO(st, join(path, folder, name), out);
        GR_GOTO(st, gr_safetensors_write(path, w->dev, entry + i, end - i, dtype), out);
    }
    return write_index(folder, map, total);
out:
    cJSON_Delete(map);
    return st;
}

gr_status gr_folder_save(const gr_weights* w, const char* folder, gr_file_dtype dtype,
                         int64_t shard_bytes)
{
    int n = 0;
    gr_safetensors_entry* entry = list_masters(w, &n);
    gr_status st = save_shards(w, folder, entry, n, dtype, shard_bytes);
    free(entry);
    return st;
}
