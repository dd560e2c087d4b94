/* guard.h - keeps host code away from device memory. */
#pragma once
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* While on, device memory is mapped when a kernel or a copy runs and not otherwise, so that host code
 * that follows a device pointer ends the program there, as it would with a GPU. Slow for large
 * allocations. */
void simt_guard(bool on);

#ifdef __cplusplus
}
#endif
