/* backend.h - what a kind of device provides to kernels/device.c. Level 1.5. */
#pragma once
#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gr_backend {
    const char* names; /* the device names it takes, for error texts */
    const char* built; /* "kind: what of it is in this program" */
    bool (*takes)(const char* name);
    /* Fills a zeroed dev except `backend`. After a failure `close` is called too. */
    gr_status (*open)(gr_dev* dev, const gr_dev_options* options);
    void (*close)(gr_dev* dev);                /* frees dev->impl; it may be NULL */
    void* (*alloc)(gr_dev* dev, size_t bytes); /* zeroed, 256-aligned; NULL: no memory */
    void (*release)(gr_dev* dev, void* p);     /* accepts NULL */
    void (*write)(gr_dev* dev, void* dst, const void* src, size_t bytes); /* bytes > 0 */
    void (*read)(gr_dev* dev, void* dst, const void* src, size_t bytes);
    void (*zero)(gr_dev* dev, void* dst, size_t bytes);
    void (*sync)(gr_dev* dev);            /* waits, and records what failed in dev->err */
    void (*mark)(gr_dev* dev, int which); /* notes when the work before it is done; which: 0 or 1 */
    double (*elapsed)(gr_dev* dev);       /* waits; seconds from mark 0 to mark 1 */
} gr_backend;

extern const gr_backend gr_backend_cpu;
extern const gr_backend gr_backend_cuda; /* its sources run on a GPU or, in tests, as `simt` */

#ifdef __cplusplus
}
#endif
