/* base.h - what every file needs: status codes, checks, log, clock, counter-based randomness, fault injection.
 *
 * Level 0. Includes only the C library; everything else may include this. */
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define GR_RESTRICT __restrict__
#else
#define GR_RESTRICT restrict
#endif

#define GR_COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
#define GR_MIN(a, b)    ((a) < (b) ? (a) : (b))
#define GR_MAX(a, b)    ((a) > (b) ? (a) : (b))

/* ---- status: what can go wrong in the world (not bugs) ---------------------------------- */

typedef enum gr_status {
    GR_OK = 0,
    GR_EARG,  /* bad setting or argument given by the user */
    GR_EIO,   /* file, pipe or socket */
    GR_EDATA, /* input was read, but its content is wrong */
    GR_ENOMEM,
    GR_EDEV, /* device fault; sticky, the process must end */
} gr_status;

#define GR_MUST_CHECK   __attribute__((warn_unused_result))
#define GR_NORETURN     __attribute__((noreturn))
#define GR_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* Records file:line and text in the thread's error buffer and returns `code`. */
GR_MUST_CHECK gr_status gr_fail_at(const char* file, int line, gr_status code, const char* fmt, ...)
    GR_PRINTF(4, 5);
const char* gr_last_error(void);      /* with file:line, for developers and logs */
const char* gr_last_error_text(void); /* without, for the one line a user sees */
GR_NORETURN void gr_panic_at(const char* file, int line, const char* expr, const char* fmt, ...)
    GR_PRINTF(4, 5);

#define GR_FAIL(code, ...) gr_fail_at(__FILE__, __LINE__, (code), __VA_ARGS__)
#define GR_TRY(call)                      \
    do {                                  \
        gr_status gr_s_ = (call);         \
        if (gr_s_ != GR_OK) return gr_s_; \
    } while (0)
#define GR_GOTO(st, call, label)       \
    do {                               \
        (st) = (call);                 \
        if ((st) != GR_OK) goto label; \
    } while (0)

/* A false GR_ASSERT is a bug in this program: it stays on in every build. */
#define GR_ASSERT(cond, ...)                                                                       \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0)) gr_panic_at(__FILE__, __LINE__, #cond, " " __VA_ARGS__); \
    } while (0)

/* ---- log and clock ----------------------------------------------------------------------- */

void gr_log(const char* fmt, ...) GR_PRINTF(1, 2); /* one line on stderr */
double gr_now_s(void);                             /* monotonic seconds */

/* ---- fault injection ------------------------------------------------------------------------
 * Every call to the outside world asks gr_fault("place.verb") first; it returns true when a test
 * or the variable GR_FAULT="place.verb:k" wants the k-th such call (from 1) of this process to
 * fail. A fault "kill:place.verb:k" raises SIGKILL there instead. */
bool gr_fault(const char* place);
void gr_fault_set(const char* spec); /* NULL: none; resets the counts */

/* ---- hashing and randomness ------------------------------------------------------------------
 * Randomness is a function of (key, counter), never a shared generator, so results do not depend
 * on threads, batches or order. Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3". */

uint64_t gr_hash64(const void* data, size_t bytes, uint64_t seed); /* XXH64 */
uint64_t gr_key_join(uint64_t key, uint64_t ordinal); /* child key; gr_key_join(a, b) != (b, a) */

/* Philox4x32-10: four 32-bit words for counter (hi, lo) under `key`. */
void gr_philox(uint64_t key, uint64_t hi, uint64_t lo, uint32_t out[4]);
double gr_uniform(uint64_t key, uint64_t counter); /* [0, 1) with 53 bits */

#ifdef __cplusplus
}
#endif
