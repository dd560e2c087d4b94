/* fuzz_gguf.c - GGUF files of any content: what can be read is read to its last byte, and the rest is
 * refused with one line that names the file, the weights unchanged. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/gguf_weights.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

static const char* file_name;

/* One line about the file. */
static void check_refusal(gr_status st)
{
    GR_ASSERT(st == GR_EDATA, "%d", st);
    const char* text = gr_last_error_text();
    GR_ASSERT(strncmp(text, file_name, strlen(file_name)) == 0 && strchr(text, '\n') == NULL, "%s",
              text);
}

/* The mapping ends at a page, where no sanitizer looks: bytes past the file read as 0. */
static void check_inside(const gr_gguf* g, const void* at, int64_t n)
{
    const unsigned char *begin = g->map.bytes, *p = at;
    GR_ASSERT(n >= 0 && p >= begin && n <= g->map.size - (p - begin));
}

static void check_text(const gr_gguf* g, gr_gguf_text t)
{
    if (t.n > 0) check_inside(g, t.at, t.n);
}

/* All that is handed out lies in the file. */
static void read_everything(const gr_gguf* g)
{
    double x = 0;
    int64_t k = 0;
    float block[GR_QUANT_MAX];
    for (int i = 0; i < g->n_values; i++) {
        const gr_gguf_value* v = &g->value[i];
        check_text(g, v->key);
        check_text(g, gr_gguf_text_at(v));
        (void)gr_gguf_whole(v, v->count - 1, &k);
        (void)gr_gguf_real(v, v->count - 1, &x);
    }
    for (int i = 0; i < g->n_tensors; i++) {
        const gr_gguf_tensor* t = &g->tensor[i];
        check_text(g, t->name);
        check_inside(g, t->data, t->bytes);
        gr_quant_read(block, t->type, t->data + t->bytes - gr_quant_bytes(t->type),
                      gr_quant_elements(t->type));
    }
    gr_gguf_vocab v;
    gr_status st = gr_gguf_vocab_open(&v, g);
    if (st != GR_OK) check_refusal(st);
    for (int i = 0; i < v.n_tokens; i++) check_text(g, v.token[i]);
    for (int i = 0; i < v.n_merges; i++) check_text(g, v.merge[i]);
    gr_gguf_vocab_close(&v);
}

static void load(const gr_gguf* g, const gr_model_config* c)
{
    gr_dev dev;
    gr_arena host = {0}, device = {0};
    gr_weights w;
    const gr_dev_options how = {.name = "cpu", .dtype = GR_F64, .threads = 1};
    GR_ASSERT(gr_dev_open(&dev, &how) == GR_OK);
    gr_weights_layout(&w, &dev, c, false, &host, &device);
    if (w.n_params <= 100000) {
        host = (gr_arena){.base = calloc(1, host.used + 1), .cap = host.used};
        device = (gr_arena){.base = aligned_alloc(256, (device.used + 256) / 256 * 256),
                            .cap = device.used};
        GR_ASSERT(host.base != NULL && device.base != NULL);
        memset(device.base, 0, device.cap);
        gr_weights_layout(&w, &dev, c, false, &host, &device);
        gr_status st = gr_gguf_load(&w, g);
        if (st != GR_OK) check_refusal(st);
        const double* x = w.master;
        for (int64_t i = 0; i < w.n_params; i++) {
            GR_ASSERT(isfinite(x[i]) && (st == GR_OK || x[i] == 0));
        }
        free(host.base);
        free(device.base);
    }
    gr_dev_close(&dev);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    char path[64];
    gr_gguf g;
    gr_model_config c;
    int fd = memfd_create("fuzz", 0);
    GR_ASSERT(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    file_name = path;
    gr_status st = gr_gguf_open(&g, path);
    if (st == GR_OK) {
        read_everything(&g);
        st = gr_gguf_config(&g, &c);
        if (st == GR_OK) load(&g, &c);
    }
    if (st != GR_OK) check_refusal(st);
    gr_gguf_close(&g);
    (void)close(fd);
    return 0;
}
