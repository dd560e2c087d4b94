/* tensor.cpp - ldmatrix, mma and cp.async. Fragment layouts: PTX ISA, "Matrix fragments for
 * mma.m16n8k16" and "ldmatrix". */
#include "tests/simt/emulator.h"

namespace simt {

static float from_bf16(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Products are added to d one by one, k ascending. */
void finish_mma(Collective& c)
{
    float a[16][16], b[16][8], d[16][8];
    count_mma(c.pc);
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4;
        uint16_t half[12];
        float sum[4];
        memcpy(half, c.in[lane].word, sizeof half);
        memcpy(sum, c.in[lane].word + 6, sizeof sum);
        for (int i = 0; i < 8; i++)
            a[g + 8 * (i / 2 % 2)][2 * t + i % 2 + 8 * (i / 4)] = from_bf16(half[i]);
        for (int i = 0; i < 4; i++) b[2 * t + i % 2 + 8 * (i / 2)][g] = from_bf16(half[8 + i]);
        for (int i = 0; i < 4; i++) d[g + 8 * (i / 2)][2 * t + i % 2] = sum[i];
    }
    for (int m = 0; m < 16; m++)
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 8; n++) d[m][n] += a[m][k] * b[k][n];
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            memcpy(&c.out[lane].word[i], &d[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2], 4);
}

static void ldmatrix(Collective& c, bool transpose)
{
    Thread* caller = current;
    uint16_t row[32][8];
    for (int i = 0; i < 32; i++) { /* lane i gives row i % 8 of matrix i / 8 */
        const char* p = __start_simt_shared + c.in[i].word[0];
        current = &fibers[32 * caller->warp + i];
        need_aligned(p, 16, c.pc);
        access(p, 16, READ, c.pc);
        if (c.in[i].word[0] + 16 <= (size_t)(__stop_simt_shared - __start_simt_shared))
            memcpy(row[i], p, sizeof row[i]);
    }
    current = caller;
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 8; i++) {
            const int r = transpose ? 2 * (lane % 4) + i % 2 : lane / 4;
            const int col = transpose ? lane / 4 : 2 * (lane % 4) + i % 2;
            memcpy((char*)c.out[lane].word + 2 * i, &row[8 * (i / 2) + r][col], 2);
        }
}
void finish_ldmatrix(Collective& c) { ldmatrix(c, false); }
void finish_ldmatrix_trans(Collective& c) { ldmatrix(c, true); }

/* The destination is poison until the copy has been waited for. */
void copy_async_at(uint32_t dst, const void* src, int bytes, const void* pc)
{
    char* to = __start_simt_shared + dst;
    need_aligned(to, 16, pc);
    need_aligned(src, 16, pc);
    if (bytes > 0) access(src, bytes, READ, pc);
    access(to, 16, WRITE, pc);
    memset(to, 0xff, 16);
    set_pending(dst, 16, true);
    self()->loose.push_back({dst, (const char*)src, bytes, pc});
}

void copy_async(uint32_t dst, const void* src, int bytes)
{
    copy_async_at(dst, src, bytes, __builtin_return_address(0));
}

void commit_async()
{
    Fiber* f = self();
    f->groups.push_back(f->loose);
    f->loose.clear();
}

void wait_async(int groups)
{
    Fiber* f = self();
    while ((int)f->groups.size() > groups) {
        for (const AsyncCopy& c : f->groups[0]) {
            char* to = __start_simt_shared + c.dst;
            set_pending(c.dst, 16, false);
            check_access(to, 16, WRITE, c.pc);
            if (is_device(c.src)) memcpy(to, c.src, (size_t)c.bytes);
            memset(to + c.bytes, 0, (size_t)(16 - c.bytes));
        }
        f->groups.erase(f->groups.begin());
    }
}

} // namespace simt
