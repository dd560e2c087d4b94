/* sample.cu - Gumbel-max over what top_k, top_p and min_p leave (kernels/cpu/sampling.c says what that
 * is), without sorting: the edge of a set of largest values is found eight bits at a time from
 * histograms of their keys. Probabilities are counted in whole units, so that the order of the atomic
 * additions does not matter. */
#include "kernels/cuda/sample.cuh"

#define THREADS 256 /* of a row; one per bin */
#define BINS    256

typedef unsigned long long units;
#define ONE 1099511627776.0 /* units of probability exp(z - max) = 1: a sum over 2^23 ids fits */

/* Floats as integers in the same order. */
__device__ __forceinline__ uint32_t key_of(float z)
{
    const uint32_t bits = __float_as_uint(z + 0.0f); /* -0 is 0 */
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

struct row_view {
    const float* z;
    int v;
    float max;
};

__device__ __forceinline__ float weight_of(const row_view& r, int id)
{
    return exp_of(r.z[id] - r.max);
}
/* What an id adds: one, or its probability. */
template <bool MASS> __device__ __forceinline__ units amount_of(const row_view& r, int id)
{
    return MASS ? (units)((double)weight_of(r, id) * ONE) : 1;
}

struct search {
    units bin[BINS];
    uint32_t digit;
    units above;
};

/* bin[b] becomes the sum from b on. */
__device__ __forceinline__ void sum_downwards(units* bin)
{
    const int b = (int)threadIdx.x;
    for (int step = 1; step < BINS; step *= 2) {
        const units more = b + step < BINS ? bin[b + step] : 0;
        __syncthreads();
        bin[b] += more;
        __syncthreads();
    }
}

/* The largest values: all above `edge`, and of those equal to it the `ties` lowest ids. */
struct top_set {
    uint32_t edge;
    int64_t ties;
};

/* The smallest set of largest values whose amounts reach `wanted`, which is at least 1 and at most the
 * sum of all. All threads of the block call it and get the result. */
template <bool MASS>
__device__ __forceinline__ top_set top_of(search* s, const row_view& r, units wanted)
{
    const int b = (int)threadIdx.x;
    uint64_t prefix = 0; /* the edge's digits so far */
    units above = 0;     /* amount of greater keys */
    for (int shift = 24; shift >= 0; shift -= 8) {
        s->bin[b] = 0;
        __syncthreads();
        for (int id = b; id < r.v; id += THREADS) {
            const uint64_t key = key_of(r.z[id]);
            if (key >> (shift + 8) == prefix)
                atomicAdd(&s->bin[key >> shift & (BINS - 1)], amount_of<MASS>(r, id));
        }
        __syncthreads();
        sum_downwards(s->bin);
        const units from = above + s->bin[b], beyond = above + (b + 1 < BINS ? s->bin[b + 1] : 0);
        if (from >= wanted && beyond < wanted) {
            s->digit = (uint32_t)b;
            s->above = beyond;
        }
        __syncthreads();
        prefix = prefix << 8 | s->digit;
        above = s->above;
        __syncthreads();
    }
    const uint32_t edge = (uint32_t)prefix;
    const float z = __uint_as_float(edge >> 31 ? edge & 0x7fffffffu : ~edge);
    const units each = MASS ? (units)((double)exp_of(z - r.max) * ONE) : 1;
    const top_set top = {edge, (int64_t)((wanted - above + each - 1) / each)};
    return top;
}

__device__ __forceinline__ top_set narrower(const top_set& a, const top_set& b)
{
    if (a.edge != b.edge) return a.edge > b.edge ? a : b;
    return a.ties < b.ties ? a : b;
}

/* Sum of all probabilities, in units. */
__device__ __forceinline__ units mass_of(search* s, const row_view& r)
{
    units sum = 0;
    for (int id = (int)threadIdx.x; id < r.v; id += THREADS) sum += amount_of<true>(r, id);
    s->bin[threadIdx.x] = sum;
    __syncthreads();
    sum_downwards(s->bin);
    sum = s->bin[0];
    __syncthreads();
    return sum;
}

__device__ __forceinline__ top_set top_of_row(search* s, const row_view& r, const gr_sampling& how)
{
    top_set top = {0, INT64_MAX};
    if (how.top_k > 0 && how.top_k < r.v) top = narrower(top, top_of<false>(s, r, how.top_k));
    if (how.top_p < 1) {
        const units wanted = (units)ceil((double)how.top_p * (double)mass_of(s, r));
        top = narrower(top, top_of<true>(s, r, wanted > 0 ? wanted : 1));
    }
    return top;
}

/* How many lower ids of the 4 * THREADS from the block's first on are at the edge; `tie` says which of
 * the thread's four are. *total counts all of them. */
__device__ __forceinline__ int ties_before(const bool tie[LANE_IDS], int* counts, int* total)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int before = 0, of_warp = 0;
    for (int i = 0; i < LANE_IDS; i++) {
        const unsigned votes = __ballot_sync(ALL_LANES, tie[i]);
        before += __popc(votes & ((1u << lane) - 1));
        of_warp += __popc(votes);
    }
    if (lane == 0) counts[warp] = of_warp;
    __syncthreads();
    *total = 0;
    for (int i = 0; i < THREADS / WARP; i++) {
        if (i < warp) before += counts[i];
        *total += counts[i];
    }
    __syncthreads();
    return before;
}

/* The best candidate of the row, noise added, for every thread. */
__device__ __forceinline__ candidate draw(const row_view& r, const gr_sampling& how, top_set top,
                                          uint64_t uid, int32_t index)
{
    __shared__ int counts[THREADS / WARP];
    __shared__ candidate best_of_warp[THREADS / WARP];
    candidate best = {-INFINITY, 0, INT32_MAX};
    for (int first = 0; first < r.v; first += THREADS * LANE_IDS) {
        const int id = first + (int)threadIdx.x * LANE_IDS;
        uint32_t key[LANE_IDS];
        bool tie[LANE_IDS];
        for (int i = 0; i < LANE_IDS; i++) {
            key[i] = id + i < r.v ? key_of(r.z[id + i]) : 0;
            tie[i] = id + i < r.v && key[i] == top.edge;
        }
        int total, rank = ties_before(tie, counts, &total);
        bool in[LANE_IDS], any = false;
        for (int i = 0; i < LANE_IDS; i++) {
            in[i] = key[i] > top.edge || (tie[i] && rank < top.ties);
            rank += tie[i];
            in[i] = in[i] && id + i < r.v && weight_of(r, id + i) >= how.min_p;
            any |= in[i];
        }
        top.ties -= total;
        if (!any) continue;
        float noise[LANE_IDS];
        gumbel_noise(noise, uid, index, id);
        for (int i = 0; i < LANE_IDS; i++) {
            if (!in[i]) continue;
            const candidate c = {r.z[id + i] + noise[i], r.z[id + i], id + i};
            best = better(c, best);
        }
    }
    best = best_of(ALL_LANES, best, WARP);
    if (threadIdx.x % WARP == 0) best_of_warp[threadIdx.x / WARP] = best;
    __syncthreads();
    for (int i = 0; i < THREADS / WARP; i++) best = better(best_of_warp[i], best);
    return best;
}

__global__ void __launch_bounds__(THREADS)
    draw_restricted(drawn_rows out, const float* z, const row_stats* stats, head_query q, int v)
{
    __shared__ search s;
    const int64_t row = blockIdx.x;
    if (!is_restricted(q, row)) return;
    const row_view r = {z + row * v, v, stats[row].max};
    const gr_sampling how = q.how[row];
    const top_set top = top_of_row(&s, r, how);
    const candidate best = draw(r, how, top, q.uid[row], q.index[row]);
    if (threadIdx.x != 0) return;
    out.token[row] = best.id;
    out.logp[row] = logp_of(stats[row], best.z);
}

void gr_cuda_draw_restricted(cudaStream_t stream, const drawn_rows& out, const float* z,
                             const row_stats* stats, const head_query& q, int64_t rows, int v)
{
    LAUNCH(draw_restricted, (unsigned)rows, THREADS, 0, stream, out, z, stats, q, v);
}
