/* kernel.c - a kernel from a scheduled program: its operands, its work items, and around them the text
 * of one function. What an item does is written by the nest of the program's form (nest.h).
 *
 *     void add_300(const tn_args *a, int64_t begin, int64_t end)
 *     {
 *         const float *x = a->buf[0];
 *         float *out = a->buf[1];
 *         for (int64_t item = begin; item < end; item++) {
 *             const int64_t i0 = item;
 *             ...
 *         }
 *     }
 *
 * A split reduction is one kernel of two functions: the second is its finish, which the device runs when all
 * items of the first are done, and combines the parts in their order.
 *
 * Start with fu_emit, then emit_kernel and write_item. */
#include "cuda.h"

#include <stdio.h>
#include <string.h>

/* ---- items ---- */

/* Coordinates of the kept atoms and the part, from `item`. */
static void decode_item(fu_em *e, int64_t tiles, int parts_dim)
{
    fu_prog *p = e->p;
    int vec = fu_vec(p);
    char cur[200] = "item";
    uint32_t keep = ~p->red & fu_all_atoms(p);
    if (p->form != FU_ROW) keep &= ~fu_bit(vec);
    if (p->form != FU_ROW && (tiles > 1 || fu_runtime(p, vec))) {
        if (!keep && !p->split)
            fu_line(&e->t, "const int64_t v0 = item * %lld;", (long long)p->tile);
        else
            fu_line(&e->t, "const int64_t v0 = item %% %lld * %lld;", (long long)tiles, (long long)p->tile);
        size_t k = strlen(cur);
        snprintf(cur + k, sizeof cur - k, " / %lld", (long long)tiles);
    }
    bool part_inner = p->split && p->outer >= 0 && !(p->red >> p->outer & 1);
    if (part_inner && keep) {
        fu_line(&e->t, "const int64_t part = %s %% a->dim[%d];", cur, parts_dim);
        size_t k = strlen(cur);
        snprintf(cur + k, sizeof cur - k, " / a->dim[%d]", parts_dim);
    } else if (part_inner) {
        fu_line(&e->t, "const int64_t part = %s;", cur);
    }
    int first = 0;
    while (first < p->n_atom && !(keep >> first & 1)) first++;
    for (int i = p->n_atom - 1; i >= 0; i--) {
        if (!(keep >> i & 1)) continue;
        bool last = i == first && (!p->split || part_inner);
        if (i == p->block) {
            int64_t n = (p->extent[i] + p->lines - 1) / p->lines;
            if (last)
                fu_line(&e->t, "const int64_t b0 = %s * %d;", cur, p->lines);
            else
                fu_line(&e->t, "const int64_t b0 = %s %% %lld * %d;", cur, (long long)n, p->lines);
            size_t k = strlen(cur);
            snprintf(cur + k, sizeof cur - k, " / %lld", (long long)n);
            continue;
        }
        if (last)
            fu_line(&e->t, "const int64_t i%d = %s;", i, cur);
        else
            fu_line(&e->t, "const int64_t i%d = %s %% %lld;", i, cur, (long long)p->extent[i]);
        size_t k = strlen(cur);
        snprintf(cur + k, sizeof cur - k, " / %lld", (long long)p->extent[i]);
    }
    if (p->split && !part_inner) fu_line(&e->t, "const int64_t part = %s;", cur);
}

/* The vector's range within an item. */
static void vector_range(fu_em *e, int64_t tiles, fu_range *r)
{
    fu_prog *p = e->p;
    int vec = fu_vec(p);
    long long width = p->extent[vec], tile = p->tile;
    *r = (fu_range){.lo = "0", .count = -1};
    if (p->form == FU_ROW) {
        fu_extent(p, vec, r->hi);
        if (!fu_runtime(p, vec)) r->count = width;
    } else {
        if (tiles > 1 || fu_runtime(p, vec)) snprintf(r->lo, sizeof r->lo, "v0");
        if (fu_runtime(p, vec)) {
            fu_line(&e->t, "const int64_t w = n%d - v0 < %lld ? n%d - v0 : %lld;", vec, tile, vec, tile);
            snprintf(r->hi, sizeof r->hi, "w");
        } else if (width % tile) {
            fu_line(&e->t, "const int64_t w = %lld - v0 < %lld ? %lld - v0 : %lld;", width, tile, width,
                    tile);
            snprintf(r->hi, sizeof r->hi, "w");
        } else {
            snprintf(r->hi, sizeof r->hi, "%lld", tile);
            r->count = tile;
        }
    }
}

/* The reduced iterations of an item's part: r0 .. r1, of the outer atoms or of the vector's. */
static void part_range(fu_em *e, int part_dim, fu_range *r)
{
    fu_prog *p = e->p;
    int vec = fu_vec(p);
    bool along_vector = p->form == FU_ROW && !(p->red & ~fu_bit(vec));
    int n = fu_dim(e, fu_count(p, along_vector ? fu_bit(vec) : p->red & ~fu_bit(vec)));
    fu_line(&e->t, "const int64_t r0 = part * a->dim[%d];", part_dim);
    fu_line(&e->t, "const int64_t r1 = r0 + a->dim[%d] < a->dim[%d] ? r0 + a->dim[%d] : a->dim[%d];",
            part_dim, n, part_dim, n);
    r->part = !along_vector;
    if (!along_vector) return;
    snprintf(r->lo, sizeof r->lo, "r0");
    snprintf(r->hi, sizeof r->hi, "r1");
    r->count = -1;
}

/* Crosswise sums: items part by part, each with a line of scratch for every sum. */
static void open_part(fu_em *e, const int *scratch)
{
    fu_prog *p = e->p;
    int part = fu_dim(e, p->part);
    fu_scope_open(e, "for (int64_t from = begin; from < end;) {");
    fu_line(&e->t, "const int64_t part = from / a->dim[%d], last = (part + 1) * a->dim[%d];", part, part);
    fu_line(&e->t, "const int64_t to = last < end ? last : end;");
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (!v->cross) continue;
        char start[48];
        long long width = fu_cross_width(p, v);
        fu_name(e, v);
        fu_reduce_start(v, start, sizeof start);
        fu_line(&e->t, "%s *%s_sum = %s + part * %lld;", fu_acc_type(e, v), v->name, e->pointer[scratch[i]],
                width);
        fu_line(&e->t, "for (int64_t k = 0; k < %lld; k++) %s_sum[k] = %s;", width, v->name, start);
    }
}

static void write_item(fu_em *e, const int *scratch)
{
    fu_prog *p = e->p;
    int64_t tiles = p->tile ? (p->extent[fu_vec(p)] + p->tile - 1) / p->tile : 1;
    fu_range r;
    int parts_dim = p->split ? fu_dim(e, p->parts) : -1, part_dim = p->split ? fu_dim(e, p->part) : -1;
    for (int i = 0; i < p->n_value; i++) p->value[i].array = false;
    if (p->cross) open_part(e, scratch);
    fu_scope_open(e, "for (int64_t item = %s; item < %s; item++) {", p->cross ? "from" : "begin",
                  p->cross ? "to" : "end");
    decode_item(e, tiles, parts_dim);
    vector_range(e, tiles, &r);
    if (p->split) part_range(e, part_dim, &r);
    switch (p->form) {
    case FU_POINTWISE: fu_nest_pointwise(e, &r); break;
    case FU_ROW: fu_nest_row(e, &r, scratch); break;
    case FU_COLUMN: fu_nest_column(e, &r, scratch); break;
    }
    fu_scope_close(e);
    if (!p->cross) return;
    fu_line(&e->t, "from = to;");
    fu_scope_close(e);
}

/* ---- the function around them ---- */

/* The body of one function of the kernel: the program e->p. The first n_in operands are only read. */
static void write_body(fu_em *e, int n_in, const int *scratch)
{
    fu_prog *p = e->p;
    fu_put_operands(e, n_in, scratch);
    e->depth = 1;
    fu_put_constants(e, p->split || (p->form == FU_POINTWISE && !p->tile));
    if (p->form == FU_POINTWISE && !p->tile)
        fu_nest_pointwise(e, &(fu_range){.lo = "begin", .hi = "end", .count = -1});
    else
        write_item(e, scratch);
    if (p->stream) fu_line(&e->t, "tn_stream_end();");
    fu_count_traffic(e);
}

static void begin_function(fu_em *e)
{
    e->helpers = 0;
    e->t.indent = 1;
}

static void end_function(fu_em *e, const char *tail)
{
    if (e->helpers & FU_HELP_FAULT) tn_put(&e->head, "%s", FU_INDEX_FAULT);
    fu_put_function(e, "void %s%s(const tn_args *a, int64_t begin, int64_t end)\n{\n", e->s->name, tail);
}

/* Two programs finish: the items of the second follow those of the first. */
static void write_both(fu_em *e, const fu_group *g, int n_in, fu_prog *const *last)
{
    long long items = last[0]->items;
    fu_line(&e->t, "const int64_t items[2] = {begin, end};");
    fu_line(&e->t, "if (items[0] < %lld) {", items);
    e->t.indent++;
    fu_line(&e->t, "const int64_t begin = items[0], end = items[1] < %lld ? items[1] : %lld;", items, items);
    for (int k = 0; k < 2; k++) {
        fu_turn_to(e, last[k]);
        write_body(e, n_in, NULL);
        fu_describe(e, g);
        fu_close(&e->t);
        if (k) break;
        fu_line(&e->t, "if (items[1] > %lld) {", items);
        e->t.indent++;
        fu_line(&e->t, "const int64_t begin = items[0] > %lld ? items[0] - %lld : 0, end = items[1] - %lld;",
                items, items, items);
    }
}

/* ---- results in the place of operands ---- */

/* Returns true where load v reads the very elements that store s writes: at each point the same one, or none,
 * before it is written, and in no later phase. */
static bool reads_before(const fu_em *e, const fu_value *v, const fu_store *s)
{
    const fu_prog *p = e->p;
    if (v->kind != FU_LOAD || v->staged || v->offset != s->offset || v->shift != s->shift ||
        tn_dtype_size(v->dtype) != tn_dtype_size(s->dtype) || memcmp(v->stride, s->stride, sizeof v->stride))
        return false;
    /* on a GPU, threads of a warp that have no row of their own read what another row is about */
    if (!fu_full(p, v) && fu_cuda_several(p)) return false;
    return !fu_full(p, v) || !(v->need >> s->phase >> 1);
}

/* `last` are the programs of the kernel's finish; NULL: there is none. */
static bool can_replace(const fu_em *e, fu_prog *const *last, int slot, const fu_store *s)
{
    const fu_prog *p = e->p;
    bool full = fu_store_full(p, s);
    for (int i = 0; i < 2 && e->s->kind == TN_STEP_GEMM; i++)
        if (e->s->buf[i] == slot) return false; /* other parts of the product are yet to be summed */
    /* each point is written once: by an item that alone reads it */
    if (s->mask >= 0 || (s->dom | (full ? 0 : p->red)) != fu_all_atoms(p) ||
        (!full && (p->form != FU_ROW || p->split)))
        return false;
    for (int i = 0; i < p->n_value; i++)
        if (fu_loads(e, i) && p->value[i].slot == slot && !reads_before(e, &p->value[i], s)) return false;
    for (int k = 0; k < 2; k++)
        for (int i = 0; last[k] && i < last[k]->n_value; i++) {
            const fu_value *v = &last[k]->value[i];
            if ((v->kind == FU_LOAD || v->kind == FU_PICK) && v->slot == slot) return false;
        }
    return true;
}

int fu_note_over(fu_em *e, fu_prog *const *last)
{
    const fu_prog *p = e->p;
    tn_step *s = e->s;
    for (int pass = 0; pass < 2; pass++) {
        int n = 0;
        for (int o = 0; o < p->n_store; o++)
            for (int i = 0; i < p->n_value; i++) {
                const fu_value *v = &p->value[i];
                bool first = fu_loads(e, i) && v->slot != p->store[o].slot;
                for (int k = 0; k < i && first; k++) first = !fu_loads(e, k) || p->value[k].slot != v->slot;
                if (!first || !can_replace(e, last, v->slot, &p->store[o])) continue;
                if (pass) s->over[n] = (struct tn_over){v->slot, p->store[o].slot};
                n++;
            }
        if (!n) return 0;
        if (!pass) s->over = tn_arena_alloc(&e->c->plan->arena, (size_t)n * sizeof *s->over);
        if (!s->over) return fu_fail(e->c, TN_E_NOMEM, "no memory for a plan");
        s->n_over = n;
    }
    return 0;
}

/* The kernel of p, and of its finish, up to two programs; partial results lie in scratch slot[v]. */
static int emit_kernel(fu_ctx *c, const fu_group *g, fu_prog *p, fu_prog *const *last, const int *slot)
{
    fu_em *e = fu_em_new(c);
    if (!e) return TN_E_NOMEM;
    char name[64];
    int scratch[FU_MAX_VALUES];
    fu_kernel_name(c, g, p, name, sizeof name - 16);
    e->s = fu_step_new(c, TN_STEP_KERNEL, name);
    if (!e->s) return TN_E_NOMEM;
    fu_turn_to(e, p);
    fu_take_inputs(e, 0, NULL, false);
    for (int k = 0; k < 2 && last[k]; k++) {
        fu_turn_to(e, last[k]);
        fu_take_inputs(e, p->n_value, slot, false);
    }
    int n_in = e->n_pointer;
    fu_turn_to(e, p);
    fu_take_outputs(e);
    for (int i = 0; i < p->n_value && last[0]; i++)
        if (fu_is_partial(p, i))
            scratch[i] = fu_pointer(e, slot[i], 0, fu_compute_dtype(p->value[i].dtype), "partial");
    for (int k = 0; k < 2 && last[k]; k++) {
        fu_turn_to(e, last[k]);
        fu_take_inputs(e, p->n_value, slot, true);
        fu_take_outputs(e);
    }
    fu_turn_to(e, p);
    int status = fu_take_buffers(e, n_in);
    if (!status) status = fu_note_over(e, last);
    if (status) return status;
    e->s->grid.n = p->items;
    e->s->grid.chunk = p->chunk;
    if (last[0]) {
        e->s->grid.finish_n = last[0]->items + (last[1] ? last[1]->items : 0);
        e->s->grid.finish_chunk = last[1] ? 1 : last[0]->chunk;
    }
    if (fu_can(c->target)->grid) {
        fu_cuda_kernel(e, g, p, last[0], n_in, scratch);
        return fu_finish_kernel(c, e->s, &e->head);
    }
    begin_function(e);
    write_body(e, n_in, scratch);
    fu_describe(e, g);
    end_function(e, "");
    begin_function(e);
    if (last[1]) {
        write_both(e, g, n_in, last);
    } else if (last[0]) {
        fu_turn_to(e, last[0]);
        write_body(e, n_in, NULL);
        fu_describe(e, g);
    }
    if (last[0]) end_function(e, TN_FINISH);
    return fu_finish_kernel(c, e->s, &e->head);
}

static int check_finish(fu_ctx *c, fu_prog *p)
{
    for (int i = 0; i < p->n_value; i++) p->value[i].name[0] = 0;
    return fu_verify_program(c, p);
}

int fu_emit(fu_ctx *c, const fu_group *g, fu_prog *p)
{
    fu_prog *last[2] = {NULL, NULL};
    int status = fu_verify_program(c, p), n = 0;
    if (status) return status;
    if (!p->split && !p->cross) return emit_kernel(c, g, p, last, NULL);
    int slot[FU_MAX_VALUES];
    int64_t kept = fu_count(p, ~p->red & fu_all_atoms(p));
    for (int i = 0; i < p->n_value; i++) {
        slot[i] = -1;
        if (!fu_is_partial(p, i)) continue;
        int64_t width = p->cross ? fu_cross_width(p, &p->value[i]) : kept;
        slot[i] = fu_scratch_slot(c, width * p->parts, fu_compute_dtype(p->value[i].dtype));
        if (slot[i] < 0) return slot[i];
    }
    for (int wide = 1; wide >= 0 && p->cross; wide--) {
        fu_prog *q = n ? c->prog3 : c->prog2;
        if (!fu_cross_finish(p, q, slot, wide)) continue;
        if (fu_schedule(q)) return fu_fail(c, TN_E_INTERNAL, "sums over rows that cannot be finished");
        last[n++] = q;
    }
    if (p->split) {
        fu_second_stage(p, c->prog2, slot);
        last[0] = c->prog2;
    }
    for (int k = 0; k < 2 && last[k] && !status; k++) status = check_finish(c, last[k]);
    if (status) return status;
    for (int i = 0; i < p->n_value; i++) p->value[i].name[0] = 0;
    return emit_kernel(c, g, p, last, slot);
}
