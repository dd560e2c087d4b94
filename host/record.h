/* record.h - what a run leaves on disk: checkpoints, metrics.jsonl, trees.jsonl, config.json. Level 6.
 *
 *     runs/<name>/config.json            resolved settings
 *                 metrics.jsonl          one object per step
 *                 trees.jsonl            one object per tree
 *                 checkpoints/000120/    model.safetensors config.json (as Hugging Face names them),
 *                                        optimizer.safetensors state.json complete; with a value
 *                                        model value.safetensors value_optimizer.safetensors
 *                 finished               written when the run reached its end
 *                 lock                   held by the process that writes the run
 *
 * A checkpoint is written into a folder aside, every file fsynced, the folder renamed, its parent
 * fsynced, and the marker `complete` (checksums of the files) written last; folders without a valid
 * marker are ignored. A resume cuts metrics.jsonl and trees.jsonl back to the checkpoint's offsets.
 * Every outside call passes gr_fault: "record.open", "record.write", "record.sync", "record.rename", and
 * "record.read", "record.remove" (host/durable.h). */
#pragma once
#include <stdio.h>

#include "host/advantage/advantage.h"
#include "host/config.h"
#include "model/folder.h"
#include "model/optimizer.h"

/* Everything beside weights and moments that a resumed run needs. Plain data, saved as JSON. */
typedef struct gr_train_state {
    int64_t step;    /* steps done */
    int64_t updates; /* optimizer steps done */
    int64_t env_turns, gen_tokens, prefill_tokens, scorer_calls, charged_turns;
    int64_t refiner_tokens, critic_tokens; /* of gen_tokens: steps made again, answers of judges */
    int64_t loss_tokens, loss_tokens_flat, discarded_tokens;
    int64_t env_errors[GR_N_ENV_ERRORS]; /* trajectories lost while training, by class */
    int64_t skipped_in_a_row;
    int64_t next_task;       /* cursor into the stream of training tasks */
    double tokens_per_group; /* running estimate, for rollout.tokens_per_step */
    double seconds;          /* wall clock used so far, over all sessions */
    double best_success;
    int64_t best_step;
    double next_eval; /* share of the budget at which the next evaluation is due */
    int64_t metrics_bytes, trees_bytes; /* offsets of the logs when this was saved */
    uint64_t config_hash, weights_hash;
    char arithmetic[64]; /* instruction set and matmul mode: a resume on other ones warns */
} gr_train_state;

GR_MUST_CHECK gr_status gr_checkpoint_save(const char* run_dir, const gr_train_state* s,
                                           const gr_weights* w, const gr_optimizer* o,
                                           const gr_optimizer* critic, const char* label, int keep);
/* Path of the newest complete checkpoint (or of `label`, e.g. "best") into `path`; "" if none. */
GR_MUST_CHECK gr_status gr_checkpoint_find(const char* run_dir, const char* label, char* path,
                                           size_t cap);
/* Removes checkpoints of steps after `after`: a run that went back to an earlier one makes them again. */
GR_MUST_CHECK gr_status gr_checkpoint_forget(const char* run_dir, int64_t after);
bool gr_checkpoint_any(const char* run_dir); /* a step's checkpoint with a marker, sound or not */
/* critic: the value model, weights and moments; NULL: none is saved, none is read. A checkpoint
 * without one is an error where it is asked for. o may be NULL: weights only; then, with s NULL, the folder may be a Hugging Face model. Damage is an
 * error naming the file; nothing is changed then but o's gradient, which waits for the next step. */
GR_MUST_CHECK gr_status gr_checkpoint_load(const char* path, gr_train_state* s, gr_weights* w,
                                           gr_optimizer* o, gr_optimizer* critic);
/* Shape of a saved model, from the folder of a checkpoint or of a Hugging Face model (config.json), or
 * from a GGUF file. */
GR_MUST_CHECK gr_status gr_model_config_load(const char* dir, gr_model_config* out);

/* Writes a Hugging Face folder for others to load: weights in shards of `shard_bytes`, config.json and,
 * where the model came from such a folder, `source`, its config.json but for the dtype, generation
 * config, tokenizer and chat template as they were; of a GGUF file they are made from what it says.
 * source NULL: a model that began here. Refuses a folder that holds something. */
GR_MUST_CHECK gr_status gr_export(const gr_weights* w, const char* folder, const char* source,
                                  gr_file_dtype dtype, int64_t shard_bytes);

/* ---- the run folder ----------------------------------------------------------------------------- */

typedef struct gr_run_log {
    char dir[512];
    FILE *metrics, *trees, *lock;
} gr_run_log;
/* Creates the folder and config.json, or opens an existing run and cuts its logs to `state`'s offsets
 * (state NULL: a fresh run; a folder that already holds a run is then an error, while one that ended
 * before its first checkpoint is begun again). Locks the folder, so that two processes never write one
 * run; the lock ends with its process, however that ends. */
GR_MUST_CHECK gr_status gr_run_log_open(gr_run_log* log, const char* dir, const char* config_json,
                                        const gr_train_state* state);
GR_MUST_CHECK gr_status gr_run_log_finish(gr_run_log* log); /* marker `finished` */
bool gr_run_log_finished(const char* dir);
GR_MUST_CHECK gr_status gr_run_log_offsets(gr_run_log* log, int64_t* metrics, int64_t* trees);
void gr_run_log_close(gr_run_log* log);

/* ---- metrics -------------------------------------------------------------------------------------- */

#define GR_MAX_METRICS 96
typedef struct gr_metrics {
    struct {
        char name[64];
        double value; /* NaN is written as null */
    } item[GR_MAX_METRICS];
    int n;
} gr_metrics;
void gr_metrics_set(gr_metrics* m, const char* name, double value); /* replaces an earlier one */
double gr_metrics_get(const gr_metrics* m, const char* name);       /* NaN if absent */
/* One line {"step": .., names in order of first set}; doubles with 17 digits where needed. Flushed. */
GR_MUST_CHECK gr_status gr_metrics_write(gr_run_log* log, int64_t step, const gr_metrics* m);

/* One line per tree: the names of the world's signals (envs/env.h), then every node: id, parent, turn,
 * branch, ordinal, kind, status, action, observation, score, reward, success, stepped, valid, train,
 * signals, advantage (of all its trained tokens the mean; null where leaves below differ), leaves below
 * with the sums a_pos and a_neg of their positive and negative advantages, action tokens and log-probs,
 * observation tokens, uid as hex. A judged step has the critic's words (critique); one that was made
 * again the attempt it answers (about), where its log-probs are from, and the tokens that stood
 * behind that attempt's action when it was sampled (told). */
GR_MUST_CHECK gr_status gr_tree_log_write(gr_run_log* log, const gr_credit* c,
                                          const gr_world* world);
