/* tile.h - the register tile that all matrix products run on: TILE_ROWS rows of a broadcast operand
 * times GEMM_WIDTH columns. Included where tiles are compiled for their number of rows. */
#pragma once
#include "kernels/cpu/gemm.h"

/* Tiles of at most TILE_WIDE rows take two panels at once, to have enough independent chains. */
#if defined(GR_CPU_AVX512)
#define TILE_ROWS         14 /* 28 sums, 2 panel vectors and 1 broadcast in 32 registers */
#define TILE_LIST(X)      X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#define TILE_WIDE         3
#define TILE_WIDE_LIST(X) X(1) X(2) X(3)
#elif defined(GR_CPU_AVX2)
#define TILE_ROWS         6 /* 12 sums, 2 and 1 in 16 registers */
#define TILE_LIST(X)      X(1) X(2) X(3) X(4) X(5) X(6)
#define TILE_WIDE         3
#define TILE_WIDE_LIST(X) X(1) X(2) X(3)
#else
#define TILE_ROWS         2 /* 8 sums of 16 bytes */
#define TILE_LIST(X)      X(1) X(2)
#define TILE_WIDE         1
#define TILE_WIDE_LIST(X) X(1)
#endif

#define PANEL_VECS (GEMM_WIDTH / VEC)

/* ---- the register tile --------------------------------------------------------------------------- */

/* c[r][p] = init[r][p] + sum over q in order of a[r][q] b[q][p]. Strides are in elements. */
typedef struct tile {
    const acc* a;
    int64_t a_row, a_step; /* from a row to the next, from q to the next */
    const void* b;
    int64_t b_step, b_panel; /* from q to the next, from a panel to the next */
    int64_t steps;
    const acc* init;
    int64_t init_row;
    acc* c;
    int64_t c_row;
    const char* ahead;  /* what the next tiles will read: fetched into the level 2 cache, */
    int64_t ahead_step; /* this many bytes per step */
} tile;

/* What is known when a tile is compiled. */
typedef enum tile_kind {
    TILE_PLAIN,  /* a_step 1, panels of acc */
    TILE_NARROW, /* a_step 1, panels of real */
    TILE_OUTER,  /* a_row 1, b acc */
} tile_kind;

static inline __attribute__((always_inline)) void tile_run(const tile_kind kind, const int rows,
                                                           const int vecs, const tile* t)
{
    const acc* a = t->a;
    const int64_t a_row = kind == TILE_OUTER ? 1 : t->a_row;
    const int64_t a_step = kind == TILE_OUTER ? t->a_step : 1;
    const int64_t b_step = kind == TILE_OUTER ? t->b_step : GEMM_WIDTH, b_panel = t->b_panel;
    const char* ahead = t->ahead;
    vec sum[TILE_ROWS][2 * PANEL_VECS], b[2 * PANEL_VECS];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int p = 0; p < vecs; p++) sum[r][p] = vec_load(t->init + r * t->init_row + p * VEC);
    for (int64_t q = 0; q < t->steps; q++, ahead += t->ahead_step) {
        __builtin_prefetch(ahead, 0, 2);
#pragma GCC unroll 16
        for (int p = 0; p < vecs; p++) {
            const int64_t at = q * b_step + p / PANEL_VECS * b_panel + p % PANEL_VECS * VEC;
            b[p] = kind == TILE_NARROW ? vec_load_real((const real*)t->b + at)
                                       : vec_load((const acc*)t->b + at);
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const vec x = vec_set(a[r * a_row + q * a_step]);
#pragma GCC unroll 16
            for (int p = 0; p < vecs; p++) sum[r][p] = vec_fma(x, b[p], sum[r][p]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int p = 0; p < vecs; p++) vec_store(t->c + r * t->c_row + p * VEC, sum[r][p]);
}

/* For a switch over the number of rows. */
#define TILE_CASE(kind, n, vecs)    \
    case n:                         \
        tile_run(kind, n, vecs, t); \
        break;
