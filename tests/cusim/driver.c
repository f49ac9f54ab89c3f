/* driver.c - the simulated GPU as such: settings, counters, errors, contexts, attributes.
 *
 * Each call of the driver takes the one lock, and is refused where the real one would refuse it: before
 * cuInit, without a current context, and after a kernel's fault, which stays until the context goes.
 *
 * Read first: sim_enter. */
#include "sim.h"

#include <stdarg.h>
#include <stdlib.h>

static const sim_settings first_settings = {.driver = 13000,
                                            .nvrtc = 13000,
                                            .memory = 8ll << 30,
                                            .host_memory = 8ll << 30,
                                            .shared_most = 163 << 10,
                                            .processors = 4,
                                            .capability = 90,
                                            .devices = 1,
                                            .oldest_arch = 70,
                                            .newest_arch = 129,
                                            .check = 1,
                                            .seed = 1};

sim_state sim;

/* Per thread: contexts pushed and not popped, each the primary context of a device. */
enum { MOST_PUSHED = 64 };
static __thread int pushed, device_of[MOST_PUSHED];

int sim_device(void) { return pushed ? device_of[pushed - 1] : -1; }

/* ---- settings ---- */

static const struct {
    const char *name;
    size_t at;
} setting[] = {
#define SIM_X(member, name) {name, offsetof(sim_settings, member)},
    SIM_SETTINGS(SIM_X)
#undef SIM_X
};

static int set(const char *name, size_t length, long long value)
{
    for (size_t i = 0; i < sizeof setting / sizeof *setting; i++) {
        if (strlen(setting[i].name) != length || memcmp(setting[i].name, name, length) != 0) continue;
        memcpy((char *)&sim.set + setting[i].at, &value, sizeof value);
        if (!strcmp(setting[i].name, "launch") || !strcmp(setting[i].name, "lost"))
            sim.launch_from = sim.launches_ever;
        if (!strcmp(setting[i].name, "compile")) sim.compile_from = sim.compiles_ever;
        if (!strcmp(setting[i].name, "matmul")) sim.matmul_from = sim.matmuls_ever;
        return 0;
    }
    return -1;
}

static void settings_from_environment(void)
{
    sim.set = first_settings;
    const char *seed = getenv("TENSOR_CUSIM_SEED"), *check = getenv("TENSOR_CUSIM_CHECK"),
               *real = getenv("TENSOR_CUSIM_REAL"), *fail = getenv("TENSOR_CUSIM_FAIL");
    if (seed && *seed) sim.set.seed = strtoll(seed, NULL, 0);
    if (check && *check) sim.set.check = strtoll(check, NULL, 0);
    if (real && *real) sim.set.real = strtoll(real, NULL, 0);
    while (fail && *fail) {
        size_t n = strcspn(fail, ","), name = strcspn(fail, "=,");
        long long value = fail[name] == '=' ? strtoll(fail + name + 1, NULL, 0) : 1;
        if (n && set(fail, name, value))
            fprintf(stderr, "cusim: TENSOR_CUSIM_FAIL has no setting %.*s\n", (int)name, fail);
        fail += n + (fail[n] == ',');
    }
}

__attribute__((constructor)) static void begin(void)
{
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&sim.lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    sim.null_stream.blocking = true;
    settings_from_environment();
}

bool sim_setting_due(long long nth, uint64_t from, uint64_t now)
{
    return nth > 0 && now == from + (uint64_t)nth;
}

/* ---- what tests ask ---- */

SIM_API void cusim_counters(struct cusim_counters *out);
SIM_API int cusim_set(const char *name, long long value);
SIM_API const char *cusim_report(void);
SIM_API void cusim_reset(void);

void cusim_counters(struct cusim_counters *out)
{
    pthread_mutex_lock(&sim.lock);
    *out = sim.count;
    out->live = sim_live_objects();
    pthread_mutex_unlock(&sim.lock);
}

int cusim_set(const char *name, long long value)
{
    pthread_mutex_lock(&sim.lock);
    int status = set(name, strlen(name), value);
    pthread_mutex_unlock(&sim.lock);
    return status;
}

const char *cusim_report(void) { return sim.report; }

void cusim_reset(void)
{
    pthread_mutex_lock(&sim.lock);
    uint64_t now = sim.count.bytes_now;
    settings_from_environment();
    sim.count = (struct cusim_counters){.bytes_now = now, .bytes_peak = now};
    sim.report[0] = 0;
    pthread_mutex_unlock(&sim.lock);
}

uint64_t sim_live_objects(void)
{
    uint64_t n = sim_memory_live();
    for (const sim_stream *s = sim.streams; s; s = s->list) n++;
    for (const sim_event *e = sim.events; e; e = e->list) n++;
    for (const sim_graph *g = sim.graphs; g; g = g->list) n += g->handle;
    for (const struct CUgraphExec_st *g = sim.execs; g; g = g->list) n++;
    for (const sim_module *m = sim.modules; m; m = m->next) n++;
    return n;
}

/* ---- entering, errors ---- */

bool sim_has_context(void) { return pushed > 0; }

tn_cu_result sim_enter(bool context)
{
    pthread_mutex_lock(&sim.lock);
    if (sim.set.lost > 0 && sim.launches_ever >= sim.launch_from + (uint64_t)sim.set.lost && !sim.sticky)
        sim_fault(SIM_UNKNOWN, "the device was lost, as cusim_set asked for");
    if (!sim.started) return SIM_NOT_INITIALIZED;
    if (context && !pushed) return SIM_INVALID_CONTEXT;
    return sim.sticky;
}

tn_cu_result sim_leave(tn_cu_result r)
{
    pthread_mutex_unlock(&sim.lock);
    return r;
}

void sim_fault(tn_cu_result code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(sim.report, sizeof sim.report, fmt, ap);
    va_end(ap);
    sim.count.reports++;
    if (!sim.sticky) sim.sticky = code;
    if (!sim.set.quiet) fprintf(stderr, "cusim: %s\n", sim.report);
}

/* Names are those of the lists of constants. */
static const struct {
    tn_cu_result code;
    const char *name;
} error[] = {
#define SIM_X(here, value, there) {value, #there},
    TN_CU_CONSTANTS(SIM_X) SIM_CONSTANTS(SIM_X)
#undef SIM_X
};

tn_cu_result cuGetErrorName(tn_cu_result e, const char **text)
{
    *text = e ? NULL : "CUDA_SUCCESS";
    for (size_t i = 0; i < sizeof error / sizeof *error && !*text; i++)
        if (error[i].code == e && !strncmp(error[i].name, "CUDA_ERROR", 10)) *text = error[i].name;
    return *text ? SIM_OK : TN_CU_INVALID_VALUE;
}

/* For the fault that a kernel met, its report: a program that shows the error then shows what was found. */
tn_cu_result cuGetErrorString(tn_cu_result e, const char **text)
{
    const tn_cu_result known = cuGetErrorName(e, text);
    if (e && e == sim.sticky && sim.report[0]) *text = sim.report;
    return known;
}

/* ---- the devices: alike, and with one memory, but each with a context of its own ---- */

static bool is_device(tn_cu_device device)
{
    return device >= 0 && device < sim.set.devices && device < SIM_DEVICES;
}

tn_cu_result cuInit(unsigned flags)
{
    if (flags) return TN_CU_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    if (sim.set.no_device) return sim_leave(TN_CU_NO_DEVICE);
    sim.started = true;
    return sim_leave(SIM_OK);
}

tn_cu_result cuDriverGetVersion(int *version)
{
    *version = (int)sim.set.driver;
    return SIM_OK;
}

tn_cu_result cuDeviceGetCount(int *count)
{
    tn_cu_result r = sim_enter(false);
    *count = sim.set.no_device ? 0 : (int)sim.set.devices;
    return sim_leave(r == SIM_NOT_INITIALIZED ? r : SIM_OK);
}

tn_cu_result cuDeviceGet(tn_cu_device *device, int ordinal)
{
    if (sim.set.no_device || !is_device(ordinal)) return SIM_INVALID_DEVICE;
    *device = ordinal;
    return SIM_OK;
}

tn_cu_result cuDeviceGetName(char *name, int bytes, tn_cu_device device)
{
    if (!is_device(device) || bytes <= 0) return SIM_INVALID_DEVICE;
    snprintf(name, (size_t)bytes, "simulated GPU");
    return SIM_OK;
}

tn_cu_result cuDeviceTotalMem_v2(size_t *bytes, tn_cu_device device)
{
    *bytes = (size_t)sim.set.memory;
    return is_device(device) ? SIM_OK : SIM_INVALID_DEVICE;
}

tn_cu_result cuDeviceGetAttribute(int *value, tn_cu_attribute which, tn_cu_device device)
{
    if (!is_device(device)) return SIM_INVALID_DEVICE;
    const struct {
        tn_cu_attribute which;
        long long value;
    } attribute[] = {{TN_CU_GRID_X, INT_MAX},
                     {TN_CU_SHARED_BYTES, SIM_SHARED_BYTES},
                     {TN_CU_SHARED_MOST, sim.set.shared_most},
                     {TN_CU_PROCESSORS, sim.set.processors},
                     {TN_CU_L2_BYTES, 4 << 20},
                     {TN_CU_PROCESSOR_THREADS, 2048},
                     {TN_CU_CAPABILITY_MAJOR, sim.set.capability / 10},
                     {TN_CU_CAPABILITY_MINOR, sim.set.capability % 10},
                     {TN_CU_PROCESSOR_SHARED, sim.set.shared_most + (1 << 10)},
                     {TN_CU_VIRTUAL_MEMORY, !sim.set.no_virtual},
                     {SIM_BLOCK_THREADS, SIM_MAX_THREADS},
                     {SIM_WARP_SIZE, 32},
                     {SIM_BLOCK_REGISTERS, 65536},
                     {SIM_CLOCK, 1000000},        /* kHz */
                     {SIM_MEMORY_CLOCK, 1000000}, /* kHz */
                     {SIM_MEMORY_BITS, 1024}};
    for (size_t i = 0; i < sizeof attribute / sizeof *attribute; i++) {
        if (attribute[i].which != which) continue;
        *value = (int)attribute[i].value;
        return SIM_OK;
    }
    return TN_CU_INVALID_VALUE;
}

/* ---- the context ---- */

/* Any address serves as the handle. */
static tn_cu_context context_of(tn_cu_device device) { return (tn_cu_context)(void *)&sim.held[device]; }

tn_cu_result cuDevicePrimaryCtxRetain(tn_cu_context *context, tn_cu_device device)
{
    tn_cu_result r = sim_enter(false);
    if (r) return sim_leave(r);
    if (!is_device(device)) return sim_leave(SIM_INVALID_DEVICE);
    sim.contexts++;
    sim.held[device]++;
    *context = context_of(device);
    return sim_leave(SIM_OK);
}

/* With the last reference all that the context held goes, a fault too. */
tn_cu_result cuDevicePrimaryCtxRelease_v2(tn_cu_device device)
{
    pthread_mutex_lock(&sim.lock);
    if (device < 0 || device >= SIM_DEVICES) return sim_leave(SIM_INVALID_DEVICE);
    if (!sim.held[device]) return sim_leave(SIM_INVALID_CONTEXT);
    sim.held[device]--;
    if (--sim.contexts == 0) {
        if (!sim.sticky) sim_run_all();
        sim_queue_forget();
        sim_module_forget();
        sim_memory_forget();
        sim.sticky = SIM_OK;
    }
    return sim_leave(SIM_OK);
}

tn_cu_result cuCtxPushCurrent_v2(tn_cu_context context)
{
    tn_cu_result r = sim_enter(false);
    if (r == SIM_NOT_INITIALIZED) return sim_leave(r);
    int device = 0;
    while (device < SIM_DEVICES && context != context_of(device)) device++;
    if (device == SIM_DEVICES || !sim.held[device] || pushed == MOST_PUSHED)
        return sim_leave(SIM_INVALID_CONTEXT);
    device_of[pushed++] = device;
    return sim_leave(SIM_OK);
}

tn_cu_result cuCtxPopCurrent_v2(tn_cu_context *context)
{
    if (!pushed) return SIM_INVALID_CONTEXT;
    pushed--;
    if (context) *context = context_of(device_of[pushed]);
    return SIM_OK;
}
