/* llama.c - Llama 2, and Llama 3 with the two templates it has had. */
#include "model/chat/parts.h"

#include <string.h>

/* ---- Llama 2 ----------------------------------------------------------------------------- */

static void render_llama2(gr_chat_text* out, const gr_chat_part* p)
{
    gr_string system = {"", 0};
    int first = p->first ? gr_chat_system(p, &system) : 0;
    if (!p->first && p->unfinished) gr_chat_markup(out, " </s>");
    for (int i = first; i < p->n; i++) {
        bool with_system = i == first && first > 0;
        gr_chat_markup(out, "<s>[INST] ");
        if (with_system) {
            gr_chat_markup(out, "<<SYS>>\n");
            gr_chat_plain(out, system);
            gr_chat_markup(out, "\n<</SYS>>\n\n");
        }
        gr_string text = gr_chat_trim(p->message[i].text);
        if (with_system) { /* the template strips what it has put together, so its own end only */
            text = p->message[i].text;
            gr_string trimmed = gr_chat_trim(text);
            text.n = trimmed.n > 0 ? (size_t)(trimmed.at + trimmed.n - text.at) : 0;
        }
        gr_chat_plain(out, text);
        gr_chat_markup(out, " [/INST]");
    }
}

const gr_chat_format gr_chat_llama2 = {
    .name = "llama2",
    .bos = "<s>",
    .needs = {"<s>", "</s>"},
    .end = {"</s>"},
    .reply = {" ", " </s>"},
    .known = {0x69d0d8116b65d11b},
    .render = render_llama2,
};

/* ---- Llama 3 ----------------------------------------------------------------------------- */

static void header(gr_chat_text* out, const char* role)
{
    gr_chat_markup(out, "<|start_header_id|>");
    gr_chat_markup(out, role);
    gr_chat_markup(out, "<|end_header_id|>\n\n");
}

static void turn(gr_chat_text* out, const char* role, gr_string text)
{
    header(out, role);
    gr_chat_plain(out, text);
    gr_chat_markup(out, "<|eot_id|>");
}

static void begin(gr_chat_text* out, const gr_chat_part* p)
{
    if (p->first) gr_chat_markup(out, "<|begin_of_text|>");
    if (!p->first && p->unfinished) gr_chat_markup(out, "<|eot_id|>");
}

static void render_llama3(gr_chat_text* out, const gr_chat_part* p)
{
    static const char* const role[] = {
        [GR_SYSTEM] = "system", [GR_USER] = "user", [GR_TOOL] = "tool"};
    begin(out, p);
    for (int i = 0; i < p->n; i++) {
        turn(out, role[p->message[i].role], gr_chat_trim(p->message[i].text));
    }
    if (p->answer) header(out, "assistant");
}

const gr_chat_format gr_chat_llama3 = {
    .name = "llama3",
    .bos = "<|begin_of_text|>",
    .needs = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
    .end = {"<|eot_id|>", "<|end_of_text|>"},
    .reply = {"", "<|eot_id|>"},
    .known = {0x2b6d00dd86d5232c},
    .render = render_llama3,
};

/* ---- Llama 3.1, 3.2, 3.3 ----------------------------------------------------------------- */

static void system_turn(gr_chat_text* out, const gr_chat_part* p, gr_string system)
{
    header(out, "system");
    if (p->tools != NULL) gr_chat_markup(out, "Environment: ipython\n");
    gr_chat_markup(out, "Cutting Knowledge Date: December 2023\nToday Date: ");
    gr_chat_markup(out, p->date != NULL ? p->date : "26 Jul 2024");
    gr_chat_markup(out, "\n\n");
    gr_chat_plain(out, gr_chat_trim(system));
    gr_chat_markup(out, "<|eot_id|>");
}

/* The first message of the user carries the functions. */
static void tools_turn(gr_chat_text* out, const gr_chat_part* p, gr_string text)
{
    header(out, "user");
    gr_chat_markup(out, "Given the following functions, please respond with a JSON for a function "
                        "call with its proper arguments that best answers the given prompt.\n\n"
                        "Respond in the format {\"name\": function name, \"parameters\": "
                        "dictionary of argument name and its value}.Do not use variables.\n\n");
    gr_chat_json_list(out, p->tools, 4, "", "\n\n");
    gr_chat_plain(out, gr_chat_trim(text));
    gr_chat_markup(out, "<|eot_id|>");
}

static void render_llama31(gr_chat_text* out, const gr_chat_part* p)
{
    gr_string system = {"", 0};
    int i = 0;
    begin(out, p);
    if (p->first) {
        i = gr_chat_system(p, &system);
        system_turn(out, p, system);
        if (p->tools != NULL && i < p->n) tools_turn(out, p, p->message[i++].text);
    }
    for (; i < p->n; i++) {
        if (p->message[i].role == GR_TOOL) {
            header(out, "ipython");
            gr_chat_json_string(out, p->message[i].text);
            gr_chat_markup(out, "<|eot_id|>");
        } else {
            turn(out, "user", gr_chat_trim(p->message[i].text));
        }
    }
    if (p->answer) header(out, "assistant");
}

const gr_chat_format gr_chat_llama31 = {
    .name = "llama3.1",
    .bos = "<|begin_of_text|>",
    .needs = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
    .end = {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"},
    .tools = true,
    .reply = {"", "<|eot_id|>"},
    .known = {0xaafd63518f08341a},
    .render = render_llama31,
};
