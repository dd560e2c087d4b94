#include "model/config.h"

#define MAX_LAYERS 1024
#define MAX_HEADS  1024
#define MAX_HEAD   4096
#define MAX_SIZE   1048576

gr_status gr_model_config_check(const gr_model_config* m, const char* path)
{
    const struct {
        const char* what;
        int value, most;
    } size[] = {
        {"layers", m->layers, MAX_LAYERS},    {"heads", m->heads, MAX_HEADS},
        {"head size", m->head_dim, MAX_HEAD}, {"width", m->width, MAX_SIZE},
        {"MLP width", m->mlp, MAX_SIZE},      {"vocabulary", m->vocab, MAX_SIZE},
    };
    for (int i = 0; i < GR_COUNT(size); i++) {
        if (size[i].value >= 1 && size[i].value <= size[i].most) continue;
        return GR_FAIL(GR_EDATA, "%s: %s of %d, between 1 and %d are supported", path, size[i].what,
                       size[i].value, size[i].most);
    }
    if (m->kv_heads >= 1 && m->heads % m->kv_heads == 0 && m->head_dim % 2 == 0) return GR_OK;
    return GR_FAIL(GR_EDATA, "%s: %d heads of %d over %d do not fit together", path, m->heads,
                   m->head_dim, m->kv_heads);
}
