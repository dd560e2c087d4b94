/* device.cu - the CUDA device: opens a GPU, holds its stream and workspace, copies, keeps the first
 * error.
 *
 * All work of a device goes to one stream, so ops, copies and clears run in call order. A write
 * returns when the host's bytes may change, a read when they are there. The same source, compiled for
 * the emulator of tests/simt/, is the device `simt`. */
#include "kernels/backend.h"
#include "kernels/cuda/plans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cuda_state {
    cudaStream_t stream;
    void* workspace;
    cudaEvent_t mark[2];
    int processors;
    size_t shared;
    gr_cuda_plans plans;
};

static cuda_state* state_of(const gr_dev* dev) { return (cuda_state*)dev->impl; }

cudaStream_t gr_cuda_stream(const gr_dev* dev) { return state_of(dev)->stream; }
void* gr_cuda_workspace(const gr_dev* dev) { return state_of(dev)->workspace; }
int gr_cuda_processors(const gr_dev* dev) { return state_of(dev)->processors; }
size_t gr_cuda_shared(const gr_dev* dev) { return state_of(dev)->shared; }
gr_cuda_plans* gr_cuda_plans_of(const gr_dev* dev) { return &state_of(dev)->plans; }

/* ---- errors ------------------------------------------------------------------------------------- */

static void record(gr_dev* dev, const char* what, cudaError_t error)
{
    if (error == cudaSuccess || dev->err != GR_OK) return;
    dev->err = GR_EDEV;
    (void)snprintf(dev->err_text, sizeof dev->err_text, "%s: %s", what, cudaGetErrorString(error));
}

void gr_cuda_launched(gr_dev* dev, const char* op)
{
    record(dev, op, gr_fault("dev.launch") ? cudaErrorLaunchFailure : cudaGetLastError());
}

/* ---- names -------------------------------------------------------------------------------------- */

#ifdef __CUDACC__
#define TEXT_OF_(x) #x
#define TEXT_OF(x)  TEXT_OF_(x)
#define VERSION     TEXT_OF(__CUDACC_VER_MAJOR__) "." TEXT_OF(__CUDACC_VER_MINOR__)
#define BUILT       "cuda: sm_80, sm_90a; CUDA runtime " VERSION
#define NAMES       "cuda:N"
/* The N of "cuda:N", or -1. */
static int ordinal_of(const char* name)
{
    char* end;
    if (strncmp(name, "cuda:", 5) != 0 || name[5] < '0' || name[5] > '9') return -1;
    const long n = strtol(name + 5, &end, 10);
    return *end == 0 && n < 1024 ? (int)n : -1;
}
#else
#define BUILT "simt: the CUDA sources, emulated"
#define NAMES "simt"
static int ordinal_of(const char* name) { return strcmp(name, NAMES) == 0 ? 0 : -1; }
#endif

static bool takes(const char* name) { return ordinal_of(name) >= 0; }

/* ---- open and close ------------------------------------------------------------------------------ */

#define TRY_CUDA(name, call)                                                            \
    do {                                                                                \
        const cudaError_t error_ = (call);                                              \
        if (error_ != cudaSuccess)                                                      \
            return GR_FAIL(GR_EDEV, "device %s: %s", name, cudaGetErrorString(error_)); \
    } while (0)

static gr_status check_options(const gr_dev_options* options)
{
    if (options->dtype == GR_F64)
        return GR_FAIL(GR_EARG, "device %s: fp64 is the cpu device's only", options->name);
    if (options->matmul == GR_MATMUL_BF16)
        return GR_FAIL(GR_EARG, "device.matmul: bf16: %s has exact products only", options->name);
    return GR_OK;
}

/* The runtime is part of the program; the driver is the machine's. */
static gr_status check_driver(const char* name)
{
    const int needed = CUDART_VERSION / 1000;
    int driver = 0; /* stays 0 where there is none */
    (void)cudaDriverGetVersion(&driver);
    if (driver == 0)
        return GR_FAIL(GR_EDEV, "device %s: this machine has no NVIDIA driver (libcuda.so.1)",
                       name);
    if (driver / 1000 < needed)
        return GR_FAIL(GR_EDEV,
                       "device %s: the NVIDIA driver is too old: it serves CUDA %d.%d, CUDA %d "
                       "is needed",
                       name, driver / 1000, driver % 1000 / 10, needed);
    return GR_OK;
}

static gr_status check_gpu(const char* name, int ordinal, cudaDeviceProp* prop)
{
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaErrorNoDevice) TRY_CUDA(name, error);
    if (ordinal >= count)
        return GR_FAIL(GR_EARG, "device %s: this machine has %d GPU%s", name, count,
                       count == 1 ? "" : "s");
    TRY_CUDA(name, cudaGetDeviceProperties(prop, ordinal));
    if (prop->major < 8)
        return GR_FAIL(GR_EARG, "device %s: %s has compute capability %d.%d, 8.0 is needed", name,
                       prop->name, prop->major, prop->minor);
    return GR_OK;
}

static gr_status open_cuda(gr_dev* dev, const gr_dev_options* options)
{
    const char* name = options->name;
    const int ordinal = ordinal_of(name);
    cudaDeviceProp prop;
    GR_TRY(check_options(options));
    GR_TRY(check_driver(name));
    GR_TRY(check_gpu(name, ordinal, &prop));
    TRY_CUDA(name, cudaSetDevice(ordinal));
    cuda_state* state = (cuda_state*)calloc(1, sizeof *state);
    dev->impl = state;
    if (state == NULL) return GR_FAIL(GR_ENOMEM, "device %s: no memory for its state", name);
    state->processors = prop.multiProcessorCount;
    state->shared = prop.sharedMemPerBlockOptin;
    TRY_CUDA(name, cudaStreamCreateWithFlags(&state->stream, cudaStreamNonBlocking));
    TRY_CUDA(name, cudaMalloc(&state->workspace, GR_CUDA_WORKSPACE));
    TRY_CUDA(name, cudaMalloc(&state->plans.room, GR_CUDA_PLAN_ROOM));
    for (int i = 0; i < 2; i++) TRY_CUDA(name, cudaEventCreate(&state->mark[i]));
    dev->ops = &gr_ops_cuda;
    dev->matmul = GR_MATMUL_EXACT;
    dev->attention = options->attention;
    dev->threads = 1;
    dev->max_head = GR_CUDA_MAX_HEAD;
    (void)snprintf(dev->name, sizeof dev->name, "%s", name);
    (void)snprintf(dev->detail, sizeof dev->detail, "%s %.60s, %s, exact matmul, %s, %d processors",
                   name, prop.name, dev->dtype == GR_BF16 ? "bf16" : "fp32",
                   dev->attention == GR_ATTENTION_EXACT
                       ? "exact attention"
                       : "fast attention (sampler and trainer differ)",
                   state->processors);
    return GR_OK;
}

static void close_cuda(gr_dev* dev)
{
    cuda_state* state = state_of(dev);
    if (state == NULL) return;
    (void)cudaFree(state->workspace);
    (void)cudaFree(state->plans.room);
    for (int i = 0; i < 2; i++)
        if (state->mark[i] != NULL) (void)cudaEventDestroy(state->mark[i]);
    if (state->stream != NULL) (void)cudaStreamDestroy(state->stream);
    gr_cuda_plans_free(&state->plans);
    free(state);
}

static void sync(gr_dev* dev) { record(dev, "sync", cudaStreamSynchronize(gr_cuda_stream(dev))); }

static void mark(gr_dev* dev, int which)
{
    record(dev, "mark", cudaEventRecord(state_of(dev)->mark[which], gr_cuda_stream(dev)));
}
static double elapsed(gr_dev* dev)
{
    const cudaEvent_t* at = state_of(dev)->mark;
    float ms = 0;
    record(dev, "elapsed", cudaEventSynchronize(at[1]));
    record(dev, "elapsed", cudaEventElapsedTime(&ms, at[0], at[1]));
    return (double)ms * 1e-3;
}

/* ---- memory ------------------------------------------------------------------------------------- */

static void zero(gr_dev* dev, void* dst, size_t bytes)
{
    record(dev, "zero", cudaMemsetAsync(dst, 0, bytes, gr_cuda_stream(dev)));
}

static void* alloc(gr_dev* dev, size_t bytes)
{
    void* p = NULL;
    if (cudaMalloc(&p, GR_MAX(bytes, (size_t)1)) != cudaSuccess) {
        (void)cudaGetLastError(); /* a refused allocation is no fault of a kernel */
        return NULL;
    }
    zero(dev, p, bytes);
    return p;
}

static void release(gr_dev* dev, void* p)
{
    (void)cudaStreamSynchronize(gr_cuda_stream(dev)); /* work in the queue may still use it */
    record(dev, "free", cudaFree(p));
}

static void write(gr_dev* dev, void* dst, const void* src, size_t bytes)
{
    record(dev, "write",
           cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, gr_cuda_stream(dev)));
}

static void read(gr_dev* dev, void* dst, const void* src, size_t bytes)
{
    record(dev, "read",
           cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, gr_cuda_stream(dev)));
    record(dev, "read", cudaStreamSynchronize(gr_cuda_stream(dev)));
}

extern "C" const gr_backend gr_backend_cuda = {
    NAMES, BUILT, takes, open_cuda, close_cuda, alloc,   release,
    write, read,  zero,  sync,      mark,       elapsed,
};
