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

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* ---- the register tile --------------------------------------------------------------------------- */

/* c[r][p] = init[r][p] + sum over q in order of a[r][q] b[q][p]. */
typedef struct tile {
    const acc* a;
    int64_t a_row;  /* elements from a row to the next */
    const void* b;  /* panel, steps * GEMM_WIDTH */
    int64_t b_next; /* elements from a panel to the next */
    int64_t steps;
    const acc* init;
    int64_t init_row;
    acc* c;
    int64_t c_row;
} tile;

static inline __attribute__((always_inline)) void
tile_run(const int rows, const int vecs, const int64_t a_step, const bool b_real, const tile* t)
{
    const acc* a = t->a;
    const int64_t a_row = a_step == 1 ? t->a_row : 1, b_next = t->b_next;
    vec sum[TILE_ROWS][2 * PANEL_VECS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < vecs; p++) sum[r][p] =
        vec_load(t->init + r * t->init_row + p * VEC);
    for (int64_t q = 0; q < t->steps; q++) {
        vec b[2 * PANEL_VECS];
        UNROLL for (int p = 0; p < vecs; p++)
        {
            const int64_t at = p / PANEL_VECS * b_next + q * GEMM_WIDTH + p % PANEL_VECS * VEC;
            b[p] = b_real ? vec_load_real((const real*)t->b + at) : vec_load((const acc*)t->b + at);
        }
        UNROLL for (int r = 0; r < rows; r++)
        {
            const vec x = vec_set(a[r * a_row + q * a_step]);
            UNROLL for (int p = 0; p < vecs; p++) sum[r][p] = vec_fma(x, b[p], sum[r][p]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < vecs; p++)
        vec_store(t->c + r * t->c_row + p * VEC, sum[r][p]);
}

/* One panel, a in rows, b acc. */
static void tile_plain(int rows, const tile* t)
{
    switch (rows) {
#define X(n)                                  \
    case n:                                   \
        tile_run(n, PANEL_VECS, 1, false, t); \
        break;
        TILE_LIST(X)
#undef X
    }
}

/* One panel, a in steps of TILE_ROWS elements, b acc. */
static void tile_outer(int rows, const tile* t)
{
    switch (rows) {
#define X(n)                                          \
    case n:                                           \
        tile_run(n, PANEL_VECS, TILE_ROWS, false, t); \
        break;
        TILE_LIST(X)
#undef X
    }
}

#if defined(GR_CPU_BF16)
/* One panel, a in rows, b real. */
static void tile_narrow(int rows, const tile* t)
{
    switch (rows) {
#define X(n)                                 \
    case n:                                  \
        tile_run(n, PANEL_VECS, 1, true, t); \
        break;
        TILE_LIST(X)
#undef X
    }
}
#else
#define tile_narrow tile_plain
#endif

/* Two panels, a in at most WIDE_ROWS rows, b real. */
static void tile_wide(int rows, const tile* t)
{
    switch (rows) {
    case 1:
        tile_run(1, 2 * PANEL_VECS, 1, true, t);
        break;
    case 2:
        tile_run(2, 2 * PANEL_VECS, 1, true, t);
        break;
    case 3:
        tile_run(3, 2 * PANEL_VECS, 1, true, t);
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

#define K_BLOCK      3072
#define ROWS_MAX     (24 * TILE_ROWS)
#define COPY_ACCS    196608 /* of a block of rows of x */
#define PART_ROWS    84     /* partial sums of a block, where k takes several steps of K_BLOCK */
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

static plan plan_of(const gemm_args* g, int threads)
{
    plan p = {.g = g, .k_blocks = (g->k + K_BLOCK - 1) / K_BLOCK};
    const int64_t k_step = (g->k + p.k_blocks - 1) / p.k_blocks;
    /* Rows a multiple of 4 KB apart share their places in the level 1 cache. */
    p.copy_x = (sizeof(real) != sizeof(acc) && !g->x_acc) ||
               (g->n > 8 && (size_t)g->k * sizeof(acc) % 4096 == 0);
    int64_t rows = GR_MIN(COPY_ACCS / (k_step + VEC), ROWS_MAX);
    int64_t groups_min = 1;
    if (p.k_blocks > 1) {
        rows = GR_MIN(rows, PART_ROWS);
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

/* `count` panels (two for few rows) from `panel` on. */
static void run_panels(const block* s, int64_t panel, int count)
{
    const gemm_args* g = s->p->g;
    const int64_t first = panel * GEMM_WIDTH;
    const int width = (int)GR_MIN(g->m - first, count * GEMM_WIDTH);
    const bool last = s->k0 + s->steps == g->k;
    const bool in_place = (g->y_acc || sizeof(real) == sizeof(acc)) && width == count * GEMM_WIDTH;
    const bool expand = sizeof(real) != sizeof(acc) && s->rows > TILE_ROWS;
    acc start[2 * GEMM_WIDTH], out[TILE_ROWS * 2 * GEMM_WIDTH];
    start_of(start, g, first, width);
    const real* b = gemm_panel(g->packed, panel, g->k) + s->k0 * GEMM_WIDTH;
    if (expand) copy_to_acc(s->buf.panel, b, 0, false, s->steps * GEMM_WIDTH);
    tile t = {.a_row = s->x_row,
              .b = expand ? (const void*)s->buf.panel : b,
              .b_next = (int64_t)g->k * GEMM_WIDTH,
              .steps = s->steps,
              .c_row = !last      ? PART_COLUMNS
                       : in_place ? g->y_stride
                                  : 2 * GEMM_WIDTH};
    const int64_t tiles = (s->rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t r = s->rows * i / tiles, rows = s->rows * (i + 1) / tiles - r;
        acc* part = s->buf.part + r * PART_COLUMNS + first - s->first_panel * GEMM_WIDTH;
        acc* y = in_place ? (acc*)g->y + (s->row + r) * g->y_stride + first : out;
        t.a = s->x + r * s->x_row;
        t.init = s->k0 == 0 ? start : part;
        t.init_row = s->k0 == 0 ? 0 : PART_COLUMNS;
        t.c = last ? y : part;
        if (count == 2)
            tile_wide((int)rows, &t);
        else if (expand)
            tile_plain((int)rows, &t);
        else
            tile_narrow((int)rows, &t);
        if (last && !in_place) store_rows(g, s->row + r, first, out, 2 * GEMM_WIDTH, rows, width);
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

/* ---- dw += dy^T x ---------------------------------------------------------------------------------- */

#define DW_TOKENS  256
#define DW_ROWS    168 /* of dw: outputs, a multiple of every TILE_ROWS */
#define DW_COLUMNS 256 /* of dw: inputs */
_Static_assert(DW_ROWS % TILE_ROWS == 0 && DW_TOKENS * (DW_ROWS + DW_COLUMNS) <= GR_CPU_SCRATCH,
               "scratch");

typedef struct dw_plan {
    acc* dw;
    const void *dy, *x;
    bool dy_acc;
    int64_t dy_stride, n;
    int m, k;
    int64_t row_groups, column_groups;
} dw_plan;

/* One block of dw over one block of tokens, both operands already copied:
 * dy as [tile][token][TILE_ROWS], x as [panel][token][GEMM_WIDTH]. */
static void dw_block(const dw_plan* p, const acc* dy, const acc* x, int64_t tokens, int64_t row,
                     int64_t rows, int64_t column, int64_t columns)
{
    acc edge[TILE_ROWS * GEMM_WIDTH];
    for (int64_t c = 0; c < columns; c += GEMM_WIDTH)
        for (int64_t r = 0; r < rows; r += TILE_ROWS) {
            const int n_rows = (int)GR_MIN(rows - r, TILE_ROWS);
            const int width = (int)GR_MIN(columns - c, GEMM_WIDTH);
            acc* out = p->dw + (row + r) * p->k + column + c;
            tile t = {.a = dy + r * DW_TOKENS,
                      .b = x + c * DW_TOKENS,
                      .steps = tokens,
                      .init = out,
                      .init_row = p->k,
                      .c = out,
                      .c_row = p->k};
            if (width == GEMM_WIDTH) {
                tile_outer(n_rows, &t);
                continue;
            }
            for (int i = 0; i < n_rows; i++)
                copy_to_acc(edge + i * GEMM_WIDTH, out, i * p->k, true, width);
            t.init = t.c = edge;
            t.init_row = t.c_row = GEMM_WIDTH;
            tile_outer(n_rows, &t);
            for (int i = 0; i < n_rows; i++)
                copy_to_acc(out + i * p->k, edge, i * GEMM_WIDTH, true, width);
        }
}

static void dw_task(const dw_plan* p, int64_t task, acc* scratch)
{
    const int64_t i = task / p->column_groups, j = task % p->column_groups;
    const int64_t tiles = (p->m + TILE_ROWS - 1) / TILE_ROWS, panels = panels_of(p->k);
    const int64_t row = tiles * i / p->row_groups * TILE_ROWS;
    const int64_t rows = GR_MIN(tiles * (i + 1) / p->row_groups * TILE_ROWS, p->m) - row;
    const int64_t column = panels * j / p->column_groups * GEMM_WIDTH;
    const int64_t columns = GR_MIN(panels * (j + 1) / p->column_groups * GEMM_WIDTH, p->k) - column;
    acc *x = scratch, *dy = scratch + DW_TOKENS * DW_COLUMNS;
    for (int64_t t0 = 0; t0 < p->n; t0 += DW_TOKENS) {
        const int64_t tokens = GR_MIN(p->n - t0, DW_TOKENS);
        for (int64_t t = 0; t < tokens; t++) {
            const int64_t from_x = (t0 + t) * p->k + column;
            const int64_t from_dy = (t0 + t) * p->dy_stride + row;
            for (int64_t c = 0; c < columns; c += GEMM_WIDTH)
                copy_to_acc(x + c * DW_TOKENS + t * GEMM_WIDTH, p->x, from_x + c, false,
                            GR_MIN(columns - c, GEMM_WIDTH));
            for (int64_t r = 0; r < rows; r += TILE_ROWS)
                copy_to_acc(dy + r * DW_TOKENS + t * TILE_ROWS, p->dy, from_dy + r, p->dy_acc,
                            GR_MIN(rows - r, TILE_ROWS));
        }
        dw_block(p, dy, x, tokens, row, rows, column, columns);
    }
}

void OP(gemm_dw)(gr_dev* dev, acc* dw, const void* dy, bool dy_acc, int64_t dy_stride,
                 const void* x, int64_t n, int m, int k)
{
    if (n == 0) return;
    const int threads = op_threads(dev, (double)n * m * k);
    dw_plan p = {dw, dy, x, dy_acc, dy_stride, n, m, k, 0, 0};
    p.column_groups = (panels_of(k) * GEMM_WIDTH + DW_COLUMNS - 1) / DW_COLUMNS;
    p.row_groups = (m + DW_ROWS - 1) / DW_ROWS;
    const int64_t wanted = threads == 1 ? 1 : (4 * threads + p.column_groups - 1) / p.column_groups;
    p.row_groups = GR_MIN(GR_MAX(p.row_groups, wanted), (m + TILE_ROWS - 1) / TILE_ROWS);
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
