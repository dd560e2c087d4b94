/* device.c - opens a device by name; memory, copies and conversions through its backend. */
#include "kernels/backend.h"

#include <stdio.h>
#include <string.h>

static const gr_backend* const backends[] = {
    &gr_backend_cpu,
#ifdef GR_CUDA
    &gr_backend_cuda,
#endif
};

const char* gr_dev_built(int i) { return i < GR_COUNT(backends) ? backends[i]->built : NULL; }

static gr_status unknown_device(const char* name)
{
    char known[160] = "";
    for (int i = 0; i < GR_COUNT(backends); i++) {
        const size_t at = strlen(known);
        (void)snprintf(known + at, sizeof known - at, "%s%s", i > 0 ? ", " : "",
                       backends[i]->names);
    }
#ifndef GR_CUDA
    if (strncmp(name, "cuda", 4) == 0)
        return GR_FAIL(GR_EARG, "device.name: %s: this program was built without CUDA", name);
#endif
    return GR_FAIL(GR_EARG, "device.name: unknown device \"%s\" (%s)", name, known);
}

gr_status gr_dev_open(gr_dev* dev, const gr_dev_options* options)
{
    memset(dev, 0, sizeof *dev);
    const gr_backend* backend = NULL;
    for (int i = 0; i < GR_COUNT(backends); i++) {
        if (backends[i]->takes(options->name)) backend = backends[i];
    }
    if (backend == NULL) return unknown_device(options->name);
    if (options->threads < 0) return GR_FAIL(GR_EARG, "device.threads: %d < 0", options->threads);
    dev->backend = backend;
    dev->dtype = options->dtype;
    dev->real_bytes = options->dtype == GR_F64 ? 8 : options->dtype == GR_F32 ? 4 : 2;
    dev->acc_bytes = options->dtype == GR_F64 ? 8 : 4;
    const gr_status st = backend->open(dev, options);
    if (st != GR_OK) gr_dev_close(dev);
    return st;
}

void gr_dev_close(gr_dev* dev)
{
    if (dev->backend != NULL) dev->backend->close(dev);
    memset(dev, 0, sizeof *dev);
}

gr_status gr_dev_sync(gr_dev* dev)
{
    dev->backend->sync(dev);
    if (dev->err == GR_OK) return GR_OK;
    return GR_FAIL(dev->err, "%s: %s", dev->name, dev->err_text);
}

void gr_dev_mark(gr_dev* dev, int which) { dev->backend->mark(dev, which); }
double gr_dev_elapsed(gr_dev* dev) { return dev->backend->elapsed(dev); }

/* ---- memory --------------------------------------------------------------------------------------- */

gr_status gr_dev_alloc(gr_dev* dev, void** out, size_t bytes)
{
    *out = gr_fault("dev.alloc") ? NULL : dev->backend->alloc(dev, bytes);
    if (*out == NULL) return GR_FAIL(GR_ENOMEM, "%s: no memory for %zu bytes", dev->name, bytes);
    return GR_OK;
}

void gr_dev_free(gr_dev* dev, void* p)
{
    if (p != NULL) dev->backend->release(dev, p);
}
void gr_dev_write(gr_dev* dev, void* dst, const void* src, size_t bytes)
{
    if (bytes > 0) dev->backend->write(dev, dst, src, bytes);
}
void gr_dev_read(gr_dev* dev, void* dst, const void* src, size_t bytes)
{
    if (bytes > 0) dev->backend->read(dev, dst, src, bytes);
}
void gr_dev_zero(gr_dev* dev, void* dst, size_t bytes)
{
    if (bytes > 0) dev->backend->zero(dev, dst, bytes);
}

/* ---- conversion ------------------------------------------------------------------------------------ */

/* Rounds to nearest, ties to even; a NaN stays a NaN. */
static uint16_t float_to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static float bf16_to_float(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* Host doubles to or from one number of the given type. */
static void encode(gr_dtype dtype, void* dst, double x)
{
    const float f = (float)x;
    const uint16_t half = float_to_bf16(f);
    if (dtype == GR_F64) memcpy(dst, &x, sizeof x);
    if (dtype == GR_F32) memcpy(dst, &f, sizeof f);
    if (dtype == GR_BF16) memcpy(dst, &half, sizeof half);
}
static double decode(gr_dtype dtype, const void* src)
{
    double x = 0;
    float f = 0;
    uint16_t half = 0;
    if (dtype == GR_F64) memcpy(&x, src, sizeof x);
    if (dtype == GR_F32) memcpy(&f, src, sizeof f);
    if (dtype == GR_BF16) memcpy(&half, src, sizeof half);
    return dtype == GR_F64 ? x : (double)(dtype == GR_F32 ? f : bf16_to_float(half));
}

/* Tensors may lie where the host cannot reach: converted in blocks of this many on the stack. */
enum { CONVERT = 1024 };

static void write_as(gr_dev* dev, gr_dtype dtype, size_t size, void* dst, const double* src,
                     int64_t n)
{
    char block[CONVERT * sizeof(double)];
    for (int64_t at = 0; at < n; at += CONVERT) {
        const int64_t count = GR_MIN(n - at, CONVERT);
        for (int64_t i = 0; i < count; i++) encode(dtype, block + (size_t)i * size, src[at + i]);
        gr_dev_write(dev, (char*)dst + (size_t)at * size, block, (size_t)count * size);
    }
}
static void read_as(gr_dev* dev, gr_dtype dtype, size_t size, double* dst, const void* src,
                    int64_t n)
{
    char block[CONVERT * sizeof(double)];
    for (int64_t at = 0; at < n; at += CONVERT) {
        const int64_t count = GR_MIN(n - at, CONVERT);
        gr_dev_read(dev, block, (const char*)src + (size_t)at * size, (size_t)count * size);
        for (int64_t i = 0; i < count; i++) dst[at + i] = decode(dtype, block + (size_t)i * size);
    }
}

static gr_dtype acc_dtype(const gr_dev* dev) { return dev->dtype == GR_F64 ? GR_F64 : GR_F32; }

void gr_dev_write_acc(gr_dev* dev, void* dst, const double* src, int64_t n)
{
    write_as(dev, acc_dtype(dev), dev->acc_bytes, dst, src, n);
}
void gr_dev_read_acc(gr_dev* dev, double* dst, const void* src, int64_t n)
{
    read_as(dev, acc_dtype(dev), dev->acc_bytes, dst, src, n);
}
void gr_dev_write_real(gr_dev* dev, void* dst, const double* src, int64_t n)
{
    write_as(dev, dev->dtype, dev->real_bytes, dst, src, n);
}
void gr_dev_read_real(gr_dev* dev, double* dst, const void* src, int64_t n)
{
    read_as(dev, dev->dtype, dev->real_bytes, dst, src, n);
}
