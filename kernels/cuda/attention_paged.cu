/* attention_paged.cu - attention over pages of the pool: decoding, and prefills behind a shared
 * prefix.
 *
 * The host's plan (pool_plan.c) makes tiles of query rows that share pages and gives them to
 * the slots of one resident launch: a block first works on wide tiles with all its warps, then
 * each warp on narrow tiles of its own. Rows whose keys were parted between tiles are merged in
 * path order. */
#include "kernels/cuda/attention_fwd.cuh"
#include "kernels/cuda/upload.cuh"

template <class T> struct pool_args {
    attend_args<T> attend;
    const int32_t *work_begin, *item;
    int warps; /* of a block that take narrow tiles */
};

template <class T, int D>
using pool_wide = team<T, D, team_sizes<T>::pages, team_sizes<T>::stages, team_sizes<T>::warps>;
template <class T, int D> using pool_narrow = team<T, D, 1, team_sizes<T>::stages, 1>;

template <class T, int D>
__global__ void __launch_bounds__(team_sizes<T>::warps* WARP, 1) attend_pool(pool_args<T> a)
{
    DYN_SHARED(unsigned char, shared);
    const int hk = a.attend.rows.hk, warp = (int)threadIdx.x / WARP;
    for (int i = a.work_begin[blockIdx.x]; i < a.work_begin[blockIdx.x + 1]; i++)
        attend_tile<T, D, pool_wide<T, D>>(&a.attend, shared, a.item[i] / hk, a.item[i] % hk);
    __syncthreads();
    if (warp >= a.warps) return;
    const int slot = (int)gridDim.x + (int)blockIdx.x * a.warps + warp;
    for (int i = a.work_begin[slot]; i < a.work_begin[slot + 1]; i++)
        attend_tile<T, D, pool_narrow<T, D>>(&a.attend, shared + warp * pool_narrow<T, D>::bytes,
                                             a.item[i] / hk, a.item[i] % hk);
}

#define MERGE_THREADS 128

/* Warp = flat row of a KV head. */
template <class T, int D>
__global__ void __launch_bounds__(MERGE_THREADS)
    merge_parts(attend_args<T> a, const int32_t* merge_begin, const int32_t* merge, int n_flat)
{
    const int IT = (D + WARP - 1) / WARP, hk = a.rows.hk, d = a.rows.d;
    const int64_t at = ((int64_t)blockIdx.x * MERGE_THREADS + threadIdx.x) / WARP;
    const int flat = (int)(at / hk), head = (int)(at % hk);
    if (flat >= n_flat || merge_begin[flat] == merge_begin[flat + 1]) return;
    float max = NO_MAX, sum = 0, run[IT];
#pragma unroll
    for (int k = 0; k < IT; k++) run[k] = 0;
    for (int i = merge_begin[flat]; i < merge_begin[flat + 1]; i++) {
        const float* part = a.part + ((int64_t)merge[i] * hk + head) * part_size(d);
        const join both = join_sums(&max, &sum, part[0], part[1]);
#pragma unroll
        for (int k = 0; k < IT; k++) {
            const int c = k * WARP + lane_of();
            if (c < d) run[k] = joined(both, run[k], part[2 + c]);
        }
    }
    T* to = a.o + query_at(&a.rows, flat, head);
#pragma unroll
    for (int k = 0; k < IT; k++) {
        const int c = k * WARP + lane_of();
        if (c < d) to[c] = to_real<T>(run[k] / sum);
    }
}

/* ---- launch ------------------------------------------------------------------------------------- */

/* Sends the plan, unless it is there. The workspace is for partial results. */
template <class T>
static pool_args<T> place_plan(gr_dev* dev, const gr_pool_plan* p, const gr_page_plan* in,
                               const attend_args<T>* all, gr_upload* u)
{
    if (upload_begin(u, p, p->number)) {
        gr_pool_plan_arrays(p, upload_add, u);
        upload_add(u, in->row, (size_t)in->n_rows * sizeof *in->row);
        upload_add(u, in->n_keys, (size_t)in->n_rows * sizeof *in->n_keys);
        upload_send(u, dev, NULL, 0);
    }
    pool_args<T> a = {*all, upload_at<int32_t>(u, 5), upload_at<int32_t>(u, 6), 0};
    a.attend.keys.page = upload_at<gr_key_page>(u, 0);
    a.attend.keys.list = upload_at<int32_t>(u, 1);
    a.attend.tile = upload_at<gr_tile>(u, 2);
    a.attend.rows.row = upload_at<int32_t>(u, 7);
    a.attend.rows.n_keys = upload_at<int32_t>(u, 8);
    a.attend.part = (float*)gr_cuda_workspace(dev);
    return a;
}

template <class T, int D>
static void run_pool(gr_dev* dev, const gr_page_plan* in, const attend_args<T>* all)
{
    typedef pool_wide<T, D> wide;
    typedef pool_narrow<T, D> narrow;
    const query_rows* r = &all->rows;
    gr_pool_plan* p = &gr_cuda_plans_of(dev)->pool;
    gr_upload* u = &gr_cuda_plans_of(dev)->sent;
    const int warps = (int)GR_MIN(gr_cuda_shared(dev) / narrow::bytes, (size_t)wide::WARPS);
    const size_t shared = (size_t)GR_MAX(wide::bytes, warps * narrow::bytes);
    gr_pool_shape shape;
    shape.group = r->group;
    shape.hk = r->hk;
    shape.wide_rows = wide_rows<T>();
    shape.exact = dev->attention == GR_ATTENTION_EXACT;
    shape.blocks = gr_cuda_processors(dev);
    shape.warps = warps;
    shape.max_parts = (int64_t)(GR_CUDA_WORKSPACE / sizeof(float)) / r->hk / part_size(r->d);
    shape.max_bytes =
        GR_CUDA_PLAN_ROOM - (size_t)in->n_rows * 2 * sizeof(int32_t) - 16 * GR_UPLOAD_ARRAYS;
    gr_cuda_allow_shared(attend_pool<T, D>, shared);
    for (int task = 0; task < in->n_tasks;) {
        task = gr_pool_plan_make(p, in, task, &shape);
        pool_args<T> a = place_plan(dev, p, in, all, u);
        a.warps = warps;
        LAUNCH((attend_pool<T, D>), shape.blocks, wide::THREADS, shared, gr_cuda_stream(dev), a);
        if (p->n_parts > 0)
            LAUNCH((merge_parts<T, D>),
                   (unsigned)ceil_div((int64_t)p->n_flat * r->hk * WARP, MERGE_THREADS),
                   MERGE_THREADS, 0, gr_cuda_stream(dev), a.attend, upload_at<int32_t>(u, 3),
                   upload_at<int32_t>(u, 4), p->n_flat);
    }
}

void OP(attention_paged)(gr_dev* dev, void* o, const void* q, const void* pool,
                         const gr_page_plan* plan, int h, int hk, int d, float scale, void* scratch)
{
    (void)scratch;
    if (plan->n_rows == 0) return;
    FOR_REAL(dev, {
        const bool whole = (size_t)d * sizeof(T) % 16 == 0;
        attend_args<T> a;
        memset(&a, 0, sizeof a);
        a.o = (T*)o;
        a.q = (const T*)q;
        a.keys.k = (const T*)pool;
        a.keys.v = a.keys.k + GR_PAGE * d;
        a.keys.hk = a.rows.hk = hk;
        a.keys.d = a.rows.d = d;
        a.keys.whole = whole && is_aligned(pool, 16);
        a.rows.h = h;
        a.rows.group = h / hk;
        a.scale2 = scale * 1.44269504f;
        a.even = d % 2 == 0 && is_aligned(o, 2 * sizeof(T));
        a.whole = whole && is_aligned(q, 16);
        FOR_HEAD_SIZE(d, run_pool<T, D>(dev, plan, &a));
    });
    gr_cuda_launched(dev, "attention_paged");
}

size_t OP(attention_paged_scratch)(const gr_dev* dev, int h, int hk, int d, int max_keys)
{
    (void)dev, (void)h, (void)hk, (void)d, (void)max_keys;
    return 0; /* the workspace serves it */
}
