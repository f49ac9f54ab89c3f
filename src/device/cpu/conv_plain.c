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
#include "cpu_lib.h"
#include "pool.h"
#include "slots.h"
#include "../../core/int64.h"

#include <string.h>

enum {
    BAND_BYTES = 128 << 10, /* of a band's copy */
    B_BYTES = 384 << 10,    /* of packed weights that a band meets at a time */
    SHARES = 3,             /* units of each thread, at least */
};

typedef struct job {
    tn_windows w;
    int64_t k;             /* of all phases: rows of a packed panel */
    int64_t slices, slice; /* of columns of the products; columns of one */
    char *packed;          /* [group][panel][phase][r, s, channel][nr] */
    tn_slots slots;
} job;

/* Phase `*i` of the data gradient, or all; its rows of a panel begin at *k. Returns false behind the last. */
typedef struct phase {
    tn_conv_axis y, x;
    int64_t next, first, taps;
} phase;

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
    if (w->es == w->cs) {
        tn_pack_transpose(w->c->dtype, s, lds, cols, w->from, d, w->kn->nr);
        return;
    }
    for (int64_t i = 0; i < w->from; i += STEP, d += STEP * w->kn->nr * w->cs) {
        const int64_t n = tn_min64(STEP, w->from - i);
        for (int64_t o = 0; o < cols; o++)
            tn_widen_floats(w->c->dtype, s + (o * lds + i) * w->es, wide + o * STEP, n);
        tn_pack_transpose(TN_F32, wide, STEP, cols, n, d, w->kn->nr);
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
        char *d = v->packed + u * v->k * nr * w->cs;
        if (cols < nr) memset(d, 0, (size_t)(v->k * nr * w->cs));
        for (phase p = {.next = 0}; next_phase(c, &p);) {
            for (int64_t t = 0; t < p.taps; t++, d += step) {
                const int64_t r = p.y.tap + t / p.x.taps * p.y.tap_step,
                              s = p.x.tap + t % p.x.taps * p.x.tap_step;
                const char *from = (const char *)c->in1;
                if (c->pass == TN_CONV_FORWARD) {
                    from += ((group * w->to + j0) * w->taps + r * c->kw + s) * w->from * w->es;
                    turn(w, from, w->taps * w->from, cols, d);
                } else {
                    from += ((group * w->from * w->taps + r * c->kw + s) * w->to + j0) * w->es;
                    for (int64_t o = 0; o < w->from; o++)
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

/* A line of windows, or all patches of a band, by columns [j0, j1) of a phase's weights. */
typedef struct line {
    const phase *p;
    const char *a;
    char *out, *aside;
    int64_t pixels, group, j0, j1, r0, r1; /* rows of the windows that are inside */
} line;

static void results(const job *v, const line *n)
{
    const tn_windows *w = &v->w;
    const tn_conv2d_desc *c = w->c;
    const phase *p = n->p;
    const int64_t nr = w->kn->nr, ldc = p->x.to_step * w->to_all, width = n->j1 - n->j0;
    const bool narrow = w->es != w->cs;
    /* A window's row is one run where its columns are side by side; else rows are added up one by one. */
    const bool runs = w->patches || p->x.apart * w->column == w->from || p->x.taps == 1;
    const int64_t row = p->x.taps * w->from, rows = runs ? n->r1 - n->r0 : 1;
    const void *bias = NULL;
    if (c->bias) {
        bias = (const char *)c->bias + (n->group * w->to + n->j0) * w->es;
        if (narrow) bias = n->aside + w->kn->mr * width * w->cs;
        if (narrow)
            tn_widen_floats(c->dtype, (const char *)c->bias + (n->group * w->to + n->j0) * w->es,
                            n->aside + w->kn->mr * width * w->cs, width);
    }
    tn_gemm_block g = {.a_step = w->pixel,
                       .cols = width,
                       .kc = w->patches ? w->taps * w->from : rows * row,
                       .ldb = nr,
                       .b_step = v->k * nr,
                       .ldc = narrow ? width : ldc,
                       .runs = w->patches ? 1
                               : runs     ? rows
                                          : p->x.taps};
    g.a_jump = runs ? p->y.apart * w->row - row : p->x.apart * w->column - w->from;
    const int64_t down = p->y.apart * w->row;
    const char *b =
        v->packed +
        ((n->group * tn_ceil_div(w->to, nr) * nr + n->j0) * v->k + p->first * w->from * nr) * w->cs;
    for (int64_t i = 0; i < n->pixels; i += g.rows) {
        char *out = n->out + (i * ldc + n->j0) * w->es;
        g.rows = tn_windows_rows(w, n->pixels - i);
        g.c = narrow ? n->aside : out;
        for (int64_t r = n->r0; r < n->r1; r += w->patches ? n->r1 : rows) {
            const bool last = w->patches || r + rows == n->r1;
            g.a = n->a + (i * w->pixel + (w->patches ? 0 : r * down)) * w->cs;
            g.b = b + (w->patches ? 0 : r * row * nr) * w->cs;
            g.accumulate = r > n->r0;
            g.bias = last ? bias : NULL;
            g.relu = last && c->epilogue == TN_EPI_RELU;
            w->kn->block(&g);
        }
        for (int q = 0; narrow && q < g.rows; q++)
            tn_narrow_floats(c->dtype, n->aside + q * width * w->cs, out + q * ldc * w->es, width);
    }
}

/* Zeros where no tap reaches. */
static void clear(const tn_windows *w, const tn_band *b, const phase *p)
{
    for (int64_t l = b->l0; l < tn_min64(b->l1, p->y.count); l++)
        for (int64_t x = b->x0; x < tn_min64(b->x1, p->x.count); x++)
            memset(result(w, b, p, l, x), 0, (size_t)(w->to * w->es));
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
        for (phase p = {.next = 0}; next_phase(w->c, &p);) {
            const int64_t x1 = tn_min64(b.x1, p.x.count),
                          l1 = w->patches ? b.l0 + 1 : tn_min64(b.l1, p.y.count);
            if (x1 <= b.x0) continue;
            if (!p.taps) clear(w, &b, &p);
            line n = {.p = &p, .group = b.group, .aside = copy + w->bytes, .pixels = x1 - b.x0};
            if (w->patches) n.pixels *= b.l1 - b.l0;
            for (int64_t j = slice * v->slice; p.taps && j < last; j += at_once) {
                n.j0 = j, n.j1 = tn_min64(last, j + at_once);
                for (int64_t l = b.l0; l < l1; l++) {
                    const int64_t h = l * p.y.step + p.y.first, size = p.y.size;
                    n.r0 = 0, n.r1 = p.y.taps;
                    while (!w->patches && n.r0 < n.r1 && h + n.r0 * p.y.apart < 0) n.r0++;
                    while (!w->patches && n.r1 > n.r0 && h + (n.r1 - 1) * p.y.apart >= size) n.r1--;
                    if (n.r0 == n.r1) n.r0 = 0, n.r1 = 1; /* outside altogether: zeros are as good */
                    n.a = a;
                    if (!w->patches)
                        n.a += ((h - b.l0 * w->y.step - w->y.low) * w->row +
                                (p.x.first - w->x.low) * w->column) *
                               w->cs;
                    n.out = result(w, &b, &p, l, b.x0);
                    results(v, &n);
                }
            }
        }
    }
    tn_give_slot(&v->slots, mine);
}

/* Returns whether each window is the pixel at the same place. */
bool tn_conv2d_is_product(const tn_conv2d_desc *c)
{
    return c->kh * c->kw == 1 && c->stride[0] == 1 && c->stride[1] == 1 && c->groups == 1 &&
           !(c->pad[0] | c->pad[1] | c->pad[2] | c->pad[3]);
}

static int product(tn_cpu_lib *lib, struct tn_pool *pool, const tn_conv2d_desc *c, tn_errbuf *err)
{
    const bool forward = c->pass == TN_CONV_FORWARD;
    tn_gemm g = {.dtype = c->dtype,
                 .m = c->n * c->oh * c->ow,
                 .n = forward ? c->oc : c->c,
                 .k = forward ? c->c : c->oc,
                 .a = c->in0,
                 .b = c->in1,
                 .bias = c->bias,
                 .c = c->out,
                 .a_col = 1,
                 .b_row = forward ? 1 : c->c,
                 .b_col = forward ? c->c : 1,
                 .epilogue = c->epilogue};
    g.a_row = g.k, g.c_row = g.n;
    return tn_gemm_plain(lib, pool, &g, err);
}

int tn_conv2d_plain(tn_cpu_lib *lib, struct tn_pool *pool, const tn_conv2d_desc *c, tn_errbuf *err)
{
    if (c->pass == TN_CONV_WEIGHT_GRAD) return tn_conv2d_weights(lib, pool, c, err);
    if (tn_conv2d_is_product(c)) return product(lib, pool, c, err);
    job v;
    tn_windows *w = &v.w;
    tn_windows_of(w, c);
    const int64_t nr = w->kn->nr, panels = tn_ceil_div(w->to, nr), threads = tn_pool_threads(pool),
                  units = SHARES * threads;
    tn_windows_cut(w, true, BAND_BYTES, tn_max64(1, c->n * w->y.count * c->groups / units));
    const int64_t bands = w->bands * w->chunks * c->groups;
    v.slice = tn_ceil_div(panels, tn_min64(panels, tn_ceil_div(units, bands))) * nr;
    v.slices = tn_ceil_div(w->to, v.slice);
    v.k = w->taps * w->from;
    const int64_t aside = w->es != w->cs ? (w->kn->mr + 1) * v.slice * w->cs : 0;
    v.packed = tn_cpu_scratch(lib, TN_SCRATCH_PACK, (size_t)(c->groups * panels * v.k * nr * w->cs));
    if (!v.packed || !tn_open_slots(&v.slots, lib, TN_SCRATCH_SUM, (int)threads, w->bytes + aside, 0))
        return tn_err(err, TN_E_NOMEM, "conv2d: no memory for a copy of its operands");
    tn_pool_run(pool, run_pack, &v, c->groups * panels, tn_max64(1, (1 << 14) / (v.k * nr)));
    tn_pool_run(pool, run_bands, &v, bands * v.slices, 1);
    return TN_OK;
}
