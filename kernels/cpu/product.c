/* product.c - register tiles over small matrices. */
#include "kernels/cpu/product.h"

#if defined(GR_CPU_AVX512)
#define TILE_ROWS    6 /* 24 sums, 4 vectors of b */
#define TILE_VECS    4
#define TILE_LIST(X) X(1) X(2) X(3) X(4) X(5) X(6)
#elif defined(GR_CPU_AVX2)
#define TILE_ROWS    6 /* 12 sums, 2 halves of a vector of b, 1 broadcast */
#define TILE_VECS    1
#define TILE_LIST(X) X(1) X(2) X(3) X(4) X(5) X(6)
#else
#define TILE_ROWS    3
#define TILE_VECS    1
#define TILE_LIST(X) X(1) X(2) X(3)
#endif

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define INLINE inline __attribute__((always_inline))

/* Where b[step][col] lies. */
static INLINE const void* b_at(const product* p, int64_t step, int64_t col, const bool transposed)
{
    if (transposed) return (const acc*)p->b + step * p->b_step + col;
    if (p->kind == PRODUCT_COLUMN_PAGES) return p->pages[col / GR_PAGE] + step * p->b_step;
    if (p->kind == PRODUCT_STEP_PAGES) return p->pages[step / GR_PAGE] + col;
    return (const real*)p->b + step * p->b_step + col;
}

static INLINE vec b_load(const void* b, int64_t at, const bool transposed, const int part)
{
    if (transposed) {
        const acc* x = (const acc*)b + at;
        return part == VEC ? vec_load(x) : vec_load_part(x, part);
    }
    const real* x = (const real*)b + at;
    return part == VEC ? vec_load_real(x) : vec_load_real_part(x, part);
}

/* c[row ...][col ...] of `rows` rows and `vecs` vectors, of which only `part` columns exist. */
static INLINE void tile_run(const int rows, const int vecs, const bool transposed, const int part,
                            const product* p, int64_t row, int64_t col)
{
    const int64_t a_row = transposed ? 1 : p->a_row, a_step = transposed ? p->a_row : 1;
    const acc* a = p->a + row * a_row;
    acc* c = p->c + row * p->c_row + col;
    vec sum[TILE_ROWS][TILE_VECS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int i = 0; i < vecs; i++) sum[r][i] =
        p->add ? vec_load(c + r * p->c_row + i * VEC) : vec_zero();
    const int64_t stretch = p->kind == PRODUCT_STEP_PAGES ? GR_PAGE : p->steps;
    for (int64_t first = 0; first < p->steps; first += stretch) {
        const void* b[TILE_VECS];
        UNROLL for (int i = 0; i < vecs; i++) b[i] = b_at(p, first, col + i * VEC, transposed);
        const int64_t steps = GR_MIN(stretch, p->steps - first);
        for (int64_t q = 0; q < steps; q++, a += a_step) {
            vec y[TILE_VECS];
            UNROLL for (int i = 0; i < vecs; i++) y[i] =
                b_load(b[i], q * p->b_step, transposed, part);
            UNROLL for (int r = 0; r < rows; r++)
            {
                const vec x = vec_set(a[r * a_row]);
                UNROLL for (int i = 0; i < vecs; i++) sum[r][i] = vec_fma(x, y[i], sum[r][i]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int i = 0; i < vecs; i++)
        vec_store(c + r * p->c_row + i * VEC, sum[r][i]);
}

static INLINE void tile_rows(int rows, const int vecs, const bool transposed, const int part,
                             const product* p, int64_t row, int64_t col)
{
    switch (rows) {
#define X(n)                                              \
    case n:                                               \
        tile_run(n, vecs, transposed, part, p, row, col); \
        break;
        TILE_LIST(X)
#undef X
    }
}

/* The code of each shape. */
typedef void tile_fn(const product* p, int64_t row, int64_t col, int rows);

static void plain_wide(const product* p, int64_t row, int64_t col, int rows)
{
    tile_rows(rows, TILE_VECS, false, VEC, p, row, col);
}
static void plain_one(const product* p, int64_t row, int64_t col, int rows)
{
    tile_rows(rows, 1, false, VEC, p, row, col);
}
static void plain_part(const product* p, int64_t row, int64_t col, int rows)
{
    tile_rows(rows, 1, false, (int)(p->cols - col), p, row, col);
}
static void transposed_wide(const product* p, int64_t row, int64_t col, int rows)
{
    tile_rows(rows, TILE_VECS, true, VEC, p, row, col);
}
static void transposed_one(const product* p, int64_t row, int64_t col, int rows)
{
    tile_rows(rows, 1, true, VEC, p, row, col);
}
static void transposed_part(const product* p, int64_t row, int64_t col, int rows)
{
    tile_rows(rows, 1, true, (int)(p->cols - col), p, row, col);
}

void OP(product)(const product* p)
{
    const bool transposed = p->kind == PRODUCT_TRANSPOSED;
    for (int64_t col = 0, width; col < p->cols; col += width) {
        const int64_t left = p->cols - col;
        tile_fn* tile = transposed ? transposed_part : plain_part;
        width = VEC;
        if (left >= VEC) tile = transposed ? transposed_one : plain_one;
        if (left >= TILE_VECS * VEC) {
            tile = transposed ? transposed_wide : plain_wide;
            width = TILE_VECS * VEC;
        }
        for (int64_t row = 0, rows; row < p->rows; row += rows) {
            const int64_t tiles = (p->rows - row + TILE_ROWS - 1) / TILE_ROWS;
            rows = (p->rows - row + tiles - 1) / tiles; /* no tile much smaller than the others */
            tile(p, row, col, (int)rows);
        }
    }
}
