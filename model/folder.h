/* folder.h - the weights of a model folder as the Hugging Face libraries lay it out, or of a GGUF file.
 * Level 2.
 *
 *     model.safetensors                      or, of larger models,
 *     model-00001-of-00002.safetensors ..    and
 *     model.safetensors.index.json           {"weight_map": {"tensor": "file", ..}, ..}
 *
 * What config.json says of the shape is host/model_config.c's; a GGUF file says it itself. */
#pragma once
#include "model/safetensors.h"
#include "model/weights.h"

#define GR_SHARD_BYTES 5000000000 /* of data in a file, as the reference library cuts them */

/* The GGUF file that `path` stands for: itself, unless it is a folder; the only *.gguf of a folder
 * without config.json. "" where there is none; several are an error. */
GR_MUST_CHECK gr_status gr_folder_gguf(const char* path, char* out, size_t cap);
/* All or nothing, as gr_safetensors_read; publishes the weights. Files that the index names lie in the
 * folder itself and hold the tensors it says. `folder` may stand for a GGUF file. */
GR_MUST_CHECK gr_status gr_folder_load(gr_weights* w, const char* folder);
/* Into a folder that is there. One file, or shards of at most shard_bytes (a larger tensor has a file
 * of its own) and their index. */
GR_MUST_CHECK gr_status gr_folder_save(const gr_weights* w, const char* folder, gr_file_dtype dtype,
                                       int64_t shard_bytes);
