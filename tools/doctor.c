/* doctor.c - what was found on this machine and will be used: each answer is the library's own, of a session
 * that is opened for it. Start with tool_doctor. */
#include "tool.h"

#include "../src/comm/nccl.h"
#include "../src/device/cpu/compile.h"
#include "../src/device/cpu/machine.h"
#include "../src/device/kcache.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void line(const char *what, const char *answer) { printf("%-18s %s\n", what, tool_clean(answer)); }

/* Keeps the last thing said, which is why no session was opened. */
static void keep(int level, const char *text, void *user)
{
    if (level <= TN_LOG_WARN) snprintf(user, 1024, "%s", text);
}

static void put_compiler(void)
{
    tn_cc *cc = NULL;
    tn_errbuf why = {""};
    if (!tn_cc_open(&cc) && !tn_cc_probe(cc, &why))
        line("kernel compiler", tn_cc_command(cc));
    else
        line("kernel compiler", *why.text ? why.text : "no memory");
    tn_cc_close(cc);
}

static void put_cache(void)
{
    char said[1024] = "", path[PATH_MAX + 32], text[2 * PATH_MAX];
    tn_kcache *c = NULL;
    if (tn_kcache_open(&(tn_kcache_options){.suffix = ".so", .log = keep, .log_user = said}, &c)) return;
    const char *folder = tn_kcache_folder(c), *state = "";
    if (folder) {
        snprintf(path, sizeof(path), "%s/.tensor-XXXXXX", folder);
        const int fd = mkstemp(path);
        state = "not writable: kernels are compiled anew in each run";
        if (fd >= 0) {
            const bool can = write(fd, "#!/bin/sh\n", 10) == 10 && !fchmod(fd, 0700);
            close(fd);
            state = can && !access(path, X_OK) ? "writable, executable"
                                               : "writable, not executable: kernels load from memory";
            unlink(path);
        }
    }
    snprintf(text, sizeof(text), "%s%s%s%s", folder ? folder : said, folder ? " (" : "", state,
             folder ? ")" : "");
    line("kernel cache", text);
    tn_kcache_close(c);
}

static void put_session(const char *what, tn_device_kind device)
{
    char said[1024] = "", text[200];
    tn_session *s = tn_open(.device = device, .log = keep, .log_user = said);
    if (s)
        snprintf(text, sizeof(text), "%s, %d threads, profile %s", tn_device_name(s), tn_threads(s),
                 tn_profile_name(s));
    line(what, s ? text : said);
    tn_close(s);
}

/* By being a rank, of one where no launcher has started more. */
static void put_ranks(void)
{
    char why[TN_COMM_WHY] = "";
    tn_comm *c = tn_comm_open(10, why);
    line("MPI", c ? c->name : why);
    if (c) c->close(c);
    tn_nccl_found(why);
    line("NCCL", why);
}

int tool_doctor(int n, char **arg)
{
    char text[400];
    (void)arg;
    if (n) return tool_misused("doctor: takes no arguments");
    snprintf(text, sizeof(text), "%s, with%s%s%s", tn_version(),
#ifdef TN_HAVE_ZLIB
             " zlib",
#else
             " no zlib",
#endif
#ifdef TN_HAVE_STB
             ", stb",
#else
             ", no stb",
#endif
#ifdef TN_HAVE_CJSON
             ", cJSON");
#else
             ", no cJSON");
#endif
    line("libtensor", text);
    tn_cpu_machine(text, sizeof(text));
    line("processor", text);
    put_compiler();
    put_cache();
    put_session("CUDA", TN_CUDA);
    put_session("device", TN_AUTO);
    put_ranks();
    return TOOL_OK;
}
