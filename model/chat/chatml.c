/* chatml.c - Qwen2.5, Qwen3 and SmolLM2: <|im_start|>ROLE\nTEXT<|im_end|>\n.
 *
 * They differ in what the system says when nobody says it, in tools, and in thoughts.
 * Answers of tools are user turns; consecutive ones share a turn. */
#include <string.h>

#include "model/chat/parts.h"

#define TOOLS_HEAD                                                                     \
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n" \
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
#define TOOLS_TAIL                                                                       \
    "\n</tools>\n\nFor each function call, return a json object with function name and " \
    "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"                  \
    "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>"

static void begin(gr_chat_text* out, const gr_chat_part* p)
{
    if (p->first) return;
    gr_chat_markup(out, p->unfinished ? "<|im_end|>\n" : "\n");
}

static void messages(gr_chat_text* out, const gr_chat_part* p, int first)
{
    for (int i = first; i < p->n; i++) {
        const gr_message* m = &p->message[i];
        bool tool = m->role == GR_TOOL;
        bool opens = !tool || i == first || m[-1].role != GR_TOOL;
        bool closes = !tool || i + 1 == p->n || m[1].role != GR_TOOL;
        if (opens) gr_chat_markup(out, "<|im_start|>user");
        gr_chat_markup(out, tool ? "\n<tool_response>\n" : "\n");
        gr_chat_plain(out, m->text);
        if (tool) gr_chat_markup(out, "\n</tool_response>");
        if (closes) gr_chat_markup(out, "<|im_end|>\n");
    }
}

static void answer(gr_chat_text* out, const gr_chat_part* p)
{
    if (p->answer) gr_chat_markup(out, "<|im_start|>assistant\n");
}

static void tools(gr_chat_text* out, const gr_chat_part* p)
{
    gr_chat_markup(out, TOOLS_HEAD);
    gr_chat_json_list(out, p->tools, 0, "\n", "");
    gr_chat_markup(out, TOOLS_TAIL);
}

/* The system message, `self` where there is none, without its end. Returns the first message after. */
static int open_system(gr_chat_text* out, const gr_chat_part* p, const char* self)
{
    gr_string system = {self, strlen(self)};
    const int first = gr_chat_system(p, &system);
    gr_chat_markup(out, "<|im_start|>system\n");
    gr_chat_plain(out, system);
    return first;
}

/* ---- Qwen2.5 ----------------------------------------------------------------------------- */

static void render_qwen25(gr_chat_text* out, const gr_chat_part* p)
{
    static const char self[] =
        "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
    int first = 0;
    begin(out, p);
    if (p->first) {
        first = open_system(out, p, self);
        if (p->tools != NULL) {
            gr_chat_markup(out, "\n\n");
            tools(out, p);
        }
        gr_chat_markup(out, "<|im_end|>\n");
    }
    messages(out, p, first);
    answer(out, p);
}

const gr_chat_format gr_chat_qwen25 = {
    .name = "qwen2.5",
    .needs = {"<|im_start|>", "<|im_end|>"},
    .end = {"<|im_end|>", "<|endoftext|>"},
    .tools = true,
    .reply = {"", "<|im_end|>"},
    .known = {0x88f336c0b37ce357},
    .render = render_qwen25,
};

/* ---- Qwen3 ------------------------------------------------------------------------------- */

static void render_qwen3(gr_chat_text* out, const gr_chat_part* p)
{
    gr_string system = {"", 0};
    int first = 0;
    begin(out, p);
    if (p->first) first = gr_chat_system(p, &system);
    if (p->first && (first > 0 || p->tools != NULL)) {
        gr_chat_markup(out, "<|im_start|>system\n");
        gr_chat_plain(out, system);
        if (p->tools != NULL) {
            gr_chat_markup(out, first > 0 ? "\n\n" : "");
            tools(out, p);
        }
        gr_chat_markup(out, "<|im_end|>\n");
    }
    messages(out, p, first);
    answer(out, p);
    if (p->answer && p->no_think) gr_chat_markup(out, "<think>\n\n</think>\n\n");
}

const gr_chat_format gr_chat_qwen3 = {
    .name = "qwen3",
    .needs = {"<|im_start|>", "<|im_end|>"},
    .end = {"<|im_end|>", "<|endoftext|>"},
    .tools = true,
    .thinks = true,
    .reply = {"", "<|im_end|>"},
    .known = {0xbb2c3cbd16783527},
    .render = render_qwen3,
};

/* ---- SmolLM2 ----------------------------------------------------------------------------- */

static void render_smollm2(gr_chat_text* out, const gr_chat_part* p)
{
    static const char self[] =
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
    int first = 0;
    begin(out, p);
    if (p->first) {
        first = open_system(out, p, self);
        gr_chat_markup(out, "<|im_end|>\n");
    }
    for (int i = first; i < p->n; i++) {
        bool tool = p->message[i].role == GR_TOOL;
        gr_chat_markup(out, tool ? "<|im_start|>tool\n" : "<|im_start|>user\n");
        gr_chat_plain(out, p->message[i].text);
        gr_chat_markup(out, "<|im_end|>\n");
    }
    answer(out, p);
}

const gr_chat_format gr_chat_smollm2 = {
    .name = "smollm2",
    .needs = {"<|im_start|>", "<|im_end|>"},
    .end = {"<|im_end|>", "<|endoftext|>"},
    .reply = {"", "<|im_end|>"},
    .known = {0x63820f3b18abb241},
    .render = render_smollm2,
};
