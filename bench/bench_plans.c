/* Counts what the plans of the CUDA attention kernels read and multiply, without a GPU: one
 * table for decoding, one for training. */
#include "bench/trees.h"

#include <stdio.h>

static void print_decode(const tree_case* c, bool exact)
{
    tree_batch* b = tree_batch_of(c);
    gr_pool_plan p = {0};
    gr_pool_shape s = h200_pool;
    s.exact = exact;
    GR_ASSERT(gr_pool_plan_make(&p, &b->plan.plan, 0, &s) == b->plan.plan.n_tasks);
    const double unique = (double)b->unique;
    /* a part of 520 bytes is written and read; K and V of a key have 512 */
    printf("| %s | %s | %lld | %.2f | %.3f | %.3f | %d | %d | %.2f |\n", c->name,
           exact ? "exact" : "fast", (long long)b->unique, (double)b->flat / unique,
           (double)keys_read(&p) / unique, 2 * 520.0 * p.n_parts / (512 * unique), p.n_tiles,
           p.n_wide, (double)p.makespan * s.blocks / (double)p.work);
    gr_pool_plan_free(&p);
    tree_batch_close(b);
}

static void print_training(const tree_case* c)
{
    packed_tree t = packed_tree_of(c);
    gr_tree_plan p = {0};
    gr_tree_plan_make(&p, t.subtree_end, t.n, &h200_tree);
    int64_t units = 0; /* pairs of the backward of keys and values */
    for (int32_t i = 0; i < p.n_units; i++)
        units += (int64_t)(p.unit[i].step_end - p.unit[i].step_begin) * GR_QUERY_STEP * GR_KEY_TILE;
    const double needed = (double)pairs_needed(&p);
    printf("| %s | %d | %d | %.3f | %.3f | %d | %d |\n", c->name, t.n, t.max_path,
           (double)pairs_multiplied(&p) / needed, (double)units / needed, p.n_tiles, p.n_parts);
    gr_tree_plan_free(&p);
    free(t.subtree_end);
}

int main(void)
{
    printf("| batch | plan | unique keys | flat / unique | KV read / unique | partials / unique | "
           "tiles "
           "| wide | longest slot / mean |\n|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < GR_COUNT(tree_cases); i++) {
        print_decode(&tree_cases[i], false);
        print_decode(&tree_cases[i], true);
    }
    printf("\n| tree | tokens | longest path | pairs of a tile's steps / needed | of dk and dv, at "
           "most "
           "| tiles | parts |\n|---|---|---|---|---|---|---|\n");
    print_training(&training_case);
    return 0;
}
