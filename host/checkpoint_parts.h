/* checkpoint_parts.h - the two small files of a checkpoint, written and read by checkpoint_state.c and
 * model_config.c, and those of an export. Level 6; private to the checkpoint. */
#pragma once
#include "host/record.h"

/* state.json: every field of gr_train_state, and the updates of the optimizer and of the value
 * model's (0: none) for their bias correction. */
GR_MUST_CHECK gr_status gr_state_save(const char* folder, const gr_train_state* s,
                                      int64_t optimizer_step, int64_t value_step);
GR_MUST_CHECK gr_status gr_state_load(const char* folder, gr_train_state* s,
                                      int64_t* optimizer_step, int64_t* value_step);
/* config.json as Hugging Face writes it; gr_model_config_load reads it. */
GR_MUST_CHECK gr_status gr_model_config_save(const char* folder, const gr_model_config* m);
/* The same for other programs: `source`'s config.json (NULL: one made here) with another dtype. */
GR_MUST_CHECK gr_status gr_model_config_export(const char* folder, const gr_model_config* m,
                                               const char* dtype, const char* source);
/* config.json, generation_config.json and tokenizer files of a model that came from a GGUF file. */
GR_MUST_CHECK gr_status gr_export_gguf(const char* folder, const char* path, const char* dtype);
