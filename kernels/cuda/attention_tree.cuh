/* attention_tree.cuh - what forward and backward over a packed tree share: plan and scratch. */
#pragma once
#include "kernels/cuda/attention_fwd.cuh"
#include "kernels/cuda/upload.cuh"

/* Scratch: the plan's arrays if they are many, delta (n, h), sums of parts of key tiles. */
typedef struct tree_scratch {
    size_t plan_bytes, delta, part, all; /* offsets */
} tree_scratch;

static __host__ __device__ inline int part_pitch(int d) { return (d + 1) / 2 * 2; }

static inline tree_scratch tree_layout(int64_t n, int h, int hk, int d, int wide, int max_path)
{
    const gr_tree_shape shape = {h / hk, hk, wide};
    const gr_tree_bounds b = gr_tree_plan_bounds(n, &shape, max_path);
    tree_scratch s;
    s.plan_bytes = b.bytes + 16 * GR_UPLOAD_ARRAYS;
    s.delta = (s.plan_bytes + 255) / 256 * 256;
    s.part = s.delta + ((size_t)(n * h) * sizeof(float) + 255) / 256 * 256;
    s.all = s.part + (size_t)(b.parts * hk * 2 * GR_KEY_TILE * part_pitch(d)) * sizeof(float);
    return s;
}

/* One call, forward or backward. `o` of the forward is what its tiles write. */
template <class T> struct tree_args {
    attend_args<T> attend;
    const int32_t* subtree_end;
    const gr_key_unit* unit;
    const gr_key_sum* sum;
    int64_t n;
};

/* Plans the tree and sends the plan, unless it is there. */
template <class T>
static tree_args<T> tree_prepare(gr_dev* dev, const T* q, const T* k, const T* v,
                                 const int32_t* subtree_end, int64_t n, int h, int hk, int d,
                                 float scale, int max_path, void* scratch)
{
    const bool whole = (size_t)d * sizeof(T) % 16 == 0;
    const gr_tree_shape shape = {h / hk, hk, wide_rows<T>()};
    gr_tree_plan* p = &gr_cuda_plans_of(dev)->tree;
    GR_ASSERT(n * shape.group <= INT32_MAX, "%lld tokens", (long long)n);
    gr_tree_plan_make(p, subtree_end, (int32_t)n, &shape);
    gr_upload* u = &gr_cuda_plans_of(dev)->sent;
    if (upload_begin(u, p, p->number)) {
        const tree_scratch room = tree_layout(n, h, hk, d, shape.wide_rows, max_path);
        gr_tree_plan_arrays(p, upload_add, u);
        upload_send(u, dev, scratch, room.plan_bytes);
    }
    tree_args<T> a;
    memset(&a, 0, sizeof a);
    a.attend.q = q;
    a.attend.keys.k = k;
    a.attend.keys.v = v;
    a.attend.keys.slot = upload_at<int32_t>(u, 2);
    a.attend.keys.page = upload_at<gr_key_page>(u, 3);
    a.attend.keys.list = upload_at<int32_t>(u, 4);
    a.attend.keys.hk = hk;
    a.attend.keys.d = d;
    a.attend.keys.whole = whole && is_aligned(k, 16) && is_aligned(v, 16);
    a.attend.rows.n_keys = upload_at<int32_t>(u, 1);
    a.attend.rows.h = h;
    a.attend.rows.hk = hk;
    a.attend.rows.group = h / hk;
    a.attend.rows.d = d;
    a.attend.tile = upload_at<gr_tile>(u, 5);
    a.attend.scale2 = scale * 1.44269504f;
    a.attend.even = d % 2 == 0;
    a.attend.whole = whole && is_aligned(q, 16);
    a.subtree_end = upload_at<int32_t>(u, 0);
    a.unit = upload_at<gr_key_unit>(u, 6);
    a.sum = upload_at<gr_key_sum>(u, 7);
    a.n = n;
    return a;
}
