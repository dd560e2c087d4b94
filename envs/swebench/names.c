#include "envs/swebench/names.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- names -------------------------------------------------------------------------------- */

char* gr_swe_copy(const char* text, size_t n)
{
    char* copy = malloc(n + 1);
    GR_ASSERT(copy != NULL, "out of memory");
    if (n > 0) memcpy(copy, text, n);
    copy[n] = 0;
    return copy;
}

/* The list has room for the next power of two, so no capacity is kept. */
void gr_swe_names_append(gr_swe_names* names, char* name)
{
    if ((names->n & (names->n - 1)) == 0) {
        size_t cap = names->n == 0 ? 1 : 2 * (size_t)names->n;
        char** grown = realloc(names->name, cap * sizeof *grown);
        GR_ASSERT(grown != NULL, "out of memory");
        names->name = grown;
    }
    names->name[names->n++] = name;
}

void gr_swe_names_add(gr_swe_names* names, const char* text, size_t n)
{
    char* name = gr_swe_copy(text, n);
    int low = 0, high = names->n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        int order = strcmp(name, names->name[middle]);
        if (order == 0) {
            free(name);
            return;
        }
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    gr_swe_names_append(names, name);
    memmove(names->name + low + 1, names->name + low, (size_t)(names->n - 1 - low) * sizeof(char*));
    names->name[low] = name;
}

void gr_swe_names_free(gr_swe_names* names)
{
    for (int i = 0; i < names->n; i++) free(names->name[i]);
    free(names->name);
    *names = (gr_swe_names){0};
}

/* ---- paths of a patch --------------------------------------------------------------------- */

/* Relative, inside the tree, and nothing that git keeps for itself. */
bool gr_swe_is_tree_path(const char* path, size_t n)
{
    if (n == 0 || path[0] == '/') return false;
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && path[end] != '/') end++;
        size_t length = end - i;
        if (length == 0 || (length == 1 && path[i] == '.')) return false;
        if (length == 2 && path[i] == '.' && path[i + 1] == '.') return false;
        if (length == 4 && strncasecmp(path + i, ".git", 4) == 0) return false;
        i = end + 1;
    }
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)path[i] < ' ') return false;
    }
    return path[n - 1] != '/';
}

/* Adds the path after "--- " or "+++ ", "rename from " and so on, without a/ or b/ where git
 * writes it. */
static gr_status add_path(gr_swe_names* out, const char* path, size_t n, bool prefixed)
{
    const char* tab = memchr(path, '\t', n); /* a time stamp follows */
    if (tab != NULL) n = (size_t)(tab - path);
    while (n > 0 && (path[n - 1] == '\r' || path[n - 1] == ' ')) n--;
    if (n == 9 && memcmp(path, "/dev/null", 9) == 0) return GR_OK;
    if (prefixed) {
        if (n < 3 || path[1] != '/' || (path[0] != 'a' && path[0] != 'b')) {
            return GR_FAIL(GR_EDATA, "`%.*s` has no a/ or b/ before it", (int)GR_MIN(n, 100), path);
        }
        path += 2, n -= 2;
    }
    if (!gr_swe_is_tree_path(path, n)) {
        return GR_FAIL(GR_EDATA, "`%.*s` is no path inside the tree", (int)GR_MIN(n, 100), path);
    }
    gr_swe_names_add(out, path, n);
    return GR_OK;
}

/* Lines of the hunk that a header "@@ -a,b +c,d @@" announces; old and new are what is still to
 * come. */
static bool hunk_size(const char* line, long* old, long* new)
{
    char* end = NULL;
    if (strncmp(line, "@@ -", 4) != 0) return false;
    (void)strtol(line + 4, &end, 10);
    *old = *end == ',' ? strtol(end + 1, &end, 10) : 1;
    if (strncmp(end, " +", 2) != 0) return false;
    (void)strtol(end + 2, &end, 10);
    *new = *end == ',' ? strtol(end + 1, &end, 10) : 1;
    return *old >= 0 && *new >= 0;
}

gr_status gr_swe_patch_files(const char* patch, gr_swe_names* out)
{
    static const struct {
        const char* mark;
        bool prefixed;
    } row[] = {{"--- ", true},        {"+++ ", true},        {"rename from ", false},
               {"rename to ", false}, {"copy from ", false}, {"copy to ", false}};
    long old = 0, new = 0;
    for (const char* line = patch; *line != 0;) {
        size_t n = strcspn(line, "\n");
        if (old > 0 || new > 0) { /* inside a hunk a removed "-- x" looks like a header */
            old -= line[0] != '+' && line[0] != '\\';
            new -= line[0] != '-' && line[0] != '\\';
        } else if (!hunk_size(line, &old, &new)) {
            for (int i = 0; i < GR_COUNT(row); i++) {
                size_t mark = strlen(row[i].mark);
                if (strncmp(line, row[i].mark, mark) != 0) continue;
                GR_TRY(add_path(out, line + mark, n - mark, row[i].prefixed));
            }
        }
        line += n + (line[n] == '\n');
    }
    return GR_OK;
}
