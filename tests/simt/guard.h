/* guard.h - keeps host code away from device memory. */
#pragma once
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From now on allocations of up to `most` bytes are mapped when a kernel or a copy runs and not
 * otherwise, so that host code that follows a device pointer ends the program there, as it would with
 * a GPU; 0: none. Slow for large ones. */
void simt_guard(size_t most);

#ifdef __cplusplus
}
#endif
