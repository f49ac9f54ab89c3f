/* compare.c - two files of numbers beside each other, tensor by tensor. Start with tool_compare. */
#include "tool.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct difference {
    long double largest, relative; /* of finite elements */
    int64_t other; /* elements of which one is a NaN or an infinity and the other is not the same */
    bool known;
} difference;

static difference differ(const tool_array *a, const tool_array *b)
{
    difference d = {.known = true};
    for (int64_t i = 0; i < a->n && d.known; i++) {
        long double x = 0, y = 0;
        d.known = tool_number(a, i, &x) && tool_number(b, i, &y);
        if (x == y || (isnan(x) && isnan(y))) continue;
        if (!isfinite(x) || !isfinite(y)) {
            d.other++;
            continue;
        }
        const long double by = fabsl(x - y);
        d.largest = fmaxl(d.largest, by);
        d.relative = fmaxl(d.relative, by / fmaxl(fabsl(x), fabsl(y)));
    }
    return d;
}

/* True where they are the same within the tolerance. */
static bool put_pair(const tool_array *a, const tool_array *b, double tolerance)
{
    char shape[160], other[160];
    tool_shape(a, shape);
    tool_shape(b, other);
    printf("%-40s ", tool_clean(a->name));
    if (a->ndim != b->ndim || memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(*a->shape))) {
        printf("shapes differ: %s and %s\n", shape, other);
        return false;
    }
    difference d = differ(a, b);
    if (!d.known) {
        const bool same = a->type == b->type && !memcmp(a->data, b->data, (size_t)a->n * a->type->bytes);
        printf("%s %s: %s\n", a->type->name, b->type->name, same ? "the same bytes" : "other bytes");
        return same;
    }
    printf("max abs %-11.4Lg max rel %-11.4Lg %s%s%s", d.largest, d.relative, a->type->name,
           a->type == b->type ? "" : " and ", a->type == b->type ? "" : b->type->name);
    if (d.other) printf(", %" PRId64 " not finite in one of them", d.other);
    printf("\n");
    return d.largest <= tolerance && !d.other;
}

static int compare(const tool_file *a, const tool_file *b, double tolerance)
{
    int pairs = 0, differing = 0, alone = 0;
    const bool single = a->n == 1 && b->n == 1; /* whose names come from files, say */
    for (int i = 0; i < a->n; i++) {
        const tool_array *other = single ? &b->array[0] : tool_find(b, a->array[i].name);
        if (!other) {
            printf("%-40s only in %s\n", tool_clean(a->array[i].name), tool_clean(a->path));
            alone++;
            continue;
        }
        pairs++;
        differing += !put_pair(&a->array[i], other, tolerance);
    }
    for (int i = 0; i < b->n && !single; i++) {
        if (tool_find(a, b->array[i].name)) continue;
        printf("%-40s only in %s\n", tool_clean(b->array[i].name), tool_clean(b->path));
        alone++;
    }
    printf("%d tensor%s compared, %d differ by more than %g, %d in one file only\n", pairs,
           pairs == 1 ? "" : "s", differing, tolerance, alone);
    return differing || alone ? TOOL_DIFFERS : TOOL_OK;
}

int tool_compare(int n, char **arg)
{
    char *end, *value = tool_option(&n, arg, "--tolerance");
    const double tolerance = value ? tn_strtod(value, &end) : 0;
    if (value && (end == value || *end || !(tolerance >= 0)))
        return tool_misused("compare: --tolerance is a number from 0 on");
    int status = tool_operands(n, arg, 2, 2, "compare: which two files?");
    if (status) return status;
    tool_file a, b = {.n = 0};
    status = tool_open(arg[0], &a);
    if (!status) status = tool_open(arg[1], &b);
    if (!status) status = compare(&a, &b, tolerance);
    tool_close(&a);
    tool_close(&b);
    return status;
}
