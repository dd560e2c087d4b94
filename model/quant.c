/* quant.c - blocks of GGUF files to floats.
 *
 * The plain types cut a row into blocks of 32 numbers q with a scale d (and in the _1 types a minimum
 * m) in fp16:
 *
 *     Q8_0  d, 32 signed bytes             x = d q
 *     Q4_0  d, 16 bytes                    x = d (q - 8)     byte j holds q[j] below, q[j + 16] above
 *     Q4_1  d, m, 16 bytes                 x = d q + m
 *     Q5_0  d, 4 bytes of high bits, 16    x = d (q - 16)    bit j of the four belongs to q[j]
 *     Q5_1  d, m, 4 bytes, 16              x = d q + m
 *
 * The K types have blocks of 256 in groups with scales of their own, which are short numbers too:
 *
 *     Q4_K  d, dmin, 12 bytes, 128         8 groups of 32, x = (d s) q - (dmin t); s, t of 6 bits
 *     Q5_K  d, dmin, 12, 32 high bits, 128 the same; bit g of byte j belongs to q[j] of group g
 *     Q6_K  128, 64 high bits, 16, d       16 groups of 16, x = (d s) (q - 32); s a signed byte
 *
 * Scales times short numbers are exact in fp32, so only the last operation rounds, and the results are
 * the reference's to the bit. */
#include "model/quant.h"

#include <string.h>

#include "model/half.h"

typedef void read_block(float* out, const unsigned char* b);

static float half_at(const unsigned char* b)
{
    uint16_t bits = 0;
    memcpy(&bits, b, sizeof bits);
    return (float)gr_half(bits);
}

/* ---- single numbers -------------------------------------------------------------------------- */

static void read_f32(float* out, const unsigned char* b) { memcpy(out, b, sizeof *out); }
static void read_f16(float* out, const unsigned char* b) { *out = half_at(b); }
static void read_bf16(float* out, const unsigned char* b)
{
    uint32_t bits = (uint32_t)b[0] << 16 | (uint32_t)b[1] << 24; /* the upper half of a float */
    memcpy(out, &bits, sizeof *out);
}

/* ---- blocks of 32 ---------------------------------------------------------------------------- */

static void read_q8_0(float* out, const unsigned char* b)
{
    float d = half_at(b);
    for (int i = 0; i < 32; i++) out[i] = d * (float)(int8_t)b[2 + i];
}

/* q[i] of 16 bytes of halves, and the fifth bit of each where high != NULL. */
static int short_at(const unsigned char* low, const unsigned char* high, int i)
{
    int q = i < 16 ? low[i] & 15 : low[i - 16] >> 4;
    return high == NULL ? q : q | (high[i / 8] >> (i % 8) & 1) << 4;
}

static void read_shorts(float* out, const unsigned char* low, const unsigned char* high, float d,
                        int zero, float m)
{
    for (int i = 0; i < 32; i++) out[i] = d * (float)(short_at(low, high, i) - zero) + m;
}

static void read_q4_0(float* out, const unsigned char* b)
{
    read_shorts(out, b + 2, NULL, half_at(b), 8, 0);
}
static void read_q4_1(float* out, const unsigned char* b)
{
    read_shorts(out, b + 4, NULL, half_at(b), 0, half_at(b + 2));
}
static void read_q5_0(float* out, const unsigned char* b)
{
    read_shorts(out, b + 6, b + 2, half_at(b), 16, 0);
}
static void read_q5_1(float* out, const unsigned char* b)
{
    read_shorts(out, b + 8, b + 4, half_at(b), 0, half_at(b + 2));
}

/* ---- blocks of 256 --------------------------------------------------------------------------- */

/* Scale and minimum of group g from 12 bytes. Groups 0-3 have theirs in the low six bits of bytes g
 * and g + 4; those of groups 4-7 are the halves of byte g + 4 under the two bits that are left over
 * there. */
static void group_scales(const unsigned char* b, int g, int* scale, int* min)
{
    if (g < 4) {
        *scale = b[g] & 63;
        *min = b[g + 4] & 63;
    } else {
        *scale = (b[g + 4] & 15) | b[g - 4] >> 6 << 4;
        *min = b[g + 4] >> 4 | b[g] >> 6 << 4;
    }
}

/* Two groups share 32 bytes of halves: the even one below, the odd one above. */
static void read_groups(float* out, const unsigned char* b, const unsigned char* high,
                        const unsigned char* low)
{
    float d = half_at(b), dmin = half_at(b + 2);
    for (int g = 0; g < 8; g++, out += 32) {
        int scale = 0, min = 0;
        group_scales(b + 4, g, &scale, &min);
        float step = d * (float)scale, m = dmin * (float)min;
        for (int i = 0; i < 32; i++) {
            int q = low[g / 2 * 32 + i] >> g % 2 * 4 & 15;
            if (high != NULL) q |= (high[i] >> g & 1) << 4;
            out[i] = step * (float)q - m;
        }
    }
}

static void read_q4_k(float* out, const unsigned char* b) { read_groups(out, b, NULL, b + 16); }
static void read_q5_k(float* out, const unsigned char* b) { read_groups(out, b, b + 16, b + 48); }

/* Each half of the block has 64 bytes of low and 32 of high bits; a byte of those serves the numbers
 * i, i + 32, i + 64 and i + 96. */
static void read_q6_k(float* out, const unsigned char* b)
{
    float d = half_at(b + 208);
    for (int i = 0; i < 256; i++) {
        int part = i / 128, quarter = i % 128 / 32, at = i % 32;
        int low = b[64 * part + 32 * (quarter % 2) + at] >> 4 * (quarter / 2) & 15;
        int high = b[128 + 32 * part + at] >> 2 * quarter & 3;
        out[i] = d * (float)(int8_t)b[192 + i / 16] * (float)((low | high << 4) - 32);
    }
}

/* ---- all of them ----------------------------------------------------------------------------- */

static const struct {
    const char* name;
    int elements, bytes;
    read_block* read;
} types[GR_QUANT_N_TYPES] = {
    [GR_QUANT_F32] = {"F32", 1, 4, read_f32},
    [GR_QUANT_F16] = {"F16", 1, 2, read_f16},
    [GR_QUANT_BF16] = {"BF16", 1, 2, read_bf16},
    [GR_QUANT_Q8_0] = {"Q8_0", 32, 34, read_q8_0},
    [GR_QUANT_Q4_0] = {"Q4_0", 32, 18, read_q4_0},
    [GR_QUANT_Q4_1] = {"Q4_1", 32, 20, read_q4_1},
    [GR_QUANT_Q5_0] = {"Q5_0", 32, 22, read_q5_0},
    [GR_QUANT_Q5_1] = {"Q5_1", 32, 24, read_q5_1},
    [GR_QUANT_Q4_K] = {"Q4_K", 256, 144, read_q4_k},
    [GR_QUANT_Q5_K] = {"Q5_K", 256, 176, read_q5_k},
    [GR_QUANT_Q6_K] = {"Q6_K", 256, 210, read_q6_k},
};

const char* gr_quant_name(uint32_t type)
{
    return type < GR_QUANT_N_TYPES ? types[type].name : NULL;
}
int gr_quant_elements(gr_quant_type type) { return types[type].elements; }
int gr_quant_bytes(gr_quant_type type) { return types[type].bytes; }

void gr_quant_read(float* out, gr_quant_type type, const unsigned char* data, int64_t n)
{
    int elements = types[type].elements;
    GR_ASSERT(types[type].read != NULL && n % elements == 0);
    for (int64_t i = 0; i < n; i += elements, data += types[type].bytes) {
        types[type].read(out + i, data);
    }
}
