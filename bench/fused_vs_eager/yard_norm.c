/* yard_norm.c - the normalising cases by hand.
 *
 * Row norms: a row is read into the first cache, its statistics follow, then what is written; gradients of
 * weight and bias are summed by each worker for itself. Channel norms take a pass over all rows for the
 * statistics, one for two more sums in the whole step, and a last one that writes. eps is 1e-5. Start with
 * layer_row. */
#include <math.h>

#include "yard_norm.h"

#if !defined(YARD_NO_VECTORS)

#include "src/device/prelude/math.h"
#include "src/device/prelude/philox.h"

#define PART(name) static void name(yard *y, int64_t begin, int64_t end, int worker)

static void run_step(yard *y, yard_part *fn, int weight, int bias)
{
    yard_begin(y);
    yard_run(y, fn, y->n);
    yard_end(y);
    yard_columns(y, 0, y->out[weight]);
    if (bias) yard_columns(y, 1, y->out[bias]);
}

/* ---- rows ---- */

/* (x - mean) / sqrt(var + eps) into h; 1 / sqrt(var + eps). */
static float layer_row(const float *x, int64_t c, float *h)
{
    V a = vzero(), b = vzero(), q = vzero(), r = vzero();
    for (int64_t j = 0; j < c; j += 2 * W) {
        a += vload(x + j);
        b += vload(x + j + W);
    }
    V mean = vset(vadd(a + b) / (float)c);
    for (int64_t j = 0; j < c; j += 2 * W) {
        V d = vload(x + j) - mean, e = vload(x + j + W) - mean;
        q = vfma(d, d, q);
        r = vfma(e, e, r);
    }
    float scale = 1 / sqrtf(vadd(q + r) / (float)c + 1e-5f);
    V f = vset(scale);
    for (int64_t j = 0; j < c; j += W) vstore(h + j, (vload(x + j) - mean) * f);
    return scale;
}

/* x / sqrt(mean(x^2) + eps) into h; 1 / that root. */
static float rms_row(const float *x, int64_t c, float *h)
{
    V q = vzero(), r = vzero();
    for (int64_t j = 0; j < c; j += 2 * W) {
        q = vfma(vload(x + j), vload(x + j), q);
        r = vfma(vload(x + j + W), vload(x + j + W), r);
    }
    float scale = 1 / sqrtf(vadd(q + r) / (float)c + 1e-5f);
    for (int64_t j = 0; j < c; j += W) vstore(h + j, vload(x + j) * vset(scale));
    return scale;
}

/* From t = d loss / d(weight * h) * weight and its sums: the gradient of the row's input, plus `more`. */
static void row_gradient(const yard *y, const float *t, const float *h, float scale, bool centred,
                         const float *more, float *out)
{
    V a = vzero(), b = vzero(), f = vset(scale);
    for (int64_t j = 0; j < y->c; j += W) {
        a += vload(t + j);
        b = vfma(vload(t + j), vload(h + j), b);
    }
    V mean = centred ? vset(vadd(a) / (float)y->c) : vzero(), dot = vset(vadd(b) / (float)y->c);
    for (int64_t j = 0; j < y->c; j += W) {
        V d = f * (vload(t + j) - mean - vload(h + j) * dot);
        if (more) d += vload(more + j);
        put(y, out + j, d);
    }
}

PART(layer_norm_gelu_forward_part)
{
    (void)worker;
    float h[YARD_CHANNELS];
    const float *w = y->in[1], *b = y->in[2];
    V slope;
    for (int64_t i = begin; i < end; i++) {
        layer_row((const float *)y->in[0] + i * y->c, y->c, h);
        for (int64_t j = 0; j < y->c; j += W)
            put(y, y->out[0] + i * y->c + j, vgelu(vfma(vload(h + j), vload(w + j), vload(b + j)), &slope));
    }
}

PART(layer_norm_gelu_step_part)
{
    float h[YARD_CHANNELS], t[YARD_CHANNELS];
    const float *w = y->in[1], *b = y->in[2];
    float(*sum)[YARD_CHANNELS] = ((yard_scratch *)y->scratch)->sum[worker];
    for (int64_t i = begin; i < end; i++) {
        V loss = vzero(), slope;
        float scale = layer_row((const float *)y->in[0] + i * y->c, y->c, h);
        for (int64_t j = 0; j < y->c; j += W) {
            V x = vload(h + j), k = vload(w + j), g = vload(y->g + i * y->c + j);
            loss = vfma(g, vgelu(vfma(x, k, vload(b + j)), &slope), loss);
            V d = g * slope;
            vstore(sum[0] + j, vfma(d, x, vload(sum[0] + j)));
            vstore(sum[1] + j, d + vload(sum[1] + j));
            vstore(t + j, d * k);
        }
        lose(y, worker, loss);
        row_gradient(y, t, h, scale, true, NULL, y->out[0] + i * y->c);
    }
}

void yard_layer_norm_gelu_forward(yard *y) { yard_run(y, layer_norm_gelu_forward_part, y->n); }

void yard_layer_norm_gelu_step(yard *y) { run_step(y, layer_norm_gelu_step_part, 1, 2); }

PART(rms_norm_silu_forward_part)
{
    (void)worker;
    float h[YARD_CHANNELS];
    const float *w = y->in[1];
    for (int64_t i = begin; i < end; i++) {
        rms_row((const float *)y->in[0] + i * y->c, y->c, h);
        for (int64_t j = 0; j < y->c; j += W) {
            V x = vload(h + j) * vload(w + j);
            put(y, y->out[0] + i * y->c + j, x * vsigmoid(x));
        }
    }
}

PART(rms_norm_silu_step_part)
{
    float h[YARD_CHANNELS], t[YARD_CHANNELS];
    const float *w = y->in[1];
    float(*sum)[YARD_CHANNELS] = ((yard_scratch *)y->scratch)->sum[worker];
    for (int64_t i = begin; i < end; i++) {
        V loss = vzero();
        float scale = rms_row((const float *)y->in[0] + i * y->c, y->c, h);
        for (int64_t j = 0; j < y->c; j += W) {
            V x = vload(h + j), k = vload(w + j), g = vload(y->g + i * y->c + j), u = x * k, s = vsigmoid(u);
            loss = vfma(g * u, s, loss);
            V d = g * s * vfma(u, vset(1) - s, vset(1));
            vstore(sum[0] + j, vfma(d, x, vload(sum[0] + j)));
            vstore(t + j, d * k);
        }
        lose(y, worker, loss);
        row_gradient(y, t, h, scale, false, NULL, y->out[0] + i * y->c);
    }
}

void yard_rms_norm_silu_forward(yard *y) { yard_run(y, rms_norm_silu_forward_part, y->n); }

void yard_rms_norm_silu_step(yard *y) { run_step(y, rms_norm_silu_step_part, 1, 0); }

/* ---- h = x + dropout(z), layer_norm(h) ---- */

static uint32_t bound_of(const yard *y) { return (uint32_t)(y->p * 4294967296.0); }

/* Row i of h, and its random words. */
static void residual_row(const yard *y, int64_t i, uint32_t *word, float *h)
{
    const float *x = (const float *)y->in[0] + i * y->c, *z = (const float *)y->in[1] + i * y->c;
    V f = vset((float)(1 / (1 - y->p)));
    uint32_t bound = bound_of(y);
    tn_philox_fill(y->seed, y->draw, (uint64_t)(i * y->c), y->c, word);
    for (int64_t j = 0; j < y->c; j += W)
        vstore(h + j, vload(x + j) + vkeep(vload(z + j) * f, word + j, bound));
}

PART(residual_forward_part)
{
    (void)worker;
    float s[YARD_CHANNELS], h[YARD_CHANNELS];
    uint32_t word[YARD_CHANNELS];
    const float *w = y->in[2], *b = y->in[3];
    for (int64_t i = begin; i < end; i++) {
        residual_row(y, i, word, s);
        layer_row(s, y->c, h);
        for (int64_t j = 0; j < y->c; j += W) {
            put(y, y->out[0] + i * y->c + j, vload(s + j));
            put(y, y->out[1] + i * y->c + j, vfma(vload(h + j), vload(w + j), vload(b + j)));
        }
    }
}

PART(residual_step_part)
{
    float s[YARD_CHANNELS], h[YARD_CHANNELS], t[YARD_CHANNELS];
    uint32_t word[YARD_CHANNELS], bound = bound_of(y);
    const float *w = y->in[2], *b = y->in[3];
    float(*sum)[YARD_CHANNELS] = ((yard_scratch *)y->scratch)->sum[worker];
    yard plain = *y;
    plain.stream = false;
    for (int64_t i = begin; i < end; i++) {
        const float *g = y->g + i * y->c;
        V loss = vzero(), f = vset((float)(1 / (1 - y->p)));
        residual_row(y, i, word, s);
        float scale = layer_row(s, y->c, h);
        for (int64_t j = 0; j < y->c; j += W) {
            V x = vload(h + j), k = vload(w + j), d = vload(g + j);
            loss = vfma(d, vfma(x, k, vload(b + j)) + vload(s + j), loss);
            vstore(sum[0] + j, vfma(d, x, vload(sum[0] + j)));
            vstore(sum[1] + j, d + vload(sum[1] + j));
            vstore(t + j, d * k);
        }
        lose(y, worker, loss);
        row_gradient(&plain, t, h, scale, true, g, s);
        for (int64_t j = 0; j < y->c; j += W) {
            put(y, y->out[0] + i * y->c + j, vload(s + j));
            put(y, y->out[1] + i * y->c + j, vkeep(vload(s + j) * f, word + j, bound));
        }
    }
}

void yard_residual_forward(yard *y) { yard_run(y, residual_forward_part, y->n); }

void yard_residual_step(yard *y) { run_step(y, residual_step_part, 2, 3); }

/* ---- channels ---- */

enum { TOGETHER = 16 }; /* rows added up before they go to a worker's sums */

/* Sums over the rows of x - first row, and of its square. */
PART(channel_part)
{
    const float *first = y->in[0];
    float(*sum)[YARD_CHANNELS] = ((yard_scratch *)y->scratch)->sum[worker];
    for (int64_t i = begin; i < end; i += TOGETHER)
        for (int64_t j = 0; j < y->c; j += W) {
            V a = vload(sum[0] + j), b = vload(sum[1] + j), shift = vload(first + j);
            for (int64_t k = i; k < i + TOGETHER && k < end; k++) {
                V d = vload(first + k * y->c + j) - shift;
                a += d;
                b = vfma(d, d, b);
            }
            vstore(sum[0] + j, a);
            vstore(sum[1] + j, b);
        }
}

/* column[0] and [1]: y = x * column[0] + column[1], h = x * column[2] + column[3] */
static void channel_statistics(yard *y)
{
    yard_scratch *s = y->scratch;
    const float *x = y->in[0], *w = y->in[1], *b = y->in[2];
    yard_begin(y);
    yard_run(y, channel_part, y->n);
    yard_columns(y, 0, s->column[0]);
    yard_columns(y, 1, s->column[1]);
    for (int64_t j = 0; j < y->c; j++) {
        double n = (double)y->n, d = (double)s->column[0][j] / n, var = (double)s->column[1][j] / n - d * d;
        double scale = 1 / sqrt(var + 1e-5), mean = (double)x[j] + d;
        s->column[2][j] = (float)scale;
        s->column[3][j] = (float)(-mean * scale);
        s->column[0][j] = (float)(scale * (double)w[j]);
        s->column[1][j] = (float)((double)b[j] - mean * scale * (double)w[j]);
    }
}

PART(batch_norm_write_part)
{
    yard_scratch *s = y->scratch;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < y->c; j += W) {
            V x = vload((const float *)y->in[0] + i * y->c + j);
            put(y, y->out[0] + i * y->c + j,
                vmax(vfma(x, vload(s->column[0] + j), vload(s->column[1] + j)), vzero()));
        }
}

void yard_batch_norm_relu_forward(yard *y)
{
    channel_statistics(y);
    yard_run(y, batch_norm_write_part, y->n);
}

/* Sums of the gradient behind relu, alone and times h; the loss. */
PART(batch_norm_sums_part)
{
    yard_scratch *s = y->scratch;
    float(*sum)[YARD_CHANNELS] = s->sum[worker];
    V loss = vzero();
    for (int64_t i = begin; i < end; i += TOGETHER)
        for (int64_t j = 0; j < y->c; j += W) {
            V a = vload(sum[0] + j), b = vload(sum[1] + j);
            for (int64_t k = i; k < i + TOGETHER && k < end; k++) {
                V x = vload((const float *)y->in[0] + k * y->c + j), g = vload(y->g + k * y->c + j);
                V out = vfma(x, vload(s->column[0] + j), vload(s->column[1] + j));
                g = vpositive(out, g, vzero());
                loss = vfma(out, g, loss);
                a = vfma(g, vfma(x, vload(s->column[2] + j), vload(s->column[3] + j)), a);
                b += g;
            }
            vstore(sum[0] + j, a);
            vstore(sum[1] + j, b);
        }
    lose(y, worker, loss);
}

PART(batch_norm_gradient_part)
{
    yard_scratch *s = y->scratch;
    const float *w = y->out[1], *b = y->out[2];
    V f = vset(1 / (float)y->n);
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < y->c; j += W) {
            V x = vload((const float *)y->in[0] + i * y->c + j), k = vload(s->column[0] + j);
            V out = vfma(x, k, vload(s->column[1] + j)),
              h = vfma(x, vload(s->column[2] + j), vload(s->column[3] + j));
            V g = vpositive(out, vload(y->g + i * y->c + j), vzero());
            put(y, y->out[0] + i * y->c + j, k * (g - f * vfma(h, vload(w + j), vload(b + j))));
        }
}

void yard_batch_norm_relu_step(yard *y)
{
    channel_statistics(y);
    run_step(y, batch_norm_sums_part, 1, 2);
    yard_run(y, batch_norm_gradient_part, y->n);
}
#endif
