/* key_list.c - a tile's pages as its kernel walks them (attention_plan.h). */
#include "kernels/cuda/attention_plan.h"

#include "host/arena.h"

static void push(gr_key_list* l, int32_t entry)
{
    GR_RESERVE(l->entry, l->cap, l->n + 1);
    l->entry[l->n++] = entry;
}

void gr_key_list_add(gr_key_list* l, gr_tile* t, const gr_key_page* page, const int32_t* sorted,
                     int32_t n, const int32_t* n_keys, int group, int step)
{
    const int32_t row_begin = t->flat_begin / group, row_end = (t->flat_end - 1) / group + 1;
    int32_t least = INT32_MAX, chunk = -1;
    for (int32_t r = row_begin; r < row_end; r++) least = GR_MIN(least, n_keys[r]);
    t->list_begin = l->n;
    t->n_pages = n;
    for (int32_t i = 0; i < n; i++) {
        const gr_key_page* p = &page[sorted[i]];
        const int32_t first = gr_page_first_key(p), of = first / (GR_PAGE * GR_CHUNK_PAGES);
        const bool full =
            p->row_begin <= row_begin && p->row_end >= row_end && first + GR_PAGE <= least;
        while (of != chunk && (l->n - t->list_begin) % step != 0) push(l, GR_NO_PAGE);
        push(l, sorted[i] << GR_ENTRY_SHIFT | (of != chunk && chunk >= 0 ? GR_ENTRY_CHUNK : 0) |
                    (full ? 0 : GR_ENTRY_PARTIAL));
        chunk = of;
    }
    while ((l->n - t->list_begin) % step != 0) push(l, GR_NO_PAGE);
    t->list_end = l->n;
}
