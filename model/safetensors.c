/* safetensors.c - reads and writes named arrays, little endian like every host this runs on.
 *
 * A file is mapped, and nothing in it is believed: header length, JSON, dtypes, shapes and byte ranges
 * are checked against its size, so a damaged file is an error, never a crash. (One that another
 * program cuts while it is read ends this one, as with every mapping.) */
#include "model/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/json.h"
#include "model/half.h"
#include "model/map.h"

#define CHUNK      4096        /* elements converted at a time */
#define MAX_HEADER (100 << 20) /* bytes; the format's own limit */

typedef enum dtype { F64, F32, BF16, F16, N_DTYPES } dtype;
static const struct {
    const char* name;
    size_t bytes;
} dtypes[N_DTYPES] = {
    [F64] = {"F64", 8}, [F32] = {"F32", 4}, [BF16] = {"BF16", 2}, [F16] = {"F16", 2}};

/* The outside call at `place` is to fail, as if the disk had. */
static bool faulty(const char* place)
{
    if (!gr_fault(place)) return false;
    errno = EIO;
    return true;
}

static int64_t elements(const gr_safetensors_entry* e)
{
    return e->n_dims == 2 ? e->shape[0] * e->shape[1] : e->shape[0];
}

/* ---- writing --------------------------------------------------------------------------------- */

static dtype stored_dtype(const gr_dev* dev, gr_file_dtype wanted)
{
    if (wanted == GR_FILE_BF16) return BF16;
    if (wanted == GR_FILE_F16) return F16;
    return wanted == GR_FILE_ACC && dev->acc_bytes == 8 ? F64 : F32;
}

int64_t gr_safetensors_bytes(const gr_dev* dev, const gr_safetensors_entry* entry, gr_file_dtype as)
{
    return elements(entry) * (int64_t)dtypes[stored_dtype(dev, as)].bytes;
}

/* JSON text, padded with blanks so that the data begin at a multiple of 64. The caller frees it. */
static char* make_header(dtype type, const gr_safetensors_entry* entry, int n)
{
    cJSON* root = cJSON_CreateObject();
    cJSON* meta = cJSON_AddObjectToObject(root, "__metadata__");
    cJSON_AddStringToObject(meta, "format", "pt"); /* the Python library insists on it */
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        if (entry[i].data == NULL) continue;
        int64_t end = at + elements(&entry[i]) * (int64_t)dtypes[type].bytes;
        cJSON* t = cJSON_AddObjectToObject(root, entry[i].name);
        cJSON_AddStringToObject(t, "dtype", dtypes[type].name);
        cJSON* shape = cJSON_AddArrayToObject(t, "shape");
        for (int k = 0; k < entry[i].n_dims; k++) {
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)entry[i].shape[k]));
        }
        cJSON* range = cJSON_AddArrayToObject(t, "data_offsets");
        cJSON_AddItemToArray(range, cJSON_CreateNumber((double)at));
        cJSON_AddItemToArray(range, cJSON_CreateNumber((double)end));
        at = end;
    }
    char* text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    GR_ASSERT(text != NULL, "out of memory");
    size_t len = strlen(text), padded = (8 + len + 63) / 64 * 64 - 8;
    text = realloc(text, padded + 1);
    GR_ASSERT(text != NULL, "out of memory");
    memset(text + len, ' ', padded - len);
    text[padded] = 0;
    return text;
}

static gr_status put(FILE* f, const char* path, const void* data, size_t bytes)
{
    if (!faulty("weights.write") && fwrite(data, 1, bytes, f) == bytes) return GR_OK;
    return GR_FAIL(GR_EIO, "%s: cannot write: %s", path, strerror(errno));
}

/* The upper half of a float, to the nearest, ties to even. */
static uint16_t to_bf16(double x)
{
    uint32_t bits = 0;
    float f = (float)x;
    memcpy(&bits, &f, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* IEEE 754 binary16: eleven bits from the first one on, steps of 2^-24 at the least. */
static uint16_t to_f16(double x)
{
    int exponent = 0;
    (void)frexp(x, &exponent); /* x = m 2^exponent with 1/2 <= |m| < 1 */
    int step = GR_MAX(exponent - 11, -24);
    unsigned n = (unsigned)nearbyint(ldexp(fabs(x), -step)); /* up to 2048 */
    unsigned bits = n < 1024 ? n : (unsigned)(step + 24) * 1024 + n;
    return (uint16_t)((signbit(x) ? 0x8000u : 0) | bits);
}

/* Elements in file format from doubles; false where one does not fit. */
static bool narrow(void* out, const double* x, int64_t n, dtype type)
{
    for (int64_t i = 0; i < n; i++) {
        float f = (float)x[i];
        uint16_t bits = 0;
        if (type == F32) {
            memcpy((char*)out + 4 * i, &f, 4);
            continue;
        }
        if (fabs(x[i]) >= (type == F16 ? 65520 : 0x1.ffp127)) return false; /* becomes infinite */
        bits = type == F16 ? to_f16(x[i]) : to_bf16(x[i]);
        memcpy((char*)out + 2 * i, &bits, 2);
    }
    return true;
}

static gr_status put_tensor(FILE* f, const char* path, gr_dev* dev, const gr_safetensors_entry* e,
                            dtype type)
{
    char chunk[CHUNK * sizeof(double)];
    double wide[CHUNK];
    int64_t total = elements(e);
    for (int64_t i = 0; i < total; i += CHUNK) {
        int64_t n = GR_MIN(CHUNK, total - i);
        bool as_it_is = dtypes[type].bytes == dev->acc_bytes;
        if (as_it_is) {
            gr_dev_read(dev, chunk, gr_acc_at(dev, e->data, i), (size_t)n * dev->acc_bytes);
        } else {
            gr_dev_read_acc(dev, wide, gr_acc_at(dev, e->data, i), n);
        }
        GR_TRY(gr_dev_sync(dev));
        if (!as_it_is && !narrow(chunk, wide, n, type)) {
            return GR_FAIL(GR_EDATA, "%s: tensor `%s` has values beyond the range of %s", path,
                           e->name, dtypes[type].name);
        }
        GR_TRY(put(f, path, chunk, (size_t)n * dtypes[type].bytes));
    }
    return GR_OK;
}

static void remove_partial(const char* path)
{
    struct stat info;
    if (lstat(path, &info) == 0 && S_ISREG(info.st_mode)) (void)unlink(path);
}

gr_status gr_safetensors_write(const char* path, gr_dev* dev, const gr_safetensors_entry* entry,
                               int n, gr_file_dtype as)
{
    gr_status st = GR_OK;
    dtype type = stored_dtype(dev, as);
    FILE* f = faulty("weights.open") ? NULL : fopen(path, "wb");
    if (f == NULL) return GR_FAIL(GR_EIO, "%s: cannot create: %s", path, strerror(errno));
    char* header = make_header(type, entry, n);
    uint64_t len = strlen(header);
    GR_GOTO(st, put(f, path, &len, sizeof len), out);
    GR_GOTO(st, put(f, path, header, len), out);
    for (int i = 0; i < n; i++) {
        if (entry[i].data != NULL) GR_GOTO(st, put_tensor(f, path, dev, &entry[i], type), out);
    }
out:
    free(header);
    if ((fclose(f) != 0 || faulty("weights.close")) && st == GR_OK) { /* a full disk shows here */
        st = GR_FAIL(GR_EIO, "%s: cannot write: %s", path, strerror(errno));
    }
    if (st != GR_OK) remove_partial(path);
    return st;
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct tensor {
    const char* name; /* in the JSON tree */
    dtype type;
    int n_dims;
    int64_t shape[8], n;
    int64_t begin, end; /* bytes into data */
} tensor;

typedef struct file {
    const char* path;
    gr_map map;
    const unsigned char* data; /* in the map, after the header */
    int64_t data_bytes;
    cJSON* header;
    tensor* tensor;
    int n;
} file;

static gr_status map(file* f)
{
    GR_TRY(gr_map_open(&f->map, f->path));
    if (f->map.size >= 8) return GR_OK;
    return GR_FAIL(GR_EDATA, "%s: no safetensors file: %lld bytes", f->path,
                   (long long)f->map.size);
}

static void unmap(file* f)
{
    gr_map_close(&f->map);
    cJSON_Delete(f->header);
    free(f->tensor);
}

static gr_status parse_shape(const file* f, tensor* t, const cJSON* shape)
{
    const cJSON* dim = NULL;
    if (!cJSON_IsArray(shape))
        return GR_FAIL(GR_EDATA, "%s: tensor `%s`: no shape", f->path, t->name);
    t->n = 1;
    cJSON_ArrayForEach(dim, shape)
    {
        int64_t size = gr_json_whole(dim);
        if (size < 0 || t->n_dims == GR_COUNT(t->shape) ||
            __builtin_mul_overflow(t->n, size, &t->n)) {
            return GR_FAIL(GR_EDATA, "%s: tensor `%s`: impossible shape", f->path, t->name);
        }
        t->shape[t->n_dims++] = size;
    }
    return GR_OK;
}

static gr_status parse_tensor(const file* f, tensor* t, const cJSON* item)
{
    t->name = item->string;
    const char* type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "dtype"));
    if (type == NULL) return GR_FAIL(GR_EDATA, "%s: tensor `%s`: no dtype", f->path, t->name);
    for (t->type = 0; t->type < N_DTYPES && strcmp(type, dtypes[t->type].name) != 0;) t->type++;
    if (t->type == N_DTYPES) {
        return GR_FAIL(GR_EDATA, "%s: tensor `%s`: dtype `%s` is none of F32, BF16, F16, F64",
                       f->path, t->name, type);
    }
    GR_TRY(parse_shape(f, t, cJSON_GetObjectItemCaseSensitive(item, "shape")));
    const cJSON* range = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    t->begin = gr_json_whole(cJSON_GetArrayItem(range, 0));
    t->end = gr_json_whole(cJSON_GetArrayItem(range, 1));
    int64_t bytes = 0;
    if (cJSON_GetArraySize(range) != 2 || t->begin < 0 || t->end < t->begin ||
        t->end > f->data_bytes ||
        __builtin_mul_overflow(t->n, (int64_t)dtypes[t->type].bytes, &bytes) ||
        bytes != t->end - t->begin) {
        return GR_FAIL(GR_EDATA,
                       "%s: tensor `%s`: its byte range does not fit its shape or the file",
                       f->path, t->name);
    }
    return GR_OK;
}

static int by_begin(const void* pa, const void* pb)
{
    const tensor *a = pa, *b = pb;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return a->end < b->end ? -1 : a->end > b->end;
}

/* The tensors must cover the data exactly once: overlaps, holes and cut files show here. */
static gr_status check_cover(const file* f)
{
    int64_t at = 0;
    for (int i = 0; i < f->n; i++) {
        if (f->tensor[i].begin != at) {
            return GR_FAIL(GR_EDATA, "%s: tensor `%s`: begins at byte %lld of the data, not %lld",
                           f->path, f->tensor[i].name, (long long)f->tensor[i].begin,
                           (long long)at);
        }
        at = f->tensor[i].end;
    }
    if (at == f->data_bytes) return GR_OK;
    return GR_FAIL(GR_EDATA, "%s: %lld bytes of data where the header describes %lld", f->path,
                   (long long)f->data_bytes, (long long)at);
}

static gr_status parse_header(file* f)
{
    uint64_t len = 0;
    memcpy(&len, f->map.bytes, sizeof len);
    if (len > MAX_HEADER || (int64_t)len > f->map.size - 8) {
        return GR_FAIL(GR_EDATA, "%s: header of %llu bytes in a file of %lld", f->path,
                       (unsigned long long)len, (long long)f->map.size);
    }
    const char *text = (const char*)f->map.bytes + 8, *end = NULL;
    f->data = f->map.bytes + 8 + len;
    f->data_bytes = f->map.size - 8 - (int64_t)len;
    f->header = gr_json_parse(text, len, &end);
    if (!cJSON_IsObject(f->header))
        return GR_FAIL(GR_EDATA, "%s: header is no JSON object", f->path);
    for (; end < text + len; end++) {
        if (*end != ' ') return GR_FAIL(GR_EDATA, "%s: text after the JSON of the header", f->path);
    }
    f->tensor = calloc((size_t)cJSON_GetArraySize(f->header) + 1, sizeof *f->tensor);
    GR_ASSERT(f->tensor != NULL, "out of memory");
    const cJSON* item = NULL;
    cJSON_ArrayForEach(item, f->header)
    {
        if (strcmp(item->string, "__metadata__") == 0) continue;
        GR_TRY(parse_tensor(f, &f->tensor[f->n++], item));
    }
    qsort(f->tensor, (size_t)f->n, sizeof *f->tensor, by_begin);
    return check_cover(f);
}

/* Elements first .. first + n of a tensor as doubles: exact from every dtype. */
static void convert(double* out, const file* f, const tensor* t, int64_t first, int64_t n)
{
    size_t size = dtypes[t->type].bytes;
    const unsigned char* src = f->data + t->begin + first * (int64_t)size;
    for (int64_t i = 0; i < n; i++, src += size) {
        uint16_t bits = 0;
        uint32_t wide = 0;
        float x = 0;
        if (t->type == F64) {
            memcpy(&out[i], src, 8);
            continue;
        }
        if (t->type == F32) {
            memcpy(&x, src, 4);
        } else {
            memcpy(&bits, src, 2);
            wide = (uint32_t)bits << 16;
            memcpy(&x, &wide, 4); /* bf16 is the upper half of a float */
        }
        out[i] = t->type == F16 ? gr_half(bits) : (double)x;
    }
}

static gr_status check_finite(const file* f, const tensor* t, const gr_dev* dev)
{
    double chunk[CHUNK], limit = dev->acc_bytes == 8 ? DBL_MAX : (double)FLT_MAX;
    for (int64_t i = 0; i < t->n; i += CHUNK) {
        int64_t n = GR_MIN(CHUNK, t->n - i);
        convert(chunk, f, t, i, n);
        for (int64_t j = 0; j < n; j++) {
            if (fabs(chunk[j]) <= limit) continue;
            return GR_FAIL(GR_EDATA, "%s: tensor `%s`: element %lld is not finite", f->path,
                           t->name, (long long)(i + j));
        }
    }
    return GR_OK;
}

static gr_status check_shape(const file* f, const tensor* t, const gr_safetensors_entry* e)
{
    char got[128] = "";
    for (int k = 0, at = 0; k < t->n_dims && at < (int)sizeof got; k++) {
        at += snprintf(got + at, sizeof got - (size_t)at, "%s%lld", k > 0 ? " x " : "",
                       (long long)t->shape[k]);
    }
    bool same = t->n_dims == e->n_dims && t->shape[0] == e->shape[0] &&
                (e->n_dims == 1 || t->shape[1] == e->shape[1]);
    if (same) return GR_OK;
    if (e->n_dims == 1) {
        return GR_FAIL(GR_EDATA, "%s: tensor `%s`: shape %s, expected %lld", f->path, t->name, got,
                       (long long)e->shape[0]);
    }
    return GR_FAIL(GR_EDATA, "%s: tensor `%s`: shape %s, expected %lld x %lld", f->path, t->name,
                   got, (long long)e->shape[0], (long long)e->shape[1]);
}

/* Where an entry is read from. */
typedef struct source {
    const file* file;
    const tensor* tensor; /* NULL: nowhere yet */
} source;

/* Tables that early files carry and that follow from config.json. */
static bool derived(const char* name)
{
    static const char end[] = ".rotary_emb.inv_freq";
    size_t n = strlen(name);
    return n >= sizeof end && strcmp(name + n - (sizeof end - 1), end) == 0;
}

/* Pairs the tensors of a file with entries. */
static gr_status match(const file* f, const gr_dev* dev, const gr_safetensors_entry* entry, int n,
                       source* from)
{
    for (int k = 0; k < f->n; k++) {
        const tensor* t = &f->tensor[k];
        if (derived(t->name)) continue;
        int i = 0;
        while (i < n && strcmp(entry[i].name, t->name) != 0) i++;
        if (i == n)
            return GR_FAIL(GR_EDATA, "%s: tensor `%s` is not expected here", f->path, t->name);
        if (from[i].tensor != NULL)
            return GR_FAIL(GR_EDATA, "%s: tensor `%s` is there twice", f->path, t->name);
        from[i] = (source){f, t};
        if (entry[i].data == NULL) continue;
        GR_TRY(check_shape(f, t, &entry[i]));
        GR_TRY(check_finite(f, t, dev));
    }
    return GR_OK;
}

static void fill(const file* f, gr_dev* dev, const tensor* t, void* data)
{
    double chunk[CHUNK];
    for (int64_t i = 0; i < t->n; i += CHUNK) {
        int64_t n = GR_MIN(CHUNK, t->n - i);
        convert(chunk, f, t, i, n);
        gr_dev_write_acc(dev, gr_acc_at(dev, data, i), chunk, n);
    }
}

static gr_status read_files(file* f, int n_files, gr_dev* dev, const gr_safetensors_entry* entry,
                            int n, source* from)
{
    for (int k = 0; k < n_files; k++) {
        GR_TRY(map(&f[k]));
        GR_TRY(parse_header(&f[k]));
        GR_TRY(match(&f[k], dev, entry, n, from));
    }
    for (int i = 0; i < n; i++) {
        if (from[i].tensor != NULL || entry[i].data == NULL) continue;
        return GR_FAIL(GR_EDATA, "%s: tensor `%s` is missing%s", f[0].path, entry[i].name,
                       n_files > 1 ? " here and in the files beside it" : "");
    }
    for (int i = 0; i < n; i++) {
        if (entry[i].data != NULL) fill(from[i].file, dev, from[i].tensor, entry[i].data);
    }
    return gr_dev_sync(dev);
}

gr_status gr_safetensors_read(const char* const* path, int n_paths, gr_dev* dev,
                              const gr_safetensors_entry* entry, int n)
{
    file* f = calloc((size_t)n_paths + 1, sizeof *f);
    source* from = calloc((size_t)n + 1, sizeof *from);
    GR_ASSERT(f != NULL && from != NULL && n_paths > 0, "out of memory");
    for (int k = 0; k < n_paths; k++) f[k].path = path[k];
    gr_status st = read_files(f, n_paths, dev, entry, n, from);
    for (int k = 0; k < n_paths; k++) unmap(&f[k]);
    free(from);
    free(f);
    return st;
}
