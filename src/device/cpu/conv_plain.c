/* conv_plain.c - our own convolution of any kind, forward and data gradient, as products of windows with
 * weights.
 *
 *   forward         y[pixel, o]  = sum over (r, s, i)  window of x [pixel, (r, s, i)] * w[o, r, s, i]
 *   data gradient   gx[pixel, i] = sum over (r, s, o)  window of gy[pixel, (r, s, o)] * w[o, r, s, i]
 *
 * What windows are is said in conv_windows.h. Groups are convolutions of their own; what is wider than its
 * storage is widened as it is copied or packed. Each element is summed in one order, however the work is cut.
 * Read first: tn_conv2d_plain, then run_bands. */
#include "conv_windows.h"
#include "conv_few.h"
#include "cpu_lib.h"
#include "pool.h"
#include "slots.h"
#include "../../core/int64.h"

#include <string.h>

enum {
    BAND_BYTES = 128 << 10, /* of a band's copy */
    ASIDE_BYTES = 16 << 10,
    B_BYTES = 384 << 10, /* of packed weights that a band meets at a time */
    SHARES = 3,          /* units of each thread, at least */
};

typedef struct job {
    tn_windows w;
    int64_t k;             /* of all phases: rows of a packed panel */
    int64_t slices, slice; /* of columns of the products; columns of one */
    int64_t aside;         /* rows of sums at once that are narrowed when they are whole */
    bool gaps;             /* some phases have no taps */
    char *packed;          /* [group][panel][phase][r, s, channel][nr] */
    tn_slots slots;
} job;

/* A phase of the pass, of which the data gradient has many; its taps follow on those of the phases before. */
typedef struct phase {
    tn_conv_axis y, x;
    int64_t next, first, taps;
} phase;

/* The first of {.next = 0}, or the one behind *p; false: there is none. */
static bool next_phase(const tn_conv2d_desc *c, phase *p)
{
    const int64_t along = tn_conv_phases(c, 1);
    if (p->next == tn_conv_phases(c, 0) * along) return false;
    p->first += p->taps;
    p->y = tn_conv_axis_of(c, 0, p->next / along);
    p->x = tn_conv_axis_of(c, 1, p->next++ % along);
    p->taps = p->y.taps * p->x.taps;
    return true;
}

/* ---- weights ---- */

/* One tap of `cols` filters, lds apart, as rows of a panel. */
static void turn(const tn_windows *w, const char *s, int64_t lds, int64_t cols, char *d)
{
    enum { STEP = 64 };
    float wide[TN_GEMM_MAX_NR * STEP];
    if (w->fs == w->cs) {
        tn_pack_transpose(tn_gemm_compute(w->c->dtype), s, lds, cols, w->from, d, w->kn->nr);
        return;
    }
    for (int64_t i = 0; i < w->from; i += STEP, d += STEP * w->kn->nr * w->cs) {
        const int64_t n = tn_min64(STEP, w->from - i);
        for (int64_t o = 0; o < cols; o++)
            tn_widen_floats(w->c->dtype, s + (o * lds + i) * w->es, wide + o * STEP, n);
        tn_pack_transpose(TN_F32, wide, STEP, cols, n, d, w->kn->nr);
    }
}

/* Of few results, each one's weights in the order of windows. */
static void pack_few(const job *v, int64_t group)
{
    const tn_windows *w = &v->w;
    const tn_conv2d_desc *c = w->c;
    const bool back = c->pass == TN_CONV_DATA_GRAD;
    float *d = (float *)(void *)v->packed + group * w->to * v->k;
    for (phase p = {.next = 0}; next_phase(c, &p);) {
        for (int64_t t = 0; t < p.taps; t++, d += w->from) {
            const int64_t r = p.y.tap + t / p.x.taps * p.y.tap_step,
                          s = p.x.tap + t % p.x.taps * p.x.tap_step;
            const int64_t all = w->taps * (back ? w->to : w->from),
                          tap = (r * c->kw + s) * (back ? w->to : w->from);
            const int64_t from = group * (back ? w->from : w->to) * all + tap;
            for (int64_t o = 0; o < w->to; o++)
                for (int64_t i = 0; i < w->from; i++)
                    tn_widen_floats(
                        c->dtype, (const char *)c->in1 + (from + (back ? i * all + o : o * all + i)) * w->es,
                        d + o * v->k + i, 1);
        }
    }
}

/* One panel of one group. */
static void run_pack(void *arg, int64_t begin, int64_t end)
{
    const job *v = arg;
    const tn_windows *w = &v->w;
    const tn_conv2d_desc *c = w->c;
    const int64_t nr = w->kn->nr, panels = tn_ceil_div(w->to, nr), step = w->from * nr * w->cs;
    for (int64_t u = begin; u < end; u++) {
        const int64_t group = u / panels, j0 = u % panels * nr, cols = tn_min64(nr, w->to - j0);
        if (w->few) {
            pack_few(v, group);
            continue;
        }
        char *d = v->packed + u * v->k * nr * w->cs;
        if (cols < nr) memset(d, 0, (size_t)(v->k * nr * w->cs));
        for (phase p = {.next = 0}; next_phase(c, &p);) {
            for (int64_t t = 0; t < p.taps; t++, d += step) {
                const int64_t r = p.y.tap + t / p.x.taps * p.y.tap_step,
                              s = p.x.tap + t % p.x.taps * p.x.tap_step;
                const char *from = (const char *)c->in1;
                if (c->pass == TN_CONV_FORWARD) {
                    from += ((group * w->to + j0) * w->taps + r * c->kw + s) * w->from * w->fs;
                    turn(w, from, w->taps * w->from, cols, d);
                } else {
                    from += ((group * w->from * w->per * w->taps + r * c->kw + s) * w->to + j0) * w->es;
                    if (w->per > 1)
                        tn_pack_pairs((const void *)from, w->taps * w->to, cols, w->from * w->per, (void *)d,
                                      nr);
                    for (int64_t o = 0; w->per == 1 && o < w->from; o++)
                        tn_widen_floats(c->dtype, from + o * w->taps * w->to * w->es, d + o * nr * w->cs,
                                        cols);
                }
            }
        }
    }
}

/* ---- results ---- */

/* Of pixel p of line l of an image: the first result of its group. */
static char *result(const tn_windows *w, const tn_band *b, const phase *p, int64_t l, int64_t x)
{
    const tn_conv2d_desc *c = w->c;
    const bool back = c->pass == TN_CONV_DATA_GRAD;
    const int64_t width = back ? c->w : c->ow,
                  line = b->image * (back ? c->h : c->oh) + p->y.to + l * p->y.to_step;
    return (char *)c->out +
           ((line * width + p->x.to + x * p->x.to_step) * w->to_all + b->group * w->to) * w->es;
}

/* Columns [j0, j1) of a phase's results: the product of any line of them, but for what differs. */
typedef struct strip {
    const phase *p;
    tn_gemm_block g;
    bool runs;        /* a window's rows are one run each, or its columns are */
    int64_t row;      /* elements of a window's row */
    int64_t out_step; /* from one pixel's results to the next one's */
    const char *weights;
    const void *bias;
    char *aside;
} strip;

static strip strip_of(const job *v, const phase *p, int64_t group, int64_t j0, int64_t j1, char *aside)
{
    const tn_windows *w = &v->w;
    const int64_t nr = w->kn->nr, width = j1 - j0;
    const bool narrow = w->es != w->cs;
    strip s = {.p = p, .row = p->x.taps * w->from, .out_step = p->x.to_step * w->to_all, .aside = aside};
    s.runs = p->x.apart * w->column == w->from || p->x.taps == 1;
    s.weights =
        v->packed + ((group * tn_ceil_div(w->to, nr) * nr + j0) * v->k + p->first * w->from * nr) * w->cs;
    if (w->c->bias) {
        const char *bias = (const char *)w->c->bias + (group * w->to + j0) * w->es;
        s.bias = bias;
        if (narrow) s.bias = aside + v->aside * width * w->cs;
        if (narrow) tn_widen_floats(w->c->dtype, bias, aside + v->aside * width * w->cs, width);
    }
    s.g = (tn_gemm_block){.a_step = w->pixel,
                          .cols = width,
                          .kc = w->patches || !s.runs ? s.row : 0,
                          .b = s.weights,
                          .ldb = nr,
                          .b_step = v->k * nr,
                          .ldc = narrow ? width : s.out_step,
                          .bias = s.bias,
                          .relu = w->c->epilogue == TN_EPI_RELU};
    if (w->patches)
        s.g.kc = w->taps * w->from;
    else if (s.runs)
        s.g.run = s.row, s.g.a_jump = p->y.apart * w->row - s.row;
    else
        s.g.runs = p->x.taps, s.g.run = w->from, s.g.a_jump = p->x.apart * w->column - w->from;
    return s;
}

/* The products of `rows` windows at a, by rows [r0, r1) of them. */
static void windows(const tn_windows *w, strip *s, const char *a, int64_t rows, void *c, int64_t r0,
                    int64_t r1)
{
    const int64_t down = s->p->y.apart * w->row, panel = s->row * w->kn->nr;
    tn_gemm_block *g = &s->g;
    g->rows = (int)rows, g->a = a, g->c = c;
    if (w->patches) {
        w->kn->block(g);
    } else if (s->runs) {
        g->runs = r1 - r0, g->kc = g->runs * s->row;
        g->a = a + r0 * down * w->cs, g->b = s->weights + r0 * panel * w->cs;
        w->kn->block(g);
    } else {
        for (int64_t r = r0; r < r1; r++) {
            g->a = a + r * down * w->cs, g->b = s->weights + r * panel * w->cs;
            g->accumulate = r > r0;
            g->bias = r + 1 < r1 ? NULL : s->bias;
            g->relu = r + 1 == r1 && w->c->epilogue == TN_EPI_RELU;
            w->kn->block(g);
        }
    }
}

static void few(const job *v, const strip *s, int64_t group, const char *a, int64_t pixels, char *out,
                int64_t r0, int64_t r1)
{
    const tn_windows *w = &v->w;
    const phase *p = s->p;
    const float *weights = (const float *)(const void *)v->packed + group * w->to * v->k;
    const bool narrow = w->es != w->cs;
    tn_few f = {.a = (const float *)(const void *)a + r0 * p->y.apart * w->row,
                .w = weights + p->first * w->from + r0 * s->row,
                .bias = s->bias,
                .out = (float *)(void *)(narrow ? s->aside : out),
                .pixel = w->pixel,
                .out_step = narrow ? w->to : s->out_step,
                .rows = r1 - r0,
                .down = p->y.apart * w->row,
                .columns = s->runs ? 1 : p->x.taps,
                .along = p->x.apart * w->column,
                .run = s->runs ? s->row : w->from,
                .results = w->to,
                .w_step = v->k,
                .relu = s->g.relu};
    for (int64_t i = 0; i < pixels; i += f.pixels, f.a += f.pixels * f.pixel) {
        f.pixels = tn_min64(pixels - i, narrow ? v->aside : pixels);
        tn_few_results(&f);
        for (int64_t q = 0, n; narrow && q < f.pixels;
             q += n) { /* many at once: a call costs as much as many */
            enum { ONCE = 64 };
            uint16_t some[ONCE * TN_FEW_RESULTS];
            n = tn_min64(ONCE, f.pixels - q);
            tn_narrow_floats(w->c->dtype, f.out + q * w->to, some, n * w->to);
            for (int64_t k = 0; k < n; k++)
                for (int64_t o = 0; o < w->to; o++)
                    ((uint16_t *)(void *)out)[(i + q + k) * s->out_step + o] = some[k * w->to + o];
        }
    }
}

/* A line of windows, or all patches of a band; narrow results by way of `aside`. */
static void results(const job *v, strip *s, const char *a, int64_t pixels, char *out, int64_t r0, int64_t r1)
{
    const tn_windows *w = &v->w;
    if (w->es == w->cs) {
        windows(w, s, a, pixels, out, r0, r1);
        return;
    }
    for (int64_t i = 0; i < pixels; i += v->aside) {
        const int64_t rows = tn_min64(v->aside, pixels - i), cols = s->g.cols;
        const int64_t pieces = s->out_step == cols ? 1 : rows, each = rows / pieces * cols;
        windows(w, s, a + i * w->pixel * w->cs, rows, s->aside, r0, r1);
        for (int64_t q = 0; q < pieces; q++)
            tn_narrow_floats(w->c->dtype, s->aside + q * each * w->cs, out + (i + q) * s->out_step * w->es,
                             each);
    }
}

/* Zeros columns [j0, j1) of a band of the data gradient, some of whose phases no tap reaches. */
static void clear(const tn_windows *w, const tn_band *b, int64_t j0, int64_t j1)
{
    const tn_conv2d_desc *c = w->c;
    const int64_t y0 = b->l0 * c->stride[0], y1 = tn_min64(c->h, b->l1 * c->stride[0]),
                  x0 = b->x0 * c->stride[1], x1 = tn_min64(c->w, b->x1 * c->stride[1]), width = j1 - j0;
    for (int64_t y = y0; y < y1; y++) {
        char *row =
            (char *)c->out + (((b->image * c->h + y) * c->w + x0) * c->c + b->group * w->to + j0) * w->es;
        const int64_t n = width == c->c ? 1 : x1 - x0;
        for (int64_t x = 0; x < n; x++)
            memset(row + x * c->c * w->es, 0, (size_t)((n > 1 ? width : (x1 - x0) * width) * w->es));
    }
}

static void run_bands(void *arg, int64_t begin, int64_t end)
{
    job *v = arg;
    const tn_windows *w = &v->w;
    const int64_t at_once = tn_max64(1, B_BYTES / (v->k * w->kn->nr * w->cs)) * w->kn->nr;
    const int mine = tn_take_slot(&v->slots);
    char *copy = tn_slot(&v->slots, mine);
    for (int64_t u = begin; u < end; u++) {
        const int64_t slice = u % v->slices, band = u / v->slices,
                      last = tn_min64(w->to, (slice + 1) * v->slice);
        const tn_band b = tn_windows_band(w, band % w->c->groups, band / w->c->groups);
        const char *a = tn_windows_copy(w, &b, copy);
        if (v->gaps) clear(w, &b, slice * v->slice, last);
        for (phase p = {.next = 0}; next_phase(w->c, &p);) {
            const int64_t x1 = tn_min64(b.x1, p.x.count),
                          l1 = w->patches ? b.l0 + 1 : tn_min64(b.l1, p.y.count);
            if (x1 <= b.x0 || !p.taps) continue;
            const int64_t pixels = (x1 - b.x0) * (w->patches ? b.l1 - b.l0 : 1);
            for (int64_t j = slice * v->slice; j < last; j += at_once) {
                strip s = strip_of(v, &p, b.group, j, tn_min64(last, j + at_once), copy + w->bytes);
                for (int64_t l = b.l0; l < l1; l++) {
                    const int64_t h = l * p.y.step + p.y.first;
                    int64_t r0 = 0, r1 = p.y.taps, at = 0;
                    if (!w->patches) {
                        while (r0 < r1 && h + r0 * p.y.apart < 0) r0++;
                        while (r0 < r1 && h + (r1 - 1) * p.y.apart >= p.y.size) r1--;
                        if (r0 == r1) r0 = 0, r1 = 1; /* outside altogether: zeros are as good */
                        at = (h - b.l0 * w->y.step - w->y.low) * w->row + (p.x.first - w->x.low) * w->column;
                    }
                    char *out = result(w, &b, &p, l, b.x0) + j * w->es;
                    if (w->few)
                        few(v, &s, b.group, a + at * w->cs, pixels, out, r0, r1);
                    else
                        results(v, &s, a + at * w->cs, pixels, out, r0, r1);
                }
            }
        }
    }
    tn_give_slot(&v->slots, mine);
}

/* Returns whether each window is the pixel at the same place. */
static bool is_product(const tn_conv2d_desc *c)
{
    return c->kh * c->kw == 1 && c->stride[0] == 1 && c->stride[1] == 1 && c->groups == 1 &&
           !(c->pad[0] | c->pad[1] | c->pad[2] | c->pad[3]);
}

/* Returns whether the weight gradient is one too: pairs of pixels are multiplied twice as fast as channels of
 * f32. It is not cut into sums of some pixels each, so there have to be results enough for many threads. */
static bool is_product_of_pairs(const tn_cpu_lib *lib, const tn_conv2d_desc *c)
{
    enum { RESULTS = 1 << 13, PIXELS = 1 << 18 };
    return c->dtype == TN_BF16 && lib->impl != TN_CPU_PLAIN && is_product(c) && c->oc * c->c >= RESULTS &&
           c->n * c->oh * c->ow <= PIXELS && tn_gemm_kernel_for(TN_BF16);
}

/* x [pixels, c] by w [oc, c] turned, gy [pixels, oc] by w, or gy turned by x. */
static int product(tn_cpu_lib *lib, struct tn_pool *pool, const tn_conv2d_desc *c, tn_errbuf *err)
{
    const bool forward = c->pass == TN_CONV_FORWARD, weights = c->pass == TN_CONV_WEIGHT_GRAD;
    const int64_t pixels = c->n * c->oh * c->ow;
    tn_gemm g = {.dtype = c->dtype,
                 .m = weights ? c->oc : pixels,
                 .n = forward ? c->oc : c->c,
                 .k = weights   ? pixels
                      : forward ? c->c
                                : c->oc,
                 .a = weights ? c->in1 : c->in0,
                 .b = weights ? c->in0 : c->in1,
                 .bias = c->bias,
                 .c = c->out,
                 .a_col = weights ? c->oc : 1,
                 .b_row = forward ? 1 : c->c,
                 .b_col = forward ? c->c : 1,
                 .epilogue = c->epilogue};
    g.a_row = weights ? 1 : g.k, g.c_row = g.n;
    return tn_gemm_plain(lib, pool, &g, err);
}

int tn_conv2d_plain(tn_cpu_lib *lib, struct tn_pool *pool, const tn_conv2d_desc *c, tn_errbuf *err)
{
    const bool weights = c->pass == TN_CONV_WEIGHT_GRAD;
    if (weights ? is_product_of_pairs(lib, c) : is_product(c)) return product(lib, pool, c, err);
    if (weights) return tn_conv2d_weights(lib, pool, c, err);
    job v;
    tn_windows *w = &v.w;
    tn_windows_of(w, c, lib->impl != TN_CPU_PLAIN);
    const int64_t nr = w->kn->nr, panels = tn_ceil_div(w->to, nr), threads = tn_pool_threads(pool),
                  units = SHARES * threads;
    tn_windows_cut(w, true, BAND_BYTES, tn_max64(1, c->n * w->y.count * c->groups / units));
    const int64_t bands = w->bands * w->chunks * c->groups;
    v.slice = tn_ceil_div(panels, tn_min64(panels, tn_ceil_div(units, bands))) * nr;
    v.slices = tn_ceil_div(w->to, v.slice);
    v.k = w->taps * w->from;
    v.gaps = false;
    for (phase p = {.next = 0}; next_phase(c, &p);) v.gaps = v.gaps || !p.taps;
    v.aside = tn_max64(1, ASIDE_BYTES / (v.slice * w->cs * w->kn->mr)) * w->kn->mr;
    const int64_t aside = w->es != w->cs ? (v.aside + 1) * v.slice * w->cs : 0;
    v.packed = tn_cpu_scratch(lib, TN_SCRATCH_PACK, (size_t)(c->groups * panels * v.k * nr * w->cs));
    if (!v.packed || !tn_open_slots(&v.slots, lib, TN_SCRATCH_SUM, (int)threads, w->bytes + aside, 0))
        return tn_err(err, TN_E_NOMEM, "conv2d: no memory for a copy of its operands");
    tn_pool_run(pool, run_pack, &v, c->groups * panels, tn_max64(1, (1 << 14) / (v.k * nr)));
    tn_pool_run(pool, run_bands, &v, bands * v.slices, 1);
    return TN_OK;
}
