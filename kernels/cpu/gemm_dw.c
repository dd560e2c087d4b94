/* gemm_dw.c - gradients of weights: dw += dy^T x, summed over tokens in order.
 *
 * Every element is one fma chain over the tokens that goes on from what dw holds, however the work is
 * cut. A task is a range of rows of dw (outputs) times a range of columns (inputs). It walks over
 * blocks of tokens; both operands are copied in pieces as wide as the tile, because token rows are far
 * apart in memory: x as [panel][token][GEMM_WIDTH], dy as [tile][token][TILE_ROWS]. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/state.h"
#include "kernels/cpu/tile.h"

#include <omp.h>

static void tile_outer(int rows, const tile* t)
{
    switch (rows) {
#define X(n) TILE_CASE(TILE_OUTER, n, PANEL_VECS)
        TILE_LIST(X)
#undef X
    }
}
#define DW_TOKENS    512
#define DW_PIECE     (DW_TOKENS + 3) /* token rows kept per piece: no power of two, for the caches */
#define DW_COLUMNS   768             /* of x in the copy */
#define DW_ROWS      84 /* of dw whose dy is in the copy, a multiple of any TILE_ROWS */
#define DW_TASK_ROWS (24 * DW_ROWS)
#define DW_NEAR      512 /* elements: rows at most this far apart are read where they are */
_Static_assert(DW_ROWS % TILE_ROWS == 0 && DW_PIECE * (DW_ROWS + DW_COLUMNS) <= GR_CPU_SCRATCH,
               "scratch");

typedef struct dw_plan {
    acc* dw;
    const void *dy, *x;
    bool dy_acc;
    int64_t dy_stride, n;
    int m, k;
    int64_t row_groups, column_groups;
} dw_plan;

static inline __attribute__((always_inline)) void copy_piece(acc* to, const void* from, int64_t at,
                                                             const bool is_acc, int n)
{
    for (int i = 0; i < n; i += VEC) {
        const int left = GR_MIN(n - i, VEC);
        const vec v = is_acc ? vec_load_part((const acc*)from + at + i, left)
                             : vec_load_real_part((const real*)from + at + i, left);
        vec_store_part(to + i, v, left);
    }
}

/* Copies token rows to pieces of `width` columns; the last piece is padded with zeros. */
static inline __attribute__((always_inline)) void dw_copy(acc* to, const void* from, int64_t at,
                                                          int64_t stride, const bool is_acc,
                                                          const int width, int64_t tokens,
                                                          int64_t columns)
{
    const int64_t size = is_acc ? sizeof(acc) : sizeof(real);
    for (int64_t c = 0; c < columns; c += width, to += DW_PIECE * width, at += width) {
        const int left = (int)GR_MIN(columns - c, width);
        if (left < width) memset(to, 0, (size_t)(tokens * width) * sizeof *to);
        for (int64_t t = 0; t < tokens; t++) {
            const char* ahead = (const char*)from + (at + (t + 16) * stride) * size;
            __builtin_prefetch(ahead);
            __builtin_prefetch(ahead + 64);
            copy_piece(to + t * width, from, at + t * stride, is_acc, left == width ? width : left);
        }
    }
}

/* Where dw_rows reads: pieces [piece][token][step], or the rows themselves, a piece being some columns
 * of them. */
typedef struct operand {
    const acc* at;
    int64_t step; /* elements from a token to the next */
    int64_t
        piece; /* elements from a column of a piece to the same column of the next, per column */
} operand;

/* dw[0..rows][0..width] for one tile. */
static void dw_tile(acc* dw, int64_t stride, const acc* dy, int64_t dy_step, const acc* x,
                    int64_t x_step, int64_t tokens, int rows, int width)
{
    tile t = {.a = dy,
              .a_step = dy_step,
              .b = x,
              .b_step = x_step,
              .steps = tokens,
              .init = dw,
              .init_row = stride,
              .c = dw,
              .c_row = stride,
              .ahead = (const char*)dw};
    if (width == GEMM_WIDTH) {
        /* the tile below is next */
        for (int i = TILE_ROWS; i < 2 * TILE_ROWS; i++)
            for (int q = 0; q < GEMM_WIDTH; q += 16) __builtin_prefetch(dw + i * stride + q, 1, 2);
        tile_outer(rows, &t);
        return;
    }
    acc edge[TILE_ROWS * GEMM_WIDTH];
    for (int i = 0; i < rows; i++) copy_to_acc(edge + i * GEMM_WIDTH, dw, i * stride, true, width);
    t.init = t.c = edge;
    t.init_row = t.c_row = GEMM_WIDTH;
    tile_outer(rows, &t);
    for (int i = 0; i < rows; i++) copy_to_acc(dw + i * stride, edge, i * GEMM_WIDTH, true, width);
}

/* dy of rows [row, row + rows) of dw, at most DW_ROWS, and one block of tokens from t0 on. Rows of a
 * narrow dy are close enough to be read where they are. */
static operand dw_dy(const dw_plan* p, acc* copy, int64_t t0, int64_t tokens, int64_t row,
                     int64_t rows)
{
    const int64_t at = t0 * p->dy_stride + row;
    const bool is_acc = p->dy_acc || sizeof(real) == sizeof(acc);
    if (is_acc && p->dy_stride <= DW_NEAR)
        return (operand){(const acc*)p->dy + at, p->dy_stride, 1};
    if (p->dy_acc)
        dw_copy(copy, p->dy, at, p->dy_stride, true, TILE_ROWS, tokens, rows);
    else
        dw_copy(copy, p->dy, at, p->dy_stride, false, TILE_ROWS, tokens, rows);
    return (operand){copy, TILE_ROWS, DW_PIECE};
}

static operand dw_x(const dw_plan* p, acc* copy, int64_t t0, int64_t tokens, int64_t column,
                    int64_t columns)
{
    const int64_t at = t0 * p->k + column;
    if (sizeof(real) == sizeof(acc) && p->k <= DW_NEAR && p->k % GEMM_WIDTH == 0)
        return (operand){(const acc*)p->x + at, p->k, 1};
    dw_copy(copy, p->x, at, p->k, false, GEMM_WIDTH, tokens, columns);
    return (operand){copy, GEMM_WIDTH, DW_PIECE};
}

static void dw_block(acc* dw, int64_t stride, const operand* dy, const operand* x, int64_t tokens,
                     int64_t rows, int64_t columns)
{
    for (int64_t c = 0; c < columns; c += GEMM_WIDTH)
        for (int64_t r = 0; r < rows; r += TILE_ROWS)
            dw_tile(dw + r * stride + c, stride, dy->at + r * dy->piece, dy->step,
                    x->at + c * x->piece, x->step, tokens, (int)GR_MIN(rows - r, TILE_ROWS),
                    (int)GR_MIN(columns - c, GEMM_WIDTH));
}

static void dw_task(const dw_plan* p, int64_t task, acc* scratch)
{
    const int64_t i = task / p->column_groups, j = task % p->column_groups;
    const int64_t tiles = (p->m + TILE_ROWS - 1) / TILE_ROWS, panels = gemm_panels(p->k);
    const int64_t row = tiles * i / p->row_groups * TILE_ROWS;
    const int64_t row_end = GR_MIN(tiles * (i + 1) / p->row_groups * TILE_ROWS, p->m);
    const int64_t column = panels * j / p->column_groups * GEMM_WIDTH;
    const int64_t columns = GR_MIN(panels * (j + 1) / p->column_groups * GEMM_WIDTH, p->k) - column;
    acc *x_copy = scratch, *dy_copy = scratch + DW_PIECE * DW_COLUMNS;
    for (int64_t t0 = 0; t0 < p->n; t0 += DW_TOKENS) {
        const int64_t tokens = GR_MIN(p->n - t0, DW_TOKENS);
        const operand x = dw_x(p, x_copy, t0, tokens, column, columns);
        for (int64_t r = row; r < row_end; r += DW_ROWS) {
            const int64_t rows = GR_MIN(row_end - r, DW_ROWS);
            const operand dy = dw_dy(p, dy_copy, t0, tokens, r, rows);
            dw_block(p->dw + r * p->k + column, p->k, &dy, &x, tokens, rows, columns);
        }
    }
}

void OP(gemm_dw)(gr_dev* dev, acc* dw, const void* dy, bool dy_acc, int64_t dy_stride,
                 const void* x, int64_t n, int m, int k)
{
    if (n == 0) return;
    if (gemm_by_library(dev)) {
        const bool f32 = sizeof(real) == sizeof(acc);
        gr_onednn_dw(
            dev, &(gr_onednn_dw_args){(float*)dw, dy, x, n, dy_stride, m, k, f32 || dy_acc, f32});
        return;
    }
    const int threads = op_threads(dev, (double)n * m * k);
    dw_plan p = {dw, dy, x, dy_acc, dy_stride, n, m, k, 0, 0};
    p.column_groups = (gemm_panels(k) * GEMM_WIDTH + DW_COLUMNS - 1) / DW_COLUMNS;
    const int64_t wanted = (threads + p.column_groups - 1) / p.column_groups;
    p.row_groups = GR_MAX(wanted, (m + DW_TASK_ROWS - 1) / DW_TASK_ROWS);
    p.row_groups = GR_MIN(p.row_groups, (m + TILE_ROWS - 1) / TILE_ROWS);
    const int64_t tasks = p.row_groups * p.column_groups;
    if (threads == 1) {
        for (int64_t t = 0; t < tasks; t++) dw_task(&p, t, gr_cpu_scratch(dev, 0));
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t t = 0; t < tasks; t++) dw_task(&p, t, gr_cpu_scratch(dev, omp_get_thread_num()));
}

static void add_columns(acc* db, const real* dy, int64_t n, int m)
{
    enum { BLOCK = 4 * VEC };
#pragma omp for schedule(static)
    for (int j = 0; j < m; j += BLOCK)
        for (int64_t i = 0; i < n; i++)
            for (int q = j; q < GR_MIN(j + BLOCK, m); q += VEC) {
                const int left = GR_MIN(m - q, VEC);
                const vec v = vec_load_real_part(dy + i * m + q, left);
                vec_store_part(db + q, vec_add(vec_load_part(db + q, left), v), left);
            }
}

void OP(matmul_dw)(gr_dev* dev, void* dw, void* db, const void* dy, const void* x, int64_t n, int m,
                   int k, void* scratch)
{
    (void)scratch;
    OP(gemm_dw)(dev, dw, dy, false, m, x, n, m, k);
    if (db != NULL) OP_RUN(op_threads(dev, OP_ELEMENT * (double)n * m), add_columns(db, dy, n, m));
}

size_t OP(matmul_dw_scratch)(const gr_dev* dev, int64_t n, int m, int k)
{
    (void)dev, (void)n, (void)m, (void)k;
    return 0;
}
