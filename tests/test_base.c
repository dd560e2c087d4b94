/* The ground floor: status, faults, randomness, arenas, growing arrays, JSON text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>
#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/arena.h"
#include "host/base.h"
#include "host/json.h"

static uint64_t dice(uint64_t i) { return gr_key_join(0x62617365, i); }

/* Runs `act` in a child and returns how it ended: exit status, or 128 + signal. What it says on stderr
 * goes to `said`. */
static int in_child(void (*act)(void), char* said, size_t cap)
{
    int end[2];
    assert_int_equal(pipe(end), 0);
    pid_t pid = fork();
    if (pid == 0) {
        (void)dup2(end[1], 2);
        (void)signal(SIGABRT, SIG_DFL);
        act();
        _exit(0);
    }
    (void)close(end[1]);
    size_t n = 0;
    for (ssize_t got; n + 1 < cap && (got = read(end[0], said + n, cap - 1 - n)) > 0;) {
        n += (size_t)got;
    }
    said[n] = 0;
    (void)close(end[0]);
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- status ---------------------------------------------------------------------------------- */

static gr_status fails(int n) { return GR_FAIL(GR_EDATA, "%s: %d is odd", "number", n); }

static gr_status tries(int n, int* reached)
{
    gr_status st = GR_OK;
    GR_TRY(n % 2 == 0 ? GR_OK : fails(n));
    *reached = 1;
    GR_GOTO(st, n % 4 == 0 ? GR_OK : GR_FAIL(GR_EIO, "not by four"), out);
    *reached = 2;
out:
    *reached += 10;
    return st;
}

static void errors_keep_code_place_and_text(void** state)
{
    (void)state;
    int reached = 0;
    assert_int_equal(tries(3, &reached), GR_EDATA);
    assert_int_equal(reached, 0);
    assert_string_equal(gr_last_error_text(), "number: 3 is odd");
    assert_non_null(strstr(gr_last_error(), "test_base.c:"));
    assert_non_null(strstr(gr_last_error(), ": number: 3 is odd"));
    assert_int_equal(tries(2, &reached), GR_EIO);
    assert_int_equal(reached, 11);
    assert_int_equal(tries(8, &reached), GR_OK);
    assert_int_equal(reached, 12);
}

static void an_error_may_quote_the_one_before(void** state)
{
    (void)state;
    assert_int_equal(fails(7), GR_EDATA);
    assert_int_equal(GR_FAIL(GR_EIO, "file: %s", gr_last_error_text()), GR_EIO);
    assert_string_equal(gr_last_error_text(), "file: number: 7 is odd");
    char large[5000];
    memset(large, 'x', sizeof large - 1);
    large[sizeof large - 1] = 0;
    assert_int_equal(GR_FAIL(GR_EIO, "%s", large), GR_EIO);
    assert_true(strlen(gr_last_error()) < sizeof large);
    assert_int_equal(strspn(gr_last_error_text(), "x"), strlen(gr_last_error_text()));
}

static void* fail_elsewhere(void* arg)
{
    (void)arg;
    return fails(9) == GR_EDATA ? (void*)1 : NULL;
}

static void errors_belong_to_their_thread(void** state)
{
    (void)state;
    pthread_t other;
    void* done = NULL;
    assert_int_equal(GR_FAIL(GR_EARG, "mine"), GR_EARG);
    assert_int_equal(pthread_create(&other, NULL, fail_elsewhere, NULL), 0);
    assert_int_equal(pthread_join(other, &done), 0);
    assert_non_null(done);
    assert_string_equal(gr_last_error_text(), "mine");
}

static void break_promise(void)
{
    int n = 3;
    GR_ASSERT(n == 4, "n=%d", n);
}

static void a_bug_aborts_and_says_where(void** state)
{
    (void)state;
    char said[512];
    assert_int_equal(in_child(break_promise, said, sizeof said), 128 + SIGABRT);
    assert_non_null(strstr(said, "n == 4"));
    assert_non_null(strstr(said, "n=3"));
    assert_non_null(strstr(said, "test_base.c:"));
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void a_fault_hits_one_call_of_one_place(void** state)
{
    (void)state;
    for (long k = 1; k <= 5; k++) {
        char spec[32];
        (void)snprintf(spec, sizeof spec, "disk.write:%ld", k);
        gr_fault_set(spec);
        for (long i = 1; i <= 8; i++) {
            assert_false(gr_fault("disk.read"));
            assert_false(gr_fault("disk.write2"));
            assert_int_equal(gr_fault("disk.write"), i == k);
        }
    }
    gr_fault_set("disk.write");
    assert_true(gr_fault("disk.write"));
    gr_fault_set(NULL);
    for (int i = 0; i < 8; i++) assert_false(gr_fault("disk.write"));
}

static void reach_third(void)
{
    gr_fault_set("kill:disk.write:3");
    for (int i = 1; i <= 3; i++) {
        (void)gr_fault("disk.write");
        fprintf(stderr, "%d", i);
    }
}

static void a_kill_fault_ends_the_process_there(void** state)
{
    (void)state;
    char said[64];
    assert_int_equal(in_child(reach_third, said, sizeof said), 128 + SIGKILL);
    assert_string_equal(said, "12");
}

static void run_again_under_variable(void)
{
    setenv("GR_FAULT", "disk.write:2", 1);
    (void)execl("/proc/self/exe", "test_base", "count-faults", (char*)NULL);
    _exit(127);
}

static int count_faults(void)
{
    for (int i = 1; i <= 4; i++) fprintf(stderr, "%d", gr_fault("disk.write"));
    return 0;
}

static void a_fault_comes_from_the_environment(void** state)
{
    (void)state;
    char said[64];
    assert_int_equal(in_child(run_again_under_variable, said, sizeof said), 0);
    assert_string_equal(said, "0100");
}

/* ---- randomness ------------------------------------------------------------------------------ */

/* Known answers of philox4x32 with 10 rounds, from kat_vectors of Random123 (D. E. Shaw
 * Research). */
static void philox_gives_the_published_words(void** state)
{
    (void)state;
    static const struct {
        uint64_t key, hi, lo;
        uint32_t out[4];
    } kat[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x0370734413198a2e,
         0x85a308d3243f6a88,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < GR_COUNT(kat); i++) {
        uint32_t out[4];
        gr_philox(kat[i].key, kat[i].hi, kat[i].lo, out);
        assert_memory_equal(out, kat[i].out, sizeof out);
    }
}

static void uniform_is_uniform(void** state)
{
    (void)state;
    enum { N = 200000, BINS = 64 };
    int bin[BINS] = {0}, bits = 0;
    double sum = 0, products = 0, before = 0.5;
    for (uint64_t i = 0; i < N; i++) {
        double u = gr_uniform(dice(1), i);
        assert_true(u >= 0 && u < 1);
        bin[(int)(u * BINS)]++;
        bits += ldexp(u, 53) != floor(ldexp(u, 52)) * 2; /* the last of 53 bits is set */
        sum += u;
        products += (u - 0.5) * (before - 0.5);
        before = u;
    }
    double chi = 0, expected = (double)N / BINS;
    for (int i = 0; i < BINS; i++) chi += (bin[i] - expected) * (bin[i] - expected) / expected;
    assert_true(chi > 30 && chi < 110); /* 63 degrees of freedom: 1e-4 on either side */
    assert_true(fabs(sum / N - 0.5) < 4 * sqrt(1.0 / 12 / N));
    assert_true(fabs(products / N) < 4 * (1.0 / 12) / sqrt(N));
    assert_true(abs(bits - N / 2) < 4 * (int)sqrt(N) / 2);
}

static int by_value(const void* pa, const void* pb)
{
    uint64_t a = *(const uint64_t*)pa, b = *(const uint64_t*)pb;
    return a < b ? -1 : a > b;
}

static void keys_of_a_tree_are_distinct(void** state)
{
    (void)state;
    enum { SIDE = 512 };
    uint64_t* key = malloc(2 * SIDE * SIDE * sizeof *key);
    int n = 0;
    for (uint64_t a = 0; a < SIDE; a++) {
        for (uint64_t b = 0; b < SIDE; b++) {
            key[n++] = gr_key_join(a, b);
            key[n++] = gr_key_join(gr_key_join(7, a), b);
            if (a != b) assert_true(gr_key_join(a, b) != gr_key_join(b, a));
        }
    }
    qsort(key, (size_t)n, sizeof *key, by_value);
    for (int i = 1; i < n; i++) assert_true(key[i] != key[i - 1]);
    free(key);
}

/* One flipped bit of either word flips half of the key's bits. */
static void keys_avalanche(void** state)
{
    (void)state;
    double flips = 0;
    int n = 0;
    for (uint64_t i = 0; i < 400; i++) {
        uint64_t a = dice(2 * i), b = i % 2 ? dice(2 * i + 1) : i;
        for (int bit = 0; bit < 64; bit++, n += 2) {
            int fa = __builtin_popcountll(gr_key_join(a, b) ^ gr_key_join(a ^ 1ull << bit, b));
            int fb = __builtin_popcountll(gr_key_join(a, b) ^ gr_key_join(a, b ^ 1ull << bit));
            assert_true(fa > 8 && fa < 56 && fb > 8 && fb < 56);
            flips += fa + fb;
        }
    }
    assert_true(fabs(flips / n - 32) < 0.25);
}

static void hash_is_xxh64(void** state)
{
    (void)state;
    assert_true(gr_hash64("", 0, 0) == 0xef46db3751d8e999u);
    assert_true(gr_hash64("abc", 3, 0) == 0x44bc2cf5ad770999u);
    assert_true(gr_hash64("abc", 3, 1) != gr_hash64("abc", 3, 0));
}

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct layout {
    char* a;
    double* b;
    int32_t* none;
    int64_t* c;
} layout;

static layout lay_out(gr_arena* arena, size_t n)
{
    return (layout){.a = GR_PUSH(arena, char, n),
                    .b = GR_PUSH(arena, double, 3 * n + 1),
                    .none = GR_PUSH(arena, int32_t, 0),
                    .c = GR_PUSH(arena, int64_t, n)};
}

static void an_arena_measures_what_it_takes(void** state)
{
    (void)state;
    for (uint64_t i = 0; i < 50; i++) {
        size_t n = 1 + dice(i) % 3000;
        gr_arena measure = {0}, real = {0};
        (void)lay_out(&measure, n);
        real.cap = measure.used;
        real.base = aligned_alloc(256, (real.cap + 255) & ~(size_t)255);
        layout x = lay_out(&real, n);
        assert_int_equal(real.used, measure.used);
        assert_int_equal(real.peak, measure.peak);
        assert_null(x.none);
        assert_true((uintptr_t)x.a % 256 == 0 && (uintptr_t)x.b % 256 == 0);
        memset(x.a, 1, n);
        memset(x.b, 2, (3 * n + 1) * sizeof *x.b);
        memset(x.c, 3, n * sizeof *x.c);
        assert_true(x.a[n - 1] == 1 && ((char*)x.b)[0] == 2 && ((char*)x.c)[0] == 3);
        size_t mark = gr_arena_mark(&real);
        gr_arena_release(&real, 0);
        assert_ptr_equal(GR_PUSH(&real, char, n), x.a);
        assert_int_equal(real.peak, mark);
        free(real.base);
    }
}

static void push_too_much(void)
{
    static char block[512];
    gr_arena a = {.base = block, .cap = sizeof block};
    (void)GR_PUSH(&a, char, 400);
    (void)GR_PUSH(&a, char, 400);
}

static void push_overflow(void)
{
    gr_arena a = {0};
    (void)GR_PUSH(&a, double, SIZE_MAX / 4);
}

static void a_full_arena_is_a_bug(void** state)
{
    (void)state;
    char said[512];
    assert_int_equal(in_child(push_too_much, said, sizeof said), 128 + SIGABRT);
    assert_non_null(strstr(said, "arena full"));
    assert_int_equal(in_child(push_overflow, said, sizeof said), 128 + SIGABRT);
}

static void arrays_grow_zeroed_and_seldom(void** state)
{
    (void)state;
    int32_t* x = NULL;
    int64_t cap = 0, before = gr_array_allocations();
    for (int32_t i = 0; i < 100000; i++) {
        GR_RESERVE(x, cap, i + 1);
        assert_int_equal(x[i], 0);
        x[i] = i;
    }
    for (int32_t i = 0; i < 100000; i++) assert_int_equal(x[i], i);
    int64_t grown = gr_array_allocations() - before;
    assert_true(grown > 0 && grown < 40);
    GR_RESERVE(x, cap, 500);
    assert_int_equal(gr_array_allocations() - before, grown);
    free(x);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static char* written(const char* text, size_t n, double x)
{
    char* out = NULL;
    size_t size = 0;
    FILE* f = open_memstream(&out, &size);
    if (text != NULL)
        gr_json_text(f, text, n);
    else
        gr_json_number(f, x);
    assert_int_equal(fclose(f), 0);
    return out;
}

static void numbers_read_back_to_the_same_bits(void** state)
{
    (void)state;
    static const double edge[] = {0,
                                  -0.0,
                                  1,
                                  -1,
                                  0.1,
                                  1e22,
                                  1e23,
                                  5e-324,
                                  1.7976931348623157e308,
                                  2.2250738585072014e-308,
                                  9007199254740993.0,
                                  1.0 / 3,
                                  123456789,
                                  1e-5};
    for (uint64_t i = 0; i < 20000; i++) {
        double x = i < GR_COUNT(edge) ? edge[i] : 0;
        uint64_t bits = dice(i);
        if (i >= GR_COUNT(edge)) memcpy(&x, &bits, sizeof x);
        char* text = written(NULL, 0, x);
        if (!isfinite(x)) {
            assert_string_equal(text, "null");
        } else {
            double back = strtod(text, NULL);
            assert_memory_equal(&back, &x, sizeof x);
            cJSON* item = cJSON_Parse(text);
            assert_true(cJSON_IsNumber(item) && item->valuedouble == x);
            cJSON_Delete(item);
        }
        free(text);
    }
    char* text = written(NULL, 0, 0.1);
    assert_string_equal(text, "0.1");
    free(text);
    text = written(NULL, 0, (double)NAN);
    assert_string_equal(text, "null");
    free(text);
}

/* Any bytes give JSON that is UTF-8; valid text comes back as it was. */
static void any_bytes_are_text(void** state)
{
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        char text[24];
        size_t n = dice(3 * i) % sizeof text;
        bool valid = true;
        for (size_t k = 0; k < n; k++) {
            uint64_t r = dice(3 * i + 1 + k * 1000003);
            text[k] = (char)(r % 3 ? r / 3 % 256
                                   : (uint64_t) " \"\\\n\t\xc3\xa9\xf0\x9f\x98\x80"[r / 3 % 11]);
            if (text[k] == 0) text[k] = 1; /* cJSON ends a text there */
        }
        for (size_t k = 0; k < n && valid;) {
            size_t length = gr_utf8_length(text + k, n - k);
            valid = length > 0;
            k += length;
        }
        char* json = written(text, n, 0);
        for (const char* s = json; *s != 0;) {
            size_t length = gr_utf8_length(s, strlen(s));
            assert_true(length > 0 && (unsigned char)*s >= 0x20);
            s += length;
        }
        cJSON* item = cJSON_Parse(json);
        assert_true(cJSON_IsString(item));
        if (valid) {
            assert_int_equal(strlen(item->valuestring), n);
            assert_memory_equal(item->valuestring, text, n);
        }
        cJSON_Delete(item);
        free(json);
    }
}

static void utf8_takes_what_unicode_takes(void** state)
{
    (void)state;
    for (uint32_t c = 1; c < 0x110800;
         c++) { /* encoded by hand, surrogates and too large ones too */
        char s[4];
        size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
        for (size_t k = n; k-- > 1;) s[k] = (char)(0x80 | (c >> 6 * (n - 1 - k) & 0x3f));
        s[0] = (char)(lead[n] | c >> 6 * (n - 1));
        bool is_text = c < 0x110000 && (c < 0xd800 || c > 0xdfff);
        assert_int_equal(gr_utf8_length(s, n), is_text ? n : 0);
        if (n > 1) assert_int_equal(gr_utf8_length(s, n - 1), 0);
    }
    assert_int_equal(gr_utf8_length("\xc0\xaf", 2), 0); /* overlong / */
    assert_int_equal(gr_utf8_length("\xe0\x80\xaf", 3), 0);
    assert_int_equal(gr_utf8_length("\x80", 1), 0);
}

int main(int argc, char** argv)
{
    if (argc == 2 && strcmp(argv[1], "count-faults") == 0) return count_faults();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_keep_code_place_and_text),
        cmocka_unit_test(an_error_may_quote_the_one_before),
        cmocka_unit_test(errors_belong_to_their_thread),
        cmocka_unit_test(a_bug_aborts_and_says_where),
        cmocka_unit_test(a_fault_hits_one_call_of_one_place),
        cmocka_unit_test(a_kill_fault_ends_the_process_there),
        cmocka_unit_test(a_fault_comes_from_the_environment),
        cmocka_unit_test(philox_gives_the_published_words),
        cmocka_unit_test(uniform_is_uniform),
        cmocka_unit_test(keys_of_a_tree_are_distinct),
        cmocka_unit_test(keys_avalanche),
        cmocka_unit_test(hash_is_xxh64),
        cmocka_unit_test(an_arena_measures_what_it_takes),
        cmocka_unit_test(a_full_arena_is_a_bug),
        cmocka_unit_test(arrays_grow_zeroed_and_seldom),
        cmocka_unit_test(numbers_read_back_to_the_same_bits),
        cmocka_unit_test(any_bytes_are_text),
        cmocka_unit_test(utf8_takes_what_unicode_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
