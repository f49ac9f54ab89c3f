/* compile.c - programs through NVRTC, several at a time.
 *
 * Code is made for the very device it will run on (a cubin, no PTX), so the driver compiles nothing when it
 * is loaded. Nothing is included and no rounding is traded for speed: the numbers are those of IEEE division
 * and square root, denormals stay. Read first: tn_cuda_build.
 */
#include "internal.h"

#include "../../core/alloc.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const char *const options[] = {"--std=c++17", "--fmad=false"};
enum { OPTIONS = sizeof options / sizeof *options, MAX_JOBS = 16 };

static void arch_option(const tn_cuda *c, char out[64])
{
    snprintf(out, 64, "--gpu-architecture=sm_%d", c->capability);
}

int tn_cuda_options(const tn_cuda *c, char *out, size_t room)
{
    char arch[64];
    arch_option(c, arch);
    int n = snprintf(out, room, "NVRTC %d.%d %s", c->api->nvrtc_version / 1000,
                     c->api->nvrtc_version % 1000 / 10, arch);
    for (int i = 0; i < OPTIONS && n < (int)room; i++)
        n += snprintf(out + n, room - (size_t)n, " %s", options[i]);
    return n;
}

static void take_log(const tn_cuda_api *a, tn_nvrtc_program p, tn_cuda_unit *u)
{
    size_t n = 0;
    if (a->nvrtcGetProgramLogSize(p, &n) || n < 2) return;
    u->log = tn_calloc(1, n + 1);
    if (u->log && a->nvrtcGetProgramLog(p, u->log)) u->log[0] = 0;
}

static void build_one(const tn_cuda *c, tn_cuda_unit *u)
{
    const tn_cuda_api *a = c->api;
    tn_nvrtc_program p = NULL;
    char arch[64];
    const char *option[OPTIONS + 1] = {arch};
    arch_option(c, arch);
    memcpy(option + 1, options, sizeof options);
    tn_nvrtc_result e = a->nvrtcCreateProgram(&p, u->text, u->name, 0, NULL, NULL);
    if (!e) {
        e = a->nvrtcCompileProgram(p, OPTIONS + 1, option);
        take_log(a, p, u);
    }
    if (!e) e = a->nvrtcGetCUBINSize(p, &u->cubin_bytes);
    if (!e) {
        u->cubin = tn_malloc(u->cubin_bytes);
        e = u->cubin ? a->nvrtcGetCUBIN(p, u->cubin) : TN_NVRTC_OUT_OF_MEMORY;
    }
    if (p) a->nvrtcDestroyProgram(&p);
    u->status = !e ? TN_OK : e == TN_NVRTC_OUT_OF_MEMORY ? TN_E_NOMEM : TN_E_COMPILE;
    if (!e) return;
    tn_free_mem(u->cubin);
    u->cubin = NULL;
    if (!u->log || !u->log[0]) { /* it said nothing: its own name for what went wrong */
        tn_free_mem(u->log);
        u->log = tn_strdup(a->nvrtcGetErrorString(e));
    }
}

struct work {
    const tn_cuda *c;
    tn_cuda_unit *unit;
    int n;
    atomic_int next;
};

static void *worker(void *arg)
{
    struct work *w = arg;
    for (int i; (i = atomic_fetch_add(&w->next, 1)) < w->n;) build_one(w->c, &w->unit[i]);
    return NULL;
}

void tn_cuda_build(const tn_cuda *c, tn_cuda_unit *unit, int n, int jobs)
{
    struct work w = {.c = c, .unit = unit, .n = n};
    pthread_t thread[MAX_JOBS];
    int started = 0;
    if (jobs > n) jobs = n;
    while (started < jobs - 1 && started < MAX_JOBS && !pthread_create(&thread[started], NULL, worker, &w))
        started++;
    worker(&w);
    while (started) pthread_join(thread[--started], NULL);
}
