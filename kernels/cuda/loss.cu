/* loss.cu - the policy loss of rows whose log-probs are known. Row by row in parallel, then the sums
 * in row order: one lane per sum. */
#include "kernels/cuda/loss.cuh"

#define LOSS_THREADS 128

__global__ void __launch_bounds__(WARP) add_terms(double* sums, const loss_terms* terms, int64_t n)
{
    const int k = (int)threadIdx.x;
    if (k >= LOSS_TERMS) return;
    double sum = sums[k];
#pragma unroll 8
    for (int64_t i = 0; i < n; i++) {
        const double t = terms[i].of[k];
        sum = k == LOSS_MAX ? fmax(sum, t) : sum + t;
    }
    sums[k] = sum;
}

void gr_cuda_add_terms(cudaStream_t stream, gr_loss_sums* sums, const loss_terms* terms, int64_t n)
{
    LAUNCH(add_terms, 1, WARP, 0, stream, (double*)sums, terms, n);
}

__global__ void __launch_bounds__(LOSS_THREADS)
    policy_loss(float* dlogp, float* dentropy, loss_terms* terms, const float* logp,
                const float* entropy, loss_inputs in, gr_loss_params params, int64_t first,
                int64_t n)
{
    const int64_t k = (int64_t)blockIdx.x * LOSS_THREADS + threadIdx.x, i = first + k;
    if (k >= n) return;
    loss_at(&terms[k], &dlogp[i], &dentropy[i], i, logp[i], entropy[i], &in, &params);
}

void OP(policy_loss)(gr_dev* dev, void* dlogp, void* dentropy, gr_loss_sums* sums, const void* logp,
                     const void* entropy, const void* old_logp, const void* ref_logp,
                     const void* a_pos, const void* a_neg, const void* w, int64_t r,
                     const gr_loss_params* params)
{
    loss_terms* terms = (loss_terms*)gr_cuda_workspace(dev);
    const int64_t most = (int64_t)(GR_CUDA_WORKSPACE / sizeof *terms);
    const loss_inputs in = {(const float*)old_logp, (const float*)ref_logp, (const float*)a_pos,
                            (const float*)a_neg, (const float*)w};
    for (int64_t first = 0; first < r; first += most) {
        const int64_t n = GR_MIN(r - first, most);
        LAUNCH(policy_loss, (unsigned)ceil_div(n, LOSS_THREADS), LOSS_THREADS, 0,
               gr_cuda_stream(dev), (float*)dlogp, (float*)dentropy, terms, (const float*)logp,
               (const float*)entropy, in, *params, first, n);
        gr_cuda_add_terms(gr_cuda_stream(dev), sums, terms, n);
    }
    gr_cuda_launched(dev, "policy_loss");
}
