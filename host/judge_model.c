#include "host/judge_model.h"

#include "model/vocabulary.h"

static gr_status open_own(gr_judge_model* m, const gr_config* c, gr_dialog_format* dialog)
{
    const gr_judge_settings* s = m->s;
    GR_TRY(gr_model_config_load(s->model, &m->shape));
    m->shape.max_context = (int)c->rollout.max_context;
    GR_TRY(gr_model_tokenizer(&m->tokenizer, s->model));
    int n = gr_tokenizer_vocab(m->tokenizer);
    if (n > m->shape.vocab) {
        return GR_FAIL(GR_EDATA, "%s: the vocabulary has %d tokens, the model %d", s->model, n,
                       m->shape.vocab);
    }
    *dialog = (gr_dialog_format){.tokenizer = m->tokenizer};
    return gr_dialog_choose(dialog, "judge", s->model, s->chat, s->think);
}

gr_status gr_judge_model_open(gr_judge_model* m, const gr_config* c, const gr_judge_settings* s,
                              const gr_dialog_format* policy, gr_judge* out)
{
    *m = (gr_judge_model){.s = s, .own = s->model[0] != 0};
    *out = (gr_judge){
        .engine = m->own ? &m->engine : NULL,
        .dialog = *policy,
        .sampling = {.temperature = s->temperature > 0 ? (float)s->temperature : 1,
                     .top_p = 1,
                     .greedy = s->temperature == 0},
        .history = s->reads == GR_JUDGE_READS_PATH ? GR_HAS_READ : (int)s->history,
        .max_tokens = (int)s->max_tokens,
        .max_calls = s->max_calls,
    };
    if (s->max_tokens >= c->rollout.max_context) {
        return GR_FAIL(GR_EARG,
                       "judge.max_tokens = %lld leaves no room for a question in "
                       "rollout.max_context = %lld",
                       (long long)s->max_tokens, (long long)c->rollout.max_context);
    }
    return m->own ? open_own(m, c, &out->dialog) : GR_OK;
}

void gr_judge_model_layout(gr_judge_model* m, gr_dev* dev, const gr_engine_settings* policy,
                           gr_arena* host, gr_arena* device)
{
    gr_engine_settings es = *policy;
    if (!m->own) return;
    es.max_action = (int)m->s->max_tokens;
    es.tokenizer = m->tokenizer;
    gr_weights_layout(&m->weights, dev, &m->shape, false, host, device);
    gr_engine_layout(&m->engine, &m->weights, &es, host, device);
}

gr_status gr_judge_model_load(gr_judge_model* m)
{
    if (!m->own) return GR_OK;
    GR_TRY(gr_checkpoint_load(m->s->model, NULL, &m->weights, NULL, NULL));
    gr_engine_reset(&m->engine);
    return GR_OK;
}

void gr_judge_model_close(gr_judge_model* m) { gr_tokenizer_free(m->tokenizer); }
