/* bench_tokenize.c - encoding speed of one thread: TOKENIZER DOCUMENTS ROUNDS.
 *
 * DOCUMENTS holds texts that end with a NUL each. Prints one line of JSON per round: tokens,
 * their hash and the processor seconds that encoding took, which other programs on the
 * machine hardly change. The first round meets every word for the first time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model/tokenizer.h"

static double cpu_seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static char* read_all(const char* path, size_t* n)
{
    char* text = NULL;
    FILE *f = fopen(path, "rb"), *copy = open_memstream(&text, n);
    if (f == NULL || copy == NULL) return NULL;
    for (int c; (c = getc(f)) != EOF;) putc(c, copy);
    (void)fclose(f);
    return fclose(copy) == 0 ? text : NULL;
}

static void encode_all(const gr_tokenizer* t, const char* text, size_t n, int32_t* token, int cap)
{
    int64_t tokens = 0;
    uint64_t hash = 0;
    double seconds = 0;
    for (size_t i = 0; i < n; i += strlen(text + i) + 1) {
        double begin = cpu_seconds();
        int k = gr_encode(t, GR_MARKUP, text + i, (int)strlen(text + i), token, cap);
        seconds += cpu_seconds() - begin;
        GR_ASSERT(k <= cap, "%d tokens of one document", k);
        hash = gr_hash64(token, (size_t)k * sizeof *token, hash);
        tokens += k;
    }
    printf("{\"bytes\": %zu, \"tokens\": %lld, \"hash\": \"%016llx\", \"seconds\": %.6f}\n", n,
           (long long)tokens, (unsigned long long)hash, seconds);
}

int main(int argc, char** argv)
{
    gr_tokenizer* t = NULL;
    size_t n = 0;
    char* text = argc == 4 ? read_all(argv[2], &n) : NULL;
    if (text == NULL) {
        fprintf(stderr, "usage: bench_tokenize TOKENIZER DOCUMENTS ROUNDS\n");
        return 1;
    }
    if (gr_tokenizer_load(&t, argv[1]) != GR_OK) {
        fprintf(stderr, "%s\n", gr_last_error_text());
        return 1;
    }
    int32_t* token = malloc((n + 1) * sizeof *token);
    GR_ASSERT(token != NULL, "out of memory");
    for (int i = 0; i < atoi(argv[3]); i++) encode_all(t, text, n, token, (int)n + 1);
    free(token);
    free(text);
    gr_tokenizer_free(t);
    return 0;
}
