/* planted.h - runs a kernel of planted.cu. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

enum { PLANTED_FLOATS = 1024 };

/* The kernel of this name over PLANTED_FLOATS ones, with its defect or, `sound`, without. The caller
 * claims what the emulator reports. result: what the memory held afterwards; may be NULL. */
void planted_run(const char* name, int sound, float* result);

#ifdef __cplusplus
}
#endif
