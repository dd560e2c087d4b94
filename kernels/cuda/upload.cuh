/* upload.cuh - the arrays of a plan in one copy to the device. */
#pragma once
#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/plans.h"

#include "host/arena.h"

#define UPLOAD_ARRAYS 12

/* Arrays are added in a first pass; send copies them behind each other; at(i) is array i there. */
typedef struct uploads {
    const void* host[UPLOAD_ARRAYS];
    size_t bytes[UPLOAD_ARRAYS], offset[UPLOAD_ARRAYS];
    char* device;
    size_t used;
    int n;
} uploads;

static inline void upload_add(void* context, const void* array, size_t bytes)
{
    uploads* u = (uploads*)context;
    GR_ASSERT(u->n < UPLOAD_ARRAYS);
    u->host[u->n] = array;
    u->bytes[u->n] = bytes;
    u->offset[u->n++] = u->used;
    u->used = (u->used + bytes + 15) / 16 * 16;
}

static inline void upload_send(uploads* u, gr_dev* dev, void* to, size_t room)
{
    gr_cuda_plans* p = gr_cuda_plans_of(dev);
    GR_ASSERT(u->used <= room, "a plan of %zu bytes, room for %zu", u->used, room);
    p->upload =
        (char*)gr_array_reserve(p->upload, &p->upload_cap, (int64_t)u->used, sizeof *p->upload);
    for (int i = 0; i < u->n; i++)
        if (u->bytes[i] > 0) memcpy(p->upload + u->offset[i], u->host[i], u->bytes[i]);
    u->device = (char*)to;
    gr_dev_write(dev, to, p->upload, u->used);
}

template <class X> static const X* upload_at(const uploads* u, int i)
{
    return (const X*)(u->device + u->offset[i]);
}
