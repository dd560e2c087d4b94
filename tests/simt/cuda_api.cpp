/* cuda_api.cpp - the part of the CUDA runtime that launchers and the device use, with what orders
 * streams. Everything runs at once, in call order; what a GPU might still be doing is kept as one
 * clock per stream. */
#include "host/base.h"
#include "tests/simt/emulator.h"
#include "tests/simt/machine.h"

#include <algorithm>
#include <map>

struct CUstream_st {
    int number;
    bool blocking; /* in step with stream 0 */
};
struct CUevent_st {
    std::vector<uint32_t> seen;
    double at; /* seconds */
};

namespace simt {

extern std::map<const void*, int> shared_limit;

/* seen[s][t]: work of stream t, counted, that is over before stream s's next work. */
typedef std::vector<uint32_t> Clock;
static CUstream_st stream_0 = {0, true};
static std::vector<CUstream_st*> streams = {&stream_0};
static std::vector<Clock> seen(1);
static Clock host;
static int running; /* stream of the current work */

struct Work {
    uint32_t first_epoch;
    int stream;
    uint32_t count;
};
static std::vector<Work> works;
static bool several; /* streams have had work; one alone is in order */

static void join(Clock* into, const Clock& from)
{
    if (into->size() < from.size()) into->resize(from.size());
    for (size_t i = 0; i < from.size(); i++) (*into)[i] = std::max((*into)[i], from[i]);
}

static int64_t uploads;
static simt_machine machine = {CUDART_VERSION, 1, 9};

static CUstream_st* stream_of(cudaStream_t s) { return s == nullptr ? &stream_0 : s; }

/* A range that a copy read or wrote. Stamping its words is slow, and most copies are over before
 * another stream has work: they wait here until one has. All are of one stream. */
struct Copied {
    const void* p;
    size_t bytes;
    Access kind;
    const void* pc;
    Work work;
};
static std::vector<Copied> copied;

static bool over(const Work& w, const Clock& clock)
{
    return (size_t)w.stream < clock.size() && clock[(size_t)w.stream] >= w.count;
}

/* True if another stream may still be at work while the current one goes on. */
static bool others_run()
{
    const Clock& clock = seen[(size_t)running];
    for (size_t s = 0; s < seen.size(); s++)
        if ((int)s != running && s < seen[s].size() && (s >= clock.size() || clock[s] < seen[s][s]))
            return true;
    return false;
}

static void stamp_copies()
{
    for (const Copied& c : copied)
        if (!over(c.work, host)) stamp_copy(c.p, c.bytes, c.kind, c.pc, c.work.first_epoch);
    copied.clear();
}

void begin_work(cudaStream_t s, uint32_t first_epoch)
{
    const CUstream_st* stream = stream_of(s);
    Clock* clock = &seen[(size_t)stream->number];
    join(clock, host);
    for (const CUstream_st* other : streams)
        if (stream->blocking && other->blocking && (stream->number == 0 || other->number == 0))
            join(clock, seen[(size_t)other->number]);
    clock->resize(std::max(clock->size(), streams.size()));
    running = stream->number;
    several |= !works.empty() && works.back().stream != running;
    if (!copied.empty() && copied.back().work.stream != running) stamp_copies();
    works.push_back({first_epoch, running, ++(*clock)[(size_t)running]});
}

bool finished_before(uint32_t epoch)
{
    if (!several) return true;
    const auto after =
        std::upper_bound(works.begin(), works.end(), epoch,
                         [](uint32_t e, const Work& w) { return e < w.first_epoch; });
    const Work& work = *(after - 1);
    const Clock& clock = seen[(size_t)running];
    if (work.stream == running) return true;
    return (size_t)work.stream < clock.size() && clock[(size_t)work.stream] >= work.count;
}

static cudaError_t wait_for(cudaStream_t s)
{
    join(&host, seen[(size_t)stream_of(s)->number]);
    if (!copied.empty() && over(copied.back().work, host)) copied.clear();
    return pending_error();
}

/* A copy or a clear is work of its stream like a launch. */
static void begin_copy(cudaStream_t s)
{
    grid.name = "none, a copy";
    begin_work(s, ++last_epoch);
}
static void touch(const void* p, size_t bytes, Access kind, const void* pc)
{
    host_access(p, bytes);
    if (pending_error() != cudaSuccess || !is_device(p)) return;
    if (others_run()) {
        check_copy(p, bytes, kind, pc);
        stamp_copy(p, bytes, kind, pc, last_epoch);
    } else {
        copied.push_back({p, bytes, kind, pc, works.back()});
    }
}

static void copy_bytes(void* dst, const void* src, size_t bytes, cudaStream_t s, const void* pc)
{
    begin_copy(s);
    touch(src, bytes, READ, pc);
    touch(dst, bytes, WRITE, pc);
    if (pending_error() != cudaSuccess) return;
    open_around(src, true);
    open_around(dst, true);
    memcpy(dst, src, bytes);
    open_around(src, false);
    open_around(dst, false);
}

} // namespace simt

using namespace simt;

extern "C" {

/* ---- errors and device ------------------------------------------------------------------------------ */

cudaError_t cudaPeekAtLastError() { return pending_error(); }
cudaError_t cudaGetLastError()
{
    const cudaError_t error = pending_error();
    clear_error();
    return error;
}
const char* cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess             ? "no error"
           : pending_error() == cudaSuccess ? "unspecified launch failure" /* of a test's making */
                                            : error_text();
}
void simt_pretend(simt_machine m) { machine = m; }

cudaError_t cudaDriverGetVersion(int* version)
{
    *version = machine.driver;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count)
{
    *count = machine.gpus;
    return machine.driver < CUDART_VERSION / 1000 * 1000 ? cudaErrorInsufficientDriver
           : machine.gpus == 0                           ? cudaErrorNoDevice
                                                         : cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int)
{
    memset(prop, 0, sizeof *prop);
    (void)snprintf(prop->name, sizeof prop->name, "emulated GPU");
    prop->major = machine.major;
    prop->multiProcessorCount = 4;
    prop->sharedMemPerBlockOptin = MAX_SHARED;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value)
{
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if ((size_t)value > MAX_SHARED) return cudaErrorInvalidValue;
        shared_limit[kernel] = value;
    }
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize()
{
    for (const Clock& c : seen) join(&host, c);
    copied.clear();
    return pending_error();
}

/* ---- streams and events ------------------------------------------------------------------------------ */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags)
{
    *s = new CUstream_st{(int)streams.size(), flags != cudaStreamNonBlocking};
    streams.push_back(*s);
    seen.emplace_back();
    return cudaSuccess;
}
/* The stream's clock is kept: its work may be asked for later. */
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { return wait_for(s); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned)
{
    *e = new CUevent_st;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    e->seen = seen[(size_t)stream_of(s)->number];
    e->at = gr_now_s();
    return cudaSuccess;
}
/* Kernels have run when their launch returns. */
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to)
{
    *ms = (float)((to->at - from->at) * 1e3);
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    join(&seen[(size_t)stream_of(s)->number], e->seen);
    return cudaSuccess;
}

/* ---- memory ------------------------------------------------------------------------------------------ */

cudaError_t cudaMalloc(void** p, size_t bytes)
{
    *p = allocate_device(bytes);
    return *p == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* p)
{
    return p == nullptr || release_device(p) ? cudaSuccess : cudaErrorInvalidValue;
}
int64_t simt_uploads() { return uploads; }
cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t s)
{
    uploads += kind == cudaMemcpyHostToDevice;
    copy_bytes(dst, src, bytes, s, __builtin_return_address(0));
    return pending_error();
}
cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind)
{
    copy_bytes(dst, src, bytes, nullptr, __builtin_return_address(0));
    return cudaDeviceSynchronize();
}
cudaError_t cudaMemsetAsync(void* dst, int value, size_t bytes, cudaStream_t s)
{
    begin_copy(s);
    touch(dst, bytes, WRITE, __builtin_return_address(0));
    if (pending_error() != cudaSuccess) return pending_error();
    open_around(dst, true);
    memset(dst, value, bytes);
    open_around(dst, false);
    return cudaSuccess;
}
}
