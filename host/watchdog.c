#include "host/watchdog.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct gr_watchdog {
    const gr_run* run;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;
    int64_t step;
    double beat_s;
};

static void* watch(void* arg)
{
    gr_watchdog* w = arg;
    const int64_t patience = w->run->config->log.watchdog_s;
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += patience;
        (void)pthread_cond_timedwait(&w->wake, &w->lock, &until);
        double silent = gr_now_s() - w->beat_s;
        if (!w->stop && silent >= (double)patience) {
            gr_log("\nno step for %.0f s: step %lld, %s", silent, (long long)w->step + 1,
                   gr_rollout_phase(w->run->rollout));
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

gr_status gr_watchdog_start(gr_watchdog** out, const gr_run* run)
{
    *out = NULL;
    if (run->config->log.watchdog_s == 0) return GR_OK;
    gr_watchdog* w = calloc(1, sizeof *w);
    if (w == NULL) return GR_FAIL(GR_ENOMEM, "watchdog: out of memory");
    w->run = run;
    w->beat_s = gr_now_s();
    w->step = run->state.step;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    int e = pthread_create(&w->thread, NULL, watch, w);
    if (e != 0) {
        free(w);
        return GR_FAIL(GR_ENOMEM, "watchdog: no thread (error %d)", e);
    }
    *out = w;
    return GR_OK;
}

void gr_watchdog_beat(gr_watchdog* w, int64_t step)
{
    if (w == NULL) return;
    pthread_mutex_lock(&w->lock);
    w->beat_s = gr_now_s();
    w->step = step;
    pthread_mutex_unlock(&w->lock);
}

void gr_watchdog_stop(gr_watchdog* w)
{
    if (w == NULL) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    (void)pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->wake);
    free(w);
}
