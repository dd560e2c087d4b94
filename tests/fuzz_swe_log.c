/* Logs from any bytes, by every parser: names are whole and found again, the judge holds. The
 * first byte chooses the parser and the exit status. */
#include <stdlib.h>
#include <string.h>

#include "envs/swebench/log_parser.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n)
{
    static const char* const name[] = {"pytest",  "pytest_options", "pytest_v2", "matplotlib",
                                       "seaborn", "sympy",          "django"};
    if (n == 0) return 0;
    const gr_swe_parser* p = gr_swe_parser_find(name[data[0] % GR_COUNT(name)]);
    GR_ASSERT(p != NULL);
    char* log = malloc(n); /* its own block, so that reading beyond it shows */
    GR_ASSERT(log != NULL);
    memcpy(log, data + 1, n - 1);
    gr_swe_results r = {0};
    p->parse(log, n - 1, &r);
    for (int64_t i = 0; i < r.n; i++) {
        GR_ASSERT(gr_swe_results_find(&r, r.result[i].name) == &r.result[i]);
        GR_ASSERT(strchr(r.result[i].name, '\n') == NULL);
    }
    gr_swe_results_free(&r);
    size_t n_cut = 0;
    const char* cut = gr_swe_log_cut(log, n - 1, &n_cut);
    GR_ASSERT(cut == NULL || (cut > log && cut + n_cut <= log + n - 1));
    bool proven = gr_swe_log_read(p, log, n - 1, data[0] / GR_COUNT(name) % 3, &r);
    GR_ASSERT(cut != NULL || !proven);
    gr_swe_results_free(&r);
    free(log);
    return 0;
}
