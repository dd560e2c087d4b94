/* exp and log of kernels/cpu/vec_math.h: within one unit in the last place of libm's doubles, and the
 * same bits whatever the width of the vectors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/kernels.h"
#include "tests/vec_check.h"

static void test_exp_and_log(void** state)
{
    (void)state;
    vec_check (*const check[])(uint32_t) = {vec_check_base, vec_check_avx2, vec_check_avx512};
    uint64_t hash[3] = {0};
    for (int i = 0; i < 3; i++) {
        gr_dev dev;
        if (!open_table(&dev, &tables[1 + i], 1)) continue;
        const vec_check r = check[i](4099);
        print_message("%s: exp %.3f, log %.3f units in the last place\n", tables[1 + i].name,
                      r.exp_error, r.log_error);
        assert_true(r.exp_error <= 1 && r.log_error <= 1);
        hash[i] = r.hash;
        gr_dev_close(&dev);
    }
    if (hash[1] != 0 && hash[2] != 0) assert_true(hash[1] == hash[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exp_and_log)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
