/* value.c - text of single values: loads, expressions, reductions' steps, stores. Start with fu_ask. */
#include "nest.h"
#include "../../src/core/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- scopes, names, arguments ---- */

void fu_scope_open(fu_em *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fu_line_v(&e->t, fmt, ap);
    va_end(ap);
    e->t.indent++;
    e->depth++;
}

void fu_scope_close(fu_em *e)
{
    for (int i = 0; i < e->p->n_value; i++)
        if (e->defined[i] == e->depth) e->defined[i] = 0;
    e->depth--;
    fu_close(&e->t);
}

void fu_unique(fu_em *e, const char *want, char *out, size_t n)
{
    char id[32];
    fu_identifier(id, sizeof id, want);
    snprintf(out, n, "%s", id);
    for (int k = 2;; k++) {
        bool taken = false;
        for (int i = 0; i < e->n_name && !taken; i++) taken = !strcmp(e->taken[i], out);
        if (!taken) break;
        snprintf(out, n, "%s%s%d", id, id[strlen(id) - 1] >= '0' && id[strlen(id) - 1] <= '9' ? "_" : "", k);
    }
    if (e->n_name < (int)(sizeof e->taken / sizeof *e->taken))
        snprintf(e->taken[e->n_name++], 40, "%.39s", out);
}

int fu_pointer(fu_em *e, int slot, int64_t offset, tn_dtype dtype, const char *want)
{
    for (int i = 0; i < e->n_pointer; i++)
        if (e->pointer_slot[i] == slot && e->pointer_offset[i] == offset) return i;
    if (e->n_pointer == FU_MAX_BUFS) {
        e->t.failed = TN_E_UNSUPPORTED;
        return 0;
    }
    return fu_pointer_more(e, slot, offset, dtype, want);
}

int fu_pointer_more(fu_em *e, int slot, int64_t offset, tn_dtype dtype, const char *want)
{
    int i = e->n_pointer++;
    e->pointer_slot[i] = slot;
    e->pointer_offset[i] = offset;
    e->pointer_dtype[i] = (uint8_t)dtype;
    fu_unique(e, want, e->pointer[i], sizeof e->pointer[i]);
    return i;
}

int fu_dim(fu_em *e, int64_t value)
{
    const int at = fu_step_dim(e->c, e->s, value);
    if (at < 0 && !e->t.failed) e->t.failed = at;
    return at < 0 ? 0 : at;
}

int fu_scalar(fu_em *e, int slot, int what)
{
    tn_step *s = e->s;
    if (!s->scalar && !(s->scalar = tn_arena_alloc(&e->c->plan->arena, FU_MAX_SCALARS * sizeof *s->scalar)))
        e->t.failed = TN_E_NOMEM;
    for (int i = 0; i < s->n_scalar; i++)
        if (s->scalar[i].slot == slot && (int)s->scalar[i].what == what) return i;
    if (e->t.failed || s->n_scalar == FU_MAX_SCALARS) {
        if (!e->t.failed) e->t.failed = TN_E_UNSUPPORTED;
        return 0;
    }
    s->scalar[s->n_scalar].slot = slot;
    s->scalar[s->n_scalar].what = what;
    return s->n_scalar++;
}

const char *fu_type(const fu_em *e, tn_dtype d) { return e->lang->type[d]; }

void fu_index(const fu_em *e, const int64_t *stride, uint32_t which, char *out, size_t n)
{
    size_t k = 0;
    out[0] = 0;
    for (int i = 0; i < e->p->n_atom && k < n; i++) {
        int64_t s = stride[i];
        if (!s || !(which >> i & 1)) continue;
        const char *sign = s < 0 ? (k ? " - " : "-") : k ? " + " : "";
        if (s < 0) s = -s;
        if (s == 1)
            k += (size_t)snprintf(out + k, n - k, "%si%d", sign, i);
        else
            k += (size_t)snprintf(out + k, n - k, "%si%d * %lld", sign, i, (long long)s);
    }
    const int vec = fu_vec(e->p);
    if (e->p->fold && stride[vec + 1] && which >> vec & 1 && k < n)
        k += (size_t)snprintf(out + k, n - k, "%si%d / %lld * %lld", k ? " + " : "", vec,
                              (long long)e->p->fold, (long long)stride[vec + 1]);
    if (!k) snprintf(out, n, "0");
}

/* The whole index: over all atoms, moved on by `shift`. */
static void place(const fu_em *e, const int64_t *stride, int64_t shift, char *out, size_t n)
{
    fu_index(e, stride, ~0u, out, n);
    size_t k = strlen(out);
    if (shift) snprintf(out + k, n - k, " %c %lld", shift < 0 ? '-' : '+', llabs((long long)shift));
}

/* ---- values ---- */

void fu_name(fu_em *e, fu_value *v)
{
    if (v->name[0]) return;
    char want[48];
    if (v->kind == FU_LOAD || v->kind == FU_PICK)
        snprintf(want, sizeof want, "%.20s_i", e->pointer[v->buf]);
    else if (v->kind == FU_INDEX)
        snprintf(want, sizeof want, "%.20s_at", *v->hint ? v->hint : "index");
    else if (*v->hint)
        snprintf(want, sizeof want, "%s", v->hint);
    else if (v->kind == FU_SCALAR)
        snprintf(want, sizeof want, "s");
    else if (v->kind == FU_IOTA)
        snprintf(want, sizeof want, "position");
    else if (v->kind == FU_INSIDE)
        snprintf(want, sizeof want, "inside");
    else {
        const char *op = tn_op_get(v->op)->name;
        snprintf(want, sizeof want, "%s", !strncmp(op, "reduce_", 7) ? op + 7 : op);
    }
    fu_unique(e, want, v->name, sizeof v->name);
}

static void define(fu_em *e, int id, const char *expression)
{
    fu_value *v = &e->p->value[id];
    fu_name(e, v);
    fu_line(&e->t, "const %s %s = %s;", fu_type(e, v->dtype), v->name, expression);
    e->defined[id] = e->depth;
}

static void load_text(const fu_em *e, const fu_value *v, const char *address, char *out, size_t n)
{
    char element[320];
    snprintf(element, sizeof element, "%s[%s]", e->pointer[v->buf], address);
    snprintf(out, n, e->lang->load[v->dtype], element);
}

static void ask_index(fu_em *e, int id)
{
    fu_value *v = &e->p->value[id];
    const char *raw = fu_ask(e, v->arg[0]);
    fu_name(e, v);
    if (e->where[id] < 0) e->where[id] = fu_dim(e, v->asker);
    e->helpers |= FU_HELP_FAULT;
    if (e->lane && e->lang->simd) {
        fu_line(&e->t, "const bool %s_bad = (uint64_t)%s >= %lld;", v->name, raw, (long long)v->extent);
        fu_line(&e->t, "const int64_t %s = %s_bad ? 0 : (int64_t)%s;", v->name, v->name, raw);
        fu_line(&e->t, "worst = %s_bad && (uint64_t)%s > worst ? (uint64_t)%s : worst;", v->name, raw, raw);
    } else {
        fu_line(&e->t, "int64_t %s = (int64_t)%s;", v->name, raw);
        fu_line(&e->t, "if ((uint64_t)%s >= %lld) {", v->name, (long long)v->extent);
        fu_line(&e->t, "    index_fault(a, %sdim[%d], %s);", e->lang->args, e->where[id], v->name);
        fu_line(&e->t, "    %s = 0;", v->name);
        fu_line(&e->t, "}");
    }
    e->defined[id] = e->depth;
}

static void ask_random(fu_em *e, int id)
{
    fu_value *v = &e->p->value[id];
    char at[256], bits[240], expr[320];
    bool inner = v->vary >> fu_vec(e->p) & 1;
    const char *p = v->n_arg && !inner ? fu_ask(e, v->arg[0]) : "";
    fu_name(e, v);
    int seed = fu_scalar(e, v->slot, TN_WORD_SEED), draw = fu_scalar(e, v->slot, TN_WORD_DRAW);
    fu_index(e, v->stride, ~0u, at, sizeof at);
    if (inner)
        snprintf(bits, sizeof bits, "%s_bits[%s]", v->name, e->lane->bits);
    else
        snprintf(bits, sizeof bits, "%s(%sscalar[%d].u, %sscalar[%d].u, (uint64_t)(%.120s))",
                 v->op == TN_OP_normal ? "tn_philox_normal" : "tn_philox_u32", e->lang->args, seed,
                 e->lang->args, draw, at);
    if (v->op == TN_OP_bernoulli && inner) /* the bound was put before the loop */
        snprintf(expr, sizeof expr, "(%s >= %s_bound) & %s_live", bits, v->name, v->name);
    else if (v->op == TN_OP_bernoulli)
        snprintf(expr, sizeof expr, "!tn_dropped(%s, %s)", bits, p);
    else if (v->op == TN_OP_uniform)
        snprintf(expr, sizeof expr, "tn_uniform(%s)", bits);
    else
        snprintf(expr, sizeof expr, "%s", bits);
    define(e, id, expr);
}

bool fu_near_form(const fu_value *v, char *out, size_t n)
{
    static const char *const name[] = {"tn_sin", "tn_cos"};
    const char *text = v->kind == FU_OP ? tn_op_get(v->op)->text : NULL; /* copies and casts have none */
    if (!text || fu_compute_dtype(v->from) != TN_F32) return false;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        size_t k = strlen(name[i]);
        if (strncmp(text, name[i], k) || text[k] != '(') continue;
        snprintf(out, n, "%s_near_f32%s", name[i], text + k);
        return true;
    }
    return false;
}

/* What is read has the digits of memory; what it is joined with or surrounded by may be computed. */
static bool is_computed(const fu_em *e, const fu_value *v)
{
    if (v->kind == FU_LOAD && v->n_arg) return is_computed(e, &e->p->value[v->arg[1]]);
    return v->kind == FU_OP || v->kind == FU_REDUCE || v->kind == FU_GIVEN || v->kind == FU_RANDOM;
}

static bool is_strict(const fu_em *e, const fu_value *v)
{
    return v->node >= 0 && e->p->c->node[v->node].strict;
}

/* Inside of a kernel computed 16-bit floats have f32's digits. A comparison compares them as they would be
 * in memory: otherwise the largest element of a row, read from memory, would equal none of the row's
 * elements computed again. The same holds for values that lead to such a comparison. Returns the dtype to
 * whose digits v's operand is rounded as it is read, or a wider one: as it is. */
static tn_dtype read_as(const fu_em *e, const fu_value *v, int arg)
{
    const fu_value *x = &e->p->value[arg];
    const bool widened = v->dtype == TN_BOOL && x->kind == FU_OP && x->op == TN_OP_cast &&
                         x->dtype == TN_F32 && tn_dtype_is_half(x->from);
    if (widened) x = &e->p->value[x->arg[0]]; /* carried alike */
    const bool rounds = is_computed(e, x) && tn_dtype_is_half(x->dtype) &&
                        (is_strict(e, x) || widened || (v->dtype == TN_BOOL && x->dtype == v->from));
    return rounds ? x->dtype : TN_F32;
}

/* A cast that rounds: from 16 bits, of what has the digits of memory wherever it is made. One to 16 bits
 * leaves that to its readers. */
static bool is_rounded(const fu_em *e, const fu_value *v)
{
    const fu_value *x = &e->p->value[v->arg[0]];
    return tn_dtype_is_half(v->from) && is_computed(e, x) && (is_strict(e, v) || is_strict(e, x));
}

/* A copy has no text of its own, nor has a cast between types that are carried alike, nor rounding of
 * integers. */
static bool transparent(const fu_em *e, const fu_value *v)
{
    if (v->kind != FU_OP) return false;
    switch (v->op) {
    case TN_OP_contiguous: return true;
    case TN_OP_cast: return fu_compute_dtype(v->dtype) == fu_compute_dtype(v->from) && !is_rounded(e, v);
    case TN_OP_floor:
    case TN_OP_ceil:
    case TN_OP_round:
    case TN_OP_trunc: return !tn_dtype_is_float(v->from);
    default: return false;
    }
}

/* Returns true where a value is known to have no more digits than d, of 16 bits, whatever it is carried in:
 * it was read so, or rounded, or chosen from such. What has no text of its own has what its operand has, unrounded.
 * Looks no further than `deep` values. */
static bool has_digits(const fu_em *e, int id, tn_dtype d, int deep)
{
    const fu_value *v = &e->p->value[id];
    if (v->kind == FU_NUMBER) {
        float now = v->number.is_int ? (float)v->number.i : (float)v->number.f, then;
        uint16_t h;
        tn_convert(&h, d, &now, TN_F32, 1);
        tn_convert(&then, TN_F32, &h, d, 1);
        return now == then;
    }
    if (v->kind == FU_LOAD || v->kind == FU_PICK)
        return v->dtype == d &&
               (v->kind == FU_PICK || !v->n_arg || (deep && has_digits(e, v->arg[1], d, deep - 1)));
    if (v->kind != FU_OP || !deep) return false;
    switch (v->op) {
    case TN_OP_cast:
    case TN_OP_contiguous:
    case TN_OP_where:
    case TN_OP_relu:
    case TN_OP_neg:
    case TN_OP_abs:
    case TN_OP_maximum:
    case TN_OP_minimum: break;
    default: return false;
    }
    if (v->op == TN_OP_cast && !tn_dtype_is_float(v->from)) return v->from == TN_BOOL;
    for (int k = v->op == TN_OP_where; k < v->n_arg; k++)
        if ((transparent(e, v) || read_as(e, v, v->arg[k]) != d) && !has_digits(e, v->arg[k], d, deep - 1))
            return false;
    return true;
}

static const char *as_stored(fu_em *e, const fu_value *v, int arg, const char *text, char *out, size_t n)
{
    enum { DEEP = 8 };
    const tn_dtype d = read_as(e, v, arg);
    if (!tn_dtype_is_half(d) || has_digits(e, arg, d, DEEP)) return text;
    snprintf(out, n, e->lang->rounded[d], text);
    return out;
}

static void ask_op(fu_em *e, int id)
{
    fu_value *v = &e->p->value[id];
    const char *arg[3] = {0};
    char expr[512], stored[3][240];
    const int known = v->op == TN_OP_where ? fu_known(e, v->arg[0]) : -1;
    if (known >= 0) {
        const int one = v->arg[known ? 1 : 2];
        define(e, id, as_stored(e, v, one, fu_ask(e, one), stored[0], sizeof stored[0]));
        return;
    }
    for (int i = 0; i < v->n_arg; i++) {
        const char *text = fu_ask(e, v->arg[i]);
        arg[i] = as_stored(e, v, v->arg[i], text, stored[i], sizeof stored[i]);
    }
    if (v->op == TN_OP_cast) {
        if (v->dtype == TN_BOOL)
            snprintf(expr, sizeof expr, "%s != 0", arg[0]);
        else if (v->from == TN_BOOL) /* gcc 12 has no vector form of the conversion, but of the choice */
            snprintf(expr, sizeof expr, tn_dtype_is_float(v->dtype) ? "%s ? (%s)1 : (%s)0" : "%s ? 1 : 0",
                     arg[0], fu_type(e, v->dtype), fu_type(e, v->dtype));
        else if (v->dtype == TN_U8 && tn_dtype_is_float(v->from))
            snprintf(expr, sizeof expr, "(uint8_t)(int32_t)%s", arg[0]);
        else
            snprintf(expr, sizeof expr, "(%s)%s", fu_type(e, v->dtype), arg[0]);
    } else {
        const tn_op_info *o = tn_op_get(v->op);
        char wide[64], near[64];
        bool short_form =
            e->lane && e->lane->near && (v->vary >> fu_vec(e->p) & 1) && fu_near_form(v, near, sizeof near);
        if (o->type == TN_TYPE_TEST && !tn_dtype_is_float(v->from) && strstr(o->text, "tn_")) {
            snprintf(wide, sizeof wide, "(double)%s",
                     arg[0]); /* tests of floating values take integers too */
            arg[0] = wide;
        }
        const char *row = e->lane && e->lane->low && fu_low_top(e->p, v) >= 0 ? "tn_exp_low_f32(x)"
                          : short_form                                        ? near
                                                                              : o->text;
        fu_expression(expr, sizeof expr, e->lang, row, v->from, arg);
    }
    define(e, id, expr);
}

static void given_text(const fu_em *e, fu_gift what, char *out, size_t n)
{
    switch (what) {
    case FU_ELEMENT: snprintf(out, n, e->lang->element, fu_vec(e->p)); return;
    case FU_COUNT: snprintf(out, n, "(float)count"); return;
    case FU_MEAN: snprintf(out, n, "mean"); return;
    case FU_M2: snprintf(out, n, "m2");
    }
}

/* Finds where the value has been put already: kept from an earlier phase, in an array over the tile, or read
 * with its neighbours. false: nowhere. */
static bool kept_at(fu_em *e, fu_value *v, char *out, size_t n)
{
    char at[256];
    bool full = fu_full(e->p, v);
    if (!e->lane) return false;
    if (full && v->stash >= 0 && e->phase > v->stash) {
        fu_name(e, v);
        snprintf(out, n, "%s_row[%s]", v->name, e->lane->stash);
        return true;
    }
    if (!full && e->p->form == FU_COLUMN && (v->array || v->kind == FU_REDUCE) && v->phase <= e->ready) {
        const char *array = v->kind == FU_REDUCE ? fu_chooses(v) ? "at" : "acc" : "col";
        fu_name(e, v);
        snprintf(out, n, "(%s)%s_%s[%s]", fu_type(e, v->dtype), v->name, array, e->lane->at);
        return true;
    }
    if (transparent(e, v) || !v->packed || !e->lane->pack) return false;
    fu_name(e, v);
    snprintf(at, sizeof at, "%s_pack[%s]", v->name, e->lane->pack);
    snprintf(out, n, e->lang->load[v->dtype], at);
    return true;
}

static void ask_scalar(fu_em *e, int id)
{
    const fu_value *v = &e->p->value[id];
    char s[160];
    if (tn_dtype_is_float(v->dtype))
        snprintf(s, sizeof s, "(%s)%sscalar[%d].f", fu_type(e, v->dtype), e->lang->args,
                 fu_scalar(e, v->slot, TN_WORD_F64));
    else
        snprintf(s, sizeof s, "(%s)%sscalar[%d].i", fu_type(e, v->dtype), e->lang->args,
                 fu_scalar(e, v->slot, TN_WORD_I64));
    define(e, id, s);
}

/* An element of the block of that name. */
static void place_in_block(const fu_em *e, const char *name, char *out, size_t n)
{
    const fu_prog *p = e->p;
    const int64_t pitch = fu_can(p->c->target)->grid ? e->lang->block_pitch : fu_block_pitch(p);
    snprintf(out, n, p->form == FU_COLUMN ? "%s_block[i%d * %lld + %s]" : "%s_block[(i%d - b0) * %lld + %s]",
             name, p->block, (long long)pitch, e->lane->at);
}

static void place_in_line(const fu_em *e, const fu_value *v, char *out, size_t n)
{
    const fu_lane *l = e->lane;
    if (l->rows)
        snprintf(out, n, "%s_line%.0d[u * %lld + %s]", v->name, e->phase, (long long)fu_line_length(e->p),
                 l->bits);
    else
        snprintf(out, n, "%s_line%.0d[%s]", v->name, e->phase, l->bits);
}

void fu_load_place(const fu_em *e, const fu_value *v, char *out, size_t n)
{
    place(e, v->stride, v->shift, out, n);
}

static void ask_load(fu_em *e, int id)
{
    fu_value *v = &e->p->value[id];
    const bool tested = v->n_arg && fu_known(e, v->arg[0]) < 0;
    const char *mask = tested ? fu_ask(e, v->arg[0]) : NULL, *other = tested ? fu_ask(e, v->arg[1]) : NULL;
    char s[512], at[256], element[400];
    if (v->staged && e->lane) {
        fu_name(e, v);
        place_in_block(e, v->name, element, sizeof element);
        snprintf(s, sizeof s, e->lang->load[v->dtype], element);
        define(e, id, s);
        return;
    }
    if (e->lane && e->lane->lines && fu_has_line(e->p, v, e->phase)) {
        fu_name(e, v);
        place_in_line(e, v, element, sizeof element);
        snprintf(s, sizeof s, e->lang->load[v->dtype], element);
        define(e, id, s);
        return;
    }
    place(e, v->stride, v->shift, at, sizeof at);
    load_text(e, v, at, element, sizeof element);
    if (mask)
        snprintf(s, sizeof s, "%s ? %s : %s", mask, element, other);
    else
        snprintf(s, sizeof s, "%s", element);
    define(e, id, s);
}

static void ask_pick(fu_em *e, int id)
{
    const fu_value *v = &e->p->value[id];
    const char *line = fu_ask(e, v->arg[0]);
    char s[512], at[256], rest[200];
    fu_index(e, v->stride, ~0u, rest, sizeof rest);
    if (v->pick == 1)
        snprintf(at, sizeof at, "%s + %s", line, rest);
    else
        snprintf(at, sizeof at, "%s * %lld + %s", line, (long long)v->pick, rest);
    size_t k = strlen(at);
    if (k > 4 && !strcmp(at + k - 4, " + 0")) at[k - 4] = 0;
    load_text(e, v, at, s, sizeof s);
    define(e, id, s);
}

const char *fu_ask(fu_em *e, int id)
{
    fu_value *v = &e->p->value[id];
    char s[512], at[256];
    if (v->kind == FU_NUMBER) {
        fu_literal(v->name, sizeof v->name, v->dtype, v->number.f, v->number.i, v->number.is_int);
        return v->name;
    }
    if (fu_settled(e, id) != id) return fu_ask(e, fu_settled(e, id));
    if (fu_known(e, id) >= 0) return fu_known(e, id) ? "1" : "0";
    if (e->defined[id]) return v->name;
    if (kept_at(e, v, s, sizeof s)) {
        define(e, id, s);
        return v->name;
    }
    if (transparent(e, v)) return fu_ask(e, v->arg[0]);
    switch (v->kind) {
    case FU_SCALAR: ask_scalar(e, id); break;
    case FU_LOAD: ask_load(e, id); break;
    case FU_INSIDE:
        place(e, v->stride, v->shift, at, sizeof at);
        snprintf(s, sizeof s, "(uint64_t)(%s) < %lld", at, (long long)v->extent);
        define(e, id, s);
        break;
    case FU_INDEX: ask_index(e, id); break;
    case FU_PICK: ask_pick(e, id); break;
    case FU_GIVEN:
        given_text(e, v->given, s, sizeof s);
        define(e, id, s);
        break;
    case FU_IOTA:
        place(e, v->stride, v->shift, at, sizeof at);
        snprintf(s, sizeof s, "(%s)(%s)", fu_type(e, v->dtype), at);
        define(e, id, s);
        break;
    case FU_RANDOM: ask_random(e, id); break;
    case FU_OP: ask_op(e, id); break;
    case FU_REDUCE: /* asked for before its phase is over: a mistake of the schedule */
    case FU_NUMBER: e->t.failed = TN_E_INTERNAL; break;
    }
    return v->name;
}

void fu_put_store(fu_em *e, const fu_store *s)
{
    char at[256], value[128];
    if (fu_never(e, s)) return;
    const char *v = fu_ask(e, s->value),
               *mask = s->mask >= 0 && fu_known(e, s->mask) < 0 ? fu_ask(e, s->mask) : NULL;
    place(e, s->stride, s->shift, at, sizeof at);
    snprintf(value, sizeof value, e->lang->store[s->dtype], v);
    if (s->staged && e->lane) {
        place_in_block(e, e->pointer[s->buf], at, sizeof at);
        fu_line(&e->t, "%s = %s;", at, value);
    } else if (mask)
        fu_line(&e->t, "if (%s) %s[%s] = %s;", mask, e->pointer[s->buf], at, value);
    else if ((s->stream || s->packed) && e->lane && e->lane->piece)
        fu_line(&e->t, "%s_piece[%s] = %s;", e->pointer[s->buf], e->lane->piece, value);
    else
        fu_line(&e->t, "%s[%s] = %s;", e->pointer[s->buf], at, value);
}

/* ---- reductions ---- */

const char *fu_acc_type(const fu_em *e, const fu_value *v)
{
    if (v->wide) return e->lang->wide;
    return fu_type(e, fu_chooses(v) ? v->from : v->dtype);
}

/* Of the position beside an accumulator, -1 at first: as wide as a float where it can be, so that both are
 * vectors of as many lanes. */
const char *fu_place_type(const fu_em *e, const fu_value *v)
{
    const fu_prog *p = e->p;
    int64_t n = 1;
    for (int a = 0; a < p->n_atom; a++)
        if (v->reduces >> a & 1 && n <= INT32_MAX)
            n = fu_runtime(p, a) || p->extent[a] > INT32_MAX ? INT64_MAX : n * p->extent[a];
    return e->lang->type[n <= INT32_MAX && e->lang->simd ? TN_I32 : TN_I64];
}

/* The neutral element, of the accumulator's type. */
void fu_reduce_start(const fu_value *v, char *out, size_t n)
{
    tn_dtype d = v->wide ? TN_F64 : fu_chooses(v) ? v->from : v->dtype;
    bool low = v->op == TN_OP_reduce_max || v->op == TN_OP_reduce_argmax;
    if (v->op == TN_OP_reduce_sum || v->op == TN_OP_reduce_prod) {
        fu_literal(out, n, d, 0, v->op == TN_OP_reduce_prod, true);
        return;
    }
    fu_limit(out, n, d, low);
}

/* `acc` and the position beside it take a value that beats it. A NaN beats everything but an earlier NaN; an
 * earlier position beats an equal value. */
static void choose(fu_em *e, const fu_value *v, const char *acc, const char *at, const char *value)
{
    const char *cmp = v->op == TN_OP_reduce_argmax ? ">" : "<", *lane = strchr(acc, '[');
    char better[256];
    int k = snprintf(better, sizeof better, "(%s %s %s)", value, cmp, acc);
    if (!lane) lane = "";
    if (tn_dtype_is_float(v->from))
        snprintf(better + k, sizeof better - (size_t)k, " | ((%s != %s) & (%s == %s))", value, value, acc,
                 acc);
    fu_line(&e->t, "const bool %s_won = (%s) | (%s_at%s < 0);", v->name, better, v->name, lane);
    fu_line(&e->t, "%s_at%s = %s_won ? (%s)(%s) : %s_at%s;", v->name, lane, v->name, fu_place_type(e, v), at,
            v->name, lane);
    fu_line(&e->t, "%s = %s_won ? %s : %s;", acc, v->name, value, acc);
}

void fu_accumulate(fu_em *e, const fu_value *v, const char *acc, const char *at, const char *value)
{
    if (fu_chooses(v))
        choose(e, v, acc, at, value);
    else if (v->op == TN_OP_reduce_sum)
        fu_line(&e->t, "%s += %s;", acc, value);
    else if (v->op == TN_OP_reduce_prod)
        fu_line(&e->t, "%s *= %s;", acc, value);
    else
        fu_line(&e->t, "%s = %s%s(%s, %s);", acc, v->op == TN_OP_reduce_max ? "tn_max" : "tn_min",
                fu_suffix(e->lang, v->dtype), acc, value);
}
