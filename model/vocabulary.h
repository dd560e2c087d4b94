/* vocabulary.h - how a model reads and writes text: the tokenizer and the chat format that come with
 * its weights. Level 2.7.
 *
 *     a folder       tokenizer.json, else a tiktoken rank file; chat_template.jinja, else
 *                    chat_template in tokenizer_config.json
 *     a GGUF file    the keys tokenizer.ggml.* and tokenizer.chat_template of the file itself
 *
 * A folder stands for the GGUF file that model/folder.h takes its weights from. */
#pragma once
#include "model/chat.h"
#include "model/gguf.h"
#include "model/tokenizer.h"

/* *out is NULL where the model came without a vocabulary: it reads bytes. */
GR_MUST_CHECK gr_status gr_model_tokenizer(gr_tokenizer** out, const char* path);
/* An unknown template is an error that says how to add it, and so is a model without one. */
GR_MUST_CHECK gr_status gr_model_chat(const gr_chat_format** out, const char* path);

/* The vocabulary of an opened file; EDATA where it has none. */
GR_MUST_CHECK gr_status gr_tokenizer_from_gguf(gr_tokenizer** out, const gr_gguf* g);
