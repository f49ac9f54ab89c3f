/* plan_checks.h - the plan of what waits in a session, made to be looked at and not run.
 *
 * A test records a few operators, looks, and asserts on kernels, values and reasons; the step goes on waiting
 * and may then be run. Read first: look. */
#pragma once

#include "tests/test.h"
#include "src/runtime/flush.h"
#include "tests/gpu_target.h"

typedef struct seen {
    tn_plan *plan;
    tn_flush_scratch f; /* f.node: the nodes that the plan speaks of */
    int kernels;        /* launches and library calls */
    int written;        /* values in memory that nobody asked for */
    int64_t bytes;
} seen;

/* The plan on `target`, as the step's end would run what waits, or, not `ending`, as a flush would, which
 * leaves what backward may ask for. */
static inline seen look_for(tn_session *s, bool ending, const tn_target *target)
{
    seen v = {0};
    for (uint32_t i = 0; i < s->graph.n_nodes; i++) {
        tn_tensor *n = s->graph.nodes[i];
        bool done = n->base->flags & TN_F_DONE || tn_is_number(n);
        bool asked = tn_node_written(n) || (n->flags & (TN_F_USER | TN_F_CONSUMED)) == TN_F_USER;
        if (!done && asked) assert_true(tn_list_push(&v.f.seed, n));
    }
    s->ending = ending;
    assert_int_equal(tn_segment_collect(s, &v.f), 0);
    s->ending = false;
    tn_segment seg = {.graph = &s->graph,
                      .node = v.f.node.at,
                      .n_node = v.f.node.n,
                      .leaf = v.f.leaf.at,
                      .n_leaf = v.f.leaf.n,
                      .root = v.f.root};
    tn_errbuf err = {""};
    if (tn_plan_build(&seg, target, &v.plan, &err)) fail_msg("%s", err.text);
    v.kernels = v.plan->n_step;
    for (int i = 0; i < v.plan->n_step; i++) v.bytes += v.plan->step[i].bytes;
    for (int i = 0; i < v.plan->n_value; i++) /* partial results of a split are no values of the program */
        v.written += !v.plan->value[i].root && v.plan->value[i].slot < v.f.node.n;
    return v;
}

static inline seen look(tn_session *s) { return look_for(s, true, &s->target); }

static inline int steps_named(const seen *v, const char *begins)
{
    int n = 0;
    for (int i = 0; i < v->plan->n_step; i++) n += !strncmp(v->plan->step[i].name, begins, strlen(begins));
    return n;
}

static inline void forget(seen *v)
{
    tn_plan_free(v->plan);
    tn_flush_scratch_free(&v->f);
    *v = (seen){0};
}

/* The kernels with their nodes, and why edges were cut. */
static inline void print_plan(const seen *v)
{
    const tn_plan *p = v->plan;
    for (int i = 0; i < p->n_step; i++) {
        print_error("  %s, %lld bytes:", p->step[i].name, (long long)p->step[i].bytes);
        for (int k = 0; k < p->step[i].n_nodes; k++) {
            int node = p->node_of[p->step[i].first_node + k];
            print_error(" %d:%s", node, tn_op_get((tn_op)v->f.node.at[node]->op)->name);
        }
        print_error("\n");
    }
    for (int i = 0; i < p->n_cut; i++)
        print_error("  cut %d:%s -> %d:%s: %s\n", p->cut[i].from,
                    tn_op_get((tn_op)v->f.node.at[p->cut[i].from]->op)->name, p->cut[i].to,
                    tn_op_get((tn_op)v->f.node.at[p->cut[i].to]->op)->name, tn_cut_text(p->cut[i].reason));
    for (int i = 0; i < p->n_value; i++)
        if (!p->value[i].root && p->value[i].slot < v->f.node.n)
            print_error("  written: %d:%s\n", p->value[i].slot,
                        tn_op_get((tn_op)v->f.node.at[p->value[i].slot]->op)->name);
}

/* The session's target with the numbers of an H100, of which the reference profile is. */
static inline tn_target like_h100(const tn_session *s)
{
    tn_target t = gpu_target(90);
    t.tf32 = s->target.tf32;
    t.tuned = s->target.tuned;
    t.profile = s->target.profile;
    return t;
}

/* The first step whose name begins so. */
static inline const tn_step *step_named(const seen *v, const char *begins)
{
    for (int i = 0; i < v->plan->n_step; i++)
        if (!strncmp(v->plan->step[i].name, begins, strlen(begins))) return &v->plan->step[i];
    return NULL;
}
