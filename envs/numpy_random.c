#include "envs/numpy_random.h"

#include <string.h>

/* ---- SeedSequence: entropy -> pool of four words -> 256 bits of state ------------------------ */

/* One word through a multiplicative hash whose multiplier itself moves on with every call. */
static uint32_t hash_word(uint32_t word, uint32_t* multiplier, uint32_t growth)
{
    word ^= *multiplier;
    *multiplier *= growth;
    word *= *multiplier;
    return word ^ (word >> 16);
}

static uint32_t mix_words(uint32_t a, uint32_t b)
{
    uint32_t word = 0xca01f9ddu * a - 0x4973f715u * b;
    return word ^ (word >> 16);
}

static void spread(uint64_t seed, uint64_t out[4])
{
    uint32_t pool[4] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, multiplier = 0x43b0d7e5u;
    for (int i = 0; i < 4; i++) pool[i] = hash_word(pool[i], &multiplier, 0x931e8875u);
    for (int from = 0; from < 4; from++) {
        for (int to = 0; to < 4; to++) {
            if (from == to) continue;
            pool[to] = mix_words(pool[to], hash_word(pool[from], &multiplier, 0x931e8875u));
        }
    }
    multiplier = 0x8b51f9ddu;
    for (int i = 0; i < 4; i++) {
        uint32_t low = hash_word(pool[2 * i % 4], &multiplier, 0x58f38dedu);
        uint32_t high = hash_word(pool[(2 * i + 1) % 4], &multiplier, 0x58f38dedu);
        out[i] = (uint64_t)high << 32 | low;
    }
}

/* ---- PCG64 ----------------------------------------------------------------------------------- */

static void advance(gr_numpy_random* r)
{
    const unsigned __int128 multiplier =
        (unsigned __int128)0x2360ed051fc65da4u << 64 | 0x4385df649fccf645u;
    r->state = r->state * multiplier + r->increment;
}

void gr_numpy_seed(gr_numpy_random* r, uint64_t seed)
{
    uint64_t w[4];
    spread(seed, w);
    memset(r, 0, sizeof *r); /* padding too: states are compared and copied as bytes */
    r->increment = ((unsigned __int128)w[2] << 64 | w[3]) << 1 | 1;
    advance(r);
    r->state += (unsigned __int128)w[0] << 64 | w[1];
    advance(r);
}

uint64_t gr_numpy_u64(gr_numpy_random* r)
{
    advance(r);
    uint64_t high = (uint64_t)(r->state >> 64), word = high ^ (uint64_t)r->state;
    unsigned turn = (unsigned)(high >> 58);
    return word >> turn | word << (-turn & 63);
}

double gr_numpy_uniform(gr_numpy_random* r) { return (double)(gr_numpy_u64(r) >> 11) * 0x1p-53; }

static uint32_t next_u32(gr_numpy_random* r)
{
    if (r->has_half) {
        r->has_half = false;
        return r->half;
    }
    uint64_t word = gr_numpy_u64(r);
    r->has_half = true;
    r->half = (uint32_t)(word >> 32);
    return (uint32_t)word;
}

/* Lemire 2019, arXiv:1805.10941, with numpy's habits: one value costs no draw. */
uint32_t gr_numpy_integer(gr_numpy_random* r, uint32_t n)
{
    GR_ASSERT(n >= 1);
    if (n == 1) return 0;
    uint64_t product = (uint64_t)next_u32(r) * n;
    uint32_t reject_below = -n % n; /* 2^32 mod n */
    while ((uint32_t)product < reject_below) product = (uint64_t)next_u32(r) * n;
    return (uint32_t)(product >> 32);
}
