/* Settings: every kind of error with its exact line, overrides, conditions, print and read back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/config_parts.h"
#include "host/train.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size); /* fuzz_config.c */

typedef struct method {
    int64_t depth;
    double theta;
    bool greedy;
    int mode;
    char note[GR_TEXT_MAX];
} method;

static const gr_setting patr_settings[] = {
    GR_SET_INT(method, depth, 1, 99, 3, "turns between forks"),
    GR_SET_REAL(method, theta, 0, 1, 0.5, "share of the best"),
    GR_SET_BOOL(method, greedy, true, "take the first"),
    GR_SET_CHOICE(method, mode, "near|far", 1, "where to look"),
    GR_SET_TEXT(method, note, "none", "remark"),
};
static const gr_block patr =
    GR_BLOCK(method, "patr", "rollout.strategy=patr|patr_retro", patr_settings);
static const gr_setting beam_settings[] = {
    GR_SET_INT(method, depth, 1, 9, 2, "depth of the beam"),
    {"not", GR_TEXT, offsetof(method, note), 0, 0, 0, "", "a word one letter from note"},
};
static const gr_block beam = GR_BLOCK(method, "beam", "rollout.strategy=beam", beam_settings);

static void open_config(gr_config* c)
{
    gr_config_init(c);
    gr_config_register(c, &patr);
    gr_config_register(c, &beam);
    gr_config_register(c, &patr);
}

/* Parses a file's text and up to three overrides. */
static gr_status parse(gr_config* c, const char* json, int n, const char* const* overrides)
{
    open_config(c);
    return gr_config_parse(c, "config.json", json, strlen(json), n, overrides);
}

static uint64_t dice_at;
static uint64_t dice(uint64_t n) { return gr_key_join(0x636f6e66, dice_at++) % n; }

/* ---- errors ---------------------------------------------------------------------------------- */

#define LONG_TEXT                                                      \
    "0123456789012345678901234567890123456789012345678901234567890123" \
    "0123456789012345678901234567890123456789012345678901234567890123" \
    "0123456789012345678901234567890123456789012345678901234567890123" \
    "0123456789012345678901234567890123456789012345678901234567890123"

static const struct {
    const char *json, *override, *line;
} refused[] = {
    /* not JSON */
    {"", NULL, "config.json: not JSON near line 1, column 1"},
    {"{\n  \"run\": {\n  \"seed\" 1}}", NULL, "config.json: not JSON near line 3, column 10"},
    {"{} x", NULL, "config.json: not JSON near line 1, column 4"},
    {"{}{}", NULL, "config.json: not JSON near line 1, column 3"},
    {"{\"run\": {\"seed\": NaN}}", NULL, "config.json: not JSON near line 1, column 18"},
    {"{\"run\": {\"seed\": 1,}}", NULL, "config.json: not JSON near line 1, column 21"},
    {"{\"run\": {\"name\": \"a\\u0000b\"}}", NULL, "config.json: holds a NUL character"},
    /* shape */
    {"[]", NULL, "config.json: not an object of sections"},
    {"3", NULL, "config.json: not an object of sections"},
    {"{\"run\": 3}", NULL, "config.json: run: expected an object of settings"},
    {"{\"run\": {}, \"run\": {}}", NULL, "config.json: run: twice"},
    {"{\"run\": {\"seed\": 1, \"name\": \"x\", \"seed\": 1}}", NULL,
     "config.json: run.seed: twice"},
    /* names */
    {"{\"rollout\": {\"grup\": 1}}", NULL,
     "config.json: rollout.grup: unknown key; did you mean rollout.group?"},
    {"{\"rolout\": {\"group\": 1}}", NULL,
     "config.json: rolout: unknown section; did you mean rollout?"},
    {"{\"rollout\": {\"lr\": 1}}", NULL,
     "config.json: rollout.lr: unknown key; did you mean optimizer.lr?"},
    {"{\"model\": {\"lr\": 1}}", NULL,
     "config.json: model.lr: unknown key; did you mean optimizer.lr?"},
    {"{\"patr\": {\"not\": 1}}", NULL,
     "config.json: patr.not: unknown key; did you mean patr.note?"},
    {"{\"patr\": {\"teta\": 1}}", NULL,
     "config.json: patr.teta: unknown key; did you mean patr.theta?"},
    {"{\"beam\": {\"Depth\": 1}}", NULL,
     "config.json: beam.Depth: unknown key; did you mean beam.depth?"},
    {"{}", "rollout.grup=4",
     "command line: rollout.grup: unknown key; did you mean rollout.group?"},
    {"{}", "optimiser.lr=4", "command line: optimiser: unknown section; did you mean optimizer?"},
    {"{}", "run.seed", "command line: `run.seed`: not section.key=value"},
    {"{}", "seed=3", "command line: `seed=3`: not section.key=value"},
    {"{}", ".seed=3", "command line: `.seed=3`: not section.key=value"},
    {"{}", "=", "command line: `=`: not section.key=value"},
    /* kinds */
    {"{\"run\": {\"seed\": \"1\"}}", NULL,
     "config.json: run.seed: expected a whole number, got `1`"},
    {"{\"run\": {\"seed\": 1.5}}", NULL, "config.json: run.seed: expected a whole number, got 1.5"},
    {"{\"run\": {\"seed\": true}}", NULL,
     "config.json: run.seed: expected a whole number, got true"},
    {"{\"run\": {\"seed\": null}}", NULL,
     "config.json: run.seed: expected a whole number, got null"},
    {"{\"optimizer\": {\"lr\": [1]}}", NULL,
     "config.json: optimizer.lr: expected a number, got a list"},
    {"{\"optimizer\": {\"lr\": {}}}", NULL,
     "config.json: optimizer.lr: expected a number, got an object"},
    {"{\"run\": {\"resume\": 1}}", NULL, "config.json: run.resume: expected true or false, got 1"},
    {"{\"run\": {\"name\": 7}}", NULL, "config.json: run.name: expected text, got 7"},
    {"{\"device\": {\"matmul\": 0}}", NULL,
     "config.json: device.matmul: expected exact|bf16|auto, got 0"},
    {"{}", "run.seed=one", "command line: run.seed: expected a whole number, got `one`"},
    {"{}", "run.seed=", "command line: run.seed: expected a whole number, got ``"},
    {"{}", "run.seed=1 2", "command line: run.seed: expected a whole number, got `1 2`"},
    {"{}", "optimizer.lr=0x10", "command line: optimizer.lr: expected a number, got `0x10`"},
    {"{}", "optimizer.lr=nan", "command line: optimizer.lr: expected a number, got `nan`"},
    {"{}", "run.resume=yes", "command line: run.resume: expected true or false, got `yes`"},
    /* ranges */
    {"{\"rollout\": {\"group\": 0}}", NULL, "config.json: rollout.group: 0 is not in 1..256"},
    {"{\"rollout\": {\"group\": 257}}", NULL, "config.json: rollout.group: 257 is not in 1..256"},
    {"{}", "rollout.group=-1", "command line: rollout.group: -1 is not in 1..256"},
    {"{\"loss\": {\"clip_low\": 1.001}}", NULL, "config.json: loss.clip_low: 1.001 is not in 0..1"},
    {"{\"optimizer\": {\"lr\": 1e999}}", NULL, "config.json: optimizer.lr: not a finite number"},
    {"{\"run\": {\"seed\": 9007199254740993}}", NULL,
     "config.json: run.seed: 9.00719925474099e+15 is not in 0..9007199254740991"},
    {"{\"device\": {\"matmul\": \"fast\"}}", NULL,
     "config.json: device.matmul: `fast` is none of exact|bf16|auto"},
    {"{\"device\": {\"matmul\": \"bf1\"}}", NULL,
     "config.json: device.matmul: `bf1` is none of exact|bf16|auto"},
    {"{}", "device.matmul=", "command line: device.matmul: `` is none of exact|bf16|auto"},
    {"{\"run\": {\"name\": \"" LONG_TEXT "\"}}", NULL,
     "config.json: run.name: text of 256 bytes, at most 255 fit"},
    {"{\"run\": {\"name\": \"ab\xff\"}}", NULL, "config.json: run.name: byte 2 is not UTF-8"},
    /* without effect */
    {"{}", "patr.theta=0.3", "command line: patr.theta has no effect: rollout.strategy is flat"},
    {"{\"rollout\": {\"strategy\": \"patr\"}}", "beam.depth=3",
     "command line: beam.depth has no effect: rollout.strategy is patr"},
    {"{}", "model.reference=x", "command line: model.reference has no effect: loss.kl is none"},
    {"{\"model\": {\"path\": \"m\"}}", "model.layers=2",
     "command line: model.layers has no effect: model.path is m"},
    {"{\"warmstart\": {\"load\": \"w\"}}", "model.width=64",
     "command line: model.width has no effect: warmstart.load is w"},
    {"{\"model\": {\"path\": \"m\"}}", "warmstart.load=w",
     "command line: warmstart.load has no effect: model.path is m"},
    {"{}", "warmstart.lr=1", "command line: warmstart.lr has no effect: warmstart.steps is 0"},
    {"{}", "rollout.refill_max=2",
     "command line: rollout.refill_max has no effect: rollout.refill is none"},
    {"{}", "optimizer.final_ratio=0.1",
     "command line: optimizer.final_ratio has no effect: optimizer.schedule is constant"},
    {"{\"loss\": {\"kl\": \"k3\"}}", NULL, "loss.kl has no effect: loss.kl_coef is 0"},
    {"{\"loss\": {\"kl_coef\": 0.1}}", NULL, "loss.kl_coef has no effect: loss.kl is none"},
    {"{\"loss\": {\"length\": 10}}", NULL,
     "loss.length has no effect: loss.aggregation is not constant"},
    /* against each other */
    {"{\"run\": {\"name\": \"\"}}", NULL, "run.name = `` must be the name of one folder"},
    {"{\"run\": {\"name\": \"a/b\"}}", NULL, "run.name = `a/b` must be the name of one folder"},
    {"{\"run\": {\"name\": \"..\"}}", NULL, "run.name = `..` must be the name of one folder"},
    {"{\"run\": {\"dir\": \"\"}}", NULL, "run.dir is empty; `.` is the present folder"},
    {"{\"model\": {\"heads\": 6, \"kv_heads\": 4, \"width\": 60}}", NULL,
     "model.heads = 6 is no multiple of model.kv_heads = 4"},
    {"{\"model\": {\"width\": 66}}", NULL,
     "model.width = 66 is no multiple of model.heads = 4; set model.head_dim"},
    {"{\"model\": {\"width\": 60}}", NULL,
     "model.width / model.heads gives heads of 15: rotary positions turn pairs, so it must be "
     "even"},
    {"{\"model\": {\"head_dim\": 7}}", NULL,
     "model.head_dim gives heads of 7: rotary positions turn pairs, so it must be even"},
    {"{\"rollout\": {\"max_turn_tokens\": 512}}", NULL,
     "rollout.max_turn_tokens = 512 leaves no room for a prompt in rollout.max_context = 512"},
    {"{\"rollout\": {\"kv_pages\": 33}}", NULL,
     "rollout.kv_pages = 33 is too small: one path of rollout.max_context = 512 takes 34"},
    {"{\"rollout\": {\"max_tree_turns\": 7}}", NULL,
     "rollout.max_tree_turns = 7 is less than one turn for each branch of rollout.group = 8"},
    {"{\"loss\": {\"weighting\": \"once_mean\"}}", NULL,
     "loss.weighting = once_mean counts unique tokens and needs loss.aggregation = token_mean"},
    {"{\"loss\": {\"dual_clip\": 1}}", NULL,
     "loss.dual_clip = 1 bounds the ratio and must be above 1, or 0"},
    {"{\"loss\": {\"aggregation\": \"constant\"}}", NULL,
     "loss.aggregation = constant needs loss.length, or rollout.max_turns to derive it from"},
    {"{\"optimizer\": {\"microbatch_tokens\": 511}}", NULL,
     "optimizer.microbatch_tokens = 511 must hold a path of rollout.max_context = 512"},
    {"{\"optimizer\": {\"minibatches\": 9}}", NULL,
     "optimizer.minibatches = 9: a minibatch is whole trees, and rollout.groups_per_step is 8"},
};

static void each_error_is_one_exact_line(void** state)
{
    (void)state;
    for (int i = 0; i < GR_COUNT(refused); i++) {
        gr_config c;
        gr_status st =
            parse(&c, refused[i].json, refused[i].override != NULL, &refused[i].override);
        if (st != GR_EARG || strcmp(gr_last_error_text(), refused[i].line) != 0) {
            fail_msg("%s %s\n gave %d: %s\n  not: %s", refused[i].json,
                     refused[i].override ? refused[i].override : "", st,
                     st ? gr_last_error_text() : "no error", refused[i].line);
        }
        gr_config_free(&c);
    }
}

static const struct {
    const char *json, *line;
} not_trained[] = {
    {"{\"rollout\": {\"top_p\": 0.9}}", "rollout.top_p is for eval and generate"},
    {"{\"rollout\": {\"top_k\": 5}}", "rollout.top_k is for eval and generate"},
    {"{\"rollout\": {\"min_p\": 0.1}}", "rollout.min_p is for eval and generate"},
    {"{\"run\": {\"steps\": 0}}", "run.steps, budget.turns, budget.tokens and budget.minutes"},
    {"{\"run\": {\"steps\": 5}, \"rollout\": {\"group\": 1}}", "rollout.group = 1"},
};

static void training_refuses_what_eval_may_have(void** state)
{
    (void)state;
    gr_config c;
    for (int i = 0; i < GR_COUNT(not_trained); i++) {
        assert_int_equal(parse(&c, not_trained[i].json, 0, NULL), GR_OK);
        assert_int_equal(gr_config_check_train(&c), GR_EARG);
        assert_ptr_equal(strstr(gr_last_error_text(), not_trained[i].line), gr_last_error_text());
        gr_config_free(&c);
    }
    static const char* const ends[] = {"run.steps=1", "budget.turns=1", "budget.tokens=1",
                                       "budget.minutes=0.5"};
    for (int i = 0; i < GR_COUNT(ends); i++) {
        assert_int_equal(parse(&c, "{}", 1, &ends[i]), GR_OK);
        assert_int_equal(gr_config_check_train(&c), GR_OK);
        gr_config_free(&c);
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

static void files_that_cannot_be_read_say_why(void** state)
{
    (void)state;
    gr_config c;
    open_config(&c);
    assert_int_equal(gr_config_load(&c, "/nowhere/x.json", 0, NULL), GR_EIO);
    assert_string_equal(gr_last_error_text(),
                        "/nowhere/x.json: cannot open: No such file or directory");
    assert_int_equal(gr_config_load(&c, "/tmp", 0, NULL), GR_EIO);
    assert_string_equal(gr_last_error_text(), "/tmp: cannot read: Is a directory");
    assert_int_equal(gr_config_load(&c, "/dev/zero", 0, NULL), GR_EDATA);
    assert_string_equal(gr_last_error_text(), "/dev/zero: larger than 1048575 bytes");
    char path[] = "/tmp/test_config_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "{\"run\": {\"seed\": 7}}\n", 21) == 21);
    for (int k = 0; k < 2; k++) {
        gr_fault_set(k == 0 ? "record.open" : "record.read");
        assert_int_equal(gr_config_load(&c, path, 0, NULL), GR_EIO);
    }
    gr_fault_set(NULL);
    const char* const more[] = {"run.steps=9"};
    assert_int_equal(gr_config_load(&c, path, 1, more), GR_OK);
    assert_true(c.run.seed == 7 && c.run.steps == 9);
    gr_config_free(&c);
    assert_int_equal(close(fd) + unlink(path), 0);
}

static void shipped_examples_are_valid(void** state)
{
    (void)state;
    int n = 0;
    DIR* dir = opendir("configs");
    assert_non_null(dir);
    for (const struct dirent* e; (e = readdir(dir)) != NULL;) {
        if (strstr(e->d_name, ".json") == NULL) continue;
        char path[300];
        (void)snprintf(path, sizeof path, "configs/%s", e->d_name);
        gr_config c;
        gr_run_settings(&c);
        if (gr_config_load(&c, path, 0, NULL) != GR_OK || gr_config_check_train(&c) != GR_OK) {
            fail_msg("%s", gr_last_error_text());
        }
        gr_config_free(&c);
        n++;
    }
    (void)closedir(dir);
    assert_true(n > 0);
}

/* ---- meaning --------------------------------------------------------------------------------- */

static void overrides_follow_the_file_in_order(void** state)
{
    (void)state;
    gr_config c;
    const char* const more[] = {
        "run.name=a b=c \"d\" \\", "run.seed=2",     "run.seed=3",        "optimizer.lr=1e-3",
        "rollout.strategy=patr",   "patr.mode=near", "patr.greedy=false", "model.path="};
    const char* json = "{\"run\": {\"seed\": 1, \"steps\": 4}, \"optimizer\": {\"lr\": 5},"
                       " \"beam\": {\"depth\": 7}}";
    assert_int_equal(parse(&c, json, GR_COUNT(more), more), GR_OK);
    assert_string_equal(c.run.name, "a b=c \"d\" \\");
    assert_true(c.run.seed == 3 && c.run.steps == 4 && c.optimizer.lr == 1e-3);
    const method* m = gr_config_block(&c, "patr");
    assert_true(m->mode == 0 && !m->greedy && m->depth == 3 && m->theta == 0.5);
    assert_string_equal(m->note, "none");
    assert_true(gr_config_active(&c, &patr) && !gr_config_active(&c, &beam));
    assert_int_equal(((const method*)gr_config_block(&c, "beam"))->depth, 7); /* kept, inactive */
    char* json_out = gr_config_print(&c);
    assert_non_null(strstr(json_out, "\"patr\""));
    assert_null(strstr(json_out, "\"beam\""));
    free(json_out);
    gr_config_free(&c);
}

static void what_follows_is_filled_in(void** state)
{
    (void)state;
    gr_config c;
    assert_int_equal(parse(&c, "{}", 0, NULL), GR_OK);
    assert_int_equal(c.rollout.groups_per_step, 8);
    assert_int_equal(c.rollout.kv_pages, 2 * c.rollout.max_live * 32 + 2);
    gr_config_free(&c);
    const char* const more[] = {"rollout.tokens_per_step=3000", "rollout.max_turns=12",
                                "rollout.max_turn_tokens=6", "loss.aggregation=constant",
                                "rollout.max_context=100"};
    assert_int_equal(parse(&c, "{}", GR_COUNT(more), more), GR_OK);
    assert_int_equal(c.rollout.groups_per_step, 0);
    assert_int_equal(c.loss.length, 72);
    assert_int_equal(c.rollout.kv_pages, 2 * c.rollout.max_live * 7 + 2);
    gr_config_free(&c);
}

/* The tables name values of enums that live with the code which uses them. */
static void choices_are_the_enums(void** state)
{
    (void)state;
    static const struct {
        const char* override;
        size_t offset;
        int value;
    } cases[] = {
        {"model.dtype=fp32", offsetof(gr_config, model.dtype), GR_F32},
        {"model.dtype=bf16", offsetof(gr_config, model.dtype), GR_BF16},
        {"device.matmul=exact", offsetof(gr_config, device.matmul), GR_MATMUL_EXACT},
        {"device.matmul=bf16", offsetof(gr_config, device.matmul), GR_MATMUL_BF16},
        {"device.matmul=auto", offsetof(gr_config, device.matmul), GR_MATMUL_AUTO},
        {"device.attention=exact", offsetof(gr_config, device.attention), GR_ATTENTION_EXACT},
        {"device.attention=fast", offsetof(gr_config, device.attention), GR_ATTENTION_FAST},
        {"loss.kl=none", offsetof(gr_config, loss.kl), GR_KL_NONE},
        {"loss.kl=k1", offsetof(gr_config, loss.kl), GR_KL_K1},
        {"loss.kl=k2", offsetof(gr_config, loss.kl), GR_KL_K2},
        {"loss.kl=k3", offsetof(gr_config, loss.kl), GR_KL_K3},
        {"optimizer.schedule=constant", offsetof(gr_config, optimizer.schedule), GR_CONSTANT},
        {"optimizer.schedule=linear", offsetof(gr_config, optimizer.schedule), GR_LINEAR},
        {"optimizer.schedule=cosine", offsetof(gr_config, optimizer.schedule), GR_COSINE},
        {"rollout.on_cap=invalid", offsetof(gr_config, rollout.on_cap), GR_ON_CAP_INVALID},
        {"rollout.on_cap=end", offsetof(gr_config, rollout.on_cap), GR_ON_CAP_END},
        {"rollout.refill=none", offsetof(gr_config, rollout.refill), GR_REFILL_NONE},
        {"rollout.refill=resample", offsetof(gr_config, rollout.refill), GR_REFILL_RESAMPLE},
        {"rollout.refill=extend", offsetof(gr_config, rollout.refill), GR_REFILL_EXTEND},
        {"loss.weighting=per_leaf", offsetof(gr_config, loss.weighting), GR_WEIGHT_PER_LEAF},
        {"loss.weighting=split", offsetof(gr_config, loss.weighting), GR_WEIGHT_SPLIT},
        {"loss.weighting=inv_sqrt", offsetof(gr_config, loss.weighting), GR_WEIGHT_INV_SQRT},
        {"loss.weighting=once_mean", offsetof(gr_config, loss.weighting), GR_WEIGHT_ONCE_MEAN},
        {"loss.aggregation=seq_mean_token_mean", offsetof(gr_config, loss.aggregation),
         GR_AGG_SEQ_MEAN_TOKEN_MEAN},
        {"loss.aggregation=token_mean", offsetof(gr_config, loss.aggregation), GR_AGG_TOKEN_MEAN},
        {"loss.aggregation=constant", offsetof(gr_config, loss.aggregation), GR_AGG_CONSTANT},
    };
    for (int i = 0; i < GR_COUNT(cases); i++) {
        gr_config c;
        int kl = strncmp(cases[i].override, "loss.kl=k", 9) == 0;
        int once = strstr(cases[i].override, "once_mean") != NULL;
        const char* all[] = {cases[i].override, "loss.kl_coef=0.1", "rollout.max_turns=5"};
        if (once) all[1] = "loss.aggregation=token_mean";
        if (!kl && !once) all[1] = "run.seed=1";
        if (parse(&c, "{}", 3, all) != GR_OK) fail_msg("%s", gr_last_error_text());
        assert_int_equal(*(int*)(void*)((char*)&c + cases[i].offset), cases[i].value);
        gr_config_free(&c);
    }
}

static void the_hash_leaves_out_what_decides_nothing(void** state)
{
    (void)state;
    static const struct {
        const char* override;
        bool same;
    } cases[] = {
        {"run.dir=elsewhere", true},      {"run.name=other", true},
        {"run.resume=false", true},       {"device.threads=3", true},
        {"checkpoint.keep=9", true},      {"log.trees_every=7", true},
        {"log.quiet=true", true},         {"log.watchdog_s=1", true},
        {"log.json=true", true},          {"run.seed=2", false},
        {"optimizer.lr=5.1e-4", false},   {"run.steps=7", false},
        {"checkpoint.every=7", false},    {"model.qk_norm=true", false},
        {"rollout.on_cap=end", false},    {"env.name=x", false},
        {"rollout.strategy=patr", false}, {"optimizer.lr=5e-4", true},
    };
    gr_config base, c;
    assert_int_equal(parse(&base, "{\"patr\": {\"depth\": 5}}", 0, NULL), GR_OK);
    assert_int_equal(parse(&c, "{}", 0, NULL), GR_OK);
    assert_true(gr_config_hash(&c) == gr_config_hash(&base)); /* inactive settings */
    gr_config_free(&c);
    for (int i = 0; i < GR_COUNT(cases); i++) {
        assert_int_equal(parse(&c, "{}", 1, &cases[i].override), GR_OK);
        assert_int_equal(gr_config_hash(&c) == gr_config_hash(&base), cases[i].same);
        gr_config_free(&c);
    }
    gr_config_free(&base);
}

/* ---- random settings ------------------------------------------------------------------------- */

/* A value in range, written as it may stand in a file. Names of files and methods are plain words. */
static void draw(char out[700], const gr_setting* s)
{
    double low = fmax(s->min, -1e6), high = fmin(s->max, 1e6), x = 0;
    const char* word = NULL;
    int n = 0, at = 0, chars = 0;
    switch (s->type) {
    case GR_INT:
        x = floor(low + (double)dice(1u << 30) / (1u << 30) * (high - low + 1));
        (void)snprintf(out, 700, "%.0f", fmin(x, high));
        return;
    case GR_REAL:
        x = low + (double)dice(1u << 30) / (1u << 30) * (high - low);
        if (dice(2) == 0 && low <= 0) x = pow(10, -(double)dice(300));
        (void)snprintf(out, 700, "%.17g", fmin(fmax(x, low), high));
        return;
    case GR_BOOL:
        (void)snprintf(out, 700, "%s", dice(2) ? "true" : "false");
        return;
    case GR_CHOICE:
        while (gr_choice_word(s->text, n, &word) > 0) n++;
        n = gr_choice_word(s->text, (int)dice((uint64_t)n), &word);
        (void)snprintf(out, 700, "\"%.*s\"", n, word);
        return;
    case GR_TEXT: {
        static const char* const piece[] = {
            "a", "Z", ".", " ", "\\\"", "\\\\", "\\n", "\\u0007", "\xc3\xa9", "\xf0\x9f\x98\x80",
            "=", "|", "{"};
        out[at++] = '"';
        out[at++] = 'x';
        chars = (int)dice(60);
        for (int i = 0; i < chars; i++) {
            at += snprintf(out + at, 16, "%s", piece[dice(GR_COUNT(piece))]);
        }
        (void)snprintf(out + at, 2, "\"");
        return;
    }
    }
}

/* Settings that others constrain; they get values of their own below. */
static bool is_tied(const char* section, const char* key)
{
    return strcmp(section, "model") == 0 || strcmp(section, "loss") == 0 ||
           gr_choice_has("max_turn_tokens|max_context|kv_pages|max_tree_turns|group|"
                         "groups_per_step|minibatches|microbatch_tokens|strategy|max_turns",
                         key);
}

typedef struct drawn {
    const gr_block* block;
    const gr_setting* setting;
    char text[700];
} drawn;

static int draw_all(const gr_config* c, drawn* d)
{
    int n = 0;
    for (int b = 0; b < c->n_blocks; b++) {
        const gr_block* block = c->block[b].block;
        for (int k = 0; k < block->n_settings; k++) {
            const gr_setting* s = &block->setting[k];
            if (is_tied(block->name, s->key) || dice(3) == 0) continue;
            d[n].block = block;
            d[n].setting = s;
            draw(d[n++].text, s);
        }
    }
    return n;
}

/* One JSON text with sections and keys in random order. */
static char* write_file(const gr_config* c, drawn* d, int n, const char* strategy)
{
    char* out = NULL;
    size_t size = 0;
    FILE* f = open_memstream(&out, &size);
    int context = 20 + (int)dice(4000), heads = 1 + (int)dice(4), groups = (int)dice(9);
    for (int i = n - 1; i > 0; i--) {
        int j = (int)dice((uint64_t)i + 1);
        drawn t = d[i];
        d[i] = d[j], d[j] = t;
    }
    fprintf(f, "{\"model\": {\"heads\": %d, \"kv_heads\": %d, \"width\": %d, \"qkv_bias\": %s}",
            heads * 2, heads, heads * 2 * 2 * (1 + (int)dice(40)), dice(2) ? "true" : "false");
    fprintf(f,
            ", \"loss\": {\"kl\": \"k%d\", \"kl_coef\": 0.%d, \"weighting\": \"once_mean\", "
            "\"aggregation\": \"token_mean\"}",
            1 + (int)dice(3), 1 + (int)dice(999));
    for (int b = (int)dice((uint64_t)c->n_blocks), i = 0; i < c->n_blocks; i++) {
        const gr_block* block = c->block[(b + i) % c->n_blocks].block;
        const char* comma = "";
        if (strcmp(block->name, "model") == 0 || strcmp(block->name, "loss") == 0) continue;
        fprintf(f, ",%s\"%s\":%s{", dice(2) ? "\n" : " ", block->name, dice(2) ? "\t" : "");
        if (strcmp(block->name, "rollout") == 0) {
            fprintf(f, "\"strategy\": \"%s\", \"max_context\": %d, \"groups_per_step\": %d",
                    strategy, context, groups);
            fprintf(f, ", \"max_turn_tokens\": %d", 1 + (int)dice((uint64_t)context - 1));
            comma = ", ";
        }
        if (strcmp(block->name, "optimizer") == 0) {
            fprintf(f, "\"minibatches\": %d", groups > 0 ? 1 + (int)dice((uint64_t)groups) : 1);
            comma = ", ";
        }
        for (int k = 0; k < n; k++) {
            if (d[k].block != block) continue;
            fprintf(f, "%s\"%s\": %s", comma, d[k].setting->key, d[k].text);
            comma = ", ";
        }
        fputc('}', f);
    }
    fputs("}\n ", f);
    assert_int_equal(fclose(f), 0);
    return out;
}

static void assert_equal_configs(const gr_config* a, const gr_config* b)
{
    assert_int_equal(a->n_blocks, b->n_blocks);
    for (int i = 0; i < a->n_blocks; i++) {
        if (!gr_config_active(a, a->block[i].block)) continue;
        assert_true(gr_config_active(b, b->block[i].block));
        for (int k = 0; k < a->block[i].block->n_settings; k++) {
            static const size_t size[] = {[GR_INT] = sizeof(int64_t),
                                          [GR_REAL] = sizeof(double),
                                          [GR_BOOL] = sizeof(bool),
                                          [GR_TEXT] = GR_TEXT_MAX,
                                          [GR_CHOICE] = sizeof(int)};
            const gr_setting* s = &a->block[i].block->setting[k];
            assert_memory_equal(gr_setting_of(s, a->block[i].value),
                                gr_setting_of(s, b->block[i].value), size[s->type]);
        }
    }
}

static void assert_drawn(const gr_config* c, const drawn* d)
{
    char now[GR_VALUE_MAX];
    const void* value = gr_config_block(c, d->block->name);
    gr_setting_text(d->setting, value, now);
    if (d->setting->type == GR_REAL) {
        assert_true(*(const double*)gr_setting_of(d->setting, value) == strtod(d->text, NULL));
    } else if (d->setting->type == GR_CHOICE) {
        assert_memory_equal(now, d->text + 1, strlen(now));
    } else if (d->setting->type != GR_TEXT && strcmp(d->setting->key, "tokens_per_step") != 0) {
        assert_string_equal(now, d->text);
    }
}

static void random_settings_print_and_read_back(void** state)
{
    (void)state;
    static const char* const strategies[] = {"flat", "patr", "patr_retro", "beam"};
    drawn* d = calloc(256, sizeof *d);
    for (int round = 0; round < 400; round++) {
        gr_config c, again;
        open_config(&c);
        open_config(&again);
        int n = draw_all(&c, d);
        char* json = write_file(&c, d, n, strategies[dice(4)]);
        if (gr_config_parse(&c, "drawn", json, strlen(json), 0, NULL) != GR_OK) {
            fail_msg("%s\n%s", gr_last_error_text(), json);
        }
        for (int i = 0; i < n; i++) assert_drawn(&c, &d[i]);
        char* printed = gr_config_print(&c);
        if (gr_config_parse(&again, "print", printed, strlen(printed), 0, NULL) != GR_OK) {
            fail_msg("%s\n%s", gr_last_error_text(), printed);
        }
        assert_equal_configs(&c, &again);
        assert_true(gr_config_hash(&c) == gr_config_hash(&again));
        free(json);
        free(printed);
        gr_config_free(&c);
        gr_config_free(&again);
    }
    free(d);
}

/* Another key of the block that differs from key k in the letter at `at` alone. */
static bool has_twin(const gr_block* block, int k, size_t at)
{
    const char* key = block->setting[k].key;
    for (int i = 0; i < block->n_settings; i++) {
        const char* other = block->setting[i].key;
        if (i == k || strlen(other) != strlen(key)) continue;
        if (strncmp(key, other, at) == 0 && strcmp(key + at + 1, other + at + 1) == 0) return true;
    }
    return false;
}

/* Whatever one letter away from a key is typed, the key is found. */
static void a_slip_of_the_finger_finds_the_key(void** state)
{
    (void)state;
    gr_config c;
    open_config(&c);
    for (int b = 0; b < c.n_blocks; b++) {
        const gr_block* block = c.block[b].block;
        for (int k = 0; k < block->n_settings; k++) {
            char key[80], word[300], want[200];
            size_t n = strlen(block->setting[k].key);
            (void)snprintf(key, sizeof key, "%s", block->setting[k].key);
            if (n < 4) continue; /* too short to tell */
            const size_t at = 1 + (size_t)dice(n - 1);
            if (has_twin(block, k, at)) continue; /* beta1 and beta2: either would do */
            key[at] = 'q';
            (void)snprintf(word, sizeof word, "%s.%s=1", block->name, key);
            (void)snprintf(want, sizeof want, "did you mean %s.%s?", block->name,
                           block->setting[k].key);
            const char* const words[] = {word};
            assert_int_equal(gr_config_load(&c, NULL, 1, words), GR_EARG);
            if (strstr(gr_last_error_text(), want) == NULL) fail_msg("%s", gr_last_error_text());
        }
    }
    gr_config_free(&c);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void check_setting(const gr_block* b, const gr_setting* s)
{
    assert_true(strlen(s->help) > 3);
    assert_true(strlen(b->name) + strlen(s->key) < 60);
    if (s->type == GR_INT || s->type == GR_REAL) {
        if (!(s->min <= s->def && s->def <= s->max)) fail_msg("%s.%s", b->name, s->key);
    }
    if (s->type == GR_INT) assert_true(s->def == floor(s->def) && fabs(s->max) < 9007199254740992);
    if (s->type == GR_CHOICE) {
        const char* word = NULL;
        assert_true(gr_choice_word(s->text, (int)s->def, &word) > 0);
    }
    if (s->type == GR_TEXT) assert_true(strlen(s->text) < GR_TEXT_MAX);
    assert_true(s->offset < b->struct_bytes);
}

static void all_tables_are_sound_and_in_help(void** state)
{
    (void)state;
    gr_config c;
    char* help = NULL;
    size_t n = 0;
    gr_run_settings(&c);
    FILE* f = open_memstream(&help, &n);
    gr_config_help(&c, NULL, f);
    assert_int_equal(fclose(f), 0);
    for (int i = 0; i < c.n_blocks; i++) {
        const gr_block* b = c.block[i].block;
        (void)gr_config_active(&c, b); /* panics if its condition names no setting */
        for (int k = 0; k < b->n_settings; k++) {
            char line[160];
            check_setting(b, &b->setting[k]);
            assert_ptr_equal(gr_config_find_setting(b, b->setting[k].key), &b->setting[k]);
            (void)snprintf(line, sizeof line, "\n  %s.%s ", b->name, b->setting[k].key);
            assert_non_null(strstr(help, line));
        }
    }
    assert_int_equal(gr_config_load(&c, NULL, 0, NULL), GR_OK);
    free(help);
    gr_config_free(&c);
}

static void help_is_aligned(void** state)
{
    (void)state;
    gr_config c;
    char* help = NULL;
    size_t n = 0;
    open_config(&c);
    FILE* f = open_memstream(&help, &n);
    gr_config_help(&c, "patr", f);
    assert_int_equal(fclose(f), 0);
    assert_string_equal(help, "\npatr (acts when rollout.strategy=patr|patr_retro)\n"
                              "  patr.depth   int 1..99   3     turns between forks\n"
                              "  patr.theta   real 0..1   0.5   share of the best\n"
                              "  patr.greedy  true|false  true  take the first\n"
                              "  patr.mode    near|far    far   where to look\n"
                              "  patr.note    text        none  remark\n");
    free(help);
    gr_config_free(&c);
}

/* ---- fuzz ------------------------------------------------------------------------------------ */

static void fuzz_one(const char* path)
{
    static uint8_t data[1 << 16];
    FILE* f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(data, 1, sizeof data, f);
    (void)fclose(f);
    (void)LLVMFuzzerTestOneInput(data, n);
    for (int round = 0; round < 200 && n > 0; round++) { /* a few bytes changed, the rest cut */
        uint8_t* copy = malloc(n);
        memcpy(copy, data, n);
        for (uint64_t k = dice(4); k-- > 0;)
            copy[dice(n)] = (uint8_t) "{}\":,0e-. \\\x80\x00t"[dice(14)];
        (void)LLVMFuzzerTestOneInput(copy, n - (dice(2) ? 0 : dice(n)));
        free(copy);
    }
}

static void corpus_and_its_neighbours_are_survived(void** state)
{
    (void)state;
    int n = 0;
    DIR* dir = opendir("tests/corpus/fuzz_config");
    assert_non_null(dir);
    for (const struct dirent* e; (e = readdir(dir)) != NULL;) {
        char path[300];
        if (e->d_name[0] == '.') continue;
        (void)snprintf(path, sizeof path, "tests/corpus/fuzz_config/%s", e->d_name);
        fuzz_one(path);
        n++;
    }
    (void)closedir(dir);
    assert_true(n > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_error_is_one_exact_line),
        cmocka_unit_test(training_refuses_what_eval_may_have),
        cmocka_unit_test(files_that_cannot_be_read_say_why),
        cmocka_unit_test(shipped_examples_are_valid),
        cmocka_unit_test(overrides_follow_the_file_in_order),
        cmocka_unit_test(what_follows_is_filled_in),
        cmocka_unit_test(choices_are_the_enums),
        cmocka_unit_test(the_hash_leaves_out_what_decides_nothing),
        cmocka_unit_test(random_settings_print_and_read_back),
        cmocka_unit_test(a_slip_of_the_finger_finds_the_key),
        cmocka_unit_test(all_tables_are_sound_and_in_help),
        cmocka_unit_test(help_is_aligned),
        cmocka_unit_test(corpus_and_its_neighbours_are_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
