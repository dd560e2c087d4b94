/* fuzz_safetensors.c - tensor files of any content: read whole, or refused with one line and nothing
 * changed. Input: the header's text, a NUL, the data. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

static void put(int fd, const void* data, size_t n) { GR_ASSERT(write(fd, data, n) == (ssize_t)n); }

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    static const double before[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    double x[10];
    char path[64];
    gr_dev dev;
    const uint8_t* end = size > 0 ? memchr(data, 0, size) : NULL;
    uint64_t len = end != NULL ? (uint64_t)(end - data) : size;
    int fd = memfd_create("fuzz", 0);
    GR_ASSERT(fd >= 0);
    put(fd, &len, sizeof len);
    put(fd, data, len);
    if (end != NULL) put(fd, end + 1, size - len - 1);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);

    memcpy(x, before, sizeof x);
    const gr_dev_options how = {.name = "cpu", .dtype = GR_F64, .threads = 1};
    GR_ASSERT(gr_dev_open(&dev, &how) == GR_OK);
    const gr_safetensors_entry entry[] = {
        {.name = "x", .n_dims = 1, .shape = {4}, .data = x},
        {.name = "y", .n_dims = 2, .shape = {2, 3}, .data = x + 4},
        {.name = "z", .n_dims = 1, .shape = {1}},
    };
    if (gr_safetensors_read(&(const char*){path}, 1, &dev, entry, GR_COUNT(entry)) == GR_OK) {
        for (int i = 0; i < GR_COUNT(x); i++) GR_ASSERT(isfinite(x[i]));
    } else {
        GR_ASSERT(memcmp(x, before, sizeof x) == 0);
        GR_ASSERT(strncmp(gr_last_error_text(), path, strlen(path)) == 0);
    }
    gr_dev_close(&dev);
    (void)close(fd);
    return 0;
}
