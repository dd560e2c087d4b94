#include "model/kv.h"

#include <stdlib.h>
#include <string.h>

static int pages_of(int tokens) { return (tokens + GR_PAGE - 1) / GR_PAGE; }

/* ---- pages ------------------------------------------------------------------------------------- */

static int32_t page_take(gr_kv* kv)
{
    int32_t page = kv->free_page[--kv->n_free];
    kv->ref[page] = 1;
    kv->pages_peak = GR_MAX(kv->pages_peak, kv->n_pages - kv->n_free);
    return page;
}

/* A page that goes back needs no copy any more: targets of queued copies are always in use, so the
 * queue is never longer than the pool. */
static void forget_copy_to(gr_kv* kv, int32_t page)
{
    for (int i = 0; i < kv->n_pairs; i++) {
        if (kv->pair[2 * i + 1] != page) continue;
        kv->n_pairs--;
        memmove(kv->pair + 2 * i, kv->pair + 2 * i + 2,
                (size_t)(kv->n_pairs - i) * 2 * sizeof *kv->pair);
        return;
    }
}

static void page_drop(gr_kv* kv, int32_t page)
{
    GR_ASSERT(kv->ref[page] > 0);
    if (--kv->ref[page] > 0) return;
    forget_copy_to(kv, page);
    kv->free_page[kv->n_free++] = page;
}

/* ---- sequences ----------------------------------------------------------------------------------- */

static gr_kv_seq* seq_at(const gr_kv* kv, int seq)
{
    GR_ASSERT(seq >= 0 && seq < kv->n_seqs && kv->seq[seq].used, "sequence %d", seq);
    return &kv->seq[seq];
}

void gr_kv_layout(gr_kv* kv, int n_pages, int n_seqs, int max_context, gr_arena* host)
{
    GR_ASSERT(n_pages > 0 && n_seqs > 0 && max_context > 0);
    *kv = (gr_kv){.n_pages = n_pages, .n_seqs = n_seqs, .pages_per_seq = pages_of(max_context)};
    kv->ref = GR_PUSH(host, int32_t, n_pages);
    kv->free_page = GR_PUSH(host, int32_t, n_pages);
    kv->seq = GR_PUSH(host, gr_kv_seq, n_seqs);
    kv->free_seq = GR_PUSH(host, int32_t, n_seqs);
    kv->pair = GR_PUSH(host, int32_t, 2 * (int64_t)n_pages);
    int32_t* page = GR_PUSH(host, int32_t, (int64_t)n_seqs * kv->pages_per_seq);
    if (host->base == NULL) return;
    for (int i = 0; i < n_seqs; i++) {
        kv->seq[i] = (gr_kv_seq){.page = page + (int64_t)i * kv->pages_per_seq};
    }
    gr_kv_reset(kv);
}

/* Free lists are stacks; the lowest number lies on top. */
void gr_kv_reset(gr_kv* kv)
{
    kv->n_free = kv->n_pages;
    kv->n_free_seq = kv->n_seqs;
    kv->n_pairs = 0;
    for (int i = 0; i < kv->n_pages; i++) {
        kv->ref[i] = 0;
        kv->free_page[i] = kv->n_pages - 1 - i;
    }
    for (int i = 0; i < kv->n_seqs; i++) {
        kv->seq[i].n_pages = kv->seq[i].len = 0;
        kv->seq[i].used = false;
        kv->free_seq[i] = kv->n_seqs - 1 - i;
    }
}

void gr_kv_set_version(gr_kv* kv, uint64_t version)
{
    if (version == kv->version) return;
    kv->version = version;
    for (int i = 0; i < kv->n_seqs; i++) {
        if (kv->seq[i].used) gr_kv_truncate(kv, i, 0);
    }
}

int gr_kv_open(gr_kv* kv)
{
    if (kv->n_free_seq == 0) return -1;
    int seq = kv->free_seq[--kv->n_free_seq];
    kv->seq[seq].used = true;
    return seq;
}

int gr_kv_fork(gr_kv* kv, int seq, int len)
{
    const gr_kv_seq* from = seq_at(kv, seq);
    GR_ASSERT(len >= 0 && len <= from->len, "%d of %d tokens", len, from->len);
    int child = gr_kv_open(kv);
    if (child < 0) return -1;
    gr_kv_seq* to = &kv->seq[child];
    to->len = len;
    to->n_pages = pages_of(len);
    for (int i = 0; i < to->n_pages; i++) {
        to->page[i] = from->page[i];
        kv->ref[to->page[i]]++;
    }
    return child;
}

void gr_kv_free(gr_kv* kv, int seq)
{
    gr_kv_truncate(kv, seq, 0);
    kv->seq[seq].used = false;
    kv->free_seq[kv->n_free_seq++] = seq;
}

void gr_kv_truncate(gr_kv* kv, int seq, int len)
{
    gr_kv_seq* s = seq_at(kv, seq);
    GR_ASSERT(len >= 0 && len <= s->len, "%d of %d tokens", len, s->len);
    while (s->n_pages > pages_of(len)) page_drop(kv, s->page[--s->n_pages]);
    s->len = len;
}

int gr_kv_len(const gr_kv* kv, int seq) { return seq_at(kv, seq)->len; }

/* Appending must not write into a page that another sequence reads. */
static bool must_copy(const gr_kv* kv, const gr_kv_seq* s)
{
    return s->len % GR_PAGE != 0 && kv->ref[s->page[s->n_pages - 1]] > 1;
}

int gr_kv_need(const gr_kv* kv, int seq, int n)
{
    const gr_kv_seq* s = seq_at(kv, seq);
    if (n == 0) return 0;
    return pages_of(s->len + n) - s->n_pages + (must_copy(kv, s) ? 1 : 0);
}

bool gr_kv_append(gr_kv* kv, int seq, int n, int32_t* slot)
{
    gr_kv_seq* s = seq_at(kv, seq);
    GR_ASSERT(n >= 0 && pages_of(s->len + n) <= kv->pages_per_seq, "%d + %d tokens", s->len, n);
    if (gr_kv_need(kv, seq, n) > kv->n_free) return false;
    if (n > 0 && must_copy(kv, s)) {
        int32_t from = s->page[s->n_pages - 1], to = page_take(kv);
        page_drop(kv, from);
        s->page[s->n_pages - 1] = to;
        kv->pair[2 * kv->n_pairs] = from;
        kv->pair[2 * kv->n_pairs + 1] = to;
        kv->n_pairs++;
    }
    while (s->n_pages < pages_of(s->len + n)) s->page[s->n_pages++] = page_take(kv);
    for (int i = 0; i < n; i++, s->len++) {
        slot[i] = s->page[s->len / GR_PAGE] * GR_PAGE + s->len % GR_PAGE;
    }
    return true;
}

/* Pages freed while copies wait may be taken again, so a page can occur in several pairs. */
int gr_kv_copy_run(const gr_kv* kv, int first)
{
    const int32_t* p = kv->pair;
    for (int end = first; end < kv->n_pairs; end++) {
        int32_t from = p[2 * end], to = p[2 * end + 1];
        for (int i = first; i < end; i++) {
            if (p[2 * i + 1] == from || p[2 * i + 1] == to || p[2 * i] == to) return end;
        }
    }
    return kv->n_pairs;
}

/* ---- check --------------------------------------------------------------------------------------- */

/* What is known of a page from the sequences seen so far. */
typedef struct page_fact {
    int32_t refs, depth, before; /* before: the page in front of it, -1 at depth 0 */
} page_fact;

static void check_seq(const gr_kv* kv, const gr_kv_seq* s, page_fact* fact)
{
    GR_ASSERT(s->n_pages == pages_of(s->len) && s->n_pages <= kv->pages_per_seq);
    GR_ASSERT(s->used || s->len == 0);
    for (int i = 0; i < s->n_pages; i++) {
        GR_ASSERT(s->page[i] >= 0 && s->page[i] < kv->n_pages);
        page_fact* f = &fact[s->page[i]];
        int32_t before = i == 0 ? -1 : s->page[i - 1];
        if (f->refs++ == 0) *f = (page_fact){1, i, before};
        GR_ASSERT(f->depth == i && f->before == before, "page %d has two places", s->page[i]);
    }
}

void gr_kv_check(const gr_kv* kv)
{
    page_fact* fact = calloc((size_t)kv->n_pages, sizeof *fact);
    bool* is_free = calloc((size_t)kv->n_seqs, sizeof *is_free);
    GR_ASSERT(fact != NULL && is_free != NULL);
    for (int i = 0; i < kv->n_seqs; i++) check_seq(kv, &kv->seq[i], fact);
    for (int i = 0; i < kv->n_pages; i++) {
        GR_ASSERT(kv->ref[i] == fact[i].refs, "page %d: %d counted, %d found", i, kv->ref[i],
                  fact[i].refs);
    }
    for (int i = 0; i < kv->n_pairs; i++) {
        GR_ASSERT(kv->ref[kv->pair[2 * i + 1]] > 0, "a copy goes to a free page");
    }
    int n_used = 0, n_open = 0;
    for (int i = 0; i < kv->n_pages; i++) n_used += fact[i].refs > 0;
    for (int i = 0; i < kv->n_seqs; i++) n_open += kv->seq[i].used;
    GR_ASSERT(n_used + kv->n_free == kv->n_pages && n_open + kv->n_free_seq == kv->n_seqs);
    for (int i = 0; i < kv->n_free; i++) {
        GR_ASSERT(fact[kv->free_page[i]].refs == 0, "page %d is in use or twice on the free list",
                  kv->free_page[i]);
        fact[kv->free_page[i]].refs = -1;
    }
    for (int i = 0; i < kv->n_free_seq; i++) {
        GR_ASSERT(!kv->seq[kv->free_seq[i]].used && !is_free[kv->free_seq[i]]);
        is_free[kv->free_seq[i]] = true;
    }
    free(fact);
    free(is_free);
}

/* ---- plan ---------------------------------------------------------------------------------------- */

/* A task's rows are worked on together, per KV head. Few rows share pages well and leave tasks for
 * every core; many rows need fewer passes over the pages. */
enum { TASKS_WANTED = 8, TASK_ROWS_MIN = 4 };

static int task_rows(int n_rows)
{
    int even = (n_rows + TASKS_WANTED - 1) / TASKS_WANTED;
    return GR_MIN(GR_MAX(even, TASK_ROWS_MIN), GR_TASK_ROWS);
}

/* A task but the last has more than task_rows / 2 rows, see cut. */
static int max_tasks(int max_rows)
{
    return 2 * TASKS_WANTED + 1 + max_rows / (GR_TASK_ROWS / 2 + 1);
}

void gr_kv_plan_layout(gr_kv_plan* p, const gr_kv* kv, int max_rows, gr_arena* host)
{
    *p = (gr_kv_plan){.max_rows = max_rows, .max_tasks = max_tasks(max_rows)};
    /* each page once, and again at each cut through it */
    int64_t units = kv->n_pages + (int64_t)(p->max_tasks - 1) * kv->pages_per_seq;
    units = GR_MIN(units, (int64_t)max_rows * kv->pages_per_seq);
    GR_ASSERT(units < INT32_MAX);
    p->max_units = (int)units;
    p->row = GR_PUSH(host, int32_t, max_rows);
    p->n_keys = GR_PUSH(host, int32_t, max_rows);
    p->merge = GR_PUSH(host, int32_t, max_rows);
    p->common = GR_PUSH(host, int32_t, max_rows);
    p->place = GR_PUSH(host, int32_t, kv->pages_per_seq);
    p->open = GR_PUSH(host, int32_t, kv->pages_per_seq);
    p->unit = GR_PUSH(host, gr_page_unit, p->max_units);
    p->task = GR_PUSH(host, gr_page_task, p->max_tasks);
}

/* The rows of a call, in the caller's order. */
typedef struct rows {
    const gr_kv* kv;
    const int32_t *seq, *n_keys;
} rows;

/* How many of the first pages two rows have in common. Pages form a forest, so if the lists agree at
 * one depth they agree everywhere above it, and bisection finds where they part. */
static int common_pages(const rows* q, int a, int b)
{
    int same = 0, end = pages_of(GR_MIN(q->n_keys[a], q->n_keys[b]));
    if (q->seq[a] == q->seq[b]) return end;
    const int32_t *pa = q->kv->seq[q->seq[a]].page, *pb = q->kv->seq[q->seq[b]].page;
    while (same < end) {
        int mid = (same + end) / 2;
        if (pa[mid] == pb[mid])
            same = mid + 1;
        else
            end = mid;
    }
    return same;
}

/* Lexicographic by page list, then by n_keys: every page is seen by a run of neighbours. */
static bool comes_after(const rows* q, int a, int b)
{
    if (q->seq[a] == q->seq[b]) return q->n_keys[a] > q->n_keys[b];
    int na = pages_of(q->n_keys[a]), nb = pages_of(q->n_keys[b]);
    int common = common_pages(q, a, b);
    if (common < GR_MIN(na, nb)) {
        return q->kv->seq[q->seq[a]].page[common] > q->kv->seq[q->seq[b]].page[common];
    }
    return na != nb ? na > nb : q->n_keys[a] > q->n_keys[b];
}

static void merge(const rows* q, int32_t* to, const int32_t* a, int n_a, const int32_t* b, int n_b)
{
    int i = 0, j = 0;
    while (i < n_a && j < n_b) {
        bool take_b = comes_after(q, a[i], b[j]);
        *to++ = take_b ? b[j++] : a[i++];
    }
    while (i < n_a) *to++ = a[i++];
    while (j < n_b) *to++ = b[j++];
}

/* Bottom-up merge sort, stable, without allocation; leaves the order in p->row. */
static void sort_rows(gr_kv_plan* p, const rows* q, int n)
{
    int32_t *from = p->row, *to = p->merge;
    for (int i = 0; i < n; i++) from[i] = i;
    for (int width = 1; width < n; width *= 2) {
        for (int i = 0; i < n; i += 2 * width) {
            int mid = GR_MIN(i + width, n), end = GR_MIN(i + 2 * width, n);
            merge(q, to + i, from + i, mid - i, from + mid, end - mid);
        }
        int32_t* t = from;
        from = to;
        to = t;
    }
    if (from != p->row) memcpy(p->row, from, (size_t)n * sizeof *from);
}

/* Where the task that starts at `begin` ends: full, or earlier, beyond its first half, if that tears
 * at most half as many pages. */
static int cut(const gr_kv_plan* p, int begin, int n_rows, int target)
{
    if (n_rows - begin <= target) return n_rows;
    int best = begin + target;
    for (int r = best - 1; r > begin + target / 2; r--) {
        if (2 * p->common[r] < p->common[best]) best = r;
    }
    return best;
}

/* Writes the task's units sorted by depth: counts them per depth first, then places them. */
static void list_units(gr_kv_plan* p, const rows* q, gr_page_task* t)
{
    int depth = pages_of(t->max_keys), n_units = t->unit_begin;
    memset(p->place, 0, (size_t)depth * sizeof *p->place);
    for (int r = t->row_begin; r < t->row_end; r++) {
        int first = r == t->row_begin ? 0 : p->common[r];
        for (int i = first; i < pages_of(p->n_keys[r]); i++) p->place[i]++;
    }
    for (int i = 0; i < depth; i++) {
        int count = p->place[i];
        p->place[i] = n_units;
        n_units += count;
    }
    GR_ASSERT(n_units <= p->max_units, "%d units", n_units);
    t->unit_end = n_units;
    for (int r = t->row_begin, before = 0; r < t->row_end; r++) {
        const int32_t* page = q->kv->seq[q->seq[p->row[r]]].page;
        int first = r == t->row_begin ? 0 : p->common[r], n = pages_of(p->n_keys[r]);
        for (int i = first; i < before; i++) p->unit[p->open[i]].row_end = r;
        for (int i = first; i < n; i++) {
            p->open[i] = p->place[i]++;
            p->unit[p->open[i]] = (gr_page_unit){page[i], i * GR_PAGE, r, t->row_end};
        }
        before = n;
    }
}

void gr_kv_plan_make(gr_kv_plan* p, const gr_kv* kv, const int32_t* seq, const int32_t* n_keys,
                     int n_rows)
{
    GR_ASSERT(n_rows >= 0 && n_rows <= p->max_rows, "%d rows", n_rows);
    rows q = {kv, seq, n_keys};
    for (int i = 0; i < n_rows; i++) GR_ASSERT(n_keys[i] > 0 && n_keys[i] <= gr_kv_len(kv, seq[i]));
    sort_rows(p, &q, n_rows);
    for (int r = 0; r < n_rows; r++) {
        p->n_keys[r] = n_keys[p->row[r]];
        p->common[r] = r == 0 ? 0 : common_pages(&q, p->row[r - 1], p->row[r]);
    }
    int n_tasks = 0, n_units = 0;
    for (int begin = 0; begin < n_rows; n_tasks++) {
        GR_ASSERT(n_tasks < p->max_tasks, "%d rows", n_rows);
        gr_page_task* t = &p->task[n_tasks];
        *t = (gr_page_task){.row_begin = begin, .unit_begin = n_units};
        t->row_end = begin = cut(p, begin, n_rows, task_rows(n_rows));
        for (int r = t->row_begin; r < t->row_end; r++)
            t->max_keys = GR_MAX(t->max_keys, p->n_keys[r]);
        list_units(p, &q, t);
        n_units = t->unit_end;
    }
    p->plan = (gr_page_plan){.row = p->row,
                             .n_keys = p->n_keys,
                             .unit = p->unit,
                             .task = p->task,
                             .n_rows = n_rows,
                             .n_units = n_units,
                             .n_tasks = n_tasks};
}
