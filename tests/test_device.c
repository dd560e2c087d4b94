/* Devices: names, refusals, memory, conversions, and the first error that stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/ops.h"
#ifdef GR_TEST_SIMT
#include "tests/simt/claim.h"
#include "tests/simt/machine.h"
#endif

#include <math.h>
#include <string.h>

static gr_status open_named(gr_dev* dev, const char* name, gr_dtype dtype, gr_matmul_mode matmul)
{
    return gr_dev_open(
        dev, &(gr_dev_options){.name = name, .dtype = dtype, .matmul = matmul, .threads = 2});
}

static void assert_refused(const char* name, gr_dtype dtype, gr_matmul_mode matmul,
                           const char* reason)
{
    gr_dev dev;
    assert_int_equal(open_named(&dev, name, dtype, matmul), GR_EARG);
    if (strstr(gr_last_error_text(), reason) == NULL)
        fail_msg("\"%s\" does not mention \"%s\"", gr_last_error_text(), reason);
    gr_dev_close(&dev);
}

static void test_unknown_names_are_refused(void** state)
{
    (void)state;
    assert_refused("gpu", GR_F32, GR_MATMUL_EXACT, "\"gpu\"");
    assert_refused("cpu:avx9", GR_F32, GR_MATMUL_EXACT, "avx9");
    assert_refused("cpu:avx2", GR_F64, GR_MATMUL_EXACT, "fp64");
    assert_refused("cpu:base", GR_F32, GR_MATMUL_BF16, "bf16");
    assert_refused("cpu", GR_F64, GR_MATMUL_BF16, "fp64");
    gr_dev fast;
    assert_int_equal(
        gr_dev_open(&fast, &(gr_dev_options){.name = "cpu", .attention = GR_ATTENTION_FAST}),
        GR_EARG);
    assert_non_null(strstr(gr_last_error_text(), "device.attention: fast: "));
    gr_dev dev;
    assert_int_equal(gr_dev_open(&dev, &(gr_dev_options){.name = "cpu", .threads = -1}), GR_EARG);
}

static void test_open_says_what_it_chose(void** state)
{
    (void)state;
    gr_dev dev;
    assert_int_equal(open_named(&dev, "cpu:base", GR_BF16, GR_MATMUL_AUTO), GR_OK);
    assert_string_equal(dev.name, "cpu:base");
    assert_string_equal(dev.detail, "cpu base, bf16, exact matmul, 2 threads");
    assert_int_equal(dev.matmul, GR_MATMUL_EXACT);
    assert_int_equal(dev.real_bytes, 2);
    assert_int_equal(dev.acc_bytes, 4);
    gr_dev_close(&dev);
    gr_dev_close(&dev);

    assert_int_equal(gr_dev_open(&dev, &(gr_dev_options){.name = "cpu", .matmul = GR_MATMUL_AUTO}),
                     GR_OK);
    assert_int_not_equal(dev.matmul, GR_MATMUL_AUTO);
    assert_true(dev.threads >= 1);
    print_message("%s\n", dev.detail);
    gr_dev_close(&dev);
}

static void test_memory_is_aligned_and_zero(void** state)
{
    (void)state;
    static const size_t size[] = {0, 1, 257, 5 << 20};
    gr_dev dev;
    assert_int_equal(open_named(&dev, "cpu", GR_F32, GR_MATMUL_EXACT), GR_OK);
    for (int i = 0; i < GR_COUNT(size); i++) {
        void* p;
        assert_int_equal(gr_dev_alloc(&dev, &p, size[i]), GR_OK);
        assert_int_equal((uintptr_t)p % 256, 0);
        for (size_t j = 0; j < size[i]; j++) assert_int_equal(((char*)p)[j], 0);
        gr_dev_free(&dev, p);
    }
    gr_dev_close(&dev);
}

static void test_no_memory_is_a_status(void** state)
{
    (void)state;
    gr_dev dev;
    void* p;
    gr_fault_set("dev.alloc:1");
    assert_int_equal(open_named(&dev, "cpu", GR_F32, GR_MATMUL_EXACT), GR_ENOMEM);
    gr_fault_set("dev.alloc:2");
    assert_int_equal(open_named(&dev, "cpu", GR_F32, GR_MATMUL_EXACT), GR_OK);
    assert_int_equal(gr_dev_alloc(&dev, &p, 100), GR_ENOMEM);
    assert_null(p);
    gr_fault_set(NULL);
    gr_dev_close(&dev);
}

/* Every bf16 number survives; halfway cases go to the even neighbour; NaN stays NaN. */
static void test_conversions(void** state)
{
    (void)state;
    gr_dev dev;
    assert_int_equal(open_named(&dev, "cpu", GR_BF16, GR_MATMUL_EXACT), GR_OK);
    for (uint32_t i = 0; i <= UINT16_MAX; i++) {
        const uint16_t bits = (uint16_t)i;
        uint16_t back;
        double x;
        gr_dev_read_real(&dev, &x, &bits, 1);
        gr_dev_write_real(&dev, &back, &x, 1);
        if (isnan(x))
            assert_true((back & 0x7fff) > 0x7f80);
        else
            assert_int_equal(back, bits);
    }
    const double tie[] = {1 + 1.0 / 256, 1 + 3.0 / 256, 1 + 3.0 / 256 + 1e-6, -1 - 1.0 / 256};
    uint16_t rounded[4];
    gr_dev_write_real(&dev, rounded, tie, 4);
    const uint16_t want[] = {0x3f80, 0x3f82, 0x3f82, 0xbf80};
    assert_memory_equal(rounded, want, sizeof want);

    float f;
    double d = 0.1;
    gr_dev_write_acc(&dev, &f, &d, 1);
    assert_true(f - 0.1f == 0);
    gr_dev_read_acc(&dev, &d, &f, 1);
    assert_true(d - (double)0.1f == 0);
    gr_dev_close(&dev);
}

static void test_first_error_stays(void** state)
{
    (void)state;
    gr_dev dev;
    assert_int_equal(open_named(&dev, "cpu", GR_F32, GR_MATMUL_EXACT), GR_OK);
    assert_int_equal(gr_dev_sync(&dev), GR_OK);
    dev.err = GR_EDEV;
    strcpy(dev.err_text, "matmul: broken");
    assert_int_equal(gr_dev_sync(&dev), GR_EDEV);
    assert_non_null(strstr(gr_last_error_text(), "matmul: broken"));
    assert_int_equal(gr_dev_sync(&dev), GR_EDEV);
    gr_dev_close(&dev);
}

#ifdef GR_TEST_SIMT
static void test_simt_memory(void** state)
{
    (void)state;
    static const size_t size[] = {1, 257, 5 << 20};
    gr_dev dev;
    assert_int_equal(open_named(&dev, "simt", GR_BF16, GR_MATMUL_AUTO), GR_OK);
    assert_string_equal(dev.name, "simt");
    assert_int_equal(dev.matmul, GR_MATMUL_EXACT);
    for (int i = 0; i < GR_COUNT(size); i++) {
        unsigned char *p, *host = test_malloc(size[i]);
        assert_int_equal(gr_dev_alloc(&dev, (void**)&p, size[i]), GR_OK);
        assert_int_equal((uintptr_t)p % 256, 0);
        memset(host, 1, size[i]);
        gr_dev_read(&dev, host, p, size[i]);
        for (size_t j = 0; j < size[i]; j++) assert_int_equal(host[j], 0);
        for (size_t j = 0; j < size[i]; j++) host[j] = (unsigned char)(j * 7);
        gr_dev_write(&dev, p, host, size[i]);
        memset(host, 1, size[i]);
        gr_dev_read(&dev, host, p, size[i]);
        for (size_t j = 0; j < size[i]; j++) assert_int_equal(host[j], (unsigned char)(j * 7));
        assert_int_equal(gr_dev_sync(&dev), GR_OK);
        gr_dev_free(&dev, p);
        test_free(host);
    }
    assert_int_equal(gr_dev_sync(&dev), GR_OK);
    gr_dev_close(&dev);
}

static void test_simt_refusals(void** state)
{
    (void)state;
    assert_refused("simt", GR_F64, GR_MATMUL_EXACT, "fp64");
    assert_refused("simt", GR_F32, GR_MATMUL_BF16, "bf16");
    assert_refused("simt:0", GR_F32, GR_MATMUL_EXACT, "simt:0");
}

/* A copy past the end of an allocation: the first error stays and names the cause. */
static void test_simt_fault_stays(void** state)
{
    (void)state;
    gr_dev dev;
    void* p;
    char host[64] = {0};
    assert_int_equal(open_named(&dev, "simt", GR_F32, GR_MATMUL_EXACT), GR_OK);
    assert_int_equal(gr_dev_alloc(&dev, &p, 32), GR_OK);
    gr_dev_write(&dev, p, host, sizeof host);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gr_dev_sync(&dev), GR_EDEV);
        assert_non_null(strstr(gr_last_error_text(), "write: copy out of bounds"));
    }
    assert_non_null(simt_claim());
    gr_dev_close(&dev);
}
/* Each way in which a GPU can be missing is one line that names it. */
static void test_simt_missing_gpus(void** state)
{
    (void)state;
    static const struct {
        simt_machine machine;
        const char* reason;
    } missing[] = {
        {{0, 0, 9}, "device simt: this machine has no NVIDIA driver (libcuda.so.1)"},
        {{12040, 1, 9}, "driver is too old: it serves CUDA 12.4, CUDA 13 is needed"},
        {{13000, 0, 9}, "this machine has 0 GPUs"},
        {{13020, 2, 7}, "has compute capability 7.0, 8.0 is needed"},
    };
    gr_dev dev;
    for (int i = 0; i < GR_COUNT(missing); i++) {
        simt_pretend(missing[i].machine);
        assert_int_not_equal(open_named(&dev, "simt", GR_F32, GR_MATMUL_EXACT), GR_OK);
        if (strstr(gr_last_error_text(), missing[i].reason) == NULL ||
            strchr(gr_last_error_text(), '\n') != NULL)
            fail_msg("\"%s\" is not \"%s\"", gr_last_error_text(), missing[i].reason);
    }
    simt_pretend((simt_machine){13000, 1, 8});
    assert_int_equal(open_named(&dev, "simt", GR_F32, GR_MATMUL_EXACT), GR_OK);
    gr_dev_close(&dev);
}
#elif defined GR_TEST_GPU
/* On a machine with a GPU the first one opens; no machine has number 1000. */
static void test_cuda_opens_or_says_why(void** state)
{
    (void)state;
    gr_dev dev;
    assert_int_not_equal(open_named(&dev, "cuda:1000", GR_F32, GR_MATMUL_EXACT), GR_OK);
    assert_non_null(strstr(gr_last_error_text(), "device cuda:1000: "));
    assert_refused("cuda", GR_F32, GR_MATMUL_EXACT, "\"cuda\"");
    assert_refused("cuda:x", GR_F32, GR_MATMUL_EXACT, "\"cuda:x\"");
    assert_refused("cuda:0", GR_F64, GR_MATMUL_EXACT, "fp64");
    if (open_named(&dev, "cuda:0", GR_F32, GR_MATMUL_EXACT) != GR_OK) {
        const char* why = gr_last_error_text();
        assert_true(strstr(why, "driver") != NULL || strstr(why, "0 GPUs") != NULL);
        print_message("%s\n", why);
        return;
    }
    print_message("%s\n", dev.detail);
    gr_dev_close(&dev);
}
#else
static void test_gpu_needs_cuda(void** state)
{
    (void)state;
    assert_refused("cuda:0", GR_F32, GR_MATMUL_EXACT, "built without CUDA");
    assert_refused("simt", GR_F32, GR_MATMUL_EXACT, "\"simt\"");
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown_names_are_refused),
        cmocka_unit_test(test_open_says_what_it_chose),
        cmocka_unit_test(test_memory_is_aligned_and_zero),
        cmocka_unit_test(test_no_memory_is_a_status),
        cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_first_error_stays),
#ifdef GR_TEST_SIMT
        cmocka_unit_test(test_simt_memory),
        cmocka_unit_test(test_simt_refusals),
        cmocka_unit_test(test_simt_fault_stays),
        cmocka_unit_test(test_simt_missing_gpus),
#elif defined GR_TEST_GPU
        cmocka_unit_test(test_cuda_opens_or_says_why),
#else
        cmocka_unit_test(test_gpu_needs_cuda),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
