/* claim.h - what the emulator reported, for the tests that expect it. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/* The reports since the last call, a line each, or NULL; valid until the next call. A program that
 * ends with reports no one claimed prints them and exits with 1. */
const char* simt_claim(void);

#ifdef __cplusplus
}
#endif
