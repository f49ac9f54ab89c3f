/* machine.c - which processor this is, as the kernel tells it. A system without /proc/cpuinfo has one profile
 * for all that call themselves alike. Start with tn_cpu_machine. */
#include "machine.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The value of a line "key : value", up to its end. */
static bool value_of(const char *line, const char *key, char *out, size_t n)
{
    size_t k = strlen(key);
    if (strncmp(line, key, k) || (line[k] != '\t' && line[k] != ' ' && line[k] != ':')) return false;
    const char *at = strchr(line, ':');
    if (!at) return false;
    at += strspn(at, ": \t");
    size_t length = strcspn(at, "\n");
    snprintf(out, n, "%.*s", (int)(length < n ? length : n - 1), at);
    return true;
}

/* Returns the bytes of the last cache that this processor sees: sysconf adds up those of all packages on some
 * machines. */
int64_t tn_cpu_last_cache(void)
{
    long bytes = 0;
    char unit = 0;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
    if (f && fscanf(f, "%ld%c", &bytes, &unit) == 2)
        bytes *= unit == 'K' ? 1 << 10 : unit == 'M' ? 1 << 20 : 1;
    if (f) fclose(f);
#ifdef _SC_LEVEL3_CACHE_SIZE
    if (bytes <= 0) bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    return bytes > 0 ? bytes : 0;
}

void tn_cpu_machine(char *out, size_t n)
{
    char line[8192], name[80] = "", family[12] = "", model[12] = "", flags[4096] = "";
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof line, f) && line[0] != '\n') /* the first processor */
        if (!value_of(line, "model name", name, sizeof name) &&
            !value_of(line, "cpu family", family, sizeof family) &&
            !value_of(line, "model", model, sizeof model))
            value_of(line, "flags", flags, sizeof flags);
    if (f) fclose(f);
    struct utsname u = {.machine = ""};
    if (!*name && uname(&u) >= 0) snprintf(name, sizeof name, "%.60s", u.machine);
    const char *vectors = strstr(flags, " avx512f") ? ", avx512f" : strstr(flags, " avx2") ? ", avx2" : "";
    snprintf(out, n, "cpu %s, family %s, model %s%s, last cache %ld KiB", *name ? name : "unknown",
             *family ? family : "-", *model ? model : "-", vectors, (long)(tn_cpu_last_cache() >> 10));
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e) *c = '?';
}
