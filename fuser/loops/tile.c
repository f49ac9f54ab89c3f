/* tile.c - convolutions and products by our own tensor-core kernel, and which nodes it takes along.
 *
 * The kernel computes tiles of the result and hands each element to a function that the fuser writes:
 * whatever is computed at the same element, from other operands of the same place, joins the convolution.
 * With statistics it also finds mean and squared deviation of each column (a channel), and when all tiles are
 * done hands them to a second function: what is computed for each column from them joins, too. So a
 * convolution and a batch norm in training are this kernel and one pass that normalises.
 *
 *     sum(x - k), sum((x - k)^2)     over all axes but the last, k one value a column (fu_tile_mark)
 *     = n (mean - k), m2 + n (mean - k)^2
 *
 * also where x - k is cast before it is summed, and where x and k are 16 bits widened to f32: x has been
 * rounded then, what is found of it never is.
 *
 * A convolution's image can also be computed as it is loaded, where that is cheap and would otherwise be a
 * pass that writes it for this kernel and the weights' gradient alone: behind a batch norm in training, whose
 * statistics have to be known before. group.c compares the two.
 *
 * A product A[m,k] B[k,n] whose B lies as [n,k], a linear layer's weight, is a 1x1 convolution of m pixels.
 * The library is better at it alone; with what it cannot apply (gelu, dropout, a residual) our kernel spares
 * a pass over the result, and is taken where the model finds that worth what the product loses
 * (fu_tile_pays).
 *
 * What joins is decided by the tile that the model chooses, also where another one has been found faster by
 * running it (tn_target.tuned): how a kernel is cut then changes nothing else of the plan.
 *
 * Start with fu_tile_mark, then fu_tile_try. */
#include "tile.h"

#include "../../src/core/library.h"
#include "conv_tile.h"
#include "cost.h"

#include <string.h>

/* ---- which convolutions ---- */

/* A product as the convolution of one image, a line of as many pixels as A has rows. */
static void product_desc(const fu_ctx *c, const tn_tensor *t, tn_conv2d_desc *d)
{
    const int64_t n = t->shape[t->ndim - 1], k = t->in[0]->shape[t->ndim - 1], m = tn_node_numel(t) / n;
    *d = (tn_conv2d_desc){.dtype = t->dtype,
                          .pass = TN_CONV_FORWARD,
                          .n = 1,
                          .h = 1,
                          .w = m,
                          .c = k,
                          .oc = n,
                          .kh = 1,
                          .kw = 1,
                          .oh = 1,
                          .ow = m,
                          .groups = 1,
                          .stride = {1, 1},
                          .dilation = {1, 1},
                          .tf32 = c->target->tf32};
}

void fu_conv_desc(const fu_ctx *c, int node, tn_conv2d_desc *d)
{
    if (c->node[node].kind == TN_KIND_GEMM) {
        product_desc(c, c->node[node].t, d);
        return;
    }
    *d = tn_conv2d_of(c->node[node].t);
    d->tf32 = c->target->tf32;
}

static bool multiplies(const fu_node *n) { return n->kind == TN_KIND_CONV || n->kind == TN_KIND_GEMM; }

int fu_tile_conv(const fu_ctx *c, int n, const int *member)
{
    for (int i = 0; i < n; i++)
        if (multiplies(&c->node[member[i]])) return member[i];
    return -1;
}

/* ---- which reductions ---- */

static int producer(const fu_ctx *c, const tn_tensor *x) { return fu_node_of(c, fu_value_of(c, x)); }

static bool is_square(const fu_ctx *c, const tn_tensor *t, const tn_tensor *of)
{
    if (t->op == TN_OP_square) return fu_value_of(c, t->in[0]) == of;
    return t->op == TN_OP_mul && fu_value_of(c, t->in[0]) == of && fu_value_of(c, t->in[1]) == of;
}

/* The sum of `of` over all axes but the last. */
static bool is_sum(const fu_ctx *c, const tn_tensor *t, const tn_tensor *of)
{
    return t->op == TN_OP_reduce_sum && t->dtype == of->dtype && fu_value_of(c, t->in[0]) == of &&
           t->attr->axes == (1u << (of->ndim - 1)) - 1;
}

/* One value for each index along the last axis. */
static bool of_columns(const tn_tensor *x)
{
    if (tn_is_number(x)) return true;
    for (int i = 0; i + 1 < x->ndim; i++)
        if (x->shape[i] != 1 && x->stride[i]) return false;
    return true;
}

static bool inner(const fu_ctx *c, int i)
{
    const fu_node *n = &c->node[i];
    if (c->seg->root && c->seg->root[i] & TN_SEG_ALONE) return false;
    return n->live && !n->root && !n->same && !tn_node_written(n->t) && n->into < 0 && n->n_user;
}

/* Users of node i are all sums of it, or, for `square`, squares that nothing but sums read, or casts of which
 * the same is true. */
static bool only_summed(const fu_ctx *c, int i, bool square)
{
    const fu_node *n = &c->node[i];
    if (!inner(c, i)) return false;
    for (int k = 0; k < n->n_user; k++) {
        const tn_tensor *u = c->node[n->user[k]].t;
        bool sums = is_sum(c, u, n->t);
        bool squares = square && is_square(c, u, n->t) && only_summed(c, n->user[k], false);
        bool widened = square && u->op == TN_OP_cast && only_summed(c, n->user[k], true);
        if (!sums && !squares && !widened) return false;
    }
    return true;
}

/* The sums of node i, and of its squares. */
static void mark_sums(fu_ctx *c, int i, bool squared, const tn_tensor *about)
{
    const fu_node *n = &c->node[i];
    for (int k = 0; k < n->n_user; k++) {
        fu_node *u = &c->node[n->user[k]];
        if (is_sum(c, u->t, n->t)) {
            u->statistic = squared ? FU_SQUARES : FU_SUM;
            u->about = about;
        } else if (!squared && is_square(c, u->t, n->t) && only_summed(c, n->user[k], false)) {
            u->statistic = FU_WITHIN;
            mark_sums(c, n->user[k], true, about);
        } else if (!squared && about && u->t->op == TN_OP_cast && only_summed(c, n->user[k], true)) {
            u->statistic = FU_WITHIN;
            mark_sums(c, n->user[k], false, about);
        }
    }
}

static void mark_statistics(fu_ctx *c, int i)
{
    const fu_node *n = &c->node[i];
    if (c->seg->root && c->seg->root[i] & TN_SEG_ALONE) return;
    for (int k = 0; k < n->n_user; k++) {
        int u = n->user[k];
        const tn_tensor *t = c->node[u].t;
        if (t->op != TN_OP_sub || fu_value_of(c, t->in[0]) != n->t || !only_summed(c, u, true)) continue;
        const tn_tensor *about = fu_value_of(c, t->in[1]);
        if (!of_columns(about)) continue;
        c->node[u].statistic = FU_WITHIN;
        mark_sums(c, u, false, about);
    }
    mark_sums(c, i, false, NULL);
}

/* Node `i` is nothing but convolution `conv`'s result of 16 bits as f32. */
static bool as_f32(const fu_ctx *c, int i, int conv)
{
    const fu_node *n = &c->node[i];
    return n->live && !n->root && fu_widens(n) && fu_value_of(c, n->t->in[0]) == c->node[conv].t;
}

/* The same, where the node is also summed up by statistics: the kernel has its value at hand, and other
 * readers widen the 16 bits in memory. */
static bool measured(const fu_ctx *c, int i, int conv)
{
    const fu_node *n = &c->node[i];
    bool any = false;
    for (int k = 0; k < n->n_user && !any; k++) any = c->node[n->user[k]].statistic != FU_NO_STATISTIC;
    return any && as_f32(c, i, conv);
}

/* NULL: there is no kernel for it; or no memory, and the library does it as well. */
static const struct fu_conv_tile *tile_of(fu_ctx *c, const tn_conv2d_desc *d, bool stats)
{
    struct fu_conv_tile *t = tn_arena_alloc(&c->arena, sizeof *t);
    return t && fu_conv_tile(d, c->target, stats, t) && t->columns > 1 ? t : NULL;
}

/* The same tile where it leaves registers for a prologue, else the best that does; NULL: none, or no memory.
 */
static const struct fu_conv_tile *loading_of(fu_ctx *c, const tn_conv2d_desc *d,
                                             const struct fu_conv_tile *tile)
{
    tn_target model = *c->target;
    if (!tile || fu_conv_can_load(d, tile)) return tile;
    struct fu_conv_tile *t = tn_arena_alloc(&c->arena, sizeof *t);
    model.tuned = NULL; /* what is computed where does not depend on it */
    return t && fu_conv_tile_loading(d, &model, tile->stats, t) ? t : NULL;
}

void fu_tile_mark(fu_ctx *c)
{
    if (!fu_can(c->target)->tiles) return;
    for (int i = 0; i < c->n_node; i++) {
        fu_node *n = &c->node[i];
        tn_conv2d_desc d;
        if (!n->live || n->kind != TN_KIND_CONV || !tn_node_numel(n->t)) continue;
        fu_conv_desc(c, i, &d);
        n->tile[0] = tile_of(c, &d, false);
        n->tile[1] = n->tile[0] && d.pass == TN_CONV_FORWARD ? tile_of(c, &d, true) : NULL;
        for (int k = 0; k < 2; k++) n->loading[k] = loading_of(c, &d, n->tile[k]);
        if (!n->tile[1]) continue;
        mark_statistics(c, i);
        for (int k = 0; k < n->n_user; k++)
            if (as_f32(c, n->user[k], i)) mark_statistics(c, n->user[k]);
    }
}

/* ---- which products ---- */

/* The kernel can read the operand where it lies: it begins at a multiple of `align` bytes. */
static bool aligned(const fu_ctx *c, const tn_tensor *x, int align)
{
    int slot;
    int64_t offset;
    return fu_place(c, x, &slot, &offset) &&
           fu_position(c, slot, offset) * (int64_t)tn_dtype_size(x->dtype) % align == 0;
}

/* A dense, with as many rows as the result; one B for all of them, dense as [n, k]. */
static bool lies_as_convolution(const fu_ctx *c, const tn_tensor *t)
{
    const tn_tensor *a = fu_value_of(c, t->in[0]), *b = fu_value_of(c, t->in[1]);
    const int last = t->ndim - 1;
    if (last < 1 || a->ndim != t->ndim || b->ndim != t->ndim || tn_is_number(a) || tn_is_number(b))
        return false;
    const int64_t n = t->shape[last], k = a->shape[last];
    for (int i = 0; i < last; i++)
        if (a->shape[i] != t->shape[i] || (i + 1 < last && b->shape[i] != 1 && b->stride[i])) return false;
    return k > 0 && tn_node_is_dense(a) && (k == 1 || b->stride[last - 1] == 1) &&
           (n == 1 || b->stride[last] == k);
}

/* Those that the library can compute part by part; from so many columns on it does so at its own speed. */
static void mark_handed_over(fu_ctx *c)
{
    enum { COLUMNS = 16 };
    TN_EACH(n, c->node, c->n_node) {
        const tn_tensor *t = n->t;
        if (!n->live || n->kind != TN_KIND_GEMM || n->spared || n->into >= 0 || n->epilogue) continue;
        if (!tn_node_numel(t) || t->shape[t->ndim - 1] < COLUMNS || !t->in[0]->shape[t->ndim - 1] ||
            !tn_dtype_is_float(t->dtype))
            continue;
        struct fu_conv_tile *tile = tn_arena_alloc(&c->arena, sizeof *tile);
        if (!tile) return; /* a pass more is as right */
        *tile = (struct fu_conv_tile){.columns = t->shape[t->ndim - 1], .pack = 1};
        n->tile[0] = tile;
    }
}

void fu_tile_mark_products(fu_ctx *c)
{
    if (fu_can(c->target)->then) mark_handed_over(c);
    if (!fu_can(c->target)->tiles) return;
    for (int i = 0; i < c->n_node; i++) {
        fu_node *n = &c->node[i];
        tn_conv2d_desc d;
        if (!n->live || n->kind != TN_KIND_GEMM || n->spared || n->into >= 0 || n->epilogue) continue;
        if (!tn_node_numel(n->t) || !lies_as_convolution(c, n->t)) continue;
        fu_conv_desc(c, i, &d);
        const struct fu_conv_tile *tile = tile_of(c, &d, false);
        if (!tile || !aligned(c, fu_value_of(c, n->t->in[0]), tile->align[0]) ||
            !aligned(c, fu_value_of(c, n->t->in[1]), tile->align[1]))
            continue;
        n->tile[0] = tile;
    }
}

/* Where the library does not write the product but hands it over: a pass that reads it, and writes it, is
 * spared. In return large products take somewhat longer (measured: 5 %). */
static bool handing_over_pays(const fu_ctx *c, const tn_tensor *t, bool kept)
{
    const tn_target_profile *r = tn_target_rates(c->target);
    const double bytes = (double)fu_bytes(t), large = 2e8, longer = .05;
    const double flops = 2.0 * (double)tn_node_numel(t) * (double)t->in[0]->shape[t->ndim - 1];
    const double spared = r->launch_us * 1e3 + fu_load_ns(c->target, bytes, 2 * bytes) +
                          (kept ? 0 : fu_store_ns(c->target, bytes, 2 * bytes));
    return flops < large || longer * flops / tn_profile_gflops(r->gemm, r->n_gemm, flops) < spared;
}

bool fu_tile_pays(const fu_ctx *c, int node, bool kept)
{
    if (fu_can(c->target)->then) return handing_over_pays(c, c->node[node].t, kept);
    enum { LANES = 128 }; /* simple f32 instructions that a multiprocessor begins in a clock */
    const tn_target_profile *r = tn_target_rates(c->target);
    const struct fu_conv_tile *tile = c->node[node].tile[0];
    const tn_tensor *t = c->node[node].t;
    const double bytes = (double)(tn_node_numel(t) * (int64_t)tn_dtype_size(t->dtype));
    const double flops = 2.0 * (double)tn_node_numel(t) * (double)t->in[0]->shape[t->ndim - 1];
    const double own = tile->cycles * r->instruction_ps * 1e-3 * c->target->processors * LANES;
    /* The profile's products are of f32. With operands that are rounded the library is far faster, and from
       compute capability 9.0 on it has instructions for them twice as fast as mma.sync. It is never slower.
     */
    const bool twice = tile->products == 1 && c->target->capability >= 90 && !tile->wgmma;
    const double as_own = twice ? own / 2 : own;
    double library = flops / tn_profile_gflops(r->gemm, r->n_gemm, flops);
    if (as_own < library) library = as_own;
    const double load = fu_load_ns(c->target, bytes, 2 * bytes),
                 store = fu_store_ns(c->target, bytes, 2 * bytes);
    const double work = fu_work_ns(c->target, fu_prog_work(c->prog, c->target)), moved = load + store;
    const double pass = work > moved ? work + FU_OVERLAP * moved : moved + FU_OVERLAP * work;
    return r->launch_us * 1e3 + own + work + (kept ? store : 0) <
           r->library_us * 1e3 + library + r->launch_us * 1e3 + pass;
}

/* ---- what is computed where ---- */

enum { OF_ELEMENT = 1, OF_STATISTIC = 2, IN_LAST = 4, IN_EACH = 8, IN_BEFORE = 16, IN_ANY = 4 + 8 + 16 };

/* A value of each column, such as the one that statistics are about, where the convolution has written it, as
 * f32: the last program can read it. */
static bool column_as_f32(const fu_ctx *c, const fu_node *n, int conv)
{
    const tn_tensor *x = fu_widens(n) ? fu_value_of(c, n->t->in[0]) : NULL;
    return x && x != c->node[conv].t && fu_node_of(c, x) == conv && of_columns(x);
}

/* Returns true where something is computed for each element, besides the product and the values that its
 * statistics sum up. */
static bool computes_each(const fu_ctx *c, const fu_tile_parts *p, int conv)
{
    for (int i = 0; i < p->n_each; i++)
        if (p->each[i] != conv && !measured(c, p->each[i], conv)) return true;
    return false;
}

/* Decides which of the two programs, for each element or for each column, computes each member. A member that
 * depends on neither an element nor a statistic belongs to the program that reads it, or to both. */
static tn_cut_reason divide(const fu_ctx *c, const fu_candidate *cand, fu_tile_parts *p)
{
    const int n = cand->n, *member = cand->member;
    uint8_t of[2 * FU_MAX_MEMBERS] = {0};
    int conv = fu_tile_conv(c, n, member);
    int64_t columns = c->node[conv].t->shape[c->node[conv].t->ndim - 1];
    int n_within = 0, n_column = 0;
    p->n_before = p->n_each = p->n_last = p->n_sum = 0;
    for (int i = 0; i < n; i++) {
        const fu_node *m = &c->node[member[i]];
        const tn_tensor *t = m->t;
        if (multiplies(m)) {
            if (member[i] != conv) return TN_CUT_TILE;
            of[i] = OF_ELEMENT | IN_EACH;
            continue;
        }
        if (m->statistic == FU_WITHIN) {
            n_within++;
            continue;
        }
        const bool column = column_as_f32(c, m, conv);
        n_column += column;
        if (m->statistic || column) of[i] = OF_STATISTIC;
        for (int k = tn_kind_of(t) == TN_KIND_ASSIGN ? 1 : 0; k < t->n_in && !m->statistic; k++) {
            int at = fu_find(i, member, producer(c, t->in[k]));
            if (at >= 0) of[i] |= of[at] & (OF_ELEMENT | OF_STATISTIC);
        }
        of[i] |= of[i] & OF_STATISTIC ? IN_LAST : of[i] & OF_ELEMENT ? IN_EACH : 0;
        if (of[i] & IN_LAST && tn_node_numel(t) > columns) return TN_CUT_SPLIT;
        if ((m->kind == TN_KIND_REDUCE && !m->statistic) || tn_kind_looks_up(m->kind)) return TN_CUT_TILE;
    }
    for (int i = n - 1; i >= 0; i--) { /* what is read by what */
        const fu_node *m = &c->node[member[i]];
        if (m->statistic == FU_WITHIN) continue;
        for (int k = 0; k < m->t->n_in && multiplies(m); k++) { /* image, weight, bias */
            int at = fu_find(n, member, producer(c, m->t->in[k]));
            if (at >= 0 && k == 1) return TN_CUT_TILE;
            if (at >= 0) of[at] |= k ? IN_EACH : IN_BEFORE;
        }
        if (multiplies(m)) continue;
        if (!(of[i] & IN_ANY)) of[i] |= tn_node_numel(m->t) == columns ? IN_LAST : IN_EACH;
        if (of[i] & IN_BEFORE && of[i] != IN_BEFORE) return TN_CUT_TILE;
        const tn_tensor *about = m->about;
        for (int k = about ? -1 : 0; k < (m->statistic ? 0 : m->t->n_in); k++) {
            int at = fu_find(n, member, producer(c, k < 0 ? about : m->t->in[k]));
            if (at >= 0 && !(of[at] & (OF_ELEMENT | OF_STATISTIC))) of[at] |= of[i] & IN_ANY;
        }
    }
    for (int i = 0; i < n; i++) {
        const fu_node *m = &c->node[member[i]];
        if (m->statistic == FU_SUM || m->statistic == FU_SQUARES)
            p->sum[p->n_sum++] = member[i];
        else if (of[i] & IN_LAST)
            p->last[p->n_last++] = member[i];
        if (of[i] & IN_EACH) p->each[p->n_each++] = member[i];
        if (of[i] & IN_BEFORE) p->before[p->n_before++] = member[i];
    }
    bool lean = c->seg->root && c->seg->root[conv] & TN_SEG_LEAN; /* with more, it was found to spill */
    if (lean && (computes_each(c, p, conv) || p->n_before)) return TN_CUT_SIZE;
    if (p->n_before && !cand->settled && !cand->tiles_first) return TN_CUT_TILE;
    if (p->n_last && !p->n_sum) /* the sums join after their summands */
        return n_within && p->n_last == n_column ? TN_CUT_NONE : TN_CUT_TILE;
    return TN_CUT_NONE;
}

bool fu_tile_waits(const fu_ctx *c, const fu_candidate *cand)
{
    fu_tile_parts p;
    int conv = fu_tile_conv(c, cand->n, cand->member);
    return conv >= 0 && (divide(c, cand, &p) || computes_each(c, &p, conv) || p.n_before);
}

/* Returns TN_CUT_ALIAS where one of the programs overwrites memory that another one would still have to
 * read. */
static tn_cut_reason overwritten(const fu_ctx *c, const fu_tile_parts *p)
{
    for (int i = 0; i < p->n_each + p->n_last; i++) { /* while other tiles still load */
        const tn_tensor *w = c->node[i < p->n_each ? p->each[i] : p->last[i - p->n_each]].t;
        for (int m = 0; m < p->n_before && tn_node_written(w); m++) {
            const tn_tensor *r = c->node[p->before[m]].t;
            for (int k = 0; k < r->n_in; k++)
                if (fu_reads(c, fu_value_of(c, r->in[k]), w) != FU_UNSEEN) return TN_CUT_ALIAS;
        }
    }
    for (int pass = 0; pass < 2; pass++) {
        int n = pass ? p->n_last : p->n_each, others = pass ? p->n_each : p->n_last;
        const int *writer = pass ? p->last : p->each, *reader = pass ? p->each : p->last;
        for (int i = 0; i < n; i++) {
            const tn_tensor *w = c->node[writer[i]].t;
            if (!tn_node_written(w)) continue;
            for (int m = 0; m < others; m++) {
                const tn_tensor *r = c->node[reader[m]].t;
                for (int k = tn_kind_of(r) == TN_KIND_ASSIGN ? 1 : 0; k < r->n_in; k++) {
                    fu_sight s = fu_reads(c, fu_value_of(c, r->in[k]), w);
                    if (s == FU_NEW || (s == FU_OLD && !pass)) return TN_CUT_ALIAS;
                }
            }
        }
    }
    return TN_CUT_NONE;
}

/* ---- the two programs ---- */

static tn_cut_reason last_program(fu_ctx *c, const fu_candidate *cand, const fu_tile_parts *p,
                                  int64_t columns)
{
    const fu_tile now = {.parts = p, .last = true};
    fu_candidate own = *cand;
    own.tile = &now;
    tn_cut_reason why = TN_CUT_NONE;
    if (p->n_last) {
        why = fu_domain_build(c, c->domain, p->n_last, p->last);
    } else {
        memset(c->domain, 0, sizeof *c->domain);
        c->domain->n_atom = 1;
        c->domain->extent[0] = columns;
    }
    if (!why && (c->domain->n_atom != 1 || c->domain->extent[0] != columns)) why = TN_CUT_SHAPES;
    if (!why) why = fu_program(c, &own, c->domain, c->prog2);
    return why ? why : fu_schedule_tile(c->prog2, columns, 1);
}

/* Returns the tensor that is loaded in the place of a convolution's image: as large as it, of the same dtype,
 * dense, and read by one of the members that compute the image. NULL: there is none. */
static const tn_tensor *loaded(const fu_ctx *c, const fu_tile_parts *p, int align)
{
    const tn_tensor *image = c->node[p->before[p->n_before - 1]].t;
    for (int i = 0; i < p->n_before; i++) {
        const tn_tensor *t = c->node[p->before[i]].t;
        for (int k = 0; k < t->n_in; k++) {
            const tn_tensor *x = fu_value_of(c, t->in[k]);
            if (!tn_same_type(x, image) || tn_is_number(x) || !tn_node_is_dense(x) ||
                fu_find(p->n_before, p->before, fu_node_of(c, x)) >= 0 || !aligned(c, x, align))
                continue;
            return x;
        }
    }
    return NULL;
}

static tn_cut_reason before_program(fu_ctx *c, const fu_candidate *cand, fu_tile_parts *p, int conv)
{
    const fu_tile now = {.parts = p, .before = true};
    fu_candidate own = *cand;
    own.tile = &now;
    const struct fu_conv_tile *tile = c->node[conv].loading[p->n_sum > 0];
    const tn_tensor *image = c->node[p->before[p->n_before - 1]].t;
    const bool forward = c->node[conv].t->op == TN_OP_conv2d;
    if (c->node[conv].kind != TN_KIND_CONV || !tile) return TN_CUT_TILE;
    if (fu_value_of(c, c->node[conv].t->in[0]) != image) return TN_CUT_TILE;
    if (!(p->from = loaded(c, p, tile->align[0]))) return TN_CUT_TILE;
    tn_cut_reason why = fu_domain_build(c, c->domain, p->n_before, p->before);
    if (!why) why = fu_program(c, &own, c->domain, c->prog3);
    if (!why)
        why = fu_schedule_tile(c->prog3, image->shape[image->ndim - 1], forward ? tile->vec_a : tile->vec_b);
    if (why) return why;
    TN_EACH(v, c->prog3->value, c->prog3->n_value)
        if (v->kind == FU_GIVEN && c->prog3->n_store == 1 &&
            !memcmp(v->stride, c->prog3->store[0].stride, sizeof v->stride))
            return TN_CUT_NONE;
    return TN_CUT_TILE;
}

double fu_tile_before_ns(const fu_ctx *c, int conv, double work, int operands)
{
    enum { LANES = 128 };
    const struct fu_conv_tile *tile = c->node[conv].loading[0];
    tn_conv2d_desc d;
    if (!tile) return -1;
    fu_conv_desc(c, conv, &d);
    const double other =
        tile->cycles - c->node[conv].tile[0]->cycles; /* another tile may be slower by itself */
    const double clocks = fu_conv_before(&d, c->target, tile, work, operands) + other;
    return clocks * tn_target_rates(c->target)->instruction_ps * 1e-3 * c->target->processors * LANES;
}

/* All programs of a tile are one kernel, whose own operands and sums are named as well. */
static bool can_be_named(const fu_ctx *c, const fu_tile_parts *p)
{
    enum { OWN = 8 };
    const fu_prog *all[3] = {c->prog};
    int n = 1;
    if (p->n_sum || p->n_last) all[n++] = c->prog2;
    if (p->n_before) all[n++] = c->prog3;
    return fu_can_be_named(n, all, OWN);
}

tn_cut_reason fu_tile_try(fu_ctx *c, const fu_candidate *cand, fu_tile_parts *p)
{
    int conv = fu_tile_conv(c, cand->n, cand->member);
    tn_cut_reason why = divide(c, cand, p);
    if (!why) why = overwritten(c, p);
    const struct fu_conv_tile *tile = c->node[conv].tile[p->n_sum > 0];
    if (why || !tile) return why ? why : TN_CUT_TILE;
    const fu_tile now = {.parts = p};
    fu_candidate each = *cand;
    each.tile = &now;
    why = fu_domain_build(c, c->domain, p->n_each, p->each);
    if (!why) why = fu_program(c, &each, c->domain, c->prog);
    if (!why) why = fu_schedule_tile(c->prog, tile->columns, tile->pack);
    if (!why && (p->n_sum || p->n_last)) why = last_program(c, cand, p, tile->columns);
    if (!why && p->n_before) why = before_program(c, cand, p, conv);
    if (!why && !can_be_named(c, p)) why = TN_CUT_SIZE;
    for (int i = 0; i < c->prog->n_store && !why && p->n_sum; i++) /* stored by one of them */
        for (int k = 0; k < c->prog2->n_store; k++)
            if (c->prog->store[i].slot == c->prog2->store[k].slot) why = TN_CUT_REPEATED;
    return why;
}
