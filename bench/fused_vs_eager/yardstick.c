/* yardstick.c - the elementwise and loss cases by hand, in intrinsics; yard_norm.c has the norms.
 *
 * Each kernel is a function of a range of rows (yard_part) and a function that runs it by all threads and
 * adds up what the threads found. Rows are short enough for the first cache, so that a kernel reads a row
 * several times and memory once. Start with chain_forward and chain_step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "yard_norm.h"

#if defined(YARD_NO_VECTORS)
const yardstick *yard_find(const char *name)
{
    (void)name;
    return NULL;
}
int64_t yard_scratch_bytes(void) { return 1; }
#else

int64_t yard_scratch_bytes(void) { return (int64_t)sizeof(yard_scratch); }

void yard_begin(yard *y)
{
    yard_scratch *s = y->scratch;
    y->loss = 0;
    for (int i = 0; i < yard_threads(y->pool); i++) {
        s->loss[i * 8] = 0;
        for (int k = 0; k < 3; k++) memset(s->sum[i][k], 0, (size_t)y->c * sizeof(float));
    }
}

void yard_end(yard *y)
{
    yard_scratch *s = y->scratch;
    for (int i = 0; i < yard_threads(y->pool); i++) y->loss += s->loss[i * 8];
}

void yard_columns(yard *y, int which, float *out)
{
    yard_scratch *s = y->scratch;
    for (int64_t j = 0; j < y->c; j++) {
        double t = 0;
        for (int i = 0; i < yard_threads(y->pool); i++) t += (double)s->sum[i][which][j];
        out[j] = (float)t;
    }
}

/* Loops over the elements of rows [begin, end), which lie one after the other. */
#define ELEMENTS   for (int64_t i = begin * y->c; i < end * y->c; i += W)
#define PART(name) static void name(yard *y, int64_t begin, int64_t end, int worker)
#define FORWARD(name)                                                                                        \
    static void name##_forward(yard *y) { yard_run(y, name##_forward_part, y->n); }
#define STEP(name)                                                                                           \
    static void name##_step(yard *y)                                                                         \
    {                                                                                                        \
        yard_begin(y);                                                                                       \
        yard_run(y, name##_step_part, y->n);                                                                 \
        yard_end(y);                                                                                         \
    }

/* ---- chain: sigmoid(relu((x + y) * 2) - 1) ---- */

PART(chain_forward_part)
{
    const float *a = y->in[0], *b = y->in[1];
    float *o = y->out[0];
    (void)worker;
    ELEMENTS put(y, o + i, vsigmoid(vmax((vload(a + i) + vload(b + i)) * vset(2), vzero()) - vset(1)));
}

PART(chain_step_part)
{
    const float *a = y->in[0], *b = y->in[1];
    float *o = y->out[0];
    V loss = vzero(), two = vset(2);
    ELEMENTS
    {
        V t = (vload(a + i) + vload(b + i)) * two, s = vsigmoid(vmax(t, vzero()) - vset(1)),
          g = vload(y->g + i);
        loss = vfma(s, g, loss);
        put(y, o + i, vpositive(t, g * s * (vset(1) - s) * two, vzero()));
    }
    lose(y, worker, loss);
}
FORWARD(chain)
STEP(chain)

/* ---- siblings: sin(x), cos(x) ---- */

PART(siblings_forward_part)
{
    const float *a = y->in[0];
    V s, c;
    (void)worker;
    ELEMENTS
    {
        vsincos(vload(a + i), &s, &c);
        put(y, y->out[0] + i, s);
        put(y, y->out[1] + i, c);
    }
}

PART(siblings_step_part)
{
    const float *a = y->in[0];
    V s, c, loss = vzero();
    ELEMENTS
    {
        V g = vload(y->g + i);
        vsincos(vload(a + i), &s, &c);
        loss = vfma(g, s + c, loss);
        put(y, y->out[0] + i, g * (c - s));
    }
    lose(y, worker, loss);
}
FORWARD(siblings)
STEP(siblings)

/* ---- several consumers: a = x * y; relu(a), a * a ---- */

PART(multi_consumer_forward_part)
{
    const float *a = y->in[0], *b = y->in[1];
    (void)worker;
    ELEMENTS
    {
        V t = vload(a + i) * vload(b + i);
        put(y, y->out[0] + i, vmax(t, vzero()));
        put(y, y->out[1] + i, t * t);
    }
}

PART(multi_consumer_step_part)
{
    const float *a = y->in[0], *b = y->in[1];
    V loss = vzero();
    ELEMENTS
    {
        V v = vload(b + i), t = vload(a + i) * v, g = vload(y->g + i);
        loss = vfma(g, vfma(t, t, vmax(t, vzero())), loss);
        put(y, y->out[0] + i, g * v * (t + t + vpositive(t, vset(1), vzero())));
    }
    lose(y, worker, loss);
}
FORWARD(multi_consumer)
STEP(multi_consumer)

/* ---- mean((a - b)^2) ---- */

static void squares(yard *y, int64_t begin, int64_t end, int worker, float *out)
{
    const float *a = y->in[0], *b = y->in[1];
    V l[4] = {vzero(), vzero(), vzero(), vzero()}, f = vset((float)(2.0 / ((double)y->n * (double)y->c)));
    for (int64_t i = begin * y->c; i < end * y->c; i += 4 * W)
        for (int k = 0; k < 4 * W; k += W) {
            V d = vload(a + i + k) - vload(b + i + k);
            l[k / W] = vfma(d, d, l[k / W]);
            if (out) put(y, out + i + k, d * f);
        }
    lose(y, worker, l[0] + l[1] + l[2] + l[3]);
}

PART(chain_reduce_forward_part) { squares(y, begin, end, worker, NULL); }

PART(chain_reduce_step_part) { squares(y, begin, end, worker, y->out[0]); }

static void chain_reduce(yard *y, yard_part *fn)
{
    yard_begin(y);
    yard_run(y, fn, y->n);
    yard_end(y);
    y->loss /= (double)y->n * (double)y->c;
}

static void chain_reduce_forward(yard *y)
{
    chain_reduce(y, chain_reduce_forward_part);
    y->out[0][0] = (float)y->loss;
}

static void chain_reduce_step(yard *y) { chain_reduce(y, chain_reduce_step_part); }

/* ---- softmax, and cross entropy ---- */

/* The row's e^(x - max) into e; 1 / their sum, and the logarithm of the sum of e^x. */
static float exponentials(const float *x, int64_t c, float *e, float *log_sum)
{
    V m = vload(x), t = vzero();
    for (int64_t j = W; j < c; j += W) m = vmax(m, vload(x + j));
    float top = vtop(m);
    m = vset(top);
    for (int64_t j = 0; j < c; j += W) {
        V v = vexp(vload(x + j) - m);
        vstore(e + j, v);
        t += v;
    }
    float sum = vadd(t);
    if (log_sum) *log_sum = top + logf(sum);
    return 1 / sum;
}

PART(softmax_forward_part)
{
    (void)worker;
    float e[YARD_CHANNELS];
    for (int64_t i = begin; i < end; i++) {
        V r = vset(exponentials((const float *)y->in[0] + i * y->c, y->c, e, NULL));
        for (int64_t j = 0; j < y->c; j += W) put(y, y->out[0] + i * y->c + j, vload(e + j) * r);
    }
}

PART(softmax_step_part)
{
    float e[YARD_CHANNELS];
    for (int64_t i = begin; i < end; i++) {
        const float *g = y->g + i * y->c;
        V dot = vzero(), r = vset(exponentials((const float *)y->in[0] + i * y->c, y->c, e, NULL));
        for (int64_t j = 0; j < y->c; j += W) dot = vfma(vload(e + j), vload(g + j), dot);
        dot *= r;
        lose(y, worker, dot);
        V mean = vset(vadd(dot));
        for (int64_t j = 0; j < y->c; j += W)
            put(y, y->out[0] + i * y->c + j, vload(e + j) * r * (vload(g + j) - mean));
    }
}
FORWARD(softmax)
STEP(softmax)

static void entropy(yard *y, int64_t begin, int64_t end, int worker, bool gradient)
{
    float e[YARD_CHANNELS];
    const int32_t *label = y->in[1];
    yard_scratch *s = y->scratch;
    for (int64_t i = begin; i < end; i++) {
        const float *x = (const float *)y->in[0] + i * y->c;
        float log_sum, f = exponentials(x, y->c, e, &log_sum) / (float)y->n;
        s->loss[worker * 8] += (double)(log_sum - x[label[i]]);
        if (!gradient) continue;
        e[label[i]] -= 1 / ((float)y->n * f);
        for (int64_t j = 0; j < y->c; j += W) put(y, y->out[0] + i * y->c + j, vload(e + j) * vset(f));
    }
}

PART(cross_entropy_forward_part) { entropy(y, begin, end, worker, false); }

PART(cross_entropy_step_part) { entropy(y, begin, end, worker, true); }
STEP(cross_entropy)

static void cross_entropy_forward(yard *y)
{
    yard_begin(y);
    yard_run(y, cross_entropy_forward_part, y->n);
    yard_end(y);
    y->out[0][0] = (float)(y->loss / (double)y->n);
}

/* ---- AdamW: the numbers are those of the case; in: p g m v, out: the same p m v in place ---- */

PART(adamw_forward_part)
{
    float *p = y->out[0], *m = y->out[1], *v = y->out[2];
    V keep = vset(1 - 1e-3f * 0.01f), b1 = vset(1 - 0.9f), b2 = vset(1 - 0.999f), eps = vset(1e-8f);
    V lr = vset(1e-3f / (1 - 0.9f)), root = vset(1 / sqrtf(1 - 0.999f));
    (void)worker;
    ELEMENTS
    {
        V g = vload(y->g + i), a = vload(m + i), b = vload(v + i);
        a = vfma(b1, g - a, a);
        b = vfma(b2, g * g - b, b);
        put(y, m + i, a);
        put(y, v + i, b);
        put(y, p + i, vload(p + i) * keep - lr * a / vfma(vsqrt(b), root, eps));
    }
}
FORWARD(adamw)

/* ---- */

const yardstick *yard_find(const char *name)
{
    static const yardstick all[] = {
        {"chain", chain_forward, chain_step, 1, 1},
        {"siblings", siblings_forward, siblings_step, 2, 1},
        {"multi_consumer", multi_consumer_forward, multi_consumer_step, 2, 1},
        {"chain_reduce", chain_reduce_forward, chain_reduce_step, 1, 1},
        {"softmax", softmax_forward, softmax_step, 1, 1},
        {"layer_norm_gelu", yard_layer_norm_gelu_forward, yard_layer_norm_gelu_step, 1, 3},
        {"rms_norm_silu", yard_rms_norm_silu_forward, yard_rms_norm_silu_step, 1, 2},
        {"residual_dropout_norm", yard_residual_forward, yard_residual_step, 2, 4},
        {"batch_norm_relu", yard_batch_norm_relu_forward, yard_batch_norm_relu_step, 1, 3},
        {"cross_entropy", cross_entropy_forward, cross_entropy_step, 1, 1},
        {"adamw", adamw_forward, NULL, 0, 0},
    };
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, name)) return &all[i];
    return NULL;
}
#endif
