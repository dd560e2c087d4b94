/* gemm.c - y = x w^T, where a row does not depend on the batch.
 *
 * Every output is one fma chain over k in order that starts from its bias. How the work is cut never
 * changes a chain, so a row has the same bits in any batch and on any number of threads.
 *
 * Blocks of rows times groups of panels are tasks; sizes are for a level 2 cache of 1 to 2 MB. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/state.h"
#include "kernels/cpu/tile.h"

#include <omp.h>

/* ---- tiles by their number of rows ----------------------------------------------------------------- */

static void tile_plain(int rows, const tile* t)
{
    switch (rows) {
#define X(n) TILE_CASE(TILE_PLAIN, n, PANEL_VECS)
        TILE_LIST(X)
#undef X
    }
}
#if defined(GR_CPU_BF16)
static void tile_narrow(int rows, const tile* t)
{
    switch (rows) {
#define X(n) TILE_CASE(TILE_NARROW, n, PANEL_VECS)
        TILE_LIST(X)
#undef X
    }
}
#else
#define tile_narrow tile_plain
#endif
static void tile_wide(int rows, const tile* t)
{
    switch (rows) {
#define X(n) TILE_CASE(TILE_NARROW, n, 2 * PANEL_VECS)
        TILE_WIDE_LIST(X)
#undef X
    }
}

/* ---- packing ------------------------------------------------------------------------------------- */

size_t OP(matmul_packed_bytes)(const gr_dev* dev, int m, int k, bool transpose)
{
    if (gemm_by_library(dev))
        return gr_onednn_packed_bytes(dev, transpose ? k : m, transpose ? m : k);
    const int64_t rows = transpose ? gemm_panels(k) * m : gemm_panels(m) * k;
    return (size_t)(rows * GEMM_WIDTH) * sizeof(real);
}

static void pack_panels(real* to, const real* from, int m, int k, bool transpose)
{
    const int outputs = transpose ? k : m, inner = transpose ? m : k;
#pragma omp for schedule(static)
    for (int64_t p = 0; p < gemm_panels(outputs); p++) {
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
    if (gemm_by_library(dev)) {
        gr_onednn_pack(dev, packed, w, sizeof(real) == sizeof(acc), transpose ? k : m,
                       transpose ? m : k, transpose);
        return;
    }
    OP_RUN(op_threads(dev, OP_ELEMENT * m * k), pack_panels(packed, w, m, k, transpose));
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
        groups_min = (gemm_panels(g->m) * GEMM_WIDTH + PART_COLUMNS - 1) / PART_COLUMNS;
    }
    rows -= rows % TILE_ROWS;
    p.row_blocks = (g->n + rows - 1) / rows;
    const int64_t wanted = threads == 1 ? 1 : (4 * threads + p.row_blocks - 1) / p.row_blocks;
    p.panel_groups = GR_MIN(GR_MAX(wanted, groups_min), gemm_panels(g->m));
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
    const real* b = (const real*)g->packed + (panel * g->k + s->k0) * GEMM_WIDTH;
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
    const int64_t panels = gemm_panels(g->m);
    block s = {.p = p, .buf = buf, .row = g->n * i / p->row_blocks};
    s.rows = g->n * (i + 1) / p->row_blocks - s.row;
    s.first_panel = panels * j / p->panel_groups;
    s.last_panel = panels * (j + 1) / p->panel_groups;
    const int pair = s.rows <= TILE_WIDE ? 2 : 1;
    for (int64_t kb = 0; kb < p->k_blocks; kb++) {
        s.k0 = g->k * kb / p->k_blocks;
        s.steps = g->k * (kb + 1) / p->k_blocks - s.k0;
        set_x(&s);
        for (int64_t panel = s.first_panel; panel < s.last_panel; panel += pair)
            run_panels(&s, panel, (int)GR_MIN(pair, s.last_panel - panel));
    }
}

static void library_gemm(gr_dev* dev, const gemm_args* g)
{
    const bool f32 = sizeof(real) == sizeof(acc);
    gr_onednn_matmul(dev, &(gr_onednn_args){.y = g->y,
                                            .x = g->x,
                                            .packed = g->packed,
                                            .bias = g->bias,
                                            .n = g->n,
                                            .y_stride = g->y_stride,
                                            .m = g->m,
                                            .k = g->k,
                                            .x_f32 = f32 || g->x_acc,
                                            .y_f32 = f32 || g->y_acc,
                                            .bias_f32 = f32});
}

void OP(gemm)(gr_dev* dev, const gemm_args* args)
{
    if (args->n == 0) return;
    if (gemm_by_library(dev)) {
        library_gemm(dev, args);
        return;
    }
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
