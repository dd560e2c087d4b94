/* Real instances: the gold patch resolves them, a useless one does not. Skipped (status 77) without
 *   GROVE_SWE_INSTANCES=FILE GROVE_SWE_MIRRORS=FOLDER [GROVE_SWE_SETUP='shell lines']
 *   [GROVE_SWE_ONLY=part of an id] [GROVE_SWE_READ='folders that sandboxes may read']
 * Prints one row per instance; fails only where a useless patch resolves one, because which gold
 * patches do depends on the Python that is there. bench/swe_gold.py runs it in an environment made
 * for each instance. */
#include "tests/swe.h"

#define SKIPPED 77 /* what ctest knows it by */

static const char useless[] = "diff --git a/grove_note b/grove_note\nnew file mode 100644\n"
                              "--- /dev/null\n+++ b/grove_note\n@@ -0,0 +1 @@\n+nothing\n";

static const char* of(const char* variable, const char* otherwise)
{
    const char* value = getenv(variable);
    return value == NULL ? otherwise : value;
}

static gr_swe_grade grade(const gr_swe_instance* x, const char* tree, const char* patch, char** log)
{
    gr_swe_grade g;
    char folders[4096], *rest = NULL;
    const char* read[9] = {NULL};
    (void)snprintf(folders, sizeof folders, "%s", of("GROVE_SWE_READ", ""));
    char* at = strtok_r(folders, " ", &rest);
    for (int i = 0; at != NULL && i + 1 < GR_COUNT(read); i++, at = strtok_r(NULL, " ", &rest)) {
        read[i] = at;
    }
    gr_swe_judging j = {.instance = x,
                        .tree = gr_swe_tree_view(GR_SWE_SANDBOX, tree, read),
                        .setup = of("GROVE_SWE_SETUP", ""),
                        .time_s = 1800}; /* as the official harness */
    gr_swe_grade_now(box, 1, &j, patch, &g, log);
    return g;
}

static int row(const gr_swe_instance* x)
{
    static const char* const resolution[] = {"no", "partly", "yes"};
    char tree[4096], *log = NULL;
    const gr_swe_sources from = {
        .mirrors = of("GROVE_SWE_MIRRORS", ""), .cache = scratch, .fetch_s = 1800};
    if (gr_swe_tree(x, &from, tree) != GR_OK) {
        printf("| %s | not run: %s |\n", x->id, gr_last_error_text());
        return 0;
    }
    gr_swe_grade gold = grade(x, tree, x->gold, &log), none = grade(x, tree, useless, NULL);
    printf("| %s | %s | %d/%d | %d/%d | %s | %d/%d | %s |\n", x->id,
           resolution[gold.verdict.resolution], gold.verdict.f2p_passed, x->fail_to_pass.n,
           gold.verdict.p2p_passed, x->pass_to_pass.n, resolution[none.verdict.resolution],
           none.verdict.f2p_passed, x->fail_to_pass.n, gr_swe_outcome_name(gold.outcome));
    if (gold.verdict.resolution != GR_SWE_FULL && getenv("GROVE_SWE_LOG") != NULL) puts(log);
    fflush(stdout);
    free(log);
    remove_all(tree);
    return none.verdict.resolution == GR_SWE_FULL;
}

/* How many instances a useless patch resolves. */
static int rows(const gr_swe_set* set)
{
    int wrong = 0;
    puts("| instance | gold resolves | F2P | P2P | useless patch resolves | F2P | outcome |\n"
         "|---|---|---|---|---|---|---|");
    for (int64_t i = 0; i < set->n; i++) {
        const gr_swe_instance* x = &set->instance[i];
        if (strstr(x->id, of("GROVE_SWE_ONLY", "")) == NULL) continue;
        if (gr_swe_check(x) == GR_OK)
            wrong += row(x);
        else
            printf("| %s | not run: %s |\n", x->id, gr_last_error_text());
    }
    return wrong;
}

int main(void)
{
    const char* path = getenv("GROVE_SWE_INSTANCES");
    gr_swe_set set = {0};
    if (path == NULL || getenv("GROVE_SWE_MIRRORS") == NULL) {
        puts("SKIPPED: GROVE_SWE_INSTANCES and GROVE_SWE_MIRRORS name no instances");
        return SKIPPED;
    }
    if (gr_swe_read(&set, path) != GR_OK) {
        fprintf(stderr, "%s\n", gr_last_error_text());
        return 1;
    }
    if (make_scratch(NULL) != 0) return 1;
    int status = SKIPPED;
    if (open_box()) {
        status = rows(&set) != 0;
        gr_sandbox_close(box);
        gr_sandbox_stop();
    }
    gr_swe_set_free(&set);
    (void)remove_scratch(NULL);
    return status;
}
