#include "tests/vec_check.h"
#include "kernels/cpu/cpu.h"

#define NAME_(isa) vec_check_##isa
#define NAME(isa)  NAME_(isa)

static double error_in_ulps(float got, double want)
{
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : 1e9;
    if (isinf((float)want) || isinf(got))
        return !((float)want < got) && !((float)want > got) ? 0 : 1e9;
    int exponent;
    (void)frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1, GR_MAX(exponent - 24, -149));
}

static uint64_t add_bits(uint64_t hash, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return gr_key_join(hash, isnan(x) ? 0x7fc00000 : bits);
}

vec_check NAME(GR_CPU_VARIANT)(uint32_t stride)
{
    vec_check r = {0};
    for (uint64_t first = 0; first <= UINT32_MAX; first += (uint64_t)stride * VEC) {
        float x[VEC], e[VEC], l[VEC];
        for (int i = 0; i < VEC; i++) {
            const uint32_t bits = (uint32_t)(first + (uint64_t)i * stride);
            memcpy(&x[i], &bits, sizeof bits);
        }
        vec_store(e, vec_exp(vec_load(x)));
        vec_store(l, vec_log(vec_load(x)));
        for (int i = 0; i < VEC; i++) {
            r.exp_error = fmax(r.exp_error, error_in_ulps(e[i], exp((double)x[i])));
            r.log_error = fmax(r.log_error, error_in_ulps(l[i], log((double)x[i])));
            r.hash = add_bits(add_bits(r.hash, e[i]), l[i]);
        }
    }
    return r;
}
