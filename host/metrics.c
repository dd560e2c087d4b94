#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/json.h"
#include "host/record.h"

static int find(const gr_metrics* m, const char* name)
{
    int i = 0;
    while (i < m->n && strcmp(m->item[i].name, name) != 0) i++;
    return i;
}

void gr_metrics_set(gr_metrics* m, const char* name, double value)
{
    int i = find(m, name);
    GR_ASSERT(i < GR_MAX_METRICS && strlen(name) < sizeof m->item[i].name, "%s", name);
    if (i == m->n) {
        (void)snprintf(m->item[i].name, sizeof m->item[i].name, "%s", name);
        m->n++;
    }
    m->item[i].value = value;
}

double gr_metrics_get(const gr_metrics* m, const char* name)
{
    int i = find(m, name);
    return i < m->n ? m->item[i].value : (double)NAN;
}

/* A line leaves in one piece, so that a reader of the growing file sees whole lines but for a crash. */
gr_status gr_metrics_write(gr_run_log* log, int64_t step, const gr_metrics* m)
{
    char* line = NULL;
    size_t n = 0;
    FILE* f = open_memstream(&line, &n);
    GR_ASSERT(f != NULL, "out of memory");
    fprintf(f, "{\"step\": %lld", (long long)step);
    for (int i = 0; i < m->n; i++) {
        fputs(", ", f);
        gr_json_text(f, m->item[i].name, strlen(m->item[i].name));
        fputs(": ", f);
        gr_json_number(f, m->item[i].value);
    }
    fputs("}\n", f);
    bool whole = fclose(f) == 0;
    GR_ASSERT(whole, "out of memory");
    errno = EIO;
    bool failed = gr_fault("record.write") || fwrite(line, 1, n, log->metrics) != n ||
                  fflush(log->metrics) != 0;
    free(line);
    if (!failed) return GR_OK;
    return GR_FAIL(GR_EIO, "%s/metrics.jsonl: cannot write: %s", log->dir, strerror(errno));
}
