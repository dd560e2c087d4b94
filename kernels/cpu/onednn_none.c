/* onednn_none.c - stands in for onednn.c in a build without the library. */
#include "kernels/cpu/onednn.h"

const char* gr_onednn_missing(void) { return "built without oneDNN"; }

gr_status gr_onednn_open(gr_onednn** out, int threads)
{
    (void)threads;
    *out = NULL;
    return GR_FAIL(GR_EARG, "device.matmul: bf16: %s", gr_onednn_missing());
}
void gr_onednn_close(gr_onednn* lib) { (void)lib; }

/* The rest is reached in bf16 mode only, which no device of this build is in. */
size_t gr_onednn_packed_bytes(const gr_dev* dev, int m, int k)
{
    GR_ASSERT(false, "%s: bf16 packing of (%d, %d)", dev->name, m, k);
    return 0;
}
void gr_onednn_pack(gr_dev* dev, void* packed, const void* w, bool w_f32, int m, int k,
                    bool transpose)
{
    (void)packed, (void)w, (void)w_f32, (void)transpose;
    GR_ASSERT(false, "%s: bf16 packing of (%d, %d)", dev->name, m, k);
}
void gr_onednn_matmul(gr_dev* dev, const gr_onednn_args* a)
{
    GR_ASSERT(false, "%s: bf16 product (%d, %d)", dev->name, a->m, a->k);
}
void gr_onednn_dw(gr_dev* dev, const gr_onednn_dw_args* a)
{
    GR_ASSERT(false, "%s: bf16 product (%d, %d)", dev->name, a->m, a->k);
}
