/* autograd.h - reverse mode over the step graph.
 *
 * The walk (walk.c) visits the nodes that lead from a loss to what requires a gradient, newest first, and
 * appends gradient nodes to the same graph, written in the same builder calls as any operator (rules.c), so
 * that they fuse, run on each device and can be differentiated again. Broadcasting is undone in one place:
 * the rule of EXPAND. It knows no session: what runs the nodes is passed in.
 *
 * Read first: tn_walk in walk.c, then the table of ops.def, whose backward columns are expanded in rules.c.
 */
#pragma once

#include "../src/core/build.h"

/* Runs n nodes now; 0 or a status. Called after the gradient of each call is recorded, so that in eager mode
 * a backward is as many launches as there are operators. NULL: nothing runs until someone reads. */
typedef int tn_run_fn(tn_session *s, int n, tn_tensor *const *nodes);

typedef struct tn_walk_options {
    tn_run_fn *run;
    bool keep;    /* the gradients are to be differentiated again */
    int n_wanted; /* > 0: only these, into `grads`; 0: every leaf, into tn_tensor.grad */
    tn_tensor *const *wanted;
    tn_tensor **grads;
} tn_walk_options;

int tn_walk(tn_tensor *loss, const tn_walk_options *options);

/* again.c: n as its gradient shall read it, with its operands: what is not kept of these is made again. NULL
 * on error, which is reported. */
tn_tensor *tn_read_again(tn_graph *g, tn_tensor *n);
/* Opens a call of backward for the gradient of `of`, or for what is made of it `again`. false: no memory, reported. */
bool tn_backward_call(tn_graph *g, tn_call *of, const char *name, bool again);

/* rules.c: gradients of n's inputs that require one, from g, the gradient of n. gin[i] stays NULL where there
 * is none. False on error, which is reported. */
bool tn_backward_of(tn_tensor *n, tn_tensor *g, tn_tensor **gin);
