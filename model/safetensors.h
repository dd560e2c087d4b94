/* safetensors.h - named arrays in a file, the format of Hugging Face models. Level 2.
 *
 *     8 bytes  length of the header, little endian
 *     header   JSON: {"name": {"dtype": "F32", "shape": [r, c], "data_offsets": [begin, end]}, ..}
 *     data     the arrays, one after the other, without holes
 *
 * Writing and reading take the same list, so what a caller saves is what it loads. Arrays are
 * `acc` on the device; files hold F32 (F64 from an F64 device) or, where asked, BF16 or F16 rounded to
 * the nearest, ties to even. Reading maps files into memory and converts every dtype. */
#pragma once
#include "kernels/device.h"

typedef struct gr_safetensors_entry {
    char name[96];
    int n_dims; /* 1 or 2 */
    int64_t shape[2];
    void* data; /* acc, on the device, borrowed. NULL: a file may hold it, and it is not read */
} gr_safetensors_entry;

typedef enum gr_file_dtype { GR_FILE_ACC, GR_FILE_F32, GR_FILE_BF16, GR_FILE_F16 } gr_file_dtype;

/* Writes to `path` directly; on failure what was written of a regular file is removed. No fsync. A
 * value beyond the range of BF16 or F16 is an error. */
GR_MUST_CHECK gr_status gr_safetensors_write(const char* path, gr_dev* dev,
                                             const gr_safetensors_entry* entry, int n,
                                             gr_file_dtype dtype);
int64_t gr_safetensors_bytes(const gr_dev* dev, const gr_safetensors_entry* entry,
                             gr_file_dtype dtype); /* of its data in a file */
/* The tensors of one model may lie in several files. All or nothing: every file is checked (names,
 * shapes, ranges, size, every value finite) before the first array changes. A missing entry, a
 * tensor that is no entry and any damage are errors that name the file, the tensor and the reason. */
GR_MUST_CHECK gr_status gr_safetensors_read(const char* const* path, int n_paths, gr_dev* dev,
                                            const gr_safetensors_entry* entry, int n);
