/* Traffic that can be counted by hand: what simt/count.cpp says about kernels of one warp. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "host/base.h"
#include "tests/simt/count.h"
#include "tests/simt/counted/counted.h"

#include <string.h>

enum { MOST = 64 };

/* Totals of a kind. */
static const struct expected {
    const char* kernel;
    simt_kind kind;
    int requests, bytes, unique_bytes, sectors, unique_sectors, wavefronts, ideal;
} expected[] = {
    /* 32 floats: 4 sectors */
    {"copy_floats", SIMT_LOAD, 1, 128, 128, 4, 4, 0, 0},
    {"copy_floats", SIMT_STORE, 1, 128, 128, 4, 4, 0, 0},
    {"copy_vectors", SIMT_LOAD, 1, 512, 512, 16, 16, 0, 0},
    {"copy_vectors", SIMT_STORE, 1, 512, 512, 16, 16, 0, 0},
    /* one float off: the last lane wants a fifth sector */
    {"shifted", SIMT_LOAD, 1, 128, 128, 5, 5, 0, 0},
    /* a sector for each float */
    {"column", SIMT_STORE, 1, 128, 128, 32, 32, 0, 0},
    {"one_for_all", SIMT_LOAD, 1, 128, 4, 1, 1, 0, 0},
    {"half_the_lanes", SIMT_STORE, 1, 64, 64, 4, 4, 0, 0},
    /* the same sectors again: moved twice, needed once */
    {"twice", SIMT_LOAD, 2, 256, 128, 8, 4, 0, 0},
    {"shared_rows", SIMT_SHARED_STORE, 1, 128, 0, 0, 0, 1, 1},
    {"shared_rows", SIMT_SHARED_LOAD, 1, 128, 0, 0, 0, 1, 1},
    /* 32 requests for a column: all lanes in one bank, or each in its own */
    {"columns_of_32", SIMT_SHARED_LOAD, 32, 4096, 0, 0, 0, 32 * 32, 32},
    {"columns_of_33", SIMT_SHARED_LOAD, 32, 4096, 0, 0, 0, 32, 32},
    {"shared_vectors", SIMT_SHARED_STORE, 1, 512, 0, 0, 0, 4, 4},
    {"shared_vectors", SIMT_SHARED_LOAD, 1, 128, 0, 0, 0, 1, 1},
    /* cp.async: 512 bytes in, 4 wavefronts to write them; ldmatrix of rows 64 bytes apart: 8 rows
     * of 4 banks each meet in 2 groups of 4 */
    {"product", SIMT_LOAD, 1, 512, 512, 16, 16, 0, 0},
    {"product", SIMT_SHARED_STORE, 1 + 24, 512 + 24 * 64, 0, 0, 0, 4 + 24, 4 + 24},
    {"product", SIMT_SHARED_LOAD, 1, 512, 0, 0, 0, 4 * 4, 4},
    {"product", SIMT_MMA, 3, 0, 0, 0, 0, 0, 0},
};

static const simt_line* total_of(const simt_line* lines, int n, simt_kind kind)
{
    for (int i = 0; i < n; i++)
        if (lines[i].kind == kind && lines[i].place[0] == 0) return &lines[i];
    return NULL;
}

static void test_totals(void** state)
{
    (void)state;
    for (int i = 0; i < GR_COUNT(expected); i++) {
        const struct expected* e = &expected[i];
        simt_line lines[MOST];
        simt_count_start();
        counted_run(e->kernel);
        const int n = simt_count_stop(lines, MOST);
        assert_in_range(n, 1, MOST);
        const simt_line* t = total_of(lines, n, e->kind);
        assert_non_null(t);
        assert_string_equal(t->kernel, e->kernel);
        const int64_t got[] = {t->requests,       t->bytes,      t->unique_bytes, t->sectors,
                               t->unique_sectors, t->wavefronts, t->ideal};
        const int want[] = {e->requests,       e->bytes,      e->unique_bytes, e->sectors,
                            e->unique_sectors, e->wavefronts, e->ideal};
        for (int k = 0; k < GR_COUNT(want); k++)
            if (got[k] != want[k])
                fail_msg("%s, kind %d, number %d: %lld, by hand %d", e->kernel, (int)e->kind, k,
                         (long long)got[k], want[k]);
    }
}

/* The lines of a kind add up to its total, and carry their place. */
static void test_lines(void** state)
{
    (void)state;
    simt_line lines[MOST];
    simt_count_start();
    counted_run("product");
    const int n = simt_count_stop(lines, MOST);
    int64_t requests = 0, places = 0;
    for (int i = 0; i < n; i++) {
        if (lines[i].kind != SIMT_SHARED_STORE || lines[i].place[0] == 0) continue;
        assert_non_null(strstr(lines[i].place, "counted.cu:"));
        requests += lines[i].requests;
        places++;
    }
    assert_int_equal(places, 2);
    assert_int_equal(requests, total_of(lines, n, SIMT_SHARED_STORE)->requests);
}

static void test_nothing_is_counted_outside(void** state)
{
    (void)state;
    simt_line lines[MOST];
    counted_run("copy_floats");
    simt_count_start();
    assert_int_equal(simt_count_stop(lines, MOST), 0);
    counted_run("copy_floats");
    simt_count_start();
    counted_run("copy_floats");
    const int n = simt_count_stop(lines, MOST);
    assert_int_equal(total_of(lines, n, SIMT_LOAD)->requests, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_totals),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_nothing_is_counted_outside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
