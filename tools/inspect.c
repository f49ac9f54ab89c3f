/* inspect.c - what is in a file: arrays with their statistics, or, where it is text that the library has
 * dumped, its head. Start with tool_inspect. */
#include "tool.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <string.h>

typedef struct statistics {
    long double min, max, sum;
    int64_t finite, nan, inf;
} statistics;

static bool look(const tool_array *a, statistics *s)
{
    *s = (statistics){.min = INFINITY, .max = -INFINITY};
    for (int64_t i = 0; i < a->n; i++) {
        long double x;
        if (!tool_number(a, i, &x)) return false;
        s->nan += isnan(x);
        s->inf += isinf(x) != 0;
        if (!isfinite(x)) continue;
        s->finite++;
        s->sum += x;
        if (x < s->min) s->min = x;
        if (x > s->max) s->max = x;
    }
    return true;
}

static void put_metadata(const tool_file *f)
{
    const char *key, *value;
    for (int i = 0; tn_nn_safetensors_meta_at(&f->weights, i, &key, &value); i++)
        printf("  %-20s %s\n", tool_clean(key), tool_clean(value));
}

static int put_arrays(const tool_file *f)
{
    int wide = 4, deep = 5;
    size_t bytes = 0;
    char shape[160];
    for (int i = 0; i < f->n; i++) {
        const int n = (int)strlen(tool_clean(f->array[i].name));
        tool_shape(&f->array[i], shape);
        if (n > wide) wide = n < 48 ? n : 48;
        if ((int)strlen(shape) > deep) deep = (int)strlen(shape) < 24 ? (int)strlen(shape) : 24;
        bytes += (size_t)f->array[i].n * f->array[i].type->bytes;
    }
    printf("%s: %s, %d tensor%s, %zu bytes\n", tool_clean(f->path), f->kind, f->n, f->n == 1 ? "" : "s",
           bytes);
    put_metadata(f);
    printf("%-*s %-5s %-*s %12s %12s %12s %12s %8s %8s\n", wide, "name", "dtype", deep, "shape", "bytes",
           "min", "max", "mean", "NaN", "inf");
    int64_t nan = 0, inf = 0;
    for (int i = 0; i < f->n; i++) {
        const tool_array *a = &f->array[i];
        statistics s;
        tool_shape(a, shape);
        printf("%-*s %-5s %-*s %12zu", wide, tool_clean(a->name), a->type->name, deep, shape,
               (size_t)a->n * a->type->bytes);
        if (!look(a, &s) || !s.finite)
            printf(" %12s %12s %12s", "-", "-", "-");
        else
            printf(" %12.5Lg %12.5Lg %12.5Lg", s.min, s.max, s.sum / (long double)s.finite);
        printf(" %8" PRId64 " %8" PRId64 "\n", s.nan, s.inf);
        nan += s.nan;
        inf += s.inf;
    }
    if (nan || inf) printf("%" PRId64 " NaN and %" PRId64 " infinities in all\n", nan, inf);
    return TOOL_OK;
}

static int put_head(const char *path, int most)
{
    FILE *f = fopen(path, "r");
    char line[400];
    if (!f) return tool_say("%s: cannot be read", path);
    printf("%s: text\n", tool_clean(path));
    for (int i = 0; i < most && fgets(line, sizeof(line), f); i++) {
        line[strcspn(line, "\n")] = 0;
        printf("  %s\n", tool_clean(line));
    }
    fclose(f);
    return TOOL_OK;
}

static int inspect(const char *path)
{
    const char *kind = tool_kind(path);
    tool_file f;
    if (!kind) return TOOL_TROUBLE;
    if (!strcmp(kind, "folder")) return tool_cache_list(path);
    if (!strcmp(kind, "kernel")) return put_head(path, 1);
    if (!strcmp(kind, "text")) return put_head(path, 20);
    int status = tool_open(path, &f);
    if (!status) status = put_arrays(&f);
    tool_close(&f);
    return status;
}

int tool_inspect(int n, char **arg)
{
    int status = tool_operands(n, arg, 1, INT_MAX, "inspect: which file?");
    if (status) return status;
    for (int i = 0; i < n; i++) {
        const int one = inspect(arg[i]);
        if (one > status) status = one;
    }
    return status;
}
