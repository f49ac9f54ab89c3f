/* case.h - what the files that measure one fusion share.
 *
 *   case.c     runs and figures: read it first
 *   setup.c    sessions, inputs in host memory, the copy, the kernel by hand
 *   compare.c  whether both modes and the kernel by hand compute the same */
#pragma once

#include "bench.h"
#include "inside.h"

enum variant {
    FORWARD_EAGER,
    FORWARD_FUSED,
    LOSS_EAGER,
    LOSS_FUSED,
    STEP_EAGER,
    STEP_FUSED,
    COPY_PLAIN,
    COPY_STREAM,
    READ_ONLY,
    FORWARD_CACHED, /* fused, of rows that stay in the caches */
    LOSS_CACHED,
    STEP_CACHED,
    HAND_FORWARD,
    HAND_STEP,
    N_VARIANT
};
enum { CHECK_DRAW = 1000 }; /* the random numbers that are compared */

/* Fused, on a part of the rows. */
struct few {
    struct in in;
    void *host[MAX_INPUTS + 1];
    double share;
};

struct setup {
    const struct options *o;
    const struct fusion *f;
    struct in in[2]; /* eager, fused */
    struct few few[2];
    int n_field;
    struct field field[MAX_INPUTS], g;
    void *host[MAX_INPUTS], *host_g;
    struct copies copy;
    const yardstick *hand;
    yard forward, step;
    int variant[N_VARIANT], n_variant; /* those that this case has */
};

bool set_up(struct setup *u, const struct options *o);
void unmake(struct setup *u);
tn_tensor *loss_of(const struct fusion *f, struct in *i, tn_tensor **out, int n);
/* The largest difference between the modes, of outs or gradients; a kernel by hand that is wrong is not
 * measured. */
double compare(struct setup *u, bool gradient);
