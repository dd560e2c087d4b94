#include "envs/swebench/instance.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "host/arena.h"
#include "host/json.h"

#define FILE_MAX  ((size_t)512 << 20)
#define WHERE_MAX 512

/* ---- fields ------------------------------------------------------------------------------- */

/* Text of a field; "" where it is missing or null, which many published files use for "none". */
static gr_status take_text(const cJSON* o, const char* key, bool needed, const char* where,
                           char** out)
{
    const cJSON* v = cJSON_GetObjectItemCaseSensitive(o, key);
    if (v == NULL || cJSON_IsNull(v)) {
        if (needed) return GR_FAIL(GR_EDATA, "%s: %s: is missing", where, key);
        *out = gr_swe_copy("", 0);
        return GR_OK;
    }
    if (!cJSON_IsString(v)) return GR_FAIL(GR_EDATA, "%s: %s: is no text", where, key);
    if (needed && v->valuestring[0] == 0) return GR_FAIL(GR_EDATA, "%s: %s: is empty", where, key);
    *out = gr_swe_copy(v->valuestring, strlen(v->valuestring));
    return GR_OK;
}

static gr_status take_list(const cJSON* list, const char* key, const char* where, gr_swe_names* out)
{
    const cJSON* item;
    if (!cJSON_IsArray(list)) return GR_FAIL(GR_EDATA, "%s: %s: is no list of tests", where, key);
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsString(item) || item->valuestring[0] == 0) {
            return GR_FAIL(GR_EDATA, "%s: %s: element %d is no name of a test", where, key, out->n);
        }
        gr_swe_names_append(out, gr_swe_copy(item->valuestring, strlen(item->valuestring)));
    }
    return GR_OK;
}

/* A list, or a list written as JSON inside a text; missing or "" is an empty list. */
static gr_status take_tests(const cJSON* o, const char* key, const char* where, gr_swe_names* out)
{
    const cJSON* v = cJSON_GetObjectItemCaseSensitive(o, key);
    if (v == NULL || cJSON_IsNull(v)) return GR_OK;
    if (!cJSON_IsString(v)) return take_list(v, key, where, out);
    if (v->valuestring[0] == 0) return GR_OK;
    const char* end = NULL;
    cJSON* list = gr_json_parse(v->valuestring, strlen(v->valuestring), &end);
    gr_status st = take_list(list, key, where, out);
    if (st == GR_OK && end[strspn(end, " \t\r\n")] != 0) {
        st = GR_FAIL(GR_EDATA, "%s: %s: something follows the list", where, key);
    }
    cJSON_Delete(list);
    return st;
}

static bool is_name(const char* s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return n > 0 && n <= 200 && s[n] == 0 && s[0] != '.' && s[0] != '-';
}

static bool is_repo(const char* s)
{
    const char* slash = strchr(s, '/');
    char owner[256];
    if (slash == NULL || slash - s > 200) return false;
    memcpy(owner, s, (size_t)(slash - s));
    owner[slash - s] = 0;
    return is_name(owner) && is_name(slash + 1);
}

static bool is_commit(const char* s)
{
    size_t n = strspn(s, "0123456789abcdef");
    return s[n] == 0 && (n == 40 || n == 64);
}

/* SWE-smith names its mirrors "swesmith/owner__name.commit": the bug is put upon that commit of
 * owner/name. */
static bool take_smith_repo(gr_swe_instance* x)
{
    const char* at = strchr(x->repo, '/');
    const char* split = at == NULL ? NULL : strstr(at, "__");
    const char* dot = at == NULL ? NULL : strrchr(at, '.');
    if (split == NULL || dot == NULL || dot < split) return false;
    char* repo = gr_swe_copy(at + 1, (size_t)(dot - at - 1));
    char* commit = gr_swe_copy(dot + 1, strlen(dot + 1));
    size_t owner = (size_t)(split - at - 1);
    repo[owner] = '/';
    memmove(repo + owner + 1, repo + owner + 2, strlen(repo + owner + 2) + 1);
    free(x->repo);
    free(x->base_commit);
    x->repo = repo;
    x->base_commit = commit;
    size_t n = strspn(commit, "0123456789abcdef");
    return commit[n] == 0 && n >= 7;
}

static bool is_image(const char* s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:@");
    return s[n] == 0 && n <= 500 && s[0] != '-';
}

static gr_status check_names(gr_swe_instance* x, const char* where)
{
    bool smith = strncmp(x->repo, "swesmith/", 9) == 0;
    if (!is_name(x->id)) {
        return GR_FAIL(GR_EDATA, "%s: instance_id: only letters, digits and ._-, as it names files",
                       where);
    }
    if (!is_image(x->image)) return GR_FAIL(GR_EDATA, "%s: image: not the name of one", where);
    if (smith) {
        if (!take_smith_repo(x) || !is_repo(x->repo)) {
            return GR_FAIL(GR_EDATA, "%s: repo: not swesmith/owner__name.commit", where);
        }
        x->gold_reversed = true;
        return GR_OK;
    }
    if (!is_repo(x->repo)) return GR_FAIL(GR_EDATA, "%s: repo: not owner/name", where);
    if (x->tree[0] == 0 && !is_commit(x->base_commit)) {
        return GR_FAIL(GR_EDATA, "%s: base_commit: not 40 or 64 hexadecimal digits", where);
    }
    return GR_OK;
}

/* The files that the judge owns: those of the test patch; without one those that the ids of
 * tests name. */
static gr_status find_test_files(gr_swe_instance* x, const char* where)
{
    if (x->test_patch[0] != 0) {
        gr_status st = gr_swe_patch_files(x->test_patch, &x->test_files);
        if (st != GR_OK) return GR_FAIL(st, "%s: test_patch: %s", where, gr_last_error_text());
        return GR_OK;
    }
    const gr_swe_names* list[] = {&x->fail_to_pass, &x->pass_to_pass};
    for (int i = 0; i < GR_COUNT(list); i++) {
        for (int k = 0; k < list[i]->n; k++) {
            const char* name = list[i]->name[k];
            const char* end = strstr(name, "::");
            size_t n = end == NULL ? strlen(name) : (size_t)(end - name);
            if (!gr_swe_is_tree_path(name, n)) {
                return GR_FAIL(GR_EDATA,
                               "%s: `%.*s` is a test of no file, and there is no test_patch", where,
                               (int)GR_MIN(strcspn(name, "\r\n"), 100), name);
            }
            gr_swe_names_add(&x->test_files, name, n);
        }
    }
    return GR_OK;
}

static gr_status take_fields(const cJSON* o, const char* where, gr_swe_instance* x)
{
    const struct {
        const char* key;
        bool needed;
        char** out;
    } row[] = {
        {"instance_id", true, &x->id},
        {"repo", true, &x->repo},
        {"base_commit", false, &x->base_commit},
        {"version", false, &x->version},
        {"problem_statement", false, &x->problem},
        {"patch", true, &x->gold},
        {"test_patch", false, &x->test_patch},
        {"log_parser", false, &x->log_parser},
        {"test_cmd", false, &x->test_command},
        {"eval_script", false, &x->eval_script},
        {"image", false, &x->image},
    };
    for (int i = 0; i < GR_COUNT(row); i++) {
        if (*row[i].out == NULL) GR_TRY(take_text(o, row[i].key, row[i].needed, where, row[i].out));
    }
    if (x->tree == NULL) x->tree = gr_swe_copy("", 0);
    GR_TRY(take_tests(o, "FAIL_TO_PASS", where, &x->fail_to_pass));
    GR_TRY(take_tests(o, "PASS_TO_PASS", where, &x->pass_to_pass));
    GR_TRY(check_names(x, where));
    if (x->fail_to_pass.n == 0) return GR_FAIL(GR_EDATA, "%s: FAIL_TO_PASS: names no test", where);
    return find_test_files(x, where);
}

static void free_instance(gr_swe_instance* x)
{
    char* text[] = {x->id,           x->repo,        x->base_commit, x->version,
                    x->problem,      x->gold,        x->test_patch,  x->log_parser,
                    x->test_command, x->eval_script, x->image,       x->tree};
    for (int i = 0; i < GR_COUNT(text); i++) free(text[i]);
    gr_swe_names_free(&x->fail_to_pass);
    gr_swe_names_free(&x->pass_to_pass);
    gr_swe_names_free(&x->test_files);
    *x = (gr_swe_instance){0};
}

/* Takes *x over, also on failure. */
static gr_status add_instance(gr_swe_set* set, const cJSON* o, const char* where,
                              gr_swe_instance* x)
{
    gr_status st = cJSON_IsObject(o) ? take_fields(o, where, x)
                                     : GR_FAIL(GR_EDATA, "%s: not a JSON object", where);
    if (st != GR_OK) {
        free_instance(x);
        return st;
    }
    GR_RESERVE(set->instance, set->cap, set->n + 1);
    set->instance[set->n++] = *x;
    return GR_OK;
}

void gr_swe_set_free(gr_swe_set* set)
{
    for (int64_t i = 0; i < set->n; i++) free_instance(&set->instance[i]);
    free(set->instance);
    *set = (gr_swe_set){0};
}

static int by_text(const void* a, const void* b)
{
    return strcmp(*(const char* const*)a, *(const char* const*)b);
}

static gr_status check_unique(const gr_swe_set* set, const char* name)
{
    gr_status st = GR_OK;
    const char** id = malloc((size_t)set->n * sizeof *id);
    GR_ASSERT(id != NULL, "out of memory");
    for (int64_t i = 0; i < set->n; i++) id[i] = set->instance[i].id;
    qsort(id, (size_t)set->n, sizeof *id, by_text);
    for (int64_t i = 1; i < set->n && st == GR_OK; i++) {
        if (strcmp(id[i - 1], id[i]) != 0) continue;
        st = GR_FAIL(GR_EDATA, "%s: instance_id: `%s` is there twice", name, id[i]);
    }
    free(id);
    return st;
}

/* What `st` makes of the instances that were added behind the first n. */
static gr_status settle(gr_swe_set* set, int64_t n, gr_status st, const char* name)
{
    if (st == GR_OK && set->n == n) st = GR_FAIL(GR_EDATA, "%s: holds no instance", name);
    if (st == GR_OK) st = check_unique(set, name);
    while (st != GR_OK && set->n > n) free_instance(&set->instance[--set->n]);
    return st;
}

/* ---- files -------------------------------------------------------------------------------- */

static gr_status parse_array(gr_swe_set* set, const char* name, const char* text, size_t n)
{
    char where[WHERE_MAX];
    const char* end = NULL;
    cJSON* list = gr_json_parse(text, n, &end);
    gr_status st = cJSON_IsArray(list) ? GR_OK : GR_FAIL(GR_EDATA, "%s: not JSON", name);
    while (st == GR_OK && end < text + n && *end != 0) {
        if (!isspace((unsigned char)*end++)) {
            st = GR_FAIL(GR_EDATA, "%s: something follows the list", name);
        }
    }
    const cJSON* item = st == GR_OK ? list->child : NULL;
    for (int i = 0; st == GR_OK && item != NULL; item = item->next, i++) {
        gr_swe_instance x = {0};
        (void)snprintf(where, sizeof where, "%s: element %d", name, i);
        st = add_instance(set, item, where, &x);
    }
    cJSON_Delete(list);
    return st;
}

static gr_status parse_lines(gr_swe_set* set, const char* name, const char* text, size_t n)
{
    char where[WHERE_MAX];
    int64_t line = 1;
    for (size_t at = 0; at < n; line++) {
        const char* end = memchr(text + at, '\n', n - at);
        size_t length = end == NULL ? n - at : (size_t)(end - text) - at;
        size_t blank = 0;
        while (blank < length && isspace((unsigned char)text[at + blank])) blank++;
        if (blank < length) {
            gr_swe_instance x = {0};
            (void)snprintf(where, sizeof where, "%s:%lld", name, (long long)line);
            cJSON* o = gr_json_parse(text + at, length, NULL);
            gr_status st = add_instance(set, o, where, &x);
            cJSON_Delete(o);
            GR_TRY(st);
        }
        at += length + 1;
    }
    return GR_OK;
}

gr_status gr_swe_parse(gr_swe_set* set, const char* name, const char* text, size_t n)
{
    int64_t before = set->n;
    size_t i = 0;
    while (i < n && isspace((unsigned char)text[i])) i++;
    gr_status st =
        i < n && text[i] == '[' ? parse_array(set, name, text, n) : parse_lines(set, name, text, n);
    return settle(set, before, st, name);
}

/* The whole file, with a terminator behind it. The caller frees *text. */
static gr_status read_file(const char* path, char** text, size_t* n)
{
    struct stat info;
    FILE* f = fopen(path, "rbe");
    if (f == NULL) return GR_FAIL(GR_EIO, "%s: cannot open: %s", path, strerror(errno));
    gr_status st = GR_OK;
    if (fstat(fileno(f), &info) != 0 || !S_ISREG(info.st_mode)) {
        st = GR_FAIL(GR_EIO, "%s: not a regular file", path);
    } else if ((size_t)info.st_size > FILE_MAX) {
        st = GR_FAIL(GR_EDATA, "%s: %lld bytes, at most %zu are read", path,
                     (long long)info.st_size, FILE_MAX);
    } else {
        *n = (size_t)info.st_size;
        *text = malloc(*n + 1);
        GR_ASSERT(*text != NULL, "out of memory");
        (*text)[*n] = 0;
        if (fread(*text, 1, *n, f) != *n) st = GR_FAIL(GR_EIO, "%s: cannot read", path);
    }
    (void)fclose(f);
    if (st != GR_OK) {
        free(*text);
        *text = NULL;
    }
    return st;
}

/* ---- folders of tasks: FOLDER/TASK/{instance.json, problem.md, gold.patch, test.patch, repo/}  */

static gr_status read_part(const char* folder, const char* name, char** text)
{
    char path[4200];
    size_t n = 0;
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return read_file(path, text, &n);
}

static gr_status read_task(gr_swe_set* set, const char* folder)
{
    char path[4200];
    gr_swe_instance x = {0};
    cJSON* o = NULL;
    gr_status st = GR_OK;
    GR_GOTO(st, read_part(folder, "problem.md", &x.problem), out);
    GR_GOTO(st, read_part(folder, "gold.patch", &x.gold), out);
    GR_GOTO(st, read_part(folder, "test.patch", &x.test_patch), out);
    (void)snprintf(path, sizeof path, "%s/repo", folder);
    x.tree = gr_swe_copy(path, strlen(path));
    (void)snprintf(path, sizeof path, "%s/instance.json", folder);
    GR_GOTO(st, gr_json_read(path, &o), out);
    st = add_instance(set, o, path, &x);
    cJSON_Delete(o);
    return st;
out:
    free_instance(&x);
    return st;
}

static int is_task(const struct dirent* d) { return d->d_name[0] != '.'; }

static gr_status read_folder(gr_swe_set* set, const char* path)
{
    char task[4100];
    struct stat info;
    struct dirent** entry = NULL;
    gr_status st = GR_OK;
    int64_t before = set->n;
    int n = scandir(path, &entry, is_task, alphasort);
    if (n < 0) return GR_FAIL(GR_EIO, "%s: cannot list: %s", path, strerror(errno));
    for (int i = 0; i < n; i++) {
        (void)snprintf(task, sizeof task, "%.3800s/%s", path, entry[i]->d_name);
        if (st == GR_OK && stat(task, &info) == 0 && S_ISDIR(info.st_mode))
            st = read_task(set, task);
        free(entry[i]);
    }
    free(entry);
    return settle(set, before, st, path);
}

gr_status gr_swe_read(gr_swe_set* set, const char* path)
{
    struct stat info;
    char* text = NULL;
    size_t n = 0;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return read_folder(set, path);
    GR_TRY(read_file(path, &text, &n));
    gr_status st = gr_swe_parse(set, path, text, n);
    free(text);
    return st;
}
