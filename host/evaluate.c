/* evaluate.c - success on tasks of a split, by independent episodes. */
#include <math.h>
#include <stdlib.h>

#include "host/train.h"

#define CHUNK 512 /* episodes that grow at once: bounds memory, not results */

void gr_wilson(double p, double n, double* low, double* high)
{
    const double z = 1.959963984540054;
    double centre = (p + z * z / (2 * n)) / (1 + z * z / n);
    double half = z / (1 + z * z / n) * sqrt(p * (1 - p) / n + z * z / (4 * n * n));
    *low = p > 0 ? centre - half : 0; /* exact at the ends, where rounding leaves a rest */
    *high = p < 1 ? centre + half : 1;
}

/* Chen et al. 2021, arXiv:2107.03374, eq. 1. */
double gr_pass_at(int64_t n, int64_t c, int64_t k)
{
    double miss = 1;
    if (n - c < k) return 1;
    for (int64_t i = n - c + 1; i <= n; i++) miss *= 1 - (double)k / (double)i;
    return 1 - miss;
}

/* Root and at most one chain per tree, so the last node is the episode's end. */
static void count(const gr_tree* t, gr_eval_result* out, int64_t* solved)
{
    int last = t->n_nodes - 1;
    *solved += t->success[last];
    out->success += t->success[last];
    out->ret += gr_tree_return(t, last);
    out->turns += t->turn[last];
    out->env_turns += t->env_turns;
    out->gen_tokens += t->gen_tokens;
    out->errors += t->status[last] == GR_ERROR;
}

gr_status gr_evaluate(gr_run* run, gr_split split, int64_t tasks, int64_t samples,
                      const gr_sampling* sampling, gr_eval_result* out)
{
    gr_rollout_settings s = run->train_settings;
    s.strategy = gr_strategy_find("flat");
    s.strategy_settings = NULL;
    s.group = 1;
    s.max_tree_turns = 0;
    s.sampling = *sampling;
    s.purpose = GR_FOR_EVAL;
    int64_t there = gr_envs_n_tasks(run->envs, split);
    if (tasks > 0 && there == 0) {
        return GR_FAIL(GR_EARG,
                       "eval.tasks = %lld, but env.name = %s holds no task out; 0: no "
                       "evaluation",
                       (long long)tasks, run->config->env.name);
    }
    tasks = GR_MIN(tasks, there);
    *out = (gr_eval_result){.tasks = tasks, .samples = samples};
    int64_t total = tasks * samples, solved = 0;
    GR_RESERVE(run->tree, run->tree_cap, GR_MIN(total, CHUNK));
    GR_RESERVE(run->task, run->task_cap, GR_MIN(total, CHUNK));
    for (int64_t at = 0; at < total; at += CHUNK) {
        int n = (int)GR_MIN(CHUNK, total - at);
        for (int i = 0; i < n; i++) {
            run->task[i] = (gr_rollout_task){
                .step = 0, /* the same noise at every evaluation: differences are the policy's */
                .slot = (int)((at + i) / samples),
                .attempt = (int)((at + i) % samples),
                .split = split,
                .task = (at + i) / samples,
            };
        }
        GR_TRY(gr_rollout_run(run->rollout, &s, run->task, n, run->tree));
        for (int i = 0; i < n; i++) {
            count(&run->tree[i], out, &solved);
            if ((at + i + 1) % samples != 0) continue;
            out->pass_at_k[0] += gr_pass_at(samples, solved, 1);
            out->pass_at_k[1] += gr_pass_at(samples, solved, samples);
            solved = 0;
        }
    }
    double n = (double)GR_MAX(total, 1), k = (double)GR_MAX(tasks, 1);
    out->success /= n;
    out->ret /= n;
    out->turns /= n;
    out->pass_at_k[0] /= k;
    out->pass_at_k[1] /= k;
    gr_wilson(out->success, n, &out->success_low, &out->success_high);
    return GR_OK;
}
