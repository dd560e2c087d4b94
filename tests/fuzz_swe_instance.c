/* Files of instances from any bytes: refused with one line, or everything in them is fit for
 * file names and commands. */
#include <stdlib.h>
#include <string.h>

#include "envs/swebench/instance.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n);

static void check(const gr_swe_instance* x)
{
    GR_ASSERT(x->id[0] != 0 && strpbrk(x->id, "/ \n'\"\\$`") == NULL);
    GR_ASSERT(strchr(x->repo, '/') != NULL && strstr(x->repo, "..") != x->repo);
    GR_ASSERT(strspn(x->base_commit, "0123456789abcdef") == strlen(x->base_commit));
    GR_ASSERT(x->fail_to_pass.n > 0 && x->test_files.n >= 0);
    for (int i = 0; i < x->test_files.n; i++) {
        const char* path = x->test_files.name[i];
        GR_ASSERT(path[0] != '/' && path[0] != 0 && strncmp(path, "../", 3) != 0);
        GR_ASSERT(strstr(path, "/../") == NULL && strncmp(path, ".git/", 5) != 0);
        GR_ASSERT(i == 0 || strcmp(x->test_files.name[i - 1], path) < 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n)
{
    gr_swe_set set = {0};
    char* text = malloc(n + 1); /* its own block, so that reading beyond it shows */
    GR_ASSERT(text != NULL);
    if (n > 0) memcpy(text, data, n);
    if (gr_swe_parse(&set, "fuzz", text, n) == GR_OK) {
        GR_ASSERT(set.n > 0);
        for (int64_t i = 0; i < set.n; i++) check(&set.instance[i]);
    } else {
        GR_ASSERT(set.n == 0 && gr_last_error_text()[0] != 0);
        GR_ASSERT(strchr(gr_last_error_text(), '\n') == NULL);
    }
    gr_swe_set_free(&set);
    free(text);
    return 0;
}
