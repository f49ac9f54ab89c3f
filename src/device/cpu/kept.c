/* kept.c - kernels that an earlier run, here or on another machine, has compiled and left in the cache. Their
 * entries begin with the compiler and the processor they are of (tn_cc_common), which is part of the key that
 * they are looked up by: on a machine without a compiler it is taken from an entry.
 *
 * Start with tn_kept_common. */
#include "kept.h"

#include "../../core/alloc.h"
#include "../../core/sanitized.h"
#include "compile.h"

#include <limits.h>
#include <string.h>

#if defined(TN_ASAN)
#define SANITIZED true /* whose objects a process without cannot load, and the other way round */
#else
#define SANITIZED false
#endif

struct kept {
    tn_kcache *cache;
    char *prelude, *common;
    char cpu[TN_CPU_MAX], name[NAME_MAX + 1];
};

/* The line of a processor's instructions, or NULL. */
static const char *instructions(const char *text)
{
    const char *at = strstr(text, " * flags");
    return at ? at : strstr(text, " * Features");
}

/* Returns true where each word of one line, behind its colon, is in the other. */
static bool has_all(const char *line, const char *of)
{
    const char *end = of + strcspn(of, "\n");
    line += strcspn(line, ":\n");
    for (size_t n; *line && *line != '\n'; line += n) {
        line += strspn(line, ": ");
        n = strcspn(line, " \n");
        bool found = n == 0;
        for (const char *at = of; !found && (at = strchr(at, ' ')) && at < end; at++)
            found = !strncmp(at + 1, line, n) && strchr(" \n", at[1 + n]);
        if (!found) return false;
    }
    return true;
}

/* Of a kernel's whole source, the bytes before its own text; 0: it cannot serve. */
static size_t common_bytes(const struct kept *k, const char *source)
{
    const size_t opening = strlen(TN_CC_OPENING);
    const char *end = strncmp(source, TN_CC_OPENING, opening) ? NULL : strstr(source, TN_CC_CLOSING);
    if (!end || strncmp(end + strlen(TN_CC_CLOSING), k->prelude, strlen(k->prelude))) return 0;
    const char *line = strchr(source + opening, '\n'), *sanitized = strstr(source, "-fsanitize="),
               *theirs = instructions(source), *ours = instructions(k->cpu);
    if (!theirs || theirs > end || !ours || !has_all(theirs, ours)) return 0;
    if ((sanitized && sanitized < line) != SANITIZED) return 0;
    return (size_t)(end - source) + strlen(TN_CC_CLOSING) + strlen(k->prelude);
}

static void look_at(const char *name, size_t bytes, void *user)
{
    struct kept *k = user;
    const size_t n = strlen(name);
    (void)bytes;
    if (n < 2 || n > NAME_MAX || strcmp(name + n - 2, ".c") || (k->common && strcmp(name, k->name) > 0))
        return;
    char *source = tn_kcache_source(k->cache, name);
    const size_t common = source ? common_bytes(k, source) : 0;
    if (!common) {
        tn_free_mem(source);
        return;
    }
    source[common] = 0;
    tn_free_mem(k->common);
    k->common = source;
    strcpy(k->name, name);
}

char *tn_kept_common(tn_kcache *cache)
{
    struct kept k = {.cache = cache};
    const size_t room = tn_cc_prelude(NULL, 0) + 1;
    if (!(k.prelude = tn_malloc(room))) return NULL;
    tn_cc_prelude(k.prelude, room);
    tn_cc_describe_cpu(k.cpu);
    tn_kcache_each(cache, look_at, &k);
    tn_free_mem(k.prelude);
    return k.common;
}
