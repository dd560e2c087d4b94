/* bench.c - one program for what can be timed on any device.
 *
 *     bench --list                               parts, their cases, keys and defaults
 *     bench op NAME|all [key=value ...]          single ops, with cold caches
 *     bench decode [key=value ...]               sampling: tokens per second
 *     bench step [key=value ...]                 one training step
 *     keys of all: device=cpu dtype=fp32 matmul=exact attention=exact threads=0 repeats=N */
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const bench_part* const parts[] = {&bench_op, &bench_decode, &bench_step};

/* ---- words ------------------------------------------------------------------------------------------ */

static const char* value_of(const char* word, const char* key)
{
    const size_t n = strlen(key);
    return strncmp(word, key, n) == 0 && word[n] == '=' ? word + n + 1 : NULL;
}

static gr_status take_number(int* to, int least, const char* word, const char* value)
{
    char* end;
    const long x = strtol(value, &end, 10);
    if (*value == 0 || *end != 0 || x < least || x > INT32_MAX)
        return GR_FAIL(GR_EARG, "%s: not a whole number from %d on", word, least);
    *to = (int)x;
    return GR_OK;
}

/* The place of `value` among two names. */
static gr_status take_choice(int* to, const char* first, const char* second, const char* word,
                             const char* value)
{
    *to = strcmp(value, second) == 0;
    if (*to == 0 && strcmp(value, first) != 0)
        return GR_FAIL(GR_EARG, "%s: %s or %s", word, first, second);
    return GR_OK;
}

gr_status bench_take(bench_options* o, const bench_key* key, int n, const char* word, bool* taken)
{
    const char* value;
    int choice = 0;
    *taken = true;
    if ((value = value_of(word, "device")) != NULL) {
        o->device.name = value;
    } else if ((value = value_of(word, "dtype")) != NULL) {
        GR_TRY(take_choice(&choice, "fp32", "bf16", word, value));
        o->device.dtype = choice == 0 ? GR_F32 : GR_BF16;
    } else if ((value = value_of(word, "matmul")) != NULL) {
        GR_TRY(take_choice(&choice, "exact", "bf16", word, value));
        o->device.matmul = choice == 0 ? GR_MATMUL_EXACT : GR_MATMUL_BF16;
    } else if ((value = value_of(word, "attention")) != NULL) {
        GR_TRY(take_choice(&choice, "exact", "fast", word, value));
        o->device.attention = choice == 0 ? GR_ATTENTION_EXACT : GR_ATTENTION_FAST;
    } else if ((value = value_of(word, "threads")) != NULL) {
        return take_number(&o->device.threads, 0, word, value);
    } else if ((value = value_of(word, "repeats")) != NULL) {
        return take_number(&o->repeats, 1, word, value);
    } else {
        for (int i = 0; i < n; i++)
            if ((value = value_of(word, key[i].name)) != NULL)
                return take_number(key[i].value, key[i].least, word, value);
        *taken = false;
    }
    return GR_OK;
}

gr_status bench_take_all(bench_options* o, const bench_key* key, int n_keys, int n, char** word)
{
    for (int i = 0; i < n; i++) {
        bool taken;
        GR_TRY(bench_take(o, key, n_keys, word[i], &taken));
        if (!taken) return GR_FAIL(GR_EARG, "%s: no such key; bench --list shows them", word[i]);
    }
    return GR_OK;
}

void bench_list_keys(const bench_key* key, int n)
{
    for (int i = 0; i < n; i++) printf("%s %s=%d", i == 0 ? "   " : "", key[i].name, *key[i].value);
    printf("\n");
}

gr_model_config bench_model(void)
{
    return (gr_model_config){.layers = 30,
                             .width = 576,
                             .heads = 9,
                             .kv_heads = 3,
                             .head_dim = 64,
                             .mlp = 1536,
                             .vocab = 49152,
                             .rope_theta = 10000,
                             .norm_eps = 1e-5f,
                             .tied = true};
}

/* ---- results ---------------------------------------------------------------------------------------- */

static int by_value(const void* a, const void* b)
{
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

bench_times bench_sort(double* seconds, int n)
{
    qsort(seconds, (size_t)n, sizeof *seconds, by_value);
    return (bench_times){seconds[n / 2], seconds[n / 10], seconds[n - 1 - n / 10], seconds[0]};
}

bool bench_ops_block(const gr_dev* dev) { return strncmp(dev->name, "cpu", 3) == 0; }

static const char* commit(void)
{
    static char text[64] = "unknown";
    FILE* f = popen("git -C " GR_SOURCE_DIR " rev-parse --short HEAD 2>/dev/null", "r");
    if (f != NULL && fgets(text, sizeof text, f) != NULL) text[strcspn(text, "\n")] = 0;
    if (f != NULL) (void)pclose(f);
    return text;
}

void bench_end_line(const gr_dev* dev)
{
    printf("\"device\": \"%s\", \"commit\": \"%s\"}\n", dev->detail, commit());
    (void)fflush(stdout);
}

/* ---- main ------------------------------------------------------------------------------------------- */

static void list(void)
{
    for (int i = 0; i < GR_COUNT(parts); i++) {
        printf("%s%s - %s\n", i > 0 ? "\n" : "", parts[i]->name, parts[i]->what);
        parts[i]->list();
    }
}

int main(int argc, char** argv)
{
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        list();
        return 0;
    }
    for (int i = 0; i < GR_COUNT(parts) && argc > 1; i++) {
        if (strcmp(argv[1], parts[i]->name) != 0) continue;
        if (parts[i]->run(argc - 2, argv + 2) == GR_OK) return 0;
        fprintf(stderr, "bench %s: %s\n", parts[i]->name, gr_last_error_text());
        return 1;
    }
    fprintf(stderr, "usage: bench --list | op NAME|all [key=value ...] | decode [key=value ...] | "
                    "step [key=value ...]\n");
    return 1;
}
