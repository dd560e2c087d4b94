/* gemm.c - matrix products whose rows do not depend on the batch.
 *
 * Every output is one fma chain over k in order, starting from its bias (or, for dw, from the sum so
 * far). How the work is cut never changes a chain, so a row has the same bits in any batch and on any
 * number of threads.
 *
 * All products run on one register tile: TILE_ROWS rows of a broadcast operand times a panel of
 * GEMM_WIDTH columns. For y = x w^T the panels are packed weights; for dw = dy^T x they are blocks of
 * tokens copied from x. Blocks are sized for a level 2 cache of 1 to 2 MB. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/state.h"

#include <omp.h>

#if defined(GR_CPU_AVX512)
#define TILE_ROWS    14 /* 28 sums, 2 panel vectors and 1 broadcast in 32 registers */
#define TILE_LIST(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#elif defined(GR_CPU_AVX2)
#define TILE_ROWS    6 /* 12 sums, 2 and 1 in 16 registers */
#define TILE_LIST(X) X(1) X(2) X(3) X(4) X(5) X(6)
#else
#define TILE_ROWS    3
#define TILE_LIST(X) X(1) X(2) X(3)
#endif

#define PANEL_VECS (GEMM_WIDTH / VEC)
#define WIDE_ROWS  3 /* up to here a tile takes two panels at once, to have enough chains */

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

static void tile_plain(int rows, const tile* t)
{
    switch (rows) {
#define X(n)                                    \
    case n:                                     \
        tile_run(TILE_PLAIN, n, PANEL_VECS, t); \
        break;
        TILE_LIST(X)
#undef X
    }
}
static void tile_outer(int rows, const tile* t)
{
    switch (rows) {
#define X(n)                                    \
    case n:                                     \
        tile_run(TILE_OUTER, n, PANEL_VECS, t); \
        break;
        TILE_LIST(X)
#undef X
    }
}
#if defined(GR_CPU_BF16)
static void tile_narrow(int rows, const tile* t)
{
    switch (rows) {
#define X(n)                                     \
    case n:                                      \
        tile_run(TILE_NARROW, n, PANEL_VECS, t); \
        break;
        TILE_LIST(X)
#undef X
    }
}
#else
#define tile_narrow tile_plain
#endif
/* Two panels at once, at most WIDE_ROWS rows. */
static void tile_wide(int rows, const tile* t)
{
    switch (rows) {
    case 1:
        tile_run(TILE_NARROW, 1, 2 * PANEL_VECS, t);
        break;
    case 2:
        tile_run(TILE_NARROW, 2, 2 * PANEL_VECS, t);
        break;
    case 3:
        tile_run(TILE_NARROW, 3, 2 * PANEL_VECS, t);
        break;
    }
}

/* ---- packing ------------------------------------------------------------------------------------- */

static int64_t panels_of(int m) { return ((int64_t)m + GEMM_WIDTH - 1) / GEMM_WIDTH; }

size_t OP(matmul_packed_bytes)(const gr_dev* dev, int m, int k, bool transpose)
{
    (void)dev;
    const int64_t rows = transpose ? panels_of(k) * m : panels_of(m) * k;
    return (size_t)(rows * GEMM_WIDTH) * sizeof(real);
}

static void pack_panels(real* to, const real* from, int m, int k, bool transpose)
{
    const int outputs = transpose ? k : m, inner = transpose ? m : k;
#pragma omp for schedule(static)
    for (int64_t p = 0; p < panels_of(outputs); p++) {
        const int64_t first = p * GEMM_WIDTH;
        const int width = (int)GR_MIN(outputs - first, GEMM_WIDTH);
        for (int64_t q = 0; q < inner; q++) {
            real* row = to + (p * inner + q) * GEMM_WIDTH;
            for (int j = 0; j < width; j++)
                row[j] = transpose ? from[q * k + first + j] : from[(first + j) * k + q];
            for (int j = width; j < GEMM_WIDTH; j++) row[j] = 0;
        }
    }
}

void OP(matmul_pack)(gr_dev* dev, void* packed, const void* w, int m, int k, bool transpose)
{
    OP_RUN(op_threads(dev, OP_ELEMENT * m * k), pack_panels(packed, w, m, k, transpose));
}

/* Copies n elements, real or acc, to acc. */
static void copy_to_acc(acc* to, const void* from, int64_t at, bool is_acc, int64_t n)
{
    const real* x = (const real*)from + at;
    const acc* y = (const acc*)from + at;
    for (int64_t i = 0; i < n; i += VEC) {
        const int left = (int)GR_MIN(n - i, VEC);
        vec_store_part(to + i,
                       is_acc ? vec_load_part(y + i, left) : vec_load_real_part(x + i, left), left);
    }
}

/* ---- y = x w^T ------------------------------------------------------------------------------------ */

#define K_BLOCK      1536
#define ROWS_MAX     (24 * TILE_ROWS)
#define COPY_ACCS    262144 /* of a block of rows of x */
#define PART_ROWS    168    /* partial sums of a block, where k takes several steps of K_BLOCK */
#define PART_COLUMNS 512

/* How one product is cut: blocks of rows times groups of panels. Each is a task. */
typedef struct plan {
    const gemm_args* g;
    int64_t k_blocks, row_blocks, panel_groups;
    bool copy_x;
} plan;

/* The thread's scratch. */
typedef struct buffers {
    acc *x, *panel, *part;
} buffers;

static buffers buffers_of(gr_dev* dev, int thread)
{
    acc* s = gr_cpu_scratch(dev, thread);
    return (buffers){s, s + COPY_ACCS, s + COPY_ACCS + K_BLOCK * GEMM_WIDTH};
}
_Static_assert(COPY_ACCS + K_BLOCK * GEMM_WIDTH + PART_ROWS * PART_COLUMNS <= GR_CPU_SCRATCH,
               "scratch");

static bool y_is_acc(const gemm_args* g) { return g->y_acc || sizeof(real) == sizeof(acc); }

static plan plan_of(const gemm_args* g, int threads)
{
    plan p = {.g = g, .k_blocks = (g->k + K_BLOCK - 1) / K_BLOCK};
    const int64_t k_step = (g->k + p.k_blocks - 1) / p.k_blocks;
    /* Rows a multiple of 4 KB apart share their places in the level 1 cache. */
    p.copy_x = (sizeof(real) != sizeof(acc) && !g->x_acc) ||
               (g->n > 8 && (size_t)g->k * sizeof(acc) % 4096 == 0);
    int64_t rows = GR_MIN(COPY_ACCS / (k_step + VEC), ROWS_MAX);
    int64_t groups_min = 1;
    if (p.k_blocks > 1) rows = GR_MIN(rows, PART_ROWS);
    if (p.k_blocks > 1 && !y_is_acc(g)) {
        groups_min = (panels_of(g->m) * GEMM_WIDTH + PART_COLUMNS - 1) / PART_COLUMNS;
    }
    rows -= rows % TILE_ROWS;
    p.row_blocks = (g->n + rows - 1) / rows;
    const int64_t wanted = threads == 1 ? 1 : (4 * threads + p.row_blocks - 1) / p.row_blocks;
    p.panel_groups = GR_MIN(GR_MAX(wanted, groups_min), panels_of(g->m));
    return p;
}

/* One step of a task: rows of x, from k0 on, times its panels. */
typedef struct block {
    const plan* p;
    buffers buf;
    int64_t row, rows;
    int64_t first_panel, last_panel;
    int64_t k0, steps;
    const acc* x;
    int64_t x_row;
} block;

static void start_of(acc* start, const gemm_args* g, int64_t first, int width)
{
    memset(start, 0, 2 * GEMM_WIDTH * sizeof *start);
    if (g->bias != NULL) copy_to_acc(start, g->bias, first, false, width);
}

static void store_rows(const gemm_args* g, int64_t row, int64_t first, const acc* from,
                       int64_t from_row, int64_t rows, int width)
{
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < width; i += VEC) {
            const int left = GR_MIN(width - i, VEC);
            const int64_t at = (row + r) * g->y_stride + first + i;
            const vec v = vec_load(from + r * from_row + i);
            if (g->y_acc)
                vec_store_part((acc*)g->y + at, v, left);
            else
                vec_store_real_part((real*)g->y + at, v, left);
        }
}

/* Where the sums of a tile stand: in y if they may stay there as they are, else in the buffer, which
 * between steps of k keeps all panels of the block. */
static acc* sums_at(const block* s, int64_t r, int64_t first, bool in_place)
{
    const gemm_args* g = s->p->g;
    if (in_place) return (acc*)g->y + (s->row + r) * g->y_stride + first;
    if (s->p->k_blocks == 1) return s->buf.part;
    /* with y acc only the last, partial panel is not in place */
    const int64_t column = y_is_acc(g) ? 0 : first - s->first_panel * GEMM_WIDTH;
    return s->buf.part + r * PART_COLUMNS + column;
}

/* `count` panels (two for few rows) from `panel` on. */
static void run_panels(const block* s, int64_t panel, int count)
{
    const gemm_args* g = s->p->g;
    const int64_t first = panel * GEMM_WIDTH;
    const int width = (int)GR_MIN(g->m - first, count * GEMM_WIDTH);
    const bool last = s->k0 + s->steps == g->k;
    const bool in_place = y_is_acc(g) && width == count * GEMM_WIDTH;
    const bool expand = sizeof(real) != sizeof(acc) && s->rows > TILE_ROWS;
    const real* b = gemm_panel(g->packed, panel, g->k) + s->k0 * GEMM_WIDTH;
    if (expand) copy_to_acc(s->buf.panel, b, 0, false, s->steps * GEMM_WIDTH);
    acc start[2 * GEMM_WIDTH];
    start_of(start, g, first, width);
    const int64_t tiles = (s->rows + TILE_ROWS - 1) / TILE_ROWS;
    const int64_t share = (int64_t)sizeof(real) * GEMM_WIDTH / tiles; /* bytes per step */
    tile t = {.a_row = s->x_row,
              .b = expand ? (const void*)s->buf.panel : b,
              .b_panel = (int64_t)g->k * GEMM_WIDTH,
              .steps = s->steps,
              .c_row = in_place ? g->y_stride : PART_COLUMNS,
              .ahead = (const char*)(b + (int64_t)g->k * GEMM_WIDTH),
              .ahead_step = share};
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t r = s->rows * i / tiles, rows = s->rows * (i + 1) / tiles - r;
        t.a = s->x + r * s->x_row;
        t.c = sums_at(s, r, first, in_place);
        t.init = s->k0 == 0 ? start : t.c;
        t.init_row = s->k0 == 0 ? 0 : t.c_row;
        if (count == 2)
            tile_wide((int)rows, &t);
        else if (expand)
            tile_plain((int)rows, &t);
        else
            tile_narrow((int)rows, &t);
        if (last && !in_place) store_rows(g, s->row + r, first, t.c, t.c_row, rows, width);
        t.ahead += share * s->steps;
    }
}

/* Points s->x at the block's elements of x as acc, copied if they must be. */
static void set_x(block* s)
{
    const gemm_args* g = s->p->g;
    const int64_t at = s->row * g->k + s->k0;
    s->x = (const acc*)g->x + at;
    s->x_row = g->k;
    if (!s->p->copy_x) return;
    s->x = s->buf.x;
    s->x_row = (s->steps + VEC - 1) / VEC * VEC;
    if ((size_t)s->x_row * sizeof(acc) % 1024 == 0) s->x_row += VEC;
    for (int64_t r = 0; r < s->rows; r++)
        copy_to_acc(s->buf.x + r * s->x_row, g->x, at + r * g->k, g->x_acc, s->steps);
}

static void gemm_task(const plan* p, int64_t task, buffers buf)
{
    const gemm_args* g = p->g;
    const int64_t i = task / p->panel_groups, j = task % p->panel_groups;
    const int64_t panels = panels_of(g->m);
    block s = {.p = p, .buf = buf, .row = g->n * i / p->row_blocks};
    s.rows = g->n * (i + 1) / p->row_blocks - s.row;
    s.first_panel = panels * j / p->panel_groups;
    s.last_panel = panels * (j + 1) / p->panel_groups;
    const int pair = s.rows <= WIDE_ROWS ? 2 : 1;
    for (int64_t kb = 0; kb < p->k_blocks; kb++) {
        s.k0 = g->k * kb / p->k_blocks;
        s.steps = g->k * (kb + 1) / p->k_blocks - s.k0;
        set_x(&s);
        for (int64_t panel = s.first_panel; panel < s.last_panel; panel += pair)
            run_panels(&s, panel, (int)GR_MIN(pair, s.last_panel - panel));
    }
}

void OP(gemm)(gr_dev* dev, const gemm_args* args)
{
    if (args->n == 0) return;
    const int threads = op_threads(dev, (double)args->n * args->m * args->k);
    const plan p = plan_of(args, threads);
    const int64_t tasks = p.row_blocks * p.panel_groups;
    if (threads == 1) {
        for (int64_t t = 0; t < tasks; t++) gemm_task(&p, t, buffers_of(dev, 0));
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t t = 0; t < tasks; t++) gemm_task(&p, t, buffers_of(dev, omp_get_thread_num()));
}

void OP(matmul)(gr_dev* dev, void* y, const void* x, const void* packed, const void* bias,
                int64_t n, int m, int k)
{
    OP(gemm)(dev, &(gemm_args){y, x, packed, bias, n, m, m, k, false, false});
}

/* ---- dw += dy^T x ----------------------------------------------------------------------------------
 * A task is a range of rows of dw (outputs) times a range of columns (inputs). It walks over blocks of
 * tokens; both operands are copied in pieces as wide as the tile, because token rows are far apart in
 * memory: x as [panel][token][GEMM_WIDTH], dy as [tile][token][TILE_ROWS]. */

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
    const int64_t tiles = (p->m + TILE_ROWS - 1) / TILE_ROWS, panels = panels_of(p->k);
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
    const int threads = op_threads(dev, (double)n * m * k);
    dw_plan p = {dw, dy, x, dy_acc, dy_stride, n, m, k, 0, 0};
    p.column_groups = (panels_of(k) * GEMM_WIDTH + DW_COLUMNS - 1) / DW_COLUMNS;
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
