/* fuser_rig.h - runs a hand-built graph through the fuser on the CPU and through the reference interpreter,
 * and compares. A test gives a function that builds nodes from leaves; the rig makes the leaves
 * (deterministic numbers), calls it once per device, runs all roots as one segment and checks values and
 * kernel count. Read first: rig_check. */
#pragma once

#include "tests/test.h"
#include "src/core/convert.h"
#include "src/runtime/session.h"

enum { RIG_LEAVES = 8, RIG_ROOTS = 8 };

typedef struct rig_leaf {
    tn_dtype dtype;
    int ndim;
    int64_t shape[TN_MAX_DIMS];
    double low, high; /* integers are drawn from [low, high) */
} rig_leaf;

typedef struct rig_case {
    int n_leaf;
    rig_leaf leaf[RIG_LEAVES];
    int (*build)(tn_graph *g, tn_tensor *const *in, tn_tensor **root); /* returns the number of roots */
    int kernels;      /* launches and library calls expected; 0: not checked */
    double tolerance; /* of the largest magnitude of the result */
} rig_case;

/* A function that builds a case's graph. */
#define GRAPH(name)                                                                                          \
    static int name(__attribute__((unused)) tn_graph *g, tn_tensor *const *in, tn_tensor **root)
/* A case of the leaves behind its numbers. */
#define CASE(build, kernels, tolerance, ...)                                                                 \
    (rig_case)                                                                                               \
    {                                                                                                        \
        (int)(sizeof((rig_leaf[]){__VA_ARGS__}) / sizeof(rig_leaf)), {__VA_ARGS__}, build, kernels,          \
            tolerance                                                                                        \
    }
#define CHECK(...) rig_check(&CASE(__VA_ARGS__))

/* The last cache's size as the fuser is to believe; 0: as it is. */
static int64_t rig_last_bytes __attribute__((unused));

static tn_session *rig_open(tn_device_kind device)
{
    tn_session *s = tn_open_with(&(tn_options){
        .size = sizeof(tn_options), .device = device, .mode = TN_FUSED, .seed = 5, .log = quiet});
    assert_non_null(s);
    return s;
}

/* What leaves are made of, and graphs where they are drawn: the same on both devices. */
static rng rig_dice;

static inline double rig_random(void) /* [0, 1) */ { return rng_real(&rig_dice, 0, 1); }

static tn_tensor *rig_make(tn_session *s, const rig_leaf *l)
{
    size_t n = 1;
    for (int i = 0; i < l->ndim; i++) n *= (size_t)l->shape[i];
    double *v = malloc(n * sizeof *v + 8);
    char *data = malloc(n * sizeof *v + 8);
    assert_true(v && data);
    for (size_t i = 0; i < n; i++) {
        const double x = rng_real(&rig_dice, l->low, l->high);
        v[i] = l->dtype == TN_BOOL ? x < (l->low + l->high) / 2 : tn_dtype_is_float(l->dtype) ? x : floor(x);
    }
    tn_convert(data, l->dtype, v, TN_F64, n);
    tn_tensor *t = tn_from_at(s, data, l->dtype, l->ndim, l->shape, __FILE__, __LINE__);
    free(data);
    free(v);
    assert_non_null(t);
    return t;
}

/* Makes the leaves, begins a step and builds the case's graph in it. Returns the number of roots. */
static inline int rig_build(tn_session *s, const rig_case *c, tn_tensor **root)
{
    tn_tensor *in[RIG_LEAVES];
    rig_dice = (rng){12345};
    for (int i = 0; i < c->n_leaf; i++) in[i] = rig_make(s, &c->leaf[i]);
    assert_int_equal(tn_step_begin(s), 0);
    for (int i = 0; i < c->n_leaf; i++) in[i] = tn_use(tn_resolve(in[i]));
    return c->build(&s->graph, in, root);
}

/* The values of a node that has run, as doubles. */
static double *rig_values(tn_session *s, tn_tensor *n)
{
    size_t count = (size_t)tn_node_numel(n);
    double *v = malloc(count * sizeof *v + 8);
    const void *p = tn_node_data(n);
    assert_non_null(v);
    assert_non_null(p);
    for (size_t i = 0; i < count; i++)
        v[i] = tn_load_f64(p, tn_stored_dtype(&s->graph, (tn_dtype)n->dtype), i);
    return v;
}

static int rig_run(tn_session *s, const rig_case *c, tn_tensor **root)
{
    int n = rig_build(s, c, root);
    if (s->graph.error.status) fail_msg("%s", s->graph.error.text);
    for (int i = 0; i < n; i++) assert_non_null(root[i]);
    if (tn_run(s, n, root)) fail_msg("%s", s->graph.error.text);
    return n;
}

static inline void rig_check(const rig_case *c)
{
    tn_tensor *want[RIG_ROOTS], *got[RIG_ROOTS];
    tn_session *ref = rig_open(TN_REF), *cpu = rig_open(TN_CPU);
    if (rig_last_bytes) cpu->target.last_bytes = rig_last_bytes;
    int n = rig_run(ref, c, want);
    uint64_t before = cpu->stats.kernels + cpu->stats.library_calls;
    assert_int_equal(rig_run(cpu, c, got), n);
    int kernels = (int)(cpu->stats.kernels + cpu->stats.library_calls - before);
    for (int i = 0; i < n; i++) {
        double *w = rig_values(ref, want[i]), *v = rig_values(cpu, got[i]), scale = 1e-30, worst = 0;
        int64_t count = tn_node_numel(want[i]), at = 0;
        assert_int_equal(tn_node_numel(got[i]), count);
        for (int64_t k = 0; k < count; k++)
            if (isfinite(w[k]) && fabs(w[k]) > scale) scale = fabs(w[k]);
        for (int64_t k = 0; k < count; k++) {
            double d = w[k] == v[k] || (isnan(w[k]) && isnan(v[k])) ? 0 : fabs(w[k] - v[k]) / scale;
            if (!(d <= worst)) {
                worst = d;
                at = k;
            }
        }
        if (!(worst <= c->tolerance))
            fail_msg("root %d, element %lld: %.9g, expected %.9g (off by %.3g of the largest)", i,
                     (long long)at, v[at], w[at], worst);
        free(w);
        free(v);
    }
    if (c->kernels) assert_int_equal(kernels, c->kernels);
    tn_step_end(cpu);
    tn_step_end(ref);
    tn_close(cpu);
    tn_close(ref);
}

/* A case's graph, recorded and waiting in an open step. */
typedef struct rig_segment {
    tn_segment seg;
    tn_tensor *node[256], *leaf[256];
    uint8_t root[256];
} rig_segment;

static inline void rig_record(tn_session *s, const rig_case *c, rig_segment *out)
{
    tn_tensor *root[RIG_ROOTS];
    *out = (rig_segment){.seg = {.graph = &s->graph}};
    tn_segment *seg = &out->seg;
    seg->node = out->node;
    seg->leaf = out->leaf;
    seg->root = out->root;
    const int n = rig_build(s, c, root);
    for (uint32_t i = 0; i < s->graph.n_nodes; i++) {
        tn_tensor *t = s->graph.nodes[i];
        tn_kind k = tn_kind_of(t);
        if (t->base != t || k == TN_KIND_LEAF || k == TN_KIND_NUMBER) {
            if (tn_is_number(t) || (t->base->flags & TN_F_DONE)) out->leaf[seg->n_leaf++] = t;
            continue;
        }
        for (int r = 0; r < n; r++) out->root[seg->n_node] |= root[r] == t;
        out->node[seg->n_node++] = t;
    }
}

/* The plan of a case, for looking at its text. Free with tn_plan_free. */
static inline tn_plan *rig_plan(tn_session *s, const rig_case *c)
{
    rig_segment r;
    tn_plan *p = NULL;
    tn_errbuf err = {""};
    rig_record(s, c, &r);
    if (tn_plan_build(&r.seg, &s->target, &p, &err)) fail_msg("%s", err.text);
    tn_step_end(s);
    return p;
}

/* How many kernels of a case's plan have `what` in their texts; *steps: how many steps it has. */
static inline int rig_kernels_with(const rig_case *c, const char *what, int *steps)
{
    tn_session *s = rig_open(TN_CPU);
    tn_plan *p = rig_plan(s, c);
    int n = 0;
    for (int i = 0; i < p->n_step; i++)
        n += p->step[i].source.text && strstr(p->step[i].source.text, what);
    if (steps) *steps = p->n_step;
    tn_plan_free(p);
    tn_close(s);
    return n;
}
