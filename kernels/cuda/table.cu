/* table.cu - the CUDA ops as one table. */
#include "kernels/cuda/cuda.h"

const gr_ops gr_ops_cuda = {
#define X(op) OP(op),
    GR_OP_LIST(X) GR_SIZE_LIST(X)
#undef X
};
