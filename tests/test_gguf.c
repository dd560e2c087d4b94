/* GGUF files: values, blocks against the reference library's numbers, the vocabulary, and what damages
 * them. */
#include "tests/gguf_file.h"

/* ---- the reference library's file ------------------------------------------------------------ */

static const char golden[] = "tests/golden/quants.gguf";

static void blocks_equal_the_reference(void** state)
{
    (void)state;
    static const char* const types[] = {"F32",  "F16",  "BF16", "Q8_0", "Q4_0", "Q4_1",
                                        "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"};
    gr_gguf g;
    ASSERT_OK(gr_gguf_open(&g, golden));
    assert_int_equal(g.n_tensors, 2 * GR_COUNT(types));
    for (int i = 0; i < GR_COUNT(types); i++) {
        char name[16];
        float got[1024], want[1024];
        (void)snprintf(name, sizeof name, "%s.f32", types[i]);
        const gr_gguf_tensor* t = gr_gguf_find_tensor(&g, types[i]);
        const gr_gguf_tensor* f = gr_gguf_find_tensor(&g, name);
        assert_true(t != NULL && f != NULL && t->n == f->n && t->n <= GR_COUNT(got));
        assert_string_equal(gr_quant_name(t->type), types[i]);
        gr_quant_read(got, t->type, t->data, t->n);
        memcpy(want, f->data, (size_t)f->n * sizeof *want);
        for (int64_t k = 0; k < t->n; k++) {
            if (got[k] == want[k]) continue;
            fail_msg("%s[%lld]: %.9g, not %.9g", types[i], (long long)k, (double)got[k],
                     (double)want[k]);
        }
    }
    gr_gguf_close(&g);
}

static void values_equal_the_reference(void** state)
{
    (void)state;
    static const struct {
        const char* key;
        int64_t value;
    } whole[] = {{"u8", 200},
                 {"i8", -100},
                 {"u16", 60000},
                 {"i16", -30000},
                 {"u32", 4000000000},
                 {"i32", -2000000000},
                 {"u64", (int64_t)1 << 62},
                 {"i64", -((int64_t)1 << 62)},
                 {"bool", 1}};
    static const char* const texts[] = {"one", " ", "zwei", "三"};
    gr_gguf g;
    int64_t k = 0;
    double x = 0;
    ASSERT_OK(gr_gguf_open(&g, golden));
    for (int i = 0; i < GR_COUNT(whole); i++) {
        const gr_gguf_value* v = gr_gguf_find(&g, whole[i].key);
        assert_true(gr_gguf_whole(v, 0, &k) && k == whole[i].value);
        assert_false(gr_gguf_whole(v, 1, &k) || gr_gguf_whole(v, -1, &k) || gr_gguf_real(v, 0, &x));
    }
    assert_true(gr_gguf_real(gr_gguf_find(&g, "f32"), 0, &x) && x == (double)0.1f);
    assert_true(gr_gguf_real(gr_gguf_find(&g, "f64"), 0, &x) && x == 0.1);
    assert_false(gr_gguf_whole(gr_gguf_find(&g, "f64"), 0, &k));
    assert_true(gr_gguf_is(gr_gguf_text_at(gr_gguf_find(&g, "text")), "Füße 🌳\n"));
    const gr_gguf_value* v = gr_gguf_find(&g, "texts");
    assert_true(v->is_array && v->type == GR_GGUF_TEXT && v->count == GR_COUNT(texts));
    assert_true(gr_gguf_is(gr_gguf_text_at(v), texts[0]));
    v = gr_gguf_find(&g, "wholes");
    assert_true(v->is_array && v->count == 3 && gr_gguf_whole(v, 1, &k) && k == -1);
    v = gr_gguf_find(&g, "reals");
    assert_true(v->count == 2 && gr_gguf_real(v, 1, &x) && x == -0.25);
    assert_null(gr_gguf_find(&g, "none"));
    assert_null(gr_gguf_find(&g, "tex"));
    assert_null(gr_gguf_find_tensor(&g, "Q4"));
    assert_int_equal(gr_gguf_text_at(NULL).n, 0);
    gr_gguf_close(&g);
}

/* ---- any file -------------------------------------------------------------------------------- */

/* Values and tensors under random names, in any order, with any alignment, are all found. */
static void random_files_are_read(void** state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        gguf_file* f = gguf_begin(2 + (uint32_t)dice(2));
        char key[40][32];
        uint32_t value[40];
        float data[40][16];
        int n_values = (int)dice(20), n_tensors = (int)dice(20), n_cols[40];
        if (dice(2)) gguf_set_u32(f, "general.alignment", 8 * (1 + (uint32_t)dice(20)));
        for (int i = 0; i < n_values; i++) {
            (void)snprintf(key[i], sizeof *key, "%llx.%d", (unsigned long long)dice(0), i);
            value[i] = (uint32_t)dice(0);
            if (dice(3) == 0) {
                gguf_set_array(f, key[i], GR_GGUF_U32, 2);
                gguf_u32(f, value[i]);
                gguf_u32(f, ~value[i]);
            } else {
                gguf_set_u32(f, key[i], value[i]);
            }
        }
        for (int i = n_values; i < n_values + n_tensors; i++) {
            (void)snprintf(key[i], sizeof *key, "%llx.%d", (unsigned long long)dice(0), i);
            n_cols[i] = 1 + (int)dice(8);
            for (int k = 0; k < 2 * n_cols[i]; k++) data[i][k] = (float)dice(1000);
            gguf_tensor(f, key[i], 2, (uint64_t)n_cols[i], GR_QUANT_F32, data[i],
                        8 * (size_t)n_cols[i]);
        }
        finish(f);
        gr_gguf g;
        ASSERT_OK(gr_gguf_open(&g, path));
        for (int i = 0; i < n_values; i++) {
            int64_t got = 0;
            const gr_gguf_value* v = gr_gguf_find(&g, key[i]);
            assert_true(gr_gguf_whole(v, 0, &got) && got == value[i]);
            assert_int_equal(v->is_array, gr_gguf_whole(v, 1, &got));
        }
        for (int i = n_values; i < n_values + n_tensors; i++) {
            const gr_gguf_tensor* t = gr_gguf_find_tensor(&g, key[i]);
            assert_true(t->n_dims == 2 && t->shape[0] == 2 && t->shape[1] == n_cols[i]);
            assert_memory_equal(t->data, data[i], (size_t)t->bytes);
        }
        gr_gguf_close(&g);
    }
}

/* A small file with one of everything. */
static gguf_file* any_file(void)
{
    static const float data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    gguf_file* f = gguf_begin(3);
    gguf_set_u32(f, "a", 7);
    gguf_set_text(f, "b", "text");
    gguf_set_array(f, "c", GR_GGUF_TEXT, 2);
    gguf_text(f, "x");
    gguf_text(f, "");
    gguf_tensor(f, "x", 2, 2, GR_QUANT_F32, data, 16);
    gguf_tensor(f, "y", 0, 8, GR_QUANT_F32, data, 32);
    return f;
}

static void a_cut_file_is_refused(void** state)
{
    (void)state;
    gr_gguf g;
    gguf_file* f = any_file();
    gguf_end(f);
    for (size_t n = 0; n < f->n; n++) {
        spill(path, f->bytes, n);
        assert_refused(gr_gguf_open(&g, path), "");
        assert_null(g.map.bytes);
    }
    spill(path, f->bytes, f->n);
    ASSERT_OK(gr_gguf_open(&g, path));
    gr_gguf_close(&g);
    gr_gguf_close(&g);
    free(f);
}

static void headers_that_lie_are_refused(void** state)
{
    (void)state;
    static const struct {
        size_t at;
        uint64_t value;
        int bytes;
        const char* part;
    } lies[] = {
        {0, 0, 4, "no GGUF file"},
        {4, 1, 4, "version 1 is not supported"},
        {4, 4, 4, "version 4"},
        {4, 3 << 24, 4, "big-endian"},
        {8, 3, 8, "no name at byte 182"},
        {8, UINT64_MAX, 8, "18446744073709551615 tensors"},
        {16, 1 << 20, 8, "1048576 values"},
        {16, UINT64_MAX, 8, "18446744073709551615 values"},
        {24, 0, 8, "no name at byte 24"},
        {24, UINT64_MAX, 8, "inside what byte 32 begins"},
        {24, 200, 8, "no name at byte 24"},
        {32, '\n', 1, "no name at byte 24"},
        {33, 13, 4, "`a`: values of type 13"},
        {33, 9, 4, "the file ends"}, /* a list of what comes next */
        {32, 'b', 1, "`b` is there twice"},
    };
    gr_gguf g;
    for (int i = 0; i < GR_COUNT(lies); i++) {
        gguf_file* f = any_file();
        gguf_end(f);
        memcpy(f->bytes + lies[i].at, &lies[i].value, (size_t)lies[i].bytes);
        spill(path, f->bytes, f->n);
        assert_refused(gr_gguf_open(&g, path), lies[i].part);
        free(f);
    }
}

static void lists_that_lie_are_refused(void** state)
{
    (void)state;
    static const struct {
        uint32_t type;
        uint64_t count;
        const char* part;
    } lies[] = {
        {GR_GGUF_ARRAY, 1, "type 9 are not supported"},
        {99, 1, "type 99"},
        {GR_GGUF_U64, UINT64_MAX, "the file ends"},
        {GR_GGUF_U64, UINT64_MAX / 8 + 2, "the file ends"},
        {GR_GGUF_U8, 1000000, "the file ends"},
        {GR_GGUF_TEXT, UINT64_MAX, "the file ends"},
        {GR_GGUF_TEXT, 3, "the file ends"},
    };
    gr_gguf g;
    for (int i = 0; i < GR_COUNT(lies); i++) {
        gguf_file* f = gguf_begin(3);
        gguf_set_array(f, "list", (gr_gguf_type)lies[i].type, lies[i].count);
        for (int k = 0; k < 8; k++) gguf_text(f, "12345678");
        gguf_u64(f, (uint64_t)INT64_MAX); /* where a text of the list may begin */
        finish(f);
        gr_status st = gr_gguf_open(&g, path);
        if (lies[i].count != 3) {
            assert_refused(st, lies[i].part);
        } else {
            ASSERT_OK(st); /* of eight texts the first three are the list's */
            assert_int_equal(gr_gguf_find(&g, "list")->count, 3);
            gr_gguf_close(&g);
        }
    }
}

static void tensors_that_lie_are_refused(void** state)
{
    (void)state;
    /* Offsets into the announcement of "x" (2 x 2) from its name's length on. */
    enum { DIMS = 9, SIZE0 = 13, SIZE1 = 21, TYPE = 29, OFFSET = 33, NEXT = 41 };
    static const struct {
        size_t at;
        uint64_t value;
        int bytes;
        const char* part;
    } lies[] = {
        {8, 'y', 1, "tensor `y` is there twice"},
        {DIMS, 0, 4, "0 dimensions"},
        {DIMS, 5, 4, "5 dimensions"},
        {SIZE0, 0, 8, "impossible shape"},
        {SIZE0, UINT64_MAX, 8, "impossible shape"},
        {SIZE1, (uint64_t)1 << 62, 8, "impossible shape"},
        {SIZE1, (uint64_t)1 << 61, 8, "beyond the file"},
        {SIZE1, 3, 8, NULL}, /* 24 bytes of the 32 that are there */
        {SIZE1, 5, 8, "overlap those of `x`"},
        {SIZE1, 500, 8, "beyond the file"},
        {TYPE, 4, 4, "type 4 is none of F32"},
        {TYPE, UINT32_MAX, 4, "type 4294967295 is none of F32"},
        {TYPE, GR_QUANT_Q8_0, 4, "rows of 2 are no whole blocks of Q8_0"},
        {OFFSET, 4, 8, "no multiple of 32"},
        {OFFSET, 32, 8, "overlap"},
        {OFFSET, 64, 8, "beyond the file"},
        {OFFSET, UINT64_MAX - 31, 8, "beyond the file"},
    };
    gr_gguf g;
    for (int i = 0; i < GR_COUNT(lies); i++) {
        gguf_file* f = any_file();
        size_t begin = f->n;
        gguf_end(f);
        memcpy(f->bytes + begin + lies[i].at, &lies[i].value, (size_t)lies[i].bytes);
        spill(path, f->bytes, f->n);
        gr_status st = gr_gguf_open(&g, path);
        if (lies[i].part == NULL) {
            ASSERT_OK(st);
            gr_gguf_close(&g);
        } else {
            assert_refused(st, lies[i].part);
        }
        free(f);
    }
}

static void alignments_that_lie_are_refused(void** state)
{
    (void)state;
    static const uint32_t bad[] = {0, 4, 12, 1 << 21, UINT32_MAX};
    gr_gguf g;
    for (int i = 0; i < GR_COUNT(bad); i++) {
        gguf_file* f = any_file();
        gguf_set_u32(f, "general.alignment", bad[i]);
        f->alignment = 32;
        finish(f);
        assert_refused(gr_gguf_open(&g, path), "`general.alignment` is no multiple of 8");
    }
}

/* ---- vocabulary ------------------------------------------------------------------------------ */

static void vocabularies_are_read(void** state)
{
    (void)state;
    for (int round = 0; round < 40; round++) {
        words w = {.n_tokens = 1 + (int)dice(300), .n_merges = (int)dice(300), .model = true};
        w.n_kinds = w.n_tokens, w.bad_kind = -1;
        w.n_scores = dice(2) ? w.n_tokens : 0, w.eos = (int)dice((uint64_t)w.n_tokens);
        finish(vocab_file(&w));
        gr_gguf g;
        gr_gguf_vocab v;
        ASSERT_OK(gr_gguf_open(&g, path));
        ASSERT_OK(gr_gguf_vocab_open(&v, &g));
        assert_true(gr_gguf_is(v.model, "gpt2") && gr_gguf_is(v.pre, "smollm"));
        assert_true(v.n_tokens == w.n_tokens && v.n_merges == w.n_merges);
        for (int i = 0; i < v.n_tokens; i++) {
            char want[32];
            (void)snprintf(want, sizeof want, "%.*s%d", i % 5, "Ġé<>", i);
            assert_true(gr_gguf_is(v.token[i], want) && v.kind[i] == 1 + i % 6);
            if (w.n_scores > 0) assert_true(v.score[i] == -(float)i);
        }
        for (int i = 0; i < v.n_merges; i++)
            assert_true(gr_gguf_is(v.merge[i], i % 2 ? "a b" : "Ġ t"));
        assert_int_equal(v.score == NULL, w.n_scores == 0);
        assert_true(v.eos == w.eos && v.bos == -1 && v.pad == -1 && v.unknown == -1);
        assert_true(!v.add_bos && v.add_eos == -1 && v.chat_template.n == 0);
        gr_gguf_vocab_close(&v);
        gr_gguf_vocab_close(&v);
        gr_gguf_close(&g);
    }
}

static void vocabularies_that_lie_are_refused(void** state)
{
    (void)state;
    static const struct {
        words w;
        const char* part;
    } lies[] = {
        {{5, 3, 5, 0, -1, 0, false}, "`tokenizer.ggml.model` is missing"},
        {{0, 3, 0, 0, -1, 0, true}, "`tokenizer.ggml.tokens` is missing"},
        {{5, 3, 4, 0, -1, 0, true}, "no list of 5 numbers"},
        {{5, 3, 6, 0, -1, 0, true}, "no list of 5 numbers"},
        {{5, 3, 5, 4, -1, 0, true}, "`tokenizer.ggml.scores` is no list of 5 numbers"},
        {{5, 3, 5, 0, 3, 0, true}, "token 3 has no known kind: 7"},
        {{5, 3, 5, 0, -1, 5, true}, "`tokenizer.ggml.eos_token_id` is none of 5 tokens"},
    };
    gr_gguf g;
    gr_gguf_vocab v;
    for (int i = 0; i < GR_COUNT(lies); i++) {
        finish(vocab_file(&lies[i].w));
        ASSERT_OK(gr_gguf_open(&g, path));
        assert_refused(gr_gguf_vocab_open(&v, &g), lies[i].part);
        assert_true(v.token == NULL && v.kind == NULL);
        gr_gguf_close(&g);
    }
}

/* ---- the world fails ------------------------------------------------------------------------- */

static void every_outside_call_may_fail(void** state)
{
    (void)state;
    gr_gguf g;
    finish(any_file());
    static const char* const place[] = {"weights.open:1", "weights.read:1"};
    for (int i = 0; i < GR_COUNT(place); i++) {
        gr_fault_set(place[i]);
        assert_int_equal(gr_gguf_open(&g, path), GR_EIO);
        assert_non_null(strstr(gr_last_error_text(), path));
    }
    gr_fault_set("");
    assert_int_equal(gr_gguf_open(&g, dir), GR_EIO);
    spill(path, "", 0);
    assert_refused(gr_gguf_open(&g, path), "is empty");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_equal_the_reference),
        cmocka_unit_test(values_equal_the_reference),
        cmocka_unit_test(random_files_are_read),
        cmocka_unit_test(a_cut_file_is_refused),
        cmocka_unit_test(headers_that_lie_are_refused),
        cmocka_unit_test(lists_that_lie_are_refused),
        cmocka_unit_test(tensors_that_lie_are_refused),
        cmocka_unit_test(alignments_that_lie_are_refused),
        cmocka_unit_test(vocabularies_are_read),
        cmocka_unit_test(vocabularies_that_lie_are_refused),
        cmocka_unit_test(every_outside_call_may_fail),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
