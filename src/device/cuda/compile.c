/* compile.c - programs through NVRTC, several at a time.
 *
 * Code is made for the very device it will run on (a cubin, no PTX), so the driver compiles nothing when it
 * is loaded; only for a GPU that is newer than NVRTC it is PTX, of the newest architecture that both know
 * (tn_cuda_pick_arch). Nothing is included and no rounding is traded for speed: the numbers are those of IEEE
 * division and square root, denormals stay. Read first: tn_cuda_build.
 */
#include "internal.h"

#include "../../core/alloc.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const char *const options[] = {"--std=c++17", "--fmad=false"};
enum { OPTIONS = sizeof options / sizeof *options, MAX_JOBS = 16 };

/* Code for compute capability 9.0 may use what no other GPU has. */
bool tn_cuda_has_wgmma(const tn_cuda *c) { return c->arch == 90 && c->capability == 90; }

static void arch_option(const tn_cuda *c, char out[64])
{
    snprintf(out, 64, "--gpu-architecture=%s_%d%s", c->arch == c->capability ? "sm" : "compute", c->arch,
             tn_cuda_has_wgmma(c) ? "a" : "");
}

/* The newest architecture that NVRTC compiles for and a GPU of `capability` runs; 0: none. *oldest: of all.
 */
static int newest_arch(const tn_cuda_api *a, int capability, int *oldest)
{
    enum { MOST = 256 };
    int arch[MOST], n = 0, best = 0;
    *oldest = 0;
    if (a->nvrtcGetNumSupportedArchs(&n) || n < 1 || n > MOST || a->nvrtcGetSupportedArchs(arch)) return 0;
    for (int i = 0; i < n; i++) {
        if (arch[i] <= capability && arch[i] > best) best = arch[i];
        if (!*oldest || arch[i] < *oldest) *oldest = arch[i];
    }
    return best;
}

int tn_cuda_pick_arch(tn_cuda *c, tn_errbuf *err)
{
    int oldest;
    do c->arch = newest_arch(c->api, c->capability, &oldest);
    while (!c->arch && tn_cuda_older_nvrtc(c->api));
    if (c->arch) return TN_OK;
    return tn_err(err, TN_E_UNSUPPORTED,
                  "%s has compute capability %d.%d, and NVRTC (%s) compiles for %d.%d and later; install an "
                  "older CUDA toolkit beside it",
                  c->name, c->capability / 10, c->capability % 10, c->api->path[TN_CUDA_NVRTC], oldest / 10,
                  oldest % 10);
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
    const bool ptx = c->arch != c->capability;
    if (!e) e = ptx ? a->nvrtcGetPTXSize(p, &u->cubin_bytes) : a->nvrtcGetCUBINSize(p, &u->cubin_bytes);
    if (!e) {
        u->cubin = tn_malloc(u->cubin_bytes);
        e = !u->cubin ? TN_NVRTC_OUT_OF_MEMORY
            : ptx     ? a->nvrtcGetPTX(p, u->cubin)
                      : a->nvrtcGetCUBIN(p, u->cubin);
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
