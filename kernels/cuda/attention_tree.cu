/* attention_tree.cu - attention over a packed tree, forward. A block takes a tile of the host's
 * plan (tree_plan.c) for one KV head, the longest first; a tile lists only pages that some of
 * its rows see. */
#include "kernels/cuda/attention_tree.cuh"

template <class T, int D>
using tree_team = team<T, D, team_sizes<T>::pages, team_sizes<T>::stages, team_sizes<T>::warps>;

template <class T, int D>
__global__ void __launch_bounds__(team_sizes<T>::warps* WARP, 1) attend_tree(attend_args<T> a)
{
    DYN_SHARED(unsigned char, shared);
    const int hk = a.rows.hk;
    attend_tile<T, D, tree_team<T, D>>(&a, shared, (int)blockIdx.x / hk, (int)blockIdx.x % hk);
}

template <class T, int D> static void run_tree(gr_dev* dev, const attend_args<T>* a)
{
    typedef tree_team<T, D> team;
    const unsigned blocks = (unsigned)(gr_cuda_plans_of(dev)->tree.n_tiles * a->rows.hk);
    gr_cuda_allow_shared(attend_tree<T, D>, (size_t)team::bytes);
    LAUNCH((attend_tree<T, D>), blocks, team::THREADS, (size_t)team::bytes, gr_cuda_stream(dev),
           *a);
}

void OP(attention_tree)(gr_dev* dev, void* o, void* stat, const void* q, const void* k,
                        const void* v, const int32_t* subtree_end, int64_t n, int h, int hk, int d,
                        float scale, int max_path, void* scratch)
{
    if (n == 0) return;
    FOR_REAL(dev, {
        tree_args<T> a = tree_prepare<T>(dev, (const T*)q, (const T*)k, (const T*)v, subtree_end, n,
                                         h, hk, d, scale, max_path, scratch);
        a.attend.o = (T*)o;
        a.attend.stat = (float*)stat;
        a.attend.even = a.attend.even && is_aligned(o, 2 * sizeof(T));
        FOR_HEAD_SIZE(d, run_tree<T, D>(dev, &a.attend));
    });
    gr_cuda_launched(dev, "attention_tree");
}

size_t OP(attention_tree_scratch)(const gr_dev* dev, int64_t n, int h, int hk, int d, int max_path)
{
    const int wide = dev->dtype == GR_BF16 ? wide_rows<bf16>() : wide_rows<float>();
    return tree_layout(n, h, hk, d, wide, max_path).all;
}
