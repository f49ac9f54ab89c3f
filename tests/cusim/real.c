/* real.c - the real NVRTC, where a toolkit is installed: it compiles without a GPU.
 *
 * What the machine's C++ compiler takes is not what NVRTC takes, and only ptxas knows how many registers a
 * kernel has and what it spills. cusim_check_text asks it about one text; with the setting `real` every text
 * that the simulator compiles is put to it first, for each architecture of interest, and one that it refuses
 * is refused. What it said is kept beside the compiled kernels, so that a text is asked about once.
 *
 * Read first: cusim_check_text. */
#include "nvrtc.h"
#include "sim.h"

#include <stdlib.h>

static nvrtc compiler;
static bool found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find(void)
{
    const char *const home[] = {getenv("CUDA_HOME"), getenv("CUDA_PATH"), "/usr/local/cuda"};
    for (int i = 0; i < 3; i++) {
        char path[PATH_MAX];
        if (!home[i] || !*home[i] || snprintf(path, sizeof path, "%s/lib64/libnvrtc.so", home[i]) >= PATH_MAX)
            continue;
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library) found = nvrtc_find(&compiler, library);
        if (found) return;
    }
}

/* ---- one text, one architecture ---- */

static void ask(const char *text, int arch, sim_text *log)
{
    char name[16], *said;
    snprintf(name, sizeof name, "sm_%d%s", arch, arch == 90 ? "a" : ""); /* as the device asks */
    int status = nvrtc_compile(&compiler, text, name, &said);
    sim_text_put(log, status ? "refused\n" : "taken\n");
    sim_text_add(log, said, strlen(said));
    free(said);
}

SIM_API int cusim_check_text(const char *text, int arch, struct cusim_text_report *out);

int cusim_check_text(const char *text, int arch, struct cusim_text_report *out)
{
    char folder[PATH_MAX], path[PATH_MAX + 64];
    sim_text log = {0};
    size_t bytes = 0;
    *out = (struct cusim_text_report){0};
    pthread_once(&once, find);
    if (!found) {
        snprintf(out->log, sizeof out->log, "no NVRTC on this machine");
        return -1;
    }
    if (!sim_cache_folder(folder)) return -1;
    unsigned long long hash[2];
    sim_hash_begin(hash);
    sim_hash_add(hash, &arch, sizeof arch);
    sim_hash_add(hash, text, strlen(text));
    snprintf(path, sizeof path, "%s/%016llx%016llx.ptxas", folder, hash[0], hash[1]);
    char *kept = sim_read_file(path, &bytes);
    if (kept) {
        sim_text_add(&log, kept, bytes);
    } else {
        ask(text, arch, &log);
        if (!log.failed) sim_write_file(path, log.s, log.n);
    }
    free(kept);
    if (log.failed || !log.s) {
        free(log.s);
        return -1;
    }
    int status = strncmp(log.s, "taken", 5) != 0;
    const char *said = strchr(log.s, '\n') + 1;
    out->of = nvrtc_read(said);
    snprintf(out->log, sizeof out->log, "%s", said);
    free(log.s);
    return status;
}

/* ---- every text ---- */

bool sim_real_takes(const char *text, sim_text *log)
{
    static const int arch[] = {80, 90};
    for (int i = 0; i < 2; i++) {
        struct cusim_text_report report;
        int status = cusim_check_text(text, arch[i], &report);
        pthread_mutex_lock(&sim.lock);
        sim.count.real_checks += status >= 0;
        sim.count.real_missing += status < 0;
        sim.count.real_spilling += (uint64_t)report.of.spilling;
        if ((uint64_t)report.of.registers > sim.count.real_registers)
            sim.count.real_registers = (uint64_t)report.of.registers;
        if (report.of.spilling && !sim.set.quiet)
            fprintf(stderr, "cusim: kernel %s spills %ld bytes for sm_%d\n", report.of.spiller,
                    report.of.spilled_bytes, arch[i]);
        pthread_mutex_unlock(&sim.lock);
        if (status <= 0) continue;
        sim_text_put(log, "NVRTC for sm_%d:\n", arch[i]);
        sim_text_add(log, report.log, strlen(report.log));
        return false;
    }
    return true;
}
