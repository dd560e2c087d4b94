/* numpy_random.h - the random stream of numpy.random.default_rng(seed), bit for bit. Level 1.
 *
 * SeedSequence spreads the seed over the state of PCG64 (O'Neill 2014, "PCG: a family of simple
 * fast space-efficient statistically good algorithms for random number generation", XSL-RR 128/64).
 * The generator is plain data: copying it copies the stream. Held to numpy 2.4 by tests/golden. */
#pragma once
#include "host/base.h"

typedef struct gr_numpy_random {
    unsigned __int128 state, increment;
    uint32_t half; /* upper half of a 64-bit draw, kept for the next 32-bit draw */
    bool has_half;
} gr_numpy_random;

void gr_numpy_seed(gr_numpy_random* r, uint64_t seed);
uint64_t gr_numpy_u64(gr_numpy_random* r);
double gr_numpy_uniform(gr_numpy_random* r);               /* random(): [0, 1) with 53 bits */
uint32_t gr_numpy_integer(gr_numpy_random* r, uint32_t n); /* integers(n): [0, n), n >= 1 */
