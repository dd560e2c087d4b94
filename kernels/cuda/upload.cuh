/* upload.cuh - the arrays of a plan in one copy to the device (plans.h). */
#pragma once
#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/plans.h"

#include "host/arena.h"

/* False if the plan's arrays are on the device; else they are added, then sent. at(i) is array i. */
static inline bool upload_begin(gr_upload* u, const void* plan, uint64_t number)
{
    if (u->plan == plan && u->number == number) return false;
    memset(u, 0, sizeof *u);
    u->plan = plan;
    u->number = number;
    return true;
}

static inline void upload_add(void* context, const void* array, size_t bytes)
{
    gr_upload* u = (gr_upload*)context;
    GR_ASSERT(u->n < GR_UPLOAD_ARRAYS);
    u->host[u->n] = array;
    u->bytes[u->n] = bytes;
    u->offset[u->n++] = u->used;
    u->used = (u->used + bytes + 15) / 16 * 16;
}

/* A plan too large for the room goes to `spare` (of `spare_bytes`), and is sent at each call. */
static inline void upload_send(gr_upload* u, gr_dev* dev, void* spare, size_t spare_bytes)
{
    gr_cuda_plans* p = gr_cuda_plans_of(dev);
    const bool stays = u->used <= GR_CUDA_PLAN_ROOM;
    GR_ASSERT(stays || u->used <= spare_bytes, "a plan of %zu bytes", u->used);
    p->staging =
        (char*)gr_array_reserve(p->staging, &p->staging_cap, (int64_t)u->used, sizeof *p->staging);
    for (int i = 0; i < u->n; i++)
        if (u->bytes[i] > 0) memcpy(p->staging + u->offset[i], u->host[i], u->bytes[i]);
    u->device = (char*)(stays ? p->room : spare);
    if (!stays) u->plan = NULL;
    gr_dev_write(dev, u->device, p->staging, u->used);
}

template <class X> static const X* upload_at(const gr_upload* u, int i)
{
    return (const X*)(u->device + u->offset[i]);
}
