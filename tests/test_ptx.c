/* The interpreter of PTX: nvcc's own programs for the planted defects and the counted kernels, and what
 * the parser refuses. Every kernel of kernels/cuda/ is compared with its source by the tests of its op,
 * under SIMT_PTX. The argument is the folder of the PTX; without one all of it is skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "host/base.h"
#include "tests/simt/claim.h"
#include "tests/simt/count.h"
#include "tests/simt/counted/counted.h"
#include "tests/simt/planted/planted.h"
#include "tests/simt/ptx/ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char* folder;

static void load(const char* name)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/tests/%s.ptx", folder, name);
    const char* why = simt_ptx_load(path);
    if (why != NULL) fail_msg("%s", why);
}

/* ---- defects ---------------------------------------------------------------------------------------- */

/* Those that are of the source, or of the launch, are left to test_planted. */
static const struct planted {
    const char *name, *kind;
} planted[] = {
    {"missing_barrier", "race in shared memory: read after write, between two warps"},
    {"missing_second_barrier", "race in shared memory: write after read, between two warps"},
    {"missing_syncwarp", "race in shared memory: read after write, between two lanes"},
    {"unwritten_shared", "uninitialised shared memory"},
    {"tile_off_by_one", "shared memory out of bounds: 256 bytes were asked for"},
    {"wrong_named_barrier", "race in shared memory: read after write, between two warps"},
    {"past_the_end", "device memory out of bounds: 4 bytes at byte 4096 of 4096"},
    {"wrong_stride", "device memory out of bounds: 4 bytes at byte 4096 of 4096"},
    {"stale_page", "device memory out of bounds"},
    {"index_overflow", "device memory out of bounds"},
    {"misaligned_vector", "misaligned access: 16 bytes"},
    {"host_heap", "host pointer in a kernel"},
    {"double_accumulate", "race in global memory: read after write, between two blocks"},
    {"neighbour_block", "race in global memory: write after write, between two blocks"},
    {"missing_fence", "race in global memory: read after write, between two blocks"},
    {"lane_not_in_mask", "lane missing from its mask"},
    {"inactive_lane", "shuffle reads an inactive lane"},
    {"overlapping_masks", "overlapping masks"},
    {"missing_wait", "asynchronous copy still under way"},
    {"missing_commit", "asynchronous copy never committed"},
    {"wait_is_no_barrier", "race in shared memory: read after write, between two warps"},
    {"fragment_off_by_one_row", "uninitialised shared memory"},
    {"two_streams", "race in global memory: read after write, between launches on two streams"},
};

static void test_defects_show_in_ptx(void** state)
{
    (void)state;
    load("planted");
    simt_ptx_set_mode(SIMT_PTX_ONLY);
    int missed = 0;
    for (int i = 0; i < GR_COUNT(planted); i++) {
        planted_run(planted[i].name, 0, NULL);
        const char* text = simt_claim();
        if (text == NULL || strstr(text, planted[i].kind) == NULL ||
            strstr(text, "planted.cu:") == NULL) {
            print_message("%s: wanted %s, got %s\n", planted[i].name, planted[i].kind,
                          text != NULL ? text : "nothing");
            missed++;
        }
        planted_run(planted[i].name, 1, NULL);
        text = simt_claim();
        if (text != NULL) {
            print_message("%s without its defect: %s\n", planted[i].name, text);
            missed++;
        }
    }
    simt_ptx_set_mode(SIMT_PTX_OFF);
    assert_int_equal(missed, 0);
}

/* ---- both ways ---------------------------------------------------------------------------------------- */

static const char* load_text(const char* text);

/* The kernel `fill` of planted.cu with another number: 2. */
static const char wrong_fill[] = ".version 9.0\n.target sm_90a\n.address_size 64\n"
                                 ".visible .entry _Z4fillPf(.param .u64 p)\n{\n"
                                 ".reg .b32 %r<2>;\n.reg .b64 %rd<4>;\n"
                                 "ld.param.u64 %rd1, [p];\nmov.u32 %r1, %tid.x;\n"
                                 "mul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd3, %rd1, %rd2;\n"
                                 "st.global.f32 [%rd3], 0f40000000;\nret;\n}\n";

static void test_disagreement_is_a_defect(void** state)
{
    (void)state;
    load("planted");
    simt_ptx_set_mode(SIMT_PTX_CHECK);
    planted_run("two_streams", 1, NULL);
    assert_null(simt_claim());
    assert_null(load_text(wrong_fill));
    planted_run("two_streams", 1, NULL);
    const char* text = simt_claim();
    assert_non_null(text);
    assert_non_null(strstr(text, "PTX and source disagree"));
    simt_ptx_set_mode(SIMT_PTX_OFF);
}

/* ---- counts ----------------------------------------------------------------------------------------- */

/* Requests and sectors of device memory, wavefronts of shared memory: as in test_counted. */
static const struct counted {
    const char* kernel;
    simt_kind kind;
    int requests, cost;
} counted[] = {
    {"copy_floats", SIMT_LOAD, 1, 4},
    {"copy_vectors", SIMT_STORE, 1, 16},
    {"shifted", SIMT_LOAD, 1, 5},
    {"column", SIMT_STORE, 1, 32},
    {"one_for_all", SIMT_LOAD, 1, 1},
    {"half_the_lanes", SIMT_STORE, 1, 4},
    {"twice", SIMT_LOAD, 2, 8},
    {"shared_rows", SIMT_SHARED_LOAD, 1, 1},
    {"columns_of_32", SIMT_SHARED_STORE, 32, 32},
    {"shared_vectors", SIMT_SHARED_STORE, 1, 4},
    {"product", SIMT_SHARED_LOAD, 1, 16},
    {"product", SIMT_MMA, 3, 0},
};

static void test_counts(void** state)
{
    (void)state;
    load("counted");
    simt_ptx_set_mode(SIMT_PTX_ONLY);
    for (int i = 0; i < GR_COUNT(counted); i++) {
        const struct counted* c = &counted[i];
        simt_line lines[64];
        simt_count_start();
        counted_run(c->kernel);
        const int n = simt_count_stop(lines, 64);
        bool found = false;
        for (int k = 0; k < n; k++) {
            const simt_line* t = &lines[k];
            if (t->kind != c->kind || t->place[0] != 0) continue;
            found = true;
            if (t->requests != c->requests || t->sectors + t->wavefronts != c->cost)
                fail_msg("%s, kind %d: %lld requests, %lld sectors, %lld wavefronts", c->kernel,
                         (int)c->kind, (long long)t->requests, (long long)t->sectors,
                         (long long)t->wavefronts);
        }
        assert_true(found);
    }
    simt_ptx_set_mode(SIMT_PTX_OFF);
}

/* ---- the parser ------------------------------------------------------------------------------------- */

/* What loading this text says; NULL: nothing. */
static const char* load_text(const char* text)
{
    char path[] = "/tmp/grove-ptx-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
    const char* why = simt_ptx_load(path);
    (void)unlink(path);
    return why;
}

static void assert_refused(const char* text, const char* reason)
{
    const char* why = load_text(text);
    assert_non_null(why);
    if (strstr(why, reason) == NULL) fail_msg("\"%s\" does not mention \"%s\"", why, reason);
}

#define HEAD \
    ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry f(.param .u64 f_0)\n{\n"

static void test_refusals(void** state)
{
    (void)state;
    assert_null(load_text(HEAD ".reg .b32 %r<2>;\nadd.s32 %r1, %r0, 1;\nret;\n}\n"));
    assert_refused(HEAD ".reg .b32 %r<2>;\nfoo.s32 %r1, %r0;\nret;\n}\n", ":8: foo.s32");
    assert_refused(HEAD ".reg .b32 %r<2>;\nadd.rz.f32 %r1, %r0, %r0;\n}\n", "add.rz.f32");
    assert_refused(HEAD "add.s32 %r1, %r0, 1;\n}\n", "\"%r1\" was not declared");
    assert_refused(HEAD "bra $L__BB0_9;\nret;\n}\n", "$L__BB0_9");
    assert_refused(HEAD "ret;\n", "ends too early");
    assert_refused(".func f() {}\n", ".func");
}

/* Damaged programs are refused or read; nothing else happens. */
static void test_damaged_programs(void** state)
{
    (void)state;
    char path[512];
    (void)snprintf(path, sizeof path, "%s/loss.ptx", folder);
    FILE* f = fopen(path, "r");
    assert_non_null(f);
    static char whole[1 << 20];
    const size_t n = fread(whole, 1, sizeof whole - 1, f);
    (void)fclose(f);
    assert_in_range(n, 1000, sizeof whole - 2);
    int refused = 0;
    for (uint64_t i = 0; i < 300; i++) {
        char* text = test_malloc(n + 1);
        memcpy(text, whole, n + 1);
        const size_t at = (size_t)(gr_uniform(1, 3 * i) * (double)n);
        if (i % 3 == 0) text[at] = 0;
        for (size_t k = at; k < at + 4 && k < n && i % 3 != 0; k++)
            text[k] = " ;,[]{}%r0x-+.@"[(size_t)(gr_uniform(2, 4 * i + k - at) * 15)];
        refused += load_text(text) != NULL;
        test_free(text);
    }
    assert_in_range(refused, 50, 300);
}

int main(int argc, char** argv)
{
    folder = argc > 1 ? argv[1] : NULL;
    if (folder == NULL) {
        printf("skipped: kernels/cuda was not compiled to PTX, which needs nvcc\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defects_show_in_ptx),
        cmocka_unit_test(test_disagreement_is_a_defect),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_damaged_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
