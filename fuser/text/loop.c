/* loop.c - the vector loop of a phase and what stands around it, for all three nests.
 *
 * A phase is one pass over the loops; its body defines values where they are first asked for. For silu of a
 * large tensor, streamed:
 *
 *     for (int64_t c = 0; c < 4096; c += 64) {
 *         _Alignas(64) float silu_piece[64];
 *     #pragma omp simd
 *         for (int64_t k = 0; k < 64; k++) {
 *             const int64_t i1 = v0 + c + k;
 *             const float x_i = x[i0 * 65536 + i1];
 *             const float silu = x_i * tn_sigmoid(x_i);
 *             silu_piece[k] = silu;
 *         }
 *         tn_stream(silu + i0 * 65536 + v0 + c, silu_piece, 64 * 4);
 *     }
 *
 * Start with fu_write_body, then fu_plain_loop. */
#include "nest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the body ---- */

void fu_write_body(fu_em *e, int phase, const fu_lane *lane, const char *acc_at)
{
    fu_prog *p = e->p;
    e->lane = lane;
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (!fu_reduced_in(v, phase)) continue;
        char acc[80], at[160];
        fu_name(e, v);
        if (lane->local)
            snprintf(acc, sizeof acc, "%s_now", v->name);
        else
            snprintf(acc, sizeof acc, "%s_%s[%s]", v->name, p->form == FU_ROW ? "lane" : "acc", acc_at);
        if (fu_accumulate_product(e, v, acc)) continue;
        const char *x = fu_ask(e, v->arg[0]);
        fu_index(e, v->stride, ~0u, at, sizeof at);
        fu_accumulate(e, v, acc, at, x);
        if (fu_wants_least(p, i)) fu_put_least(e, v, acc_at, x);
    }
    TN_EACH(v, p->value, p->n_value) {
        if (!v->cross || v->phase != phase || fu_cross_width(p, v) == 1) continue;
        char acc[240];
        snprintf(acc, sizeof acc, "%s_sum[%s]", v->name, lane->stash);
        if (!fu_accumulate_product(e, v, acc)) fu_accumulate(e, v, acc, "", fu_ask(e, v->arg[0]));
    }
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (v->stash != phase) continue;
        const char *x = fu_ask(e, i);
        fu_line(&e->t, "%s_row[%s] = %s;", v->name, lane->stash, x);
    }
    for (int i = 0; i < p->n_store; i++) /* every load stands before every store: two may change places */
        if (fu_store_full(p, &p->store[i]) && p->store[i].phase == phase && !fu_never(e, &p->store[i])) {
            fu_ask(e, p->store[i].value);
            if (p->store[i].mask >= 0) fu_ask(e, p->store[i].mask);
        }
    for (int i = 0; i < p->n_store; i++)
        if (fu_store_full(p, &p->store[i]) && p->store[i].phase == phase) fu_put_store(e, &p->store[i]);
    e->lane = NULL;
}

void fu_simd(fu_em *e, bool worst)
{
    fu_line(&e->t, "%s%s", e->lang->simd, worst ? " reduction(max : worst)" : "");
}

void fu_lane_of(const fu_em *e, const fu_loop *l, const char *at, fu_lane *out)
{
    const fu_prog *p = e->p;
    int64_t dense[FU_MAX_ATOMS] = {0}, s = p->form == FU_COLUMN ? p->tile : 1;
    const bool shifted = p->form == FU_ROW && strcmp(l->first, "0");
    *out = (fu_lane){.at = at, .lines = l->lines, .rows = l->rows, .near = l->near, .low = l->low};
    snprintf(out->bits, sizeof out->bits, shifted ? "%s - %s" : "%s", at, l->first);
    for (int i = p->n_atom - 1; i >= 0; i--)
        if (p->red >> i & 1) {
            dense[i] = s;
            s *= p->extent[i];
        }
    fu_index(e, dense, ~0u, out->stash, sizeof out->stash);
    const size_t k = strlen(out->stash);
    if (p->form == FU_COLUMN) snprintf(out->stash + k, sizeof out->stash - k, " + %s", at);
}

/* After a loop that could not stop at a bad index: the largest one seen, negative ones above all. */
void fu_report_worst(fu_em *e)
{
    for (int i = 0; i < e->p->n_value; i++)
        if (e->where[i] >= 0 && (e->p->value[i].vary >> fu_vec(e->p) & 1)) {
            fu_line(&e->t, "if (worst) index_fault(a, a->dim[%d], (int64_t)worst);", e->where[i]);
            return;
        }
}

/* ---- the loop ---- */

/* How it is written: over `count` elements from the coordinate `first` on, by a counter of its own (a piece
 * of a stream, or `inner`), or else over the coordinate i from `first` up to `count`. */
struct loop {
    fu_loop of;
    bool inner, test; /* test: only whether arguments are small */
    const char *i, *first, *count;
};

static void unrolled_body(fu_em *e, const fu_loop *l, fu_lane *lane);

static void loop_body(fu_em *e, const struct loop *l, const char *piece)
{
    fu_lane lane;
    fu_lane_of(e, &l->of, l->inner ? "j" : l->i, &lane);
    lane.piece = piece;
    if (l->test)
        fu_test_arguments(e, l->of.phase, &lane);
    else if (l->of.rows)
        unrolled_body(e, &l->of, &lane);
    else
        fu_write_body(e, l->of.phase, &lane, lane.at);
    fu_scope_close(e);
}

static void simd(fu_em *e, const struct loop *l)
{
    if (l->test)
        fu_line(&e->t, "%s reduction(| : far)", e->lang->simd);
    else
        fu_simd(e, l->of.worst);
}

static void piece_loop(fu_em *e, const struct loop *l)
{
    simd(e, l);
    fu_scope_open(e, "for (int64_t k = 0; k < %s; k++) {", l->count);
    fu_line(&e->t, "const int64_t %s = %s + k;", l->i, l->first);
    if (l->inner) fu_line(&e->t, "const int64_t j = c + k;");
    loop_body(e, l, "k");
}

static void whole_loop(fu_em *e, const struct loop *l)
{
    simd(e, l);
    if (l->inner) {
        fu_scope_open(e, "for (int64_t j = 0; j < %s; j++) {", l->count);
        fu_line(&e->t, "const int64_t %s = %s + j;", l->i, l->first);
    } else {
        fu_scope_open(e, "for (int64_t %s = %s; %s < %s; %s++) {", l->i, l->first, l->i, l->count, l->i);
    }
    loop_body(e, l, NULL);
}

/* ---- small arguments ---- */

/* Returns about how many instructions it takes to compute value id once more; TOO_MUCH: it is not worth
 * it. */
static int cost_again(const fu_prog *p, int id)
{
    enum { TOO_MUCH = 100 };
    const fu_value *v = &p->value[id];
    if (!fu_full(p, v)) return 0;
    if (v->kind != FU_LOAD && v->kind != FU_OP && v->kind != FU_GIVEN) return TOO_MUCH;
    int cost = 1 + fu_op_cost(v);
    for (int i = 0; i < v->n_arg && cost < TOO_MUCH; i++) cost += cost_again(p, v->arg[i]);
    return cost;
}

bool fu_tests_arguments(const fu_prog *p, int phase)
{
    enum { LITTLE = 8 };
    char row[64];
    int cost = 0;
    if (p->form == FU_COLUMN || (p->form == FU_ROW && !p->split) || p->block >= 0) return false;
    for (int i = 0; i < p->n_value; i++)
        if (fu_computed_in(p, &p->value[i], phase) && fu_near_form(&p->value[i], row, sizeof row))
            cost += cost_again(p, p->value[i].arg[0]);
    return cost > 0 && cost <= LITTLE;
}

void fu_test_arguments(fu_em *e, int phase, const fu_lane *lane)
{
    fu_prog *p = e->p;
    char row[64];
    bool seen[FU_MAX_VALUES] = {false};
    e->lane = lane;
    TN_EACH(v, p->value, p->n_value) {
        if (!fu_computed_in(p, v, phase) || !fu_near_form(v, row, sizeof row) || seen[v->arg[0]]) continue;
        seen[v->arg[0]] = true;
        const char *x = fu_ask(e, v->arg[0]);
        fu_line(&e->t, "far |= !(tn_abs%s(%s) <= TN_NEAR);", fu_suffix(e->lang, TN_F32), x);
    }
    e->lane = NULL;
}

/* The loop; or a look at the arguments, and then one of two. */
static void write_loop(fu_em *e, struct loop *l, void (*write)(fu_em *, const struct loop *))
{
    if (l->of.worst || l->of.rows || !fu_tests_arguments(e->p, l->of.phase)) {
        write(e, l);
        return;
    }
    fu_line(&e->t, "int far = 0;");
    l->test = true;
    write(e, l);
    l->test = false;
    fu_scope_open(e, "if (far) {");
    write(e, l);
    fu_scope_close(e);
    fu_scope_open(e, "else {");
    l->of.near = true;
    write(e, l);
    fu_scope_close(e);
}

/* ---- pieces ---- */

void fu_declare_pieces(fu_em *e, int phase)
{
    const fu_prog *p = e->p;
    for (int k = 0; k < p->n_store; k++)
        if (p->store[k].stream && p->store[k].phase == phase)
            fu_line(&e->t, "%s%s %s_piece[%d];", e->lang->align, e->lang->memory[p->store[k].dtype],
                    e->pointer[p->store[k].buf], FU_STREAM_TILE);
}

void fu_put_pieces(fu_em *e, int phase, const char *first, const char *count)
{
    const fu_prog *p = e->p;
    char at[256];
    TN_EACH(s, p->store, p->n_store) {
        if (!s->stream || s->phase != phase) continue;
        fu_index(e, s->stride, ~fu_bit(fu_vec(p)), at, sizeof at);
        const char *to = e->pointer[s->buf];
        fu_line(&e->t, "tn_stream(%s + %s%s%s, %s_piece, %s * %d);", to, strcmp(at, "0") ? at : "",
                strcmp(at, "0") ? " + " : "", first, to, count, (int)tn_dtype_size(s->dtype));
    }
}

/* The parts that the pieces of one loop share: the coordinate of its first element (`base`, unless it is
 * 0), and a lookup whose lines are prefetched. */
struct stream {
    const fu_loop *of;
    const char *base;
    bool zero;
    const fu_value *picked;
};

/* The piece of `count` elements from c on. */
static void stream_piece(fu_em *e, const struct stream *s, const char *count)
{
    char i[16], first[80];
    snprintf(i, sizeof i, "i%d", fu_vec(e->p));
    snprintf(first, sizeof first, s->zero ? "%sc" : "%s + c", s->zero ? "" : s->base);
    fu_declare_pieces(e, s->of->phase);
    fu_prefetch_next(e, s->of->phase, first, FU_STREAM_TILE);
    if (s->picked)
        fu_line(&e->t, "for (int k = 0; k < %d; k += %d) %s(next_line + c + k);", FU_STREAM_TILE,
                64 / (int)tn_dtype_size(s->picked->dtype), e->lang->prefetch);
    fu_take_random(e, s->of, "c", count);
    struct loop l = {.of = *s->of, .i = i, .first = first, .count = count};
    l.inner = !s->zero && e->p->form != FU_ROW && e->p->tile;
    write_loop(e, &l, piece_loop);
    fu_put_pieces(e, s->of->phase, first, count);
}

/* The loop in pieces, each computed into small arrays and then written past the caches. `span` is the number
 * of elements, `base` the first one's coordinate. A piece whose length the compiler knows takes up to a sixth
 * less time, so that the last one has a text of its own. */
static void stream_loop(fu_em *e, const fu_loop *l, const char *base, const char *span)
{
    char count[16], *end;
    const int64_t known = strtoll(span, &end, 10), rest = *end ? -1 : known % FU_STREAM_TILE;
    struct stream s = {.of = l, .base = base, .zero = !strcmp(base, "0")};
    s.picked = fu_find_picked(e);
    snprintf(count, sizeof count, "%d", FU_STREAM_TILE);
    if (rest) {
        fu_scope_open(e, "{");
        fu_line(&e->t, "int64_t c = 0;");
    }
    if (rest < 0 || known >= FU_STREAM_TILE) {
        if (rest)
            fu_scope_open(e, "for (; c + %d <= %s; c += %d) {", FU_STREAM_TILE, span, FU_STREAM_TILE);
        else
            fu_scope_open(e, "for (int64_t c = 0; c < %s; c += %d) {", span, FU_STREAM_TILE);
        stream_piece(e, &s, count);
        fu_scope_close(e);
    }
    if (!rest) return;
    if (rest < 0) {
        fu_scope_open(e, "if (c < %s) {", span);
        fu_line(&e->t, "const int64_t m = %s - c;", span);
        snprintf(count, sizeof count, "m");
    } else {
        fu_scope_open(e, "{");
        snprintf(count, sizeof count, "%lld", (long long)rest);
    }
    stream_piece(e, &s, count);
    fu_scope_close(e);
    fu_scope_close(e);
}

void fu_plain_loop(fu_em *e, const fu_loop *of, const char *lo, const char *hi)
{
    int vec = fu_vec(e->p);
    char i[16];
    snprintf(i, sizeof i, "i%d", vec);
    bool from_zero = !strcmp(lo, "0");
    if (fu_phase_streams(e->p, of->phase)) {
        char span[160];
        bool difference = !from_zero && (e->p->form == FU_ROW || !e->p->tile);
        snprintf(span, sizeof span, difference ? "(%s - %s)" : "%s", hi, lo);
        stream_loop(e, of, lo, span);
        return;
    }
    struct loop l = {.of = *of, .i = i, .first = lo, .count = hi};
    l.inner = !(from_zero || e->p->form == FU_ROW || (e->p->form == FU_POINTWISE && !e->p->tile));
    write_loop(e, &l, whole_loop);
}

/* ---- around it ---- */

void fu_hoist(fu_em *e, int phase, bool inside)
{
    fu_prog *p = e->p;
    uint32_t vec = fu_bit(fu_vec(p));
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (!e->hot[i] || v->kind == FU_NUMBER || v->kind == FU_REDUCE || (v->vary & vec)) continue;
        if (inside ? fu_computed_in(p, v, phase) : !fu_full(p, v) && v->phase <= phase) {
            if (!inside && p->form != FU_POINTWISE && (v->vary & p->red)) continue;
            fu_ask(e, i);
        }
    }
}

void fu_put_constants(fu_em *e, bool uncounted)
{
    fu_prog *p = e->p;
    const bool inside = p->outer == p->block || (p->form != FU_ROW && p->outer == fu_vec(p));
    if (!uncounted && (p->red >> p->outer & 1 || inside)) /* a loop runs up to the run-time extent */
        fu_line(&e->t, "const int64_t n%d = %sdim[%d];", p->outer, e->lang->args,
                fu_dim(e, p->extent[p->outer]));
    e->phase = 0;
    for (int i = 0; i < p->n_value; i++) {
        const fu_value *v = &p->value[i];
        if (e->hot[i] && !v->vary && !v->phase && v->kind != FU_NUMBER && !v->cross) fu_ask(e, i);
    }
}

void fu_extent(const fu_prog *p, int atom, char out[32])
{
    if (fu_runtime(p, atom))
        snprintf(out, 32, "n%d", atom);
    else
        snprintf(out, 32, "%lld", (long long)p->extent[atom]);
}

int fu_open_outer(fu_em *e, const fu_range *r, int leave)
{
    fu_prog *p = e->p;
    int vec = fu_vec(p), n = 0, n_outer = 0, outer[FU_MAX_ATOMS];
    for (int i = 0; i < vec; i++)
        if (p->red >> i & 1) outer[n_outer++] = i;
    if (!n_outer) return 0;
    if (r->part) {
        if (n_outer == 1) {
            fu_scope_open(e, "for (int64_t i%d = r0; i%d < r1; i%d++) {", outer[0], outer[0], outer[0]);
            return 1;
        }
        fu_scope_open(e, "for (int64_t r = r0; r < r1; r++) {");
        fu_decode(&e->t, p->red & (fu_bit(vec) - 1), p->extent, "r");
        return 1;
    }
    for (; n < n_outer - leave; n++) {
        char hi[32];
        fu_extent(p, outer[n], hi);
        fu_scope_open(e, "for (int64_t i%d = 0; i%d < %s; i%d++) {", outer[n], outer[n], hi, outer[n]);
    }
    return n;
}

void fu_declare(fu_em *e, fu_value *v, const char *kind, int64_t n)
{
    char start[48];
    fu_name(e, v);
    fu_reduce_start(v, start, sizeof start);
    fu_line(&e->t, "%s%s %s_%s[%lld];", e->lang->align, fu_acc_type(e, v), v->name, kind, (long long)n);
    fu_line(&e->t, "for (int l = 0; l < %lld; l++) %s_%s[l] = %s;", (long long)n, v->name, kind, start);
    if (fu_chooses(v)) {
        fu_line(&e->t, "%s%s %s_at[%lld];", e->lang->align, fu_place_type(e, v), v->name, (long long)n);
        fu_line(&e->t, "for (int l = 0; l < %lld; l++) %s_at[l] = -1;", (long long)n, v->name);
    }
}

void fu_declare_kept_rows(fu_em *e)
{
    fu_prog *p = e->p;
    TN_EACH(v, p->value, p->n_value) {
        if (v->stash < 0) continue;
        int64_t n = fu_count(p, p->red) * (p->form == FU_COLUMN ? p->tile : 1);
        /* single bytes among floats keep loops from becoming vectors */
        const char *type = v->dtype == TN_BOOL ? "int32_t" : fu_type(e, v->dtype);
        fu_name(e, v);
        fu_line(&e->t, "%s%s %s_row[%lld];", e->lang->align, type, v->name, (long long)n);
    }
}

/* Stores of values that do not change inside the loops. Where an item's value does not even depend on all of
 * the item's coordinates, the one where the others are 0 stores it. */
void fu_write_kept(fu_em *e, const char *only)
{
    fu_prog *p = e->p;
    const int vec = fu_vec(p);
    const bool grid = fu_can(p->c->target)->grid;
    TN_EACH(s, p->store, p->n_store) {
        if (fu_store_full(p, s) || fu_never(e, s)) continue;
        fu_ask(e, s->value);
        if (s->mask >= 0 && fu_known(e, s->mask) < 0) fu_ask(e, s->mask);
    }
    TN_EACH(s, p->store, p->n_store) {
        if (fu_store_full(p, s) || fu_never(e, s)) continue;
        uint32_t missing = fu_all_atoms(p) & ~p->red & ~s->dom;
        char when[240], at[16];
        size_t k = (size_t)snprintf(when, sizeof when, "%s", only);
        for (int a = 0; a < p->n_atom; a++) {
            const bool along = a == vec && p->form == FU_POINTWISE;
            if (!(missing >> a & 1)) continue;
            if (along && !grid && p->tile && p->extent[vec] <= p->tile && !fu_runtime(p, vec)) continue;
            snprintf(at, sizeof at, !along ? "i%d" : grid || p->tile ? "v0" : "begin", a);
            k += (size_t)snprintf(when + k, sizeof when - k, "%s%s == 0", k ? " && " : "", at);
        }
        if (grid)
            fu_scope_open(e, k ? "if (%s) {" : "{", when);
        else if (k)
            fu_line(&e->t, "if (%s)", when);
        e->t.indent += k && !grid;
        fu_put_store(e, s);
        e->t.indent -= k && !grid;
        if (grid) fu_scope_close(e);
    }
}

void fu_put_partials(fu_em *e, const int *scratch, const char *tail)
{
    const fu_prog *p = e->p;
    int64_t dense[FU_MAX_ATOMS] = {0}, total = 1;
    char at[200];
    for (int i = p->n_atom - 1; i >= 0; i--) {
        if (p->red >> i & 1) continue;
        dense[i] = total;
        total *= p->extent[i];
    }
    fu_index(e, dense, ~0u, at, sizeof at);
    for (int i = 0; i < p->n_value; i++) {
        const fu_value *v = &p->value[i];
        if (v->kind != FU_REDUCE) continue;
        const char *to = e->pointer[scratch[i]];
        if (total == 1)
            fu_line(&e->t, "%s[part] = %s%s;", to, v->name, tail);
        else
            fu_line(&e->t, "%s[part * %lld + %s] = %s%s;", to, (long long)total, at, v->name, tail);
    }
}

/* ---- several rows at once ---- */

/* A sum of f32 that is carried in f64 takes the rows of a block together in f32, which errs little and is
 * converted once; what is combined from partial results stays in f64. */
static bool by_blocks(const fu_prog *p, const fu_value *v) { return v->wide && !p->second; }

/* Several rows for one element: their contributions meet in a variable. */
static void unrolled_body(fu_em *e, const fu_loop *l, fu_lane *lane)
{
    fu_prog *p = e->p;
    TN_EACH(v, p->value, p->n_value) {
        if (!fu_reduced_in(v, l->phase)) continue;
        if (by_blocks(p, v))
            fu_line(&e->t, "%s %s_now = 0;", e->lang->type[TN_F32], v->name);
        else
            fu_line(&e->t, "%s %s_now = %s_acc[%s];", fu_acc_type(e, v), v->name, v->name, lane->at);
    }
    fu_line(&e->t, "#pragma GCC unroll %d", p->unroll);
    fu_scope_open(e, "for (int u = 0; u < %d; u++) {", p->unroll);
    fu_line(&e->t, "const int64_t %s = b + u;", l->rows);
    lane->local = true;
    fu_write_body(e, l->phase, lane, lane->at);
    fu_scope_close(e);
    TN_EACH(v, p->value, p->n_value) {
        const char *join = by_blocks(p, v) ? "+=" : "=";
        if (fu_reduced_in(v, l->phase))
            fu_line(&e->t, "%s_acc[%s] %s %s_now;", v->name, lane->at, join, v->name);
    }
}
