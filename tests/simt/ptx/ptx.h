/* ptx.h - runs kernels from the PTX that nvcc writes for them, in place of their sources. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

typedef enum simt_ptx_mode {
    SIMT_PTX_OFF,   /* kernels run from their sources */
    SIMT_PTX_CHECK, /* from their sources; the first launch of each, and two small ones, also from
                     * its PTX, and what differs in device memory is a defect */
    SIMT_PTX_ONLY,  /* from their PTX */
} simt_ptx_mode;

/* Adds the kernels of a file. NULL, or what is wrong with it, valid until the next call. */
const char* simt_ptx_load(const char* path);
void simt_ptx_set_mode(simt_ptx_mode mode);

#ifdef __cplusplus
}
#endif
