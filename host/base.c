#include "host/base.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- status ---------------------------------------------------------------------------------- */

static _Thread_local char last_error[1024];
static _Thread_local size_t last_error_text; /* where the text starts, after file:line */

gr_status gr_fail_at(const char* file, int line, gr_status code, const char* fmt, ...)
{
    char text[sizeof last_error]; /* the arguments may point into last_error */
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    int n = snprintf(last_error, sizeof last_error, "%s:%d: ", file, line);
    last_error_text = GR_MIN((size_t)n, sizeof last_error - 1);
    (void)snprintf(last_error + last_error_text, sizeof last_error - last_error_text, "%s", text);
    return code;
}

const char* gr_last_error(void) { return last_error; }
const char* gr_last_error_text(void) { return last_error + last_error_text; }

GR_NORETURN void gr_panic_at(const char* file, int line, const char* expr, const char* fmt, ...)
{
    fprintf(stderr, "%s:%d: bug: `%s` is false. ", file, line, expr);
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}

/* ---- log and clock --------------------------------------------------------------------------- */

void gr_log(const char* fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

double gr_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- fault injection ------------------------------------------------------------------------- */

static struct {
    bool read_env;
    bool kill;
    char place[64];
    long k, count;
} fault;

void gr_fault_set(const char* spec)
{
    memset(&fault, 0, sizeof fault);
    fault.read_env = true;
    if (spec == NULL) return;
    fault.kill = strncmp(spec, "kill:", 5) == 0;
    if (fault.kill) spec += 5;
    const char* colon = strrchr(spec, ':');
    int n = colon != NULL ? (int)(colon - spec) : (int)strlen(spec);
    (void)snprintf(fault.place, sizeof fault.place, "%.*s", n, spec);
    fault.k = colon != NULL ? strtol(colon + 1, NULL, 10) : 1;
}

bool gr_fault(const char* place)
{
    if (!fault.read_env) gr_fault_set(getenv("GR_FAULT"));
    if (fault.place[0] == 0 || strcmp(place, fault.place) != 0) return false;
    if (++fault.count != fault.k) return false;
    if (fault.kill) (void)kill(getpid(), SIGKILL);
    return true;
}

/* ---- hashing and randomness ------------------------------------------------------------------ */

uint64_t gr_hash64(const void* data, size_t bytes, uint64_t seed)
{
    return XXH64(data, bytes, seed);
}

/* The finaliser of splitmix64 (Steele et al. 2014) over both words, the second one spread first so
 * that (a, b) and (b, a) differ. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t gr_key_join(uint64_t key, uint64_t ordinal)
{
    return mix(mix(key + 0x9e3779b97f4a7c15u) ^
               (ordinal * 0xd1342543de82ef95u + 0x632be59bd9b4e019u));
}

void gr_philox(uint64_t key, uint64_t hi, uint64_t lo, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)lo, c1 = (uint32_t)(lo >> 32);
    uint32_t c2 = (uint32_t)hi, c3 = (uint32_t)(hi >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)c0 * 0xD2511F53u, p1 = (uint64_t)c2 * 0xCD9E8D57u;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

double gr_uniform(uint64_t key, uint64_t counter)
{
    uint32_t w[4];
    gr_philox(key, 0, counter, w);
    return (double)((((uint64_t)w[1] << 32) | w[0]) >> 11) * 0x1p-53;
}
