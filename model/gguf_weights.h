/* gguf_weights.h - a model out of a GGUF file. Level 2.6. */
#pragma once
#include "model/gguf.h"
#include "model/weights.h"

/* The shape that the metadata describe: families llama (Llama 2 and 3, SmolLM2), qwen2 and qwen3. What
 * this program does not compute is an error that names the key. */
GR_MUST_CHECK gr_status gr_gguf_config(const gr_gguf* g, gr_model_config* out);
/* Dequantises into the masters and publishes them. All or nothing, as gr_safetensors_read. */
GR_MUST_CHECK gr_status gr_gguf_load(gr_weights* w, const gr_gguf* g);
