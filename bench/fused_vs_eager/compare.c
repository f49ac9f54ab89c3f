/* compare.c - whether both modes and the kernel written by hand compute the same. Start with compare. */
#include <math.h>
#include <stdlib.h>

#include "case.h"

/* The largest |a - b| / (1 + |a|). */
static double difference(const float *a, const float *b, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]) / (1 + fabs((double)a[i]));
        if (!(d <= most)) most = d;
    }
    return most;
}

/* The root of sum((a - b)^2) over sum(a^2). Rounding may take an element over the kink of a relu: one of
 * millions says nothing about a kernel. */
static double distance(const float *a, const float *b, int64_t n)
{
    double apart = 0, size = 1e-30;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        apart += d * d;
        size += (double)a[i] * (double)a[i];
    }
    return sqrt(apart / size);
}

/* Out or gradient number `which` of a step, in host memory; NULL when there is none. */
static float *value_of(struct setup *u, struct in *i, bool gradient, int which, int64_t *count)
{
    tn_tensor *out[MAX_OUTS], *t = NULL;
    float *p = NULL;
    tn_set_rng(i->s, 1, CHECK_DRAW);
    tn_step_begin(i->s);
    int n = u->f->run(i, out);
    if (gradient) {
        tn_backward(loss_of(u->f, i, out, n));
        for (int k = 0, at = 0; k < u->n_field && !t; k++)
            if (u->field[k].gradient && at++ == which) t = tn_gradient(i->t[k]);
    } else if (which < n)
        t = out[which];
    if (t && (p = host_array((*count = tn_numel(t)) * 4))) tn_read(t, TN_F32, p, (size_t)*count * 4);
    tn_step_end(i->s);
    return p;
}

double compare(struct setup *u, bool gradient)
{
    double most = 0, hand = 0;
    for (int which = 0; which < MAX_INPUTS; which++) {
        int64_t n = 0;
        float *a = value_of(u, &u->in[0], gradient, which, &n),
              *b = a ? value_of(u, &u->in[1], gradient, which, &n) : NULL;
        const float *h = u->hand ? (gradient ? u->step.out[which] : u->forward.out[which]) : NULL;
        if (a && b) most = fmax(most, difference(a, b, n));
        if (a && h) hand = fmax(hand, distance(a, h, n));
        free(b);
        free(a);
        if (!a) break;
    }
    if (!(hand <= 1e-2)) {
        fprintf(stderr, "fused_vs_eager: %s: the kernel written by hand is off by %g\n", u->f->name, hand);
        u->hand = NULL;
    }
    return most;
}
