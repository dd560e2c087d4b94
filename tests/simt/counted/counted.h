/* counted.h - runs a kernel of counted.cu. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/* One block of 32 threads, over 16 KB of zeros. */
void counted_run(const char* name);

#ifdef __cplusplus
}
#endif
