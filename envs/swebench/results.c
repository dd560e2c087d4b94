#include "envs/swebench/results.h"

#include <stdlib.h>
#include <string.h>

#include "host/arena.h"

/* ---- the table ---------------------------------------------------------------------------- */

/* The slot of `name`, or the free one where it belongs. */
static int64_t* slot_of(const gr_swe_results* r, const char* name, size_t n)
{
    int64_t mask = r->n_slots - 1; /* n_slots is a power of two and never full */
    for (int64_t i = (int64_t)(gr_hash64(name, n, 0) & (uint64_t)mask);; i = (i + 1) & mask) {
        int64_t* slot = &r->slot[i];
        if (*slot == 0) return slot;
        const char* there = r->result[*slot - 1].name;
        if (strlen(there) == n && memcmp(there, name, n) == 0) return slot;
    }
}

static void grow(gr_swe_results* r)
{
    if (2 * (r->n + 1) <= r->n_slots) return;
    free(r->slot);
    r->n_slots = r->n_slots == 0 ? 64 : 2 * r->n_slots;
    r->slot = calloc((size_t)r->n_slots, sizeof *r->slot);
    GR_ASSERT(r->slot != NULL, "out of memory");
    for (int64_t i = 0; i < r->n; i++) {
        *slot_of(r, r->result[i].name, strlen(r->result[i].name)) = i + 1;
    }
}

void gr_swe_results_set(gr_swe_results* r, const char* name, size_t n, gr_swe_status status)
{
    grow(r);
    n = strnlen(name, n);
    int64_t* slot = slot_of(r, name, n);
    if (*slot == 0) {
        GR_RESERVE(r->result, r->cap, r->n + 1);
        r->result[r->n++].name = gr_swe_copy(name, n);
        *slot = r->n;
    }
    r->result[*slot - 1].status = status;
}

const struct gr_swe_result* gr_swe_results_find(const gr_swe_results* r, const char* name)
{
    if (r->n == 0) return NULL;
    int64_t at = *slot_of(r, name, strlen(name));
    return at == 0 ? NULL : &r->result[at - 1];
}

void gr_swe_results_free(gr_swe_results* r)
{
    for (int64_t i = 0; i < r->n; i++) free(r->result[i].name);
    free(r->result);
    free(r->slot);
    *r = (gr_swe_results){0};
}

/* ---- the judge ---------------------------------------------------------------------------- */

static bool passed(gr_swe_status s) { return s == GR_SWE_PASSED || s == GR_SWE_XFAIL; }

static int count(const char* text, char c)
{
    int n = 0;
    for (; *text != 0; text++) n += *text == c;
    return n;
}

const struct gr_swe_result* gr_swe_results_match(const gr_swe_results* r, const char* id)
{
    const struct gr_swe_result* found = gr_swe_results_find(r, id);
    if (found != NULL || count(id, '[') <= count(id, ']')) return found;
    size_t n = strlen(id);
    for (int64_t i = 0; i < r->n; i++) {
        if (strncmp(r->result[i].name, id, n) != 0) continue;
        if (found == NULL) found = &r->result[i];
        if (passed(found->status) != passed(r->result[i].status)) return NULL;
    }
    return found;
}

gr_swe_verdict gr_swe_judge(const gr_swe_instance* x, const gr_swe_results* r)
{
    gr_swe_verdict v = {0};
    for (int i = 0; i < x->fail_to_pass.n; i++) {
        const struct gr_swe_result* test = gr_swe_results_match(r, x->fail_to_pass.name[i]);
        v.f2p_passed += test != NULL && passed(test->status);
    }
    for (int i = 0; i < x->pass_to_pass.n; i++) {
        const struct gr_swe_result* test = gr_swe_results_match(r, x->pass_to_pass.name[i]);
        v.p2p_passed += test != NULL && (passed(test->status) || test->status == GR_SWE_SKIPPED);
    }
    if (v.p2p_passed < x->pass_to_pass.n) return v;
    if (v.f2p_passed == x->fail_to_pass.n) {
        v.resolution = GR_SWE_FULL;
    } else if (v.f2p_passed > 0) {
        v.resolution = GR_SWE_PARTIAL;
    }
    return v;
}
