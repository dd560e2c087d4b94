#include "host/json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_VALUES 8000000 /* the largest tokenizer.json has a million */
#define MAX_BYTES  (128 << 20)

/* The table of well-formed sequences in the Unicode standard (3.9, table 3-7): a first byte, the range
 * of the second; further ones are 80..BF. Leaves out overlong forms and surrogates. */
size_t gr_utf8_length(const char* text, size_t n)
{
    static const struct {
        unsigned char first, last, low, high;
        size_t length;
    } row[] = {
        {0x00, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    const unsigned char* s = (const unsigned char*)text;
    for (int i = 0; i < GR_COUNT(row); i++) {
        if (s[0] < row[i].first || s[0] > row[i].last) continue;
        size_t length = row[i].length;
        if (length == 1) return 1;
        if (length > n || s[1] < row[i].low || s[1] > row[i].high) return 0;
        for (size_t k = 2; k < length; k++) {
            if (s[k] < 0x80 || s[k] > 0xbf) return 0;
        }
        return length;
    }
    return 0;
}

void gr_json_text(FILE* out, const char* text, size_t n)
{
    putc('"', out);
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)text[i];
        size_t length = gr_utf8_length(text + i, n - i);
        if (length == 0) {
            fputs("\\ufffd", out);
        } else if (c == '"' || c == '\\') {
            fprintf(out, "\\%c", c);
        } else if (c == '\n') {
            fputs("\\n", out);
        } else if (c < 0x20 || c == 0x7f) {
            fprintf(out, "\\u%04x", c);
        } else {
            (void)fwrite(text + i, 1, length, out); /* ferror tells */
        }
        i += length > 0 ? length : 1;
    }
    putc('"', out);
}

void gr_json_number(FILE* out, double x)
{
    char text[32];
    if (!isfinite(x)) {
        fputs("null", out);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) { /* 17 always suffice */
        (void)snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    fputs(text, out);
}

cJSON* gr_json_parse(const char* text, size_t n, const char** end)
{
    int64_t values = 0;
    for (size_t i = 0; i < n; i++) values += text[i] == ',' || text[i] == '[' || text[i] == '{';
    if (end != NULL) *end = text;
    if (values > MAX_VALUES) return NULL;
    return cJSON_ParseWithLengthOpts(text, n, end, false);
}

static gr_status read_text(FILE* f, const char* path, char** text, size_t* n)
{
    struct stat info;
    if (fstat(fileno(f), &info) != 0 || !S_ISREG(info.st_mode)) {
        return GR_FAIL(GR_EIO, "%s: not a regular file", path);
    }
    if (info.st_size > MAX_BYTES) {
        return GR_FAIL(GR_EDATA, "%s: %lld bytes of JSON, at most %d are read", path,
                       (long long)info.st_size, MAX_BYTES);
    }
    *n = (size_t)info.st_size;
    *text = malloc(*n + 1);
    if (*text == NULL) return GR_FAIL(GR_ENOMEM, "%s: out of memory", path);
    if (fread(*text, 1, *n, f) != *n) {
        return GR_FAIL(GR_EIO, "%s: cannot read: %s", path,
                       ferror(f) ? strerror(errno) : "it became shorter");
    }
    return GR_OK;
}

gr_status gr_json_read(const char* path, cJSON** object)
{
    char* text = NULL;
    size_t n = 0;
    FILE* f = fopen(path, "rbe");
    if (f == NULL) return GR_FAIL(GR_EIO, "%s: cannot open: %s", path, strerror(errno));
    gr_status st = read_text(f, path, &text, &n);
    (void)fclose(f);
    if (st == GR_OK) {
        *object = gr_json_parse(text, n, NULL);
        if (!cJSON_IsObject(*object)) st = GR_FAIL(GR_EDATA, "%s: not a JSON object", path);
    }
    if (st != GR_OK) {
        cJSON_Delete(*object);
        *object = NULL;
    }
    free(text);
    return st;
}

int64_t gr_json_whole(const cJSON* item)
{
    if (!cJSON_IsNumber(item)) return -1;
    double x = item->valuedouble;
    return x >= 0 && x <= 0x1p53 && x == floor(x) ? (int64_t)x : -1;
}
