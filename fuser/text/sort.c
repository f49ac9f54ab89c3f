/* sort.c - the places of a line's first elements in order, in C and in CUDA C. NaN is the greatest; of equal
 * elements the first comes first.
 *
 *   C       a heap of k places in the result, the one that comes last on top: each element of the line
 *           that comes before it takes its place. Then the heap is emptied from the end
 *   CUDA C  a thread for each element counts those that come before it
 *
 * Start with fu_emit_sort. */
#include "raw.h"

#include <stdio.h>

/* before(v, i, w, j) in the text: whether element v at place i comes before w at j. */
static void define_before(fu_raw *k, const tn_tensor *t)
{
    const char *sign = t->attr->reverse ? ">" : "<", *first = t->attr->reverse ? "v" : "w",
               *second = t->attr->reverse ? "w" : "v";
    fu_line(&k->t, "#define first(v, w) (((v) %s (w)) | ((%s != %s) & (%s == %s)))", sign, first, first,
            second, second);
    fu_line(&k->t, "#define before(v, i, w, j) (first(v, w) | ((!first(w, v)) & ((i) < (j))))");
}

/* The value at place `at` of the line that begins at `line`. */
static void define_value(fu_raw *k, const tn_tensor *x, int axis)
{
    char element[120], value[200];
    snprintf(element, sizeof element, "x[line + (at) * %lld]", (long long)x->stride[axis]);
    snprintf(value, sizeof value, k->lang->load[x->dtype], element);
    fu_line(&k->t, "#define value(at) (%s)", value);
}

/* Place i, of the value v, goes down from the top of the first `size` of the heap. */
static void sift_down(fu_raw *k, const char *type)
{
    fu_line(&k->t, "int64_t at = 0;");
    fu_open(&k->t, "for (int64_t c = 1; c < size; c = 2 * at + 1) {");
    fu_line(&k->t, "int64_t j = heap(c);");
    fu_line(&k->t, "%s w = value(j);", type);
    fu_open(&k->t, "if (c + 1 < size) {");
    fu_line(&k->t, "const int64_t other = heap(c + 1);");
    fu_line(&k->t, "const %s u = value(other);", type);
    fu_line(&k->t, "if (before(w, j, u, other)) c++, j = other, w = u;");
    fu_close(&k->t);
    fu_line(&k->t, "if (!before(v, i, w, j)) break;");
    fu_line(&k->t, "heap(at) = j;");
    fu_line(&k->t, "at = c;");
    fu_close(&k->t);
    fu_line(&k->t, "heap(at) = i;");
}

static void heap_of_line(fu_raw *k, const char *type)
{
    fu_line(&k->t, "int64_t size = 0;");
    fu_open(&k->t, "for (int64_t i = 0; i < n; i++) {");
    fu_line(&k->t, "const %s v = value(i);", type);
    fu_open(&k->t, "if (size < most) {");
    fu_line(&k->t, "int64_t at = size++;");
    fu_open(&k->t, "for (; at > 0; at = (at - 1) / 2) {");
    fu_line(&k->t, "const int64_t j = heap((at - 1) / 2);");
    fu_line(&k->t, "if (!before(value(j), j, v, i)) break;");
    fu_line(&k->t, "heap(at) = j;");
    fu_close(&k->t);
    fu_line(&k->t, "heap(at) = i;");
    fu_line(&k->t, "continue;");
    fu_close(&k->t);
    fu_line(&k->t, "if (!before(v, i, value(heap(0)), heap(0))) continue;");
    sift_down(k, type);
    fu_close(&k->t);
    fu_open(&k->t, "for (size = most - 1; size > 0; size--) {");
    fu_line(&k->t, "const int64_t i = heap(size);");
    fu_line(&k->t, "const %s v = value(i);", type);
    fu_line(&k->t, "heap(size) = heap(0);");
    sift_down(k, type);
    fu_close(&k->t);
}

/* Opens the line of the result that `item` counts, and says where it begins. */
static void open_line(fu_raw *k, const tn_tensor *t, const tn_tensor *x, const char *item)
{
    const int axis = t->attr->axis;
    const long long inner = tn_extent(t->shape, axis + 1, t->ndim);
    char before[300], behind[300];
    fu_line(&k->t, "const int64_t inner = %s %% %lld, outer = %s / %lld;", item, inner, item, inner);
    fu_raw_decode(k, t, 0, axis, "outer");
    fu_raw_decode(k, t, axis + 1, t->ndim, "inner");
    fu_raw_index(x, 0, axis, "i", before, sizeof before);
    fu_raw_index(x, axis + 1, t->ndim, "i", behind, sizeof behind);
    fu_line(&k->t, "const int64_t line = %s + %s;", *before ? before : "0", *behind ? behind : "0");
}

int fu_emit_sort(fu_ctx *c, const fu_group *g)
{
    const tn_tensor *t = c->node[g->member[0]].t;
    const int axis = t->attr->axis;
    const long long inner = tn_extent(t->shape, axis + 1, t->ndim), n = t->in[0]->shape[axis],
                    most = t->shape[axis];
    const int64_t lines = tn_extent(t->shape, 0, axis) * inner;
    fu_stored x;
    fu_raw k;
    int r = fu_raw_find(c, t->in[0], &x);
    if (!r) r = fu_raw_open(&k, c, g, tn_op_get(t->op)->name, n);
    if (r) return r;
    const char *type = k.lang->type[fu_compute_dtype(x.t->dtype)];
    fu_raw_input(&k, &x, "x");
    fu_raw_output(&k, "out");
    define_before(&k, t);
    define_value(&k, x.t, axis);
    if (k.grid) {
        const char *item = fu_raw_each(&k, lines * n);
        fu_line(&k.t, "const int64_t n = %lld, most = %lld, i = %s %% n, of = %s / n;", n, most, item, item);
        open_line(&k, t, x.t, "of");
        fu_line(&k.t, "const %s v = value(i);", type);
        fu_line(&k.t, "int64_t rank = 0;");
        fu_open(&k.t, "for (int64_t j = 0; j < n; j++) {");
        fu_line(&k.t, "const %s w = value(j);", type);
        fu_line(&k.t, "rank += before(w, j, v, i);");
        fu_close(&k.t);
        fu_line(&k.t, "if (rank < most) out[(outer * most + rank) * %lld + inner] = i;", inner);
        fu_close(&k.t);
        return fu_raw_close(&k, "each element counts those before it", lines * n, n, FU_RAW_THREADS);
    }
    fu_line(&k.t, "const int64_t n = %lld, most = %lld;", n, most);
    open_line(&k, t, x.t, fu_raw_each(&k, lines));
    fu_line(&k.t, "#define heap(at) out[(outer * most + (at)) * %lld + inner]", inner);
    heap_of_line(&k, type);
    fu_close(&k.t);
    return fu_raw_close(&k, "a heap of the first places", lines, 8 * n, FU_RAW_THREADS);
}
