#include "host/progress.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "host/json.h"

#define PLAIN_EVERY_S 5 /* between lines when stderr is not a terminal */

/* Seconds to go; NaN while nothing is known. */
static double seconds_left(const gr_progress* p, double share)
{
    double done = share - p->start_share, used = gr_now_s() - p->start_s;
    return done <= 0 || used < 1 ? (double)NAN : used * (1 - share) / done;
}

static void eta(char* text, size_t cap, const gr_progress* p, double share)
{
    double left = seconds_left(p, share);
    if (isnan(left))
        (void)snprintf(text, cap, "--:--");
    else
        (void)snprintf(text, cap, "%ld:%02ld", lround(left) / 60, lround(left) % 60);
}

/* One object on stdout. */
typedef struct pair {
    const char* key;
    double value;
} pair;

static void put_json(const pair* item, int n)
{
    for (int i = 0; i < n; i++) {
        printf("%s\"%s\": ", i > 0 ? ", " : "{", item[i].key);
        gr_json_number(stdout, item[i].value);
    }
    printf("}\n");
    (void)fflush(stdout);
}

static void begin(gr_progress* p, double share)
{
    if (p->started) return;
    p->started = true;
    p->start_s = gr_now_s();
    p->start_share = share;
    p->first_success = p->first_greedy = p->last_success = p->last_greedy = (double)NAN;
}

/* True when a line may be printed now. */
static bool due(gr_progress* p, const gr_run* run, bool force)
{
    double now = gr_now_s(), wait = isatty(STDERR_FILENO) ? 0.2 : PLAIN_EVERY_S;
    if (run->config->log.quiet || (!force && now - p->last_s < wait)) return false;
    p->last_s = now;
    return true;
}

static void line(gr_progress* p, const char* text)
{
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r\033[K%s", text);
        p->open_line = true;
    } else {
        fprintf(stderr, "%s\n", text);
    }
    fflush(stderr);
}

void gr_progress_warmstart(gr_progress* p, const gr_run* run, int64_t step, int64_t steps,
                           double loss)
{
    char text[160], left[32];
    double share = (double)step / (double)steps;
    begin(p, 0);
    if (run->config->log.json) {
        const pair line_of[] = {{"warmstart", (double)step},
                                {"of", (double)steps},
                                {"loss", loss},
                                {"eta_s", seconds_left(p, share)}};
        put_json(line_of, GR_COUNT(line_of));
        return;
    }
    if (!due(p, run, step == steps)) return;
    eta(left, sizeof left, p, share);
    (void)snprintf(text, sizeof text, "warm start %lld/%lld  loss %.3f  eta %s", (long long)step,
                   (long long)steps, loss, left);
    line(p, text);
    if (step == steps && p->open_line) fputc('\n', stderr);
}

/* `x` with `digits` after the point and a unit, or a dash. */
static void number(char* text, size_t cap, double x, int digits, const char* unit)
{
    if (isnan(x))
        (void)snprintf(text, cap, "-");
    else
        (void)snprintf(text, cap, "%.*f%s", digits, x, unit);
}

void gr_progress_step(gr_progress* p, const gr_run* run, const gr_metrics* m)
{
    double share = gr_train_progress(run);
    begin(p, share);
    double success = gr_metrics_get(m, "eval/success");
    double greedy = gr_metrics_get(m, "eval/success_greedy");
    bool evaluated = !isnan(success);
    if (evaluated) {
        if (isnan(p->first_success)) p->first_success = success, p->first_greedy = greedy;
        p->last_success = success, p->last_greedy = greedy;
    }
    if (run->config->log.json) {
        const pair line_of[] = {{"step", (double)run->state.step},
                                {"share", share},
                                {"reward", gr_metrics_get(m, "reward/mean")},
                                {"success", success},
                                {"success_greedy", greedy},
                                {"gen_tok_s", gr_metrics_get(m, "perf/gen_tok_s")},
                                {"token_ratio", gr_metrics_get(m, "tree/token_ratio")},
                                {"eta_s", seconds_left(p, share)}};
        put_json(line_of, GR_COUNT(line_of));
        return;
    }
    if (!due(p, run, evaluated)) return;
    char text[240], left[32], held_out[24], reward[24], rate[24], saved[24];
    eta(left, sizeof left, p, share);
    number(held_out, sizeof held_out, p->last_success * 100, 1, " %");
    number(reward, sizeof reward, gr_metrics_get(m, "reward/mean"), 3, "");
    number(rate, sizeof rate, gr_metrics_get(m, "perf/gen_tok_s"), 0, "");
    number(saved, sizeof saved, gr_metrics_get(m, "tree/token_ratio"), 2, "");
    (void)snprintf(text, sizeof text,
                   "step %lld  %3.0f %%  reward %s  held-out %s  %s tok/s  sharing x%s  eta %s",
                   (long long)run->state.step, 100 * share, reward, held_out, rate, saved, left);
    line(p, text);
    if (evaluated && p->open_line) fputc('\n', stderr);
}

static double logged(const cJSON* line, const char* key)
{
    const cJSON* item = cJSON_GetObjectItemCaseSensitive(line, key);
    return cJSON_IsNumber(item) ? item->valuedouble : (double)NAN;
}

/* The run's first evaluation, which an earlier session may have made: metrics.jsonl has it. */
static void read_first(gr_progress* p, const gr_run* run)
{
    char path[1200], *line = NULL;
    size_t cap = 0;
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", run->log.dir);
    FILE* f = fopen(path, "re");
    if (f == NULL) return; /* the table then shows what this session saw */
    double success = (double)NAN;
    while (isnan(success) && getline(&line, &cap, f) > 0) {
        cJSON* m = cJSON_Parse(line);
        success = logged(m, "eval/success");
        if (!isnan(success)) {
            p->first_success = success;
            p->first_greedy = logged(m, "eval/success_greedy");
        }
        cJSON_Delete(m);
    }
    free(line);
    (void)fclose(f);
}

/* "timeout 3, refused 1"; "" if the world lost nothing. */
static void lost(char* text, size_t cap, const gr_train_state* s)
{
    int n = 0;
    text[0] = 0;
    for (int e = GR_ENV_OK + 1; e < GR_N_ENV_ERRORS && n < (int)cap; e++) {
        if (s->env_errors[e] == 0) continue;
        n += snprintf(text + n, cap - (size_t)n, "%s%s %lld", n > 0 ? ", " : "",
                      gr_env_error_name((gr_env_error)e), (long long)s->env_errors[e]);
    }
}

void gr_progress_end(gr_progress* p, const gr_run* run)
{
    const gr_train_state* s = &run->state;
    if (run->config->log.quiet) return;
    if (p->open_line) fputc('\n', stderr);
    read_first(p, run);
    if (run->config->log.json) {
        const pair line_of[] = {{"steps", (double)s->step},
                                {"env_turns", (double)s->env_turns},
                                {"gen_tokens", (double)s->gen_tokens},
                                {"minutes", s->seconds / 60},
                                {"success_first", p->first_success},
                                {"success_last", p->last_success},
                                {"success_greedy_first", p->first_greedy},
                                {"success_greedy_last", p->last_greedy},
                                {"errors_timeout", (double)s->env_errors[GR_ENV_TIMEOUT]},
                                {"errors_crash", (double)s->env_errors[GR_ENV_CRASH]},
                                {"errors_protocol", (double)s->env_errors[GR_ENV_PROTOCOL]},
                                {"errors_refused", (double)s->env_errors[GR_ENV_REFUSED]}};
        put_json(line_of, GR_COUNT(line_of));
        return;
    }
    char before[24], after[24], greedy_before[24], greedy_after[24];
    number(before, sizeof before, 100 * p->first_success, 1, " %");
    number(after, sizeof after, 100 * p->last_success, 1, " %");
    number(greedy_before, sizeof greedy_before, 100 * p->first_greedy, 1, " %");
    number(greedy_after, sizeof greedy_after, 100 * p->last_greedy, 1, " %");
    fprintf(stderr,
            "\n%s\n"
            "  held-out success   %8s  ->  %s   (temperature %.2g)\n"
            "                     %8s  ->  %s   (greedy)\n"
            "  steps %lld   environment turns %lld   tokens %lld   minutes %.1f\n",
            run->log.dir, before, after, run->config->eval.temperature, greedy_before, greedy_after,
            (long long)s->step, (long long)s->env_turns, (long long)s->gen_tokens, s->seconds / 60);
    char errors[200];
    lost(errors, sizeof errors, s);
    if (errors[0] != 0) fprintf(stderr, "  trajectories lost by the world   %s\n", errors);
}
