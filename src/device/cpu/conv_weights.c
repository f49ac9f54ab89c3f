/* conv_weights.c - our own weight gradient of a convolution of any kind, as products of windows with gy.
 *
 *   gw[(r, s, i), o] = sum over pixels  window of x [pixel, (r, s, i)] * gy[pixel, o]
 *
 * What windows are is said in conv_windows.h. Rows of the product are the elements of a window, steps of its
 * sum are pixels, line by line. Bands of lines are shared among a number of partial sums that depends on
 * shapes alone, as does the order in which these are added. Read first: tn_conv2d_weights, then add_band. */
#include "conv_windows.h"
#include "pool.h"
#include "slots.h"
#include "../../core/int64.h"

#include <string.h>

enum {
    BAND_BYTES = 256 << 10, /* of a band's copy */
    SHARES = 3,             /* units of each thread, at least */
    PARTIALS = 16,
    PARTIAL_PIXELS = 1024,
    PARTIAL_BYTES = 32 << 20,
    SUM_CHUNK = 1 << 13,
    LANES = 16, /* no kernel reads further than the next multiple of so many columns */
};

typedef struct job {
    tn_windows w;
    tn_conv_axis y, x;
    bool joined;           /* columns of a window's row are one run */
    bool gy_in_place;      /* is read where it stands */
    int64_t run, up, k;    /* of a window: elements of one run, with what fills it up; all of these */
    int64_t slices, slice; /* of columns of gy; columns of one */
    int64_t parts;
    char *sums; /* [part][group][k][to] */
    tn_slots slots;
} job;

/* Returns where in a window row i of the product stands. */
static int64_t element(const job *v, int64_t i)
{
    const int64_t run = i / v->up, rest = i % v->up;
    if (v->w.patches) return rest;
    if (v->joined) return run * v->y.apart * v->w.row + rest;
    return run / v->x.taps * v->y.apart * v->w.row + run % v->x.taps * v->x.apart * v->w.column + rest;
}

/* Adds what a band gives for columns [j0, j1) of gy's group to the rows of `sum`. */
static void add_band(const job *v, const tn_band *b, int64_t j0, int64_t j1, bool first, char *sum,
                     char *copy)
{
    const tn_windows *w = &v->w;
    const tn_conv2d_desc *c = w->c;
    const int64_t lines = b->l1 - b->l0, wide = b->x1 - b->x0, pixels = lines * wide, width = j1 - j0;
    const int64_t per = w->neighbours ? w->kn->per : 1; /* pixels of a step */
    const char *gy = (const char *)c->in1 +
                     (((b->image * c->oh + b->l0) * c->ow + b->x0) * c->oc + b->group * w->to + j0) * w->es;
    const char *a = tn_windows_copy(w, b, copy);
    tn_gemm_block g = {.a_by_k = true,
                       .a_step = w->patches ? w->pixel : per * w->pixel,
                       .cols = width,
                       .kc = tn_ceil_div(pixels, per),
                       .b = gy,
                       .ldb = c->oc,
                       .b_step = w->kn->nr,
                       .ldc = w->to,
                       .accumulate = !first};
    if (!w->patches) g.runs = lines, g.run = wide / per, g.a_jump = v->y.step * w->row - wide * w->pixel;
    if (!v->gy_in_place) {
        char *d = copy + w->bytes;
        g.b = d, g.ldb = (width + LANES - 1) / LANES * LANES;
        if (w->neighbours)
            tn_pack_pairs((const uint16_t *)(const void *)gy, c->oc, width, pixels, (uint32_t *)(void *)d,
                          g.ldb);
        for (int64_t p = 0; !w->neighbours && p < pixels; p++, gy += c->oc * w->es, d += g.ldb * w->cs)
            tn_widen_floats(c->dtype, gy, d, width);
    }
    for (int64_t i = 0; i < v->k; i += g.rows) {
        int64_t at[TN_GEMM_AT];
        for (int q = 0; q < TN_GEMM_AT; q++) at[q] = element(v, tn_min64(v->k - 1, i + q * TN_GEMM_APART));
        g.rows = (int)tn_min64(2 * width <= w->kn->nr ? w->kn->tall : w->kn->mr, v->k - i);
        g.a = a, g.a_at = at;
        g.c = sum + (i * w->to + j0) * w->cs;
        w->kn->block(&g);
    }
}

static void run_parts(void *arg, int64_t begin, int64_t end)
{
    job *v = arg;
    const tn_windows *w = &v->w;
    const int64_t groups = w->c->groups, bands = w->bands * w->chunks;
    const int mine = tn_take_slot(&v->slots);
    for (int64_t u = begin; u < end; u++) {
        const int64_t slice = u % v->slices, group = u / v->slices % groups, part = u / v->slices / groups;
        const int64_t j0 = slice * v->slice, j1 = tn_min64(w->to, j0 + v->slice),
                      first = part * bands / v->parts, last = (part + 1) * bands / v->parts;
        char *sum = v->sums + (part * groups + group) * v->k * w->to * w->cs;
        for (int64_t i = first; i < last; i++) {
            const tn_band b = tn_windows_band(w, group, i);
            add_band(v, &b, j0, j1, i == first, sum, tn_slot(&v->slots, mine));
        }
    }
    tn_give_slot(&v->slots, mine);
}

/* Adds one tap's partial sums in order, and turns the sum. */
static void run_sum(void *arg, int64_t begin, int64_t end)
{
    const job *v = arg;
    const tn_windows *w = &v->w;
    const tn_conv2d_desc *c = w->c;
    const int64_t n = w->from * w->to, one = v->k * w->to, all = c->groups * one;
    for (int64_t u = begin; u < end; u++) {
        const int64_t group = u / w->taps, tap = u % w->taps;
        const int64_t row = w->patches  ? tap * w->from
                            : v->joined ? tap / c->kw * v->up + tap % c->kw * w->from
                                        : tap * v->up;
        const int64_t at = group * one + row * w->to;
        for (int64_t q = 1; q < v->parts; q++) {
            double *wide = (double *)(void *)v->sums;
            float *sum = (float *)(void *)v->sums;
            for (int64_t i = at; w->cs == sizeof *wide && i < at + n; i++) wide[i] += wide[q * all + i];
            for (int64_t i = at; w->cs == sizeof *sum && i < at + n; i++) sum[i] += sum[q * all + i];
        }
        char *to = w->es == w->cs ? c->out : v->sums + v->parts * all * w->cs;
        tn_pack_transpose(tn_gemm_compute(c->dtype), v->sums + at * w->cs, w->to, w->from, w->to,
                          to + (group * w->to * w->taps + tap) * w->from * w->cs, w->taps * w->from);
    }
}

static void run_narrow(void *arg, int64_t begin, int64_t end)
{
    const job *v = arg;
    const int64_t all = v->w.c->groups * v->k * v->w.to;
    tn_narrow_floats(v->w.c->dtype, v->sums + (v->parts * all + begin) * v->w.cs,
                     (char *)v->w.c->out + begin * v->w.es, end - begin);
}

int tn_conv2d_weights(tn_cpu_lib *lib, struct tn_pool *pool, const tn_conv2d_desc *c, tn_errbuf *err)
{
    job v;
    tn_windows *w = &v.w;
    tn_windows_of(w, c, lib->impl != TN_CPU_PLAIN);
    tn_windows_cut(w, false, BAND_BYTES, c->n * w->y.count);
    v.y = tn_conv_axis_of(c, 0, 0), v.x = tn_conv_axis_of(c, 1, 0);
    v.joined = v.x.apart * w->column == w->from || v.x.taps == 1;
    v.run = w->patches ? w->taps * w->from : v.joined ? v.x.taps * w->from : w->from;
    const int64_t group = w->kn->mr % TN_GEMM_APART ? w->kn->mr : TN_GEMM_APART;
    v.up = tn_ceil_div(v.run, group) * group;
    v.k = w->taps * w->from / v.run * v.up;
    const int64_t nr = w->kn->nr, panels = tn_ceil_div(w->to, nr), all = c->groups * v.k * w->to,
                  bands = w->bands * w->chunks, threads = tn_pool_threads(pool);
    v.parts = tn_min64(PARTIALS, tn_max64(1, c->n * c->oh * c->ow / PARTIAL_PIXELS));
    v.parts = tn_min64(tn_min64(bands, v.parts), tn_max64(1, PARTIAL_BYTES / (all * w->cs)));
    v.slice = tn_ceil_div(panels, tn_min64(panels, tn_ceil_div(SHARES * threads, v.parts * c->groups))) * nr;
    v.slices = tn_ceil_div(w->to, v.slice);
    v.gy_in_place = w->es == w->cs && w->to % LANES == 0;
    const int64_t beside =
        v.gy_in_place ? 0 : w->lines * w->wide * tn_ceil_div(v.slice, LANES) * LANES * w->cs;
    const bool narrow = w->es != w->cs;
    v.sums = tn_cpu_scratch(lib, TN_SCRATCH_SUM, (size_t)((v.parts + narrow) * all * w->cs));
    if (!v.sums || !tn_open_slots(&v.slots, lib, TN_SCRATCH_PACK, (int)threads, w->bytes + beside, 0))
        return tn_err(err, TN_E_NOMEM, "conv2d: no memory for partial weight gradients");
    tn_pool_run(pool, run_parts, &v, v.parts * c->groups * v.slices, 1);
    tn_pool_run(pool, run_sum, &v, c->groups * w->taps, tn_max64(1, SUM_CHUNK / (w->from * w->to)));
    if (narrow) tn_pool_run(pool, run_narrow, &v, c->groups * w->taps * w->from * w->to, SUM_CHUNK);
    return TN_OK;
}
