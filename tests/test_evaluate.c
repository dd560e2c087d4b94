/* The numbers of an evaluation against their definitions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "host/train.h"

/* The ends are the proportions q from which p is 1.96 standard errors of q away. */
static void wilson_ends_solve_the_score_equation(void** state)
{
    (void)state;
    const double z = 1.959963984540054;
    for (int n = 1; n <= 400; n += n < 20 ? 1 : 37) {
        for (int c = 0; c <= n; c++) {
            double p = (double)c / n, low, high;
            gr_wilson(p, n, &low, &high);
            assert_true(low >= 0 && low <= p && p <= high && high <= 1);
            assert_true(fabs(p - low - z * sqrt(low * (1 - low) / n)) < 1e-12);
            assert_true(fabs(high - p - z * sqrt(high * (1 - high) / n)) < 1e-12);
        }
        double low, high;
        gr_wilson(0, n, &low, &high);
        assert_true(low == 0 && high > 0 && high < 1);
        gr_wilson(1, n, &low, &high);
        assert_true(low > 0 && low < 1 && high == 1);
    }
}

/* Every subset of k out of n, the first c of them solved, counted one by one. */
static void pass_at_k_is_the_share_of_subsets(void** state)
{
    (void)state;
    for (int n = 1; n <= 10; n++) {
        for (int c = 0; c <= n; c++) {
            for (int k = 1; k <= n; k++) {
                int subsets = 0, solved = 0;
                for (unsigned set = 0; set < 1U << n; set++) {
                    if (__builtin_popcount(set) != k) continue;
                    subsets++;
                    solved += (set & ((1U << c) - 1)) != 0;
                }
                assert_true(fabs(gr_pass_at(n, c, k) - (double)solved / subsets) < 1e-12);
            }
            assert_true(fabs(gr_pass_at(n, c, 1) - (double)c / n) < 1e-12);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wilson_ends_solve_the_score_equation),
        cmocka_unit_test(pass_at_k_is_the_share_of_subsets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
