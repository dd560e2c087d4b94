/* test_dialog.c - a world's texts as tokens and a model's tokens as actions, plain and as a chat. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "host/dialog.h"

#define ASSERT_OK(call)                                                \
    do {                                                               \
        gr_status got_ = (call);                                       \
        if (got_ != GR_OK) fail_msg("%s: %s", #call, gr_last_error()); \
    } while (0)

static const gr_world world = {.prompt = "Reach G.\n", .stop = "\n"};

static gr_tokenizer* load(const char* name)
{
    char path[128] = "tests/golden/tokenizer/";
    gr_tokenizer* t = NULL;
    (void)strcat(strcat(path, name), ".json");
    ASSERT_OK(gr_tokenizer_load(&t, path));
    return t;
}

static void assert_rendered(const gr_dialog* d, const char* text)
{
    char got[1024];
    gr_decode(d->format.tokenizer, GR_MARKUP, d->out.token, d->out.n, got, (int)sizeof got);
    assert_string_equal(got, text);
}

/* The token in front is the vocabulary's; words that meet in prompt and observation are one text. */
static void plain_dialogs_are_the_texts(void** state)
{
    (void)state;
    static const char* const names[] = {NULL, "llama3", "qwen"};
    for (int i = 0; i < GR_COUNT(names); i++) {
        gr_tokenizer* t = names[i] != NULL ? load(names[i]) : NULL;
        gr_dialog d;
        int32_t want[64];
        gr_dialog_init(&d, &(gr_dialog_format){.tokenizer = t});
        gr_dialog_open(&d, &world, "P_\n_G\n", 6);
        int n = 0;
        if (gr_tokenizer_bos(t) >= 0) want[n++] = gr_tokenizer_bos(t);
        n += gr_encode(t, GR_PLAIN, "Reach G.\nP_\n_G\n", 15, want + n, 64 - n);
        assert_int_equal(d.out.n, n);
        assert_memory_equal(d.out.token, want, (size_t)n * sizeof *want);
        gr_dialog_observe(&d, want, n, "_P\n_G\n", 6, false);
        assert_rendered(&d, "_P\n_G\n");
        gr_dialog_act(&d, &world, "right\n", 6);
        assert_rendered(&d, "right\n");
        gr_dialog_free(&d);
        gr_tokenizer_free(t);
    }
}

static void chats_are_turns(void** state)
{
    (void)state;
    for (int bytes = 0; bytes < 2; bytes++) {
        gr_tokenizer* t = bytes ? NULL : load("qwen");
        gr_dialog d;
        gr_dialog_init(&d, &(gr_dialog_format){
                               .tokenizer = t, .chat = gr_chat_find("qwen3"), .no_think = true});
        gr_dialog_open(&d, &world, "P_\n_G\n", 6);
        assert_rendered(&d,
                        "<|im_start|>user\nReach G.\nP_\n_G\n<|im_end|>\n<|im_start|>assistant\n"
                        "<think>\n\n</think>\n\n");
        gr_dialog_act(&d, &world, "right\n", 6);
        assert_rendered(&d, "right<|im_end|>");
        int n = d.out.n;
        int32_t action[64];
        memcpy(action, d.out.token, (size_t)n * sizeof *action);
        gr_dialog_observe(&d, action, n, "_P\n", 3, true);
        assert_rendered(&d, "\n<|im_start|>user\n_P\n<|im_end|>\n");
        gr_dialog_observe(&d, action, n - 1, "_P\n", 3, true); /* cut off */
        assert_rendered(&d, "<|im_end|>\n<|im_start|>user\n_P\n<|im_end|>\n");
        gr_dialog_free(&d);
        gr_tokenizer_free(t);
    }
}

static void hear_until(const gr_dialog_format* f, const char* stop, const char* said,
                       const char* heard)
{
    gr_dialog d;
    int32_t token[64];
    char text[64];
    gr_dialog_init(&d, f);
    int n = gr_encode(f->tokenizer, GR_MARKUP, said, (int)strlen(said), token, 64);
    int length = gr_dialog_hear(&d, &world, stop, token, n, text, (int)sizeof text);
    assert_string_equal(text, heard);
    assert_int_equal(length, strlen(heard));
    for (int cap = 1; cap <= length; cap++) {
        assert_in_range(gr_dialog_hear(&d, &world, stop, token, n, text, cap), 0, cap - 1);
    }
    gr_dialog_free(&d);
}

static void hear(const gr_dialog_format* f, const char* said, const char* heard)
{
    hear_until(f, world.stop, said, heard);
}

static void worlds_hear_text(void** state)
{
    (void)state;
    gr_tokenizer* t = load("qwen");
    const gr_dialog_format bytes = {0}, plain = {.tokenizer = t};
    const gr_dialog_format chat = {.tokenizer = t, .chat = gr_chat_find("qwen3")};
    const gr_dialog_format spelled = {.chat = gr_chat_find("qwen3")};
    hear(&bytes, "up\n", "up\n");
    hear(&bytes, "up", "up");
    hear(&plain, "up\n", "up\n");
    hear(&plain, "up\nand more", "up\n"); /* a token may reach beyond the stop string */
    hear(&plain, "up<|endoftext|>", "up\n");
    hear(&chat, "up<|im_end|>", "up\n");
    hear(&chat, "up\n<|im_end|>", "up\n");
    hear(&chat, "I think\nup<|im_end|>", "I think\nup\n");
    hear(&chat, "up", "up"); /* cut off */
    hear(&spelled, "up<|im_end|>", "up\n");
    hear(&spelled, "up", "up");
    gr_tokenizer_free(t);
}

/* A turn of several blocks has lines of its own; its last tag ends it. */
static void plans_are_heard_whole(void** state)
{
    (void)state;
    gr_tokenizer* t = load("qwen");
    const gr_dialog_format bytes = {0}, plain = {.tokenizer = t};
    const gr_dialog_format chat = {.tokenizer = t, .chat = gr_chat_find("qwen3")};
    hear_until(&bytes, "</a>", "<s>K</s>\n<a>up</a>", "<s>K</s>\n<a>up</a>");
    hear_until(&plain, "</a>", "<s>K</s>\n<a>up</a>", "<s>K</s>\n<a>up</a>");
    hear_until(&plain, "</a>", "<a>up</a>>> more", "<a>up</a>");
    hear_until(&plain, "</a>", "<a>up<|endoftext|>", "<a>up\n");
    hear_until(&chat, "</a>", "<a>up</a>\nand more<|im_end|>", "<a>up</a>\nand more\n");
    gr_tokenizer_free(t);
}

static void requests_end_where_the_format_says(void** state)
{
    (void)state;
    gr_tokenizer* t = load("qwen");
    gr_dialog d;
    gr_request r = {0};
    gr_dialog_init(&d, &(gr_dialog_format){0});
    gr_dialog_stop(&d, world.stop, &r);
    assert_string_equal(r.stop, "\n");
    assert_int_equal(r.n_end, 0);
    gr_dialog_init(&d, &(gr_dialog_format){.tokenizer = t});
    gr_dialog_stop(&d, world.stop, &r);
    assert_string_equal(r.stop, "\n");
    assert_int_equal(r.n_end, 1);
    assert_int_equal(r.end[0], gr_tokenizer_find(t, "<|endoftext|>"));
    gr_dialog_init(&d, &(gr_dialog_format){.tokenizer = t, .chat = gr_chat_find("qwen2.5")});
    gr_dialog_stop(&d, world.stop, &r);
    assert_null(r.stop);
    assert_int_equal(r.n_end, 2);
    assert_int_equal(r.end[0], gr_tokenizer_find(t, "<|im_end|>"));
    gr_dialog_init(&d, &(gr_dialog_format){.chat = gr_chat_find("llama3")});
    gr_dialog_stop(&d, world.stop, &r);
    assert_string_equal(r.stop, "<|eot_id|>");
    gr_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_dialogs_are_the_texts),
        cmocka_unit_test(chats_are_turns),
        cmocka_unit_test(worlds_hear_text),
        cmocka_unit_test(plans_are_heard_whole),
        cmocka_unit_test(requests_end_where_the_format_says),
    };
    return cmocka_run_group_tests_name("dialog", tests, NULL, NULL);
}
