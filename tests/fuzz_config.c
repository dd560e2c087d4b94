/* Settings from any bytes: refused with one line, or printed and read back the same. Input: a file, then
 * overrides, each behind a NUL. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/config.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

typedef struct method {
    int64_t count;
    double rate;
    bool on;
    int way;
    char note[GR_TEXT_MAX];
} method;

static const gr_setting settings[] = {
    GR_SET_INT(method, count, -10, 1000, 3, "a count"),
    GR_SET_REAL(method, rate, -1, 1e300, 0.5, "a rate"),
    GR_SET_BOOL(method, on, false, "a switch"),
    GR_SET_CHOICE(method, way, "left|right|a_longer_way", 1, "a choice"),
    GR_SET_TEXT(method, note, "", "a text"),
};
static const gr_block block = GR_BLOCK(method, "patr", "rollout.strategy=patr|other", settings);

static void reads_back(const gr_config* c, const char* json)
{
    gr_config again;
    gr_config_init(&again);
    gr_config_register(&again, &block);
    gr_status st = gr_config_parse(&again, "print", json, strlen(json), 0, NULL);
    GR_ASSERT(st == GR_OK, "%s", gr_last_error());
    char* printed = gr_config_print(&again);
    GR_ASSERT(strcmp(printed, json) == 0, "%s\n%s", printed, json);
    GR_ASSERT(gr_config_hash(&again) == gr_config_hash(c));
    free(printed);
    gr_config_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    const char *overrides[16], *text = (const char*)data;
    char* copy = malloc(size + 1);
    GR_ASSERT(copy != NULL);
    if (size > 0) memcpy(copy, text, size);
    copy[size] = 0;
    size_t n_file = strlen(copy);
    int n = 0;
    for (size_t at = n_file + 1; at < size && n < GR_COUNT(overrides);
         at += strlen(copy + at) + 1) {
        overrides[n++] = copy + at;
    }
    gr_config c;
    gr_config_init(&c);
    gr_config_register(&c, &block);
    gr_status st = gr_config_parse(&c, "fuzz", copy, n_file, n, overrides);
    if (st == GR_OK) {
        char* json = gr_config_print(&c);
        reads_back(&c, json);
        free(json);
    } else {
        GR_ASSERT(st == GR_EARG && gr_last_error_text()[0] != 0);
    }
    gr_config_free(&c);
    free(copy);
    return 0;
}
