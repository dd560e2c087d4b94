/* table.cu - the CUDA ops as one table. */
#include "kernels/cuda/cuda.h"

#ifdef GR_CUDA_PARTIAL /* tests of a part of the ops: what is not linked is NULL */
extern "C" {
#define X(op) __attribute__((weak)) gr_##op##_fn OP(op);
GR_OP_LIST(X)
GR_SIZE_LIST(X)
#undef X
}
#endif

const gr_ops gr_ops_cuda = {
#define X(op) OP(op),
    GR_OP_LIST(X) GR_SIZE_LIST(X)
#undef X
};
