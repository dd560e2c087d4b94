/* cuda.h - the names of the CUDA ops, and what the device gives to them (device.cu). Level 2.
 *
 * A launcher queues kernels on gr_cuda_stream(dev), allocates nothing, waits for nothing, and ends
 * with gr_cuda_launched(dev, "op"). Tensors, and every array a struct points to, lie on the device;
 * the structs themselves are the host's and reach a kernel by value. The host's are what attention is
 * planned from: gr_page_plan with its arrays, and subtree_end. */
#pragma once
#include "kernels/cuda/port.cuh"
#include "kernels/ops.h"

#define OP(op) gr_cuda_##op
extern "C" {
#define X(op) gr_##op##_fn OP(op);
GR_OP_LIST(X)
GR_SIZE_LIST(X)
#undef X
extern const gr_ops gr_ops_cuda; /* table.cu */
}

/* Bytes. The workspace is one op's at a time; the most go to partial results of attention: of some 300
 * sequences. In the room for plans lies the one of attention that was sent last. */
#ifdef __CUDACC__
#define GR_CUDA_WORKSPACE ((size_t)72 << 20)
#define GR_CUDA_PLAN_ROOM ((size_t)24 << 20)
#else
#define GR_CUDA_WORKSPACE ((size_t)15 << 20)
#define GR_CUDA_PLAN_ROOM ((size_t)256 << 10)
#endif

#define GR_CUDA_MAX_HEAD 128 /* of the attention ops: what a warp keeps in registers */

cudaStream_t gr_cuda_stream(const gr_dev* dev);
void* gr_cuda_workspace(const gr_dev* dev); /* 256-aligned, contents do not outlive an op */
int gr_cuda_processors(const gr_dev* dev);  /* multiprocessors; may size grids, never sums */
size_t gr_cuda_shared(const gr_dev* dev);   /* most shared memory of a block, in bytes */
/* After a launch: records a failure once, with the op's name. */
void gr_cuda_launched(gr_dev* dev, const char* op);

/* Lets a kernel be launched with more dynamic shared memory than the 48 KB every GPU grants. */
template <class Kernel> static inline void gr_cuda_allow_shared(Kernel* kernel, size_t bytes)
{
    if (bytes > 48 << 10)
        (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}
