/* config_core.c - the core settings: key, range, default, meaning. */
#include "host/config_parts.h"

#define WHOLE_MAX 9007199254740991.0 /* 2^53 - 1: integers of JSON are doubles */
#define DIM_MAX   1048576.0

#define S gr_config_run
static const gr_setting run[] = {
    GR_SET_TEXT(S, name, "run", "name of the run: its folder in run.dir"),
    GR_SET_TEXT(S, dir, "runs", "folder of runs"),
    GR_SET_INT(S, seed, 0, WHOLE_MAX, 1, "seed of everything random"),
    GR_SET_INT(S, steps, 0, 1e9, 0, "training steps; 0: until a budget ends"),
    GR_SET_BOOL(S, resume, true, "go on from the newest checkpoint of the run; false: refuse one"),
};
#undef S

#define S gr_config_device
static const gr_setting device[] = {
    GR_SET_TEXT(
        S, name, "cpu",
        "cpu (best instruction set here), cpu:avx512, cpu:avx2, cpu:base; cuda:N (GPU number N)"),
    GR_SET_CHOICE(
        S, matmul, "exact|bf16|auto", 0,
        "matrix products: exact is bit-equal for any batch and thread count, bf16 is fast"),
    GR_SET_CHOICE(S, attention, "exact|fast", 0,
                  "while sampling: exact gives the trainer's log-probs to the bit; fast, on a GPU, "
                  "reads shared keys once and gives that up (parity is reported)"),
    GR_SET_INT(S, threads, 0, 1024, 0, "threads of an op; 0: all cores"),
};
#undef S

#define S gr_config_model
static const gr_setting model[] = {
    GR_SET_TEXT(
        S, path, "",
        "folder of a model or checkpoint to start from (config.json, model.safetensors), or "
        "a GGUF file; its shape replaces the keys below"),
    GR_SET_TEXT(S, reference, "",
                "folder of the model that loss.kl compares with; empty: the weights before step 1"),
    GR_SET_CHOICE(S, dtype, "fp32|bf16", 0, "storage of weights and activations; sums are fp32"),
    GR_SET_INT(S, layers, 1, 1024, 4, "transformer layers"),
    GR_SET_INT(S, width, 2, DIM_MAX, 128, "size of the residual stream"),
    GR_SET_INT(S, heads, 1, 1024, 4, "query heads, a multiple of kv_heads"),
    GR_SET_INT(S, kv_heads, 1, 1024, 4, "key and value heads"),
    GR_SET_INT(S, head_dim, 0, 4096, 0, "size of a head, even; 0: width / heads"),
    GR_SET_INT(S, mlp, 1, DIM_MAX, 352, "inner size of the MLP"),
    GR_SET_INT(S, vocab, 256, DIM_MAX, 256, "tokens; the byte tokenizer needs 256"),
    GR_SET_REAL(S, rope_theta, 1, 1e9, 10000, "base of the rotary wavelengths"),
    GR_SET_REAL(S, norm_eps, 1e-12, 0.01, 1e-6, "epsilon of RMSNorm"),
    GR_SET_BOOL(S, qkv_bias, false, "biases of the q, k, v projections (Qwen2)"),
    GR_SET_BOOL(S, qk_norm, false, "RMSNorm of queries and keys (Qwen3)"),
    GR_SET_BOOL(S, tied, false, "the LM head is the embedding"),
    GR_SET_TEXT(
        S, chat, "none",
        "format of conversations: none (plain text), auto (that of the template in model.path), "
        "qwen2.5, qwen3, smollm2, llama2, llama3 or llama3.1"),
    GR_SET_BOOL(S, think, true, "false: thoughts are closed before they begin (qwen3)"),
    GR_SET_BOOL(S, recompute, false,
                "keep only layer inputs for the backward: less memory, slower"),
};
#undef S

#define S gr_config_env
static const gr_setting env[] = {
    GR_SET_TEXT(S, name, "frozenlake", "world to act in; its settings are the block of its name"),
};
#undef S

#define S gr_config_rollout
static const gr_setting rollout[] = {
    GR_SET_TEXT(S, strategy, "flat", "where to branch and stop; settings in the block of its name"),
    GR_SET_INT(S, group, 1, 256, 8, "initial branches of a tree"),
    GR_SET_INT(S, groups_per_step, 0, 1e6, 0,
               "trees of a step; 0: as tokens_per_step says, 8 without it"),
    GR_SET_INT(S, tokens_per_step, 0, 1e12, 0,
               "sampled tokens of a step, about; 0: no such limit; of two limits the smaller wins"),
    GR_SET_INT(S, max_turns, 0, 1e6, 0, "turns of an episode; 0: the world's own horizon"),
    GR_SET_INT(S, max_turn_tokens, 1, DIM_MAX, 32, "tokens of an action"),
    GR_SET_INT(S, max_context, 2, DIM_MAX, 512, "tokens of a path; one that meets it is truncated"),
    GR_SET_INT(S, max_tree_turns, 0, 1e9, 0, "environment turns of a tree; 0: no limit"),
    GR_SET_INT(S, max_live, 1, 65536, 64, "branches that decode at once; changes no result"),
    GR_SET_INT(S, max_rows, 1, DIM_MAX, 512, "rows of one forward; changes no result"),
    GR_SET_INT(S, kv_pages, 0, 67108864, 0,
               "pages of 16 tokens in the KV pool; 0: twice what max_live paths take"),
    GR_SET_INT(S, refill_max, 1, 1000, 4, "times a group that cannot teach is refilled"),
    GR_SET_CHOICE(
        S, on_cap, "invalid|end", GR_ON_CAP_INVALID,
        "an action that meets max_turn_tokens: is invalid, or ends the episode truncated"),
    GR_SET_CHOICE(S, interface, "plain|hiper", GR_INTERFACE_PLAIN,
                  "what model and world exchange: text as it is, or switch, subgoal and action"),
    GR_SET_CHOICE(S, refill, "none|resample|extend", GR_REFILL_NONE,
                  "groups whose advantages are all 0: keep, draw another task, or add branches"),
    GR_SET_REAL(S, temperature, 1e-3, 100, 1, "of training rollouts and of the loss"),
    GR_SET_REAL(S, top_p, 1e-6, 1, 1, "eval and generate only: most probable tokens of this mass"),
    GR_SET_REAL(S, min_p, 0, 1, 0, "eval and generate only: least share of the top probability"),
    GR_SET_INT(S, top_k, 0, DIM_MAX, 0, "eval and generate only: most probable tokens; 0: all"),
};
#undef S

#define S gr_config_scorer
static const gr_setting scorer[] = {
    GR_SET_TEXT(S, name, "heuristic", "how good a prefix is, for strategies that ask"),
};
#undef S

#define S gr_config_advantage
static const gr_setting advantage[] = {
    GR_SET_TEXT(S, estimator, "grpo", "grpo, rloo, dr_grpo, tree_grpo, sibling, gigpo, gae or hae"),
    GR_SET_REAL(S, eps, 0, 1, 1e-6, "added to the deviation that rewards are divided by"),
};
#undef S

#define S gr_config_loss
static const gr_setting loss[] = {
    GR_SET_REAL(S, clip_low, 0, 1, 0.2, "the ratio is clipped below 1 - clip_low"),
    GR_SET_REAL(S, clip_high, 0, 1e6, 0.28, "the ratio is clipped above 1 + clip_high"),
    GR_SET_REAL(S, dual_clip, 0, 1e6, 0, "bound of the ratio at negative advantage; 0: none"),
    GR_SET_CHOICE(S, kl, "none|k1|k2|k3", 0, "estimator of the KL to model.reference"),
    GR_SET_REAL(S, kl_coef, 0, 1e6, 0, "weight of the KL term"),
    GR_SET_REAL(S, entropy_coef, 0, 1e6, 0, "weight of the entropy bonus"),
    GR_SET_CHOICE(S, weighting, "per_leaf|split|inv_sqrt|once_mean", GR_WEIGHT_PER_LEAF,
                  "of tokens that leaves share"),
    GR_SET_CHOICE(S, aggregation, "seq_mean_token_mean|token_mean|constant",
                  GR_AGG_SEQ_MEAN_TOKEN_MEAN, "mean over tokens of a leaf, over all, or by length"),
    GR_SET_INT(S, length, 0, 1e9, 0,
               "tokens that constant divides by; 0: max_turns x max_turn_tokens"),
    GR_SET_BOOL(S, count_idle_groups, false, "groups without advantage count in denominators"),
};
#undef S

#define S gr_config_optimizer
static const gr_setting optimizer[] = {
    GR_SET_REAL(S, lr, 0, 100, 5e-4, "learning rate of AdamW"),
    GR_SET_CHOICE(S, schedule, "constant|linear|cosine", 0, "of the rate, over the whole run"),
    GR_SET_REAL(S, final_ratio, 0, 1, 0, "rate at the end of the schedule / lr"),
    GR_SET_INT(S, warmup_steps, 0, 1e9, 0, "updates over which the rate rises to lr"),
    GR_SET_REAL(S, beta1, 0, 0.999999, 0.9, "decay of the first moment"),
    GR_SET_REAL(S, beta2, 0, 0.999999, 0.95, "decay of the second moment"),
    GR_SET_REAL(S, eps, 0, 1, 1e-8, "added to the root of the second moment"),
    GR_SET_REAL(S, weight_decay, 0, 100, 0, "decoupled, of matrices only"),
    GR_SET_REAL(S, grad_clip, 0, 1e9, 1, "largest global gradient norm; 0: any"),
    GR_SET_INT(S, minibatches, 1, 1e6, 1, "updates of a step; a minibatch is whole trees"),
    GR_SET_INT(S, epochs, 1, 1000, 1, "passes over the trees of a step"),
    GR_SET_INT(S, microbatch_tokens, 2, 16777216, 4096, "tokens of one forward and backward"),
    GR_SET_INT(S, max_skipped, 0, 1e6, 3, "updates in a row that may be left out as not finite"),
};
#undef S

#define S gr_config_warmstart
static const gr_setting warmstart[] = {
    GR_SET_INT(S, steps, 0, 1e9, 0, "updates on demonstrations before step 1"),
    GR_SET_INT(S, batch, 1, 1e6, 64, "episodes of an update"),
    GR_SET_REAL(S, lr, 0, 100, 2e-3, "learning rate, decaying as a cosine"),
    GR_SET_INT(S, warmup_steps, 0, 1e9, 10, "updates over which the rate rises to lr"),
    GR_SET_REAL(S, final_ratio, 0, 1, 0.1, "rate at the end / lr"),
    GR_SET_TEXT(S, load, "", "folder of weights to start from instead of learning them"),
};
#undef S

#define S gr_config_budget
static const gr_setting budget[] = {
    GR_SET_INT(S, turns, 0, WHOLE_MAX, 0, "environment turns of the run, scorers included; 0: any"),
    GR_SET_INT(S, tokens, 0, WHOLE_MAX, 0, "sampled tokens of the run; 0: any"),
    GR_SET_REAL(S, minutes, 0, 1e9, 0, "of wall clock over all sessions of the run; 0: any"),
};
#undef S

#define S gr_config_eval
static const gr_setting eval[] = {
    GR_SET_INT(S, every, 0, 1e9, 0, "steps between evaluations; 0: only before and after"),
    GR_SET_REAL(S, every_share, 0, 1, 0, "the same as a share of the run, e.g. 0.1; 0: off"),
    GR_SET_INT(S, tasks, 0, 1e9, 200, "held-out tasks; 0: no evaluation"),
    GR_SET_INT(S, samples, 1, 65536, 1, "episodes of a task"),
    GR_SET_REAL(S, temperature, 1e-3, 100, 1, "of evaluation"),
    GR_SET_BOOL(S, greedy, false, "evaluate the most probable actions too"),
};
#undef S

#define S gr_config_checkpoint
static const gr_setting checkpoint[] = {
    GR_SET_INT(S, every, 0, 1e9, 20, "steps between checkpoints; 0: only before and after"),
    GR_SET_INT(S, keep, 0, 1e9, 2, "newest checkpoints that are kept; 0: all"),
    GR_SET_BOOL(S, best, true, "keep the best one by held-out success too"),
};
#undef S

#define S gr_config_log
static const gr_setting log_settings[] = {
    GR_SET_INT(S, trees_every, 0, 1e9, 1, "steps between those whose trees are logged; 0: none"),
    GR_SET_INT(S, watchdog_s, 0, 1e6, 300, "seconds without a step until a warning; 0: never"),
    GR_SET_BOOL(S, quiet, false, "no progress lines"),
    GR_SET_BOOL(S, json, false, "progress as lines of JSON on stdout, for programs"),
};
#undef S

#define CORE(name, table)                                                         \
    {                                                                             \
        GR_BLOCK(gr_config_##name, #name, NULL, table), offsetof(gr_config, name) \
    }
const gr_core_block gr_core_blocks[] = {
    CORE(run, run),
    CORE(device, device),
    CORE(model, model),
    CORE(env, env),
    CORE(rollout, rollout),
    CORE(scorer, scorer),
    CORE(advantage, advantage),
    CORE(loss, loss),
    CORE(optimizer, optimizer),
    CORE(warmstart, warmstart),
    CORE(budget, budget),
    CORE(eval, eval),
    CORE(checkpoint, checkpoint),
    CORE(log, log_settings),
};
const int gr_n_core_blocks = GR_COUNT(gr_core_blocks);
