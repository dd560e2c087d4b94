/* The emulator finds every planted defect at its line, keeps silent on the same kernel without the
 * defect, and fails a program that ignores what it found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "host/base.h"
#include "tests/simt/claim.h"
#include "tests/simt/planted/planted.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char source[] = "tests/simt/planted/planted.cu";

/* Kernel, and what the report must call its defect. */
static const struct planted {
    const char *name, *kind;
} planted[] = {
    {"missing_barrier", "race in shared memory: read after write, between two warps"},
    {"missing_second_barrier", "race in shared memory: write after read, between two warps"},
    {"missing_syncwarp", "race in shared memory: read after write, between two lanes"},
    {"same_element", "race in shared memory"},
    {"unwritten_shared", "uninitialised shared memory: thread 0"},
    {"tile_off_by_one", "shared memory out of bounds: 256 bytes were asked for, thread 63"},
    {"wrong_named_barrier", "race in shared memory: read after write, between two warps"},
    {"past_the_end", "device memory out of bounds: 4 bytes at byte 4096 of 4096"},
    {"wrong_stride", "device memory out of bounds: 4 bytes at byte 4096 of 4096"},
    {"stale_page", "device memory out of bounds"},
    {"index_overflow", "device memory out of bounds"},
    {"misaligned_vector", "misaligned access: 16 bytes"},
    {"host_heap", "host pointer in a kernel"},
    {"host_variable", "host pointer in a kernel"},
    {"double_accumulate", "race in global memory: read after write, between two blocks"},
    {"neighbour_block", "race in global memory: write after write, between two blocks"},
    {"missing_fence", "race in global memory: read after write, between two blocks"},
    {"divergent_barrier", "barrier divergence"},
    {"lane_not_in_mask", "lane missing from its mask: lane 0"},
    {"inactive_lane", "shuffle reads an inactive lane: lane 15 reads lane 23"},
    {"overlapping_masks", "overlapping masks"},
    {"warp_left_waiting", "barrier divergence"},
    {"spins_for_ever", "livelock"},
    {"missing_wait", "asynchronous copy still under way"},
    {"missing_commit", "asynchronous copy never committed"},
    {"wait_is_no_barrier", "race in shared memory: read after write, between two warps"},
    {"fragment_off_by_one_row", "uninitialised shared memory"},
    {"two_streams", "race in global memory: read after write, between launches on two streams"},
    {"copy_not_awaited",
     "race in global memory: read after write, between launches on two streams"},
    {"copy_too_early",
     "race in global memory: a copy reads what work of another stream may still write"},
};

static const char* reports_of(const char* name, bool sound, float* result)
{
    planted_run(name, sound, result);
    return simt_claim();
}

/* Line of the comment that begins with `name`. */
static int line_of(const char* name)
{
    char line[256], mark[80];
    FILE* f = fopen(source, "r");
    assert_non_null(f);
    (void)snprintf(mark, sizeof mark, "/* %s:", name);
    int at = 0, found = 0;
    while (fgets(line, sizeof line, f) != NULL) {
        at++;
        if (strstr(line, mark) != NULL) found = at;
    }
    (void)fclose(f);
    assert_int_not_equal(found, 0);
    return found;
}

/* True if a line of `reports` says `where` and `kind`. */
static bool says(const char* reports, const char* where, const char* kind)
{
    for (const char* at = reports; at != NULL && (at = strstr(at, where)) != NULL; at++) {
        const char *end = strchr(at, '\n'), *found = strstr(at, kind);
        if (found != NULL && found < end) return true;
    }
    return false;
}

static void test_every_defect_is_found(void** state)
{
    (void)state;
    int missed = 0;
    for (int i = 0; i < GR_COUNT(planted); i++) {
        char where[80];
        (void)snprintf(where, sizeof where, "planted.cu:%d: ", line_of(planted[i].name));
        const char* text = reports_of(planted[i].name, false, NULL);
        if (says(text, where, planted[i].kind)) continue;
        print_message("%s: wanted %s%s, got %s\n", planted[i].name, where, planted[i].kind,
                      text != NULL ? text : "nothing");
        missed++;
    }
    assert_int_equal(missed, 0);
}

static void test_twins_without_the_defect_pass(void** state)
{
    (void)state;
    for (int i = 0; i < GR_COUNT(planted); i++) {
        const char* text = reports_of(planted[i].name, true, NULL);
        if (text != NULL) fail_msg("%s without its defect: %s", planted[i].name, text);
    }
}

/* The twins also compute what they say. */
static void test_twins_compute(void** state)
{
    (void)state;
    float x[PLANTED_FLOATS];
    assert_null(reports_of("same_element", true, x));
    for (int i = 0; i < 64; i++) assert_true(x[i] == 64);
    assert_null(reports_of("missing_fence", true, x));
    for (int i = 0; i < 64; i++) assert_true(x[3 * 64 + i] == 0 + 1 + 2);
    assert_null(reports_of("fragment_off_by_one_row", true, x));
    for (int i = 0; i < 128; i++) assert_true(x[i] == 16);
    assert_null(reports_of("two_streams", true, x));
    for (int i = 0; i < 64; i++) assert_true(x[64 + i] == 2);
}

/* Exit status of a program that runs into a defect, checks nothing, and returns 0 from main. */
static int status_of_child(const char* name, bool claims)
{
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        planted_run(name, false, NULL);
        if (claims) (void)simt_claim();
        exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_unclaimed_reports_fail_the_program(void** state)
{
    (void)state;
    assert_int_equal(status_of_child("missing_barrier", true), 0);
    assert_int_equal(status_of_child("missing_barrier", false), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_defect_is_found),
        cmocka_unit_test(test_twins_without_the_defect_pass),
        cmocka_unit_test(test_twins_compute),
        cmocka_unit_test(test_unclaimed_reports_fail_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
