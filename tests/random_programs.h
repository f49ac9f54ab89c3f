/* random_programs.h - random training programs: what they are made of, how one is drawn, run and printed.
 *
 *   instr     one line of the program: an operator on earlier values, or a read, an assignment, a
 *             backward, ..
 *   rprogram  the body of a step, run several times over; parameters and buffers that it reads and
 *             assigns to
 *   fact      what the drawing knows of a value: its shape, a bound on it, what it depends on, and
 *             whether it may be asked for again without being TN_E_NOT_KEPT
 *
 * Operands are numbers: of the instruction whose result it is, or FIXED + k a persistent tensor, or KEPT + k
 * a tensor that a KEEP has made, in this step or one before. An instruction whose operand is not there does
 * nothing, so that any line can be struck out when a program is shrunk.
 *
 * Read first: struct instr, then run_body. */
#pragma once

#define MAX_OUT 160
#include "check.h"

#include <tensor_nn.h>

enum { MAX_INSTR = 48, MAX_FIXED = 6, MAX_KEPT = 3, FIXED = 1000, KEPT = 2000, NONE = -1 };

typedef enum shape_name { MATRIX, ROW, COLUMN, ONE, TURNED, SQUARE, N_SHAPES } shape_name;

/* X(name, weight, value): made of the operands x and y and of the line's numbers; NULL: an action */
/* clang-format off */
#define INSTRS(X) \
    X(TANH, 3, tn_tanh(x)) \
    X(RELU, 3, tn_relu(x)) \
    X(SIGMOID, 2, tn_sigmoid(x)) \
    X(GELU, 2, tn_gelu(x)) \
    X(EXP, 1, tn_exp(tn_mul_scalar(x, i->f))) \
    X(SQUARED, 2, tn_square(x)) \
    X(NUMBER, 4, tn_add_scalar(tn_mul_scalar(x, i->f), 0.125 * r->step)) \
    X(ADD, 7, tn_add(x, y)) \
    X(MUL, 7, tn_mul(x, y)) \
    X(SUB, 4, tn_sub(y, x)) \
    X(MAXIMUM, 1, tn_maximum(x, tn_add_scalar(y, 0.1)) /* not twice the same */) \
    X(LERP, 1, tn_lerp(x, y, tn_sigmoid(x))) \
    X(SUM, 3, tn_sum(x, n, &axis, keep)) \
    X(MEAN, 3, tn_mean(x, n, &axis, keep)) \
    X(MAX, 2, tn_max(x, n, &axis, keep)) \
    X(LOGSUMEXP, 1, tn_logsumexp(x, n, &axis, keep)) \
    X(SOFTMAX, 2, tn_softmax(x, i->f == 0 ? 0 : -1)) \
    X(LAYER_NORM, 2, tn_layer_norm(x, NULL, NULL, .eps = 0.01)) \
    X(RMS_NORM, 1, tn_rms_norm(x, NULL, .eps = 0.01)) \
    X(TRANSPOSE, 2, tn_transpose(x, 0, 1)) \
    X(RESHAPE, 2, tn_reshape(x, TN_SHAPE(tn_dim(x, 1), tn_dim(x, 0)))) \
    X(FLIP, 2, tn_flip(x, 1, &(const int){i->f == 0 ? 0 : 1})) \
    X(HALVES, 1, exchanged(x, r->p->columns / 2)) \
    X(MOVING, 2, moved(x, r->step)) \
    X(PRODUCT, 3, tn_mul_scalar(tn_matmul(x, y), 1 / (double)tn_dim(x, 1))) \
    X(DETACH, 1, tn_detach(x)) \
    X(CAST, 4, tn_cast(x, (tn_dtype)i->f)) \
    X(DROPOUT, 2, tn_dropout(x, i->f)) \
    X(RANDOM, 1, tn_rand(r->s, TN_F32, TN_SHAPE(r->p->rows, r->p->columns))) \
    X(MODE, 1, NULL) X(READ, 6, NULL) X(ASSIGN, 5, NULL) X(KEEP, 4, NULL) \
    X(BACKWARD, 14, NULL) X(GRADIENT, 5, NULL) X(UPDATE, 7, NULL) X(FLUSH, 1, NULL)
/* clang-format on */

typedef enum instr_op {
#define X(name, ...) I_##name,
    INSTRS(X)
#undef X
        N_INSTRS
} instr_op;

static const char *const instr_name[N_INSTRS] = {
#define X(name, ...) #name,
    INSTRS(X)
#undef X
};

typedef struct instr {
    instr_op op;
    int a, b, to;     /* operands; what is assigned to, kept as, whose gradient is read */
    shape_name shape; /* of its result */
    double f;
    int only;     /* 0 in each step, 1 in even ones, 2 in odd ones */
    bool dropped; /* by the shrinker */
} instr;

typedef enum method { SGD, SGD_CLIPPED, MOMENTUM, ADAMW } method;

typedef struct rprogram {
    uint64_t seed;
    int64_t rows, columns;
    int n_fixed, n_params; /* the first are parameters, which are f32 */
    tn_dtype data;         /* of the others; half of all programs: f16 or bf16 */
    shape_name fixed[MAX_FIXED];
    method method;
    int n, steps;
    bool varies; /* some instructions are left out of some steps */
    instr i[MAX_INSTR];
} rprogram;

/* ---- drawing ---- */

typedef struct fact {
    shape_name shape;
    double mag;    /* no element is larger */
    uint32_t deps; /* persistent tensors it is made of: bit k, and 16 + k of those kept */
    bool grad;     /* depends on a parameter */
    bool here;     /* is a value at all */
    bool stale;    /* something it is made of has been assigned to since */
    bool flushed;  /* a flush has come since it was made, and it was not what that was for */
} fact;

typedef struct drawing {
    rprogram *p;
    rng r;
    fact at[MAX_INSTR], fixed[MAX_FIXED], kept[MAX_KEPT];
    bool walked; /* a backward has been */
} drawing;

static fact *fact_of(drawing *d, int operand)
{
    return operand >= KEPT    ? &d->kept[operand - KEPT]
           : operand >= FIXED ? &d->fixed[operand - FIXED]
                              : &d->at[operand];
}

static bool usable(const fact *f) { return f->here && !(f->stale && f->flushed); }

/* A value of one of the shapes (bits), a recent one more often than not; or NONE. */
static int pick_value(drawing *d, uint32_t shapes)
{
    for (int tries = 0; tries < 30; tries++) {
        int operand, n = d->p->n;
        int64_t from = rng_below(&d->r, 10);
        if (from < 7 && n)
            operand = n - 1 - (int)rng_below(&d->r, from < 4 && n > 6 ? 6 : n);
        else if (from < 9)
            operand = FIXED + (int)rng_below(&d->r, d->p->n_fixed);
        else
            operand = KEPT + (int)rng_below(&d->r, MAX_KEPT);
        const fact *f = fact_of(d, operand);
        if (usable(f) && shapes >> f->shape & 1) return operand;
    }
    return NONE;
}

static const uint32_t Any = (1u << N_SHAPES) - 1, Flat = 1u << MATRIX | 1u << TURNED | 1u << SQUARE;

/* Shapes that broadcast into `s`. */
static uint32_t fitting(shape_name s)
{
    uint32_t own = 1u << s | 1u << ONE;
    return s == MATRIX ? own | 1u << ROW | 1u << COLUMN : s == SQUARE ? own | 1u << ROW : own;
}

static void flushes(drawing *d, int read)
{
    for (int k = 0; k < d->p->n; k++) d->at[k].flushed = d->at[k].flushed || k != read;
    if (read >= 0 && read < FIXED) d->at[read].flushed = false;
}

static void assigned(drawing *d, uint32_t bit)
{
    for (int k = 0; k < d->p->n; k++) d->at[k].stale = d->at[k].stale || d->at[k].deps & bit;
}

static bool draw_unary(drawing *d, instr *i, fact *f)
{
    i->a = pick_value(d, Any);
    if (i->a < 0) return false;
    *f = *fact_of(d, i->a);
    i->f = rng_real(&d->r, -1.5, 1.5);
    switch (i->op) {
    case I_TANH:
    case I_SIGMOID: f->mag = 1; break;
    case I_EXP: /* of x / mag */
        i->f = 1 / f->mag;
        f->mag = 3;
        break;
    case I_SQUARED: f->mag *= f->mag; break;
    case I_NUMBER: /* c x + c, c of the step too */ f->mag = 2 * f->mag + 2; break;
    case I_DETACH: f->grad = false; break;
    case I_CAST: /* to 16 bits and back */
        i->f = (double)(rng_below(&d->r, 2) ? d->p->data : TN_F32);
        return d->p->data != TN_F32;
    case I_DROPOUT:
        i->f = rng_real(&d->r, 0.1, 0.6);
        f->mag *= 2.5;
        break;
    default: break;
    }
    return true;
}

static bool draw_binary(drawing *d, instr *i, fact *f)
{
    i->a = pick_value(d, Any);
    if (i->a < 0) return false;
    const fact *x = fact_of(d, i->a);
    i->b = pick_value(d, fitting(x->shape));
    if (i->b < 0) return false;
    const fact *y = fact_of(d, i->b);
    *f = *x;
    f->mag = i->op == I_MUL ? x->mag * y->mag : i->op == I_LERP ? 2 * x->mag + y->mag : x->mag + y->mag;
    f->deps |= y->deps;
    f->grad = x->grad || y->grad;
    return true;
}

static bool draw_shaped(drawing *d, instr *i, fact *f)
{
    bool square = i->op == I_PRODUCT;
    uint32_t from = i->op == I_TRANSPOSE || i->op == I_RESHAPE ? 1u << MATRIX | 1u << TURNED
                    : i->op == I_HALVES || i->op == I_MOVING   ? 1u << MATRIX
                    : square                                   ? 1u << MATRIX | 1u << SQUARE | 1u << TURNED
                                                               : Flat;
    i->a = pick_value(d, from);
    if (i->a < 0) return false;
    const fact *x = fact_of(d, i->a);
    *f = *x;
    i->f = (double)rng_below(&d->r, 3);
    double all = (double)(d->p->rows * d->p->columns);
    switch (i->op) {
    case I_SUM:
    case I_MEAN:
    case I_MAX:
    case I_LOGSUMEXP: /* over rows of a matrix, over columns, or over all */
        if (x->shape != MATRIX) i->f = 2;
        f->shape = i->f == 0 ? COLUMN : i->f == 1 ? ROW : ONE;
        f->mag = i->op == I_SUM ? f->mag * all : f->mag + 8;
        return true;
    case I_SOFTMAX: f->mag = 1; return true;
    case I_LAYER_NORM:
    case I_RMS_NORM: f->mag = 6; return true;
    case I_TRANSPOSE:
    case I_RESHAPE: f->shape = x->shape == MATRIX ? TURNED : MATRIX; return true;
    case I_PRODUCT: /* / the inner extent; [r, c] [c, c], [c, c] [c, c], [c, r] [r, c] */
        i->b = pick_value(d, x->shape == TURNED ? 1u << MATRIX : 1u << SQUARE);
        if (i->b < 0) return false;
        f->shape = x->shape == MATRIX ? MATRIX : SQUARE;
        f->mag *= fact_of(d, i->b)->mag;
        f->deps |= fact_of(d, i->b)->deps;
        f->grad = f->grad || fact_of(d, i->b)->grad;
        return true;
    default: return true;
    }
}

/* What is not a value but does something. */
static bool draw_action(drawing *d, instr *i)
{
    rprogram *p = d->p;
    fact f, *x;
    switch (i->op) {
    case I_MODE: return true;
    case I_FLUSH: flushes(d, NONE); return true;
    case I_READ:
        i->a = pick_value(d, Any);
        if (i->a < 0) return false;
        flushes(d, i->a);
        return true;
    case I_ASSIGN:
        i->to = (int)rng_below(&d->r, p->n_fixed);
        i->a = pick_value(d, 1u << p->fixed[i->to]);
        if (i->a < 0) return false;
        i->f = 1 / fact_of(d, i->a)->mag;
        assigned(d, 1u << i->to);
        return true;
    case I_KEEP:
        i->to = (int)rng_below(&d->r, MAX_KEPT);
        i->a = pick_value(d, Any);
        if (i->a < 0 || i->a >= KEPT) return false;
        x = &d->kept[i->to];
        if (x->here && x->shape != fact_of(d, i->a)->shape) return false; /* one shape in all steps */
        f = *fact_of(d, i->a);
        i->f = i->a >= FIXED ? 1 : 1 / f.mag; /* a persistent tensor as it is by then */
        *x = (fact){.shape = f.shape, .mag = f.mag * i->f, .deps = 1u << (16 + i->to), .here = true};
        assigned(d, 1u << (16 + i->to)); /* the one before goes */
        return true;
    case I_BACKWARD:
        i->a = pick_value(d, Any);
        if (i->a < 0 || i->a >= FIXED || !fact_of(d, i->a)->grad) return false;
        if (d->walked && fact_of(d, i->a)->stale) return false;
        d->walked = true;
        return true;
    case I_GRADIENT:
        i->to = (int)rng_below(&d->r, p->n_params);
        flushes(d, NONE);
        return d->walked;
    default: /* UPDATE */
        for (int k = 0; k < p->n_params; k++) assigned(d, 1u << k);
        return d->walked;
    }
}

static bool draw_instr(drawing *d, int *op_total)
{
    static const int weight[N_INSTRS] = {
#define X(name, w, value) w,
        INSTRS(X)
#undef X
    };
    rprogram *p = d->p;
    if (!*op_total)
        for (int k = 0; k < N_INSTRS; k++) *op_total += weight[k];
    int at = (int)rng_below(&d->r, *op_total), op = 0;
    while (at >= weight[op]) at -= weight[op++];
    instr i = {.op = (instr_op)op, .a = NONE, .b = NONE, .to = NONE};
    fact f = {0};
    bool ok;
    if (op >= I_MODE) {
        drawing before = *d;
        ok = draw_action(d, &i);
        if (!ok) { /* but what was drawn is drawn */
            before.r = d->r;
            *d = before;
        }
    } else if (op == I_RANDOM) {
        f = (fact){.shape = MATRIX, .mag = 1, .here = true};
        ok = true;
    } else {
        ok = op >= I_SUM && op <= I_PRODUCT ? draw_shaped(d, &i, &f)
             : op >= I_ADD && op <= I_LERP  ? draw_binary(d, &i, &f)
                                            : draw_unary(d, &i, &f);
        ok = ok && f.mag < 200;
        f.here = true;
        f.flushed = f.stale = false;
        if (i.a >= FIXED && ok) f.deps |= fact_of(d, i.a)->deps;
    }
    if (!ok) return false;
    if (!rng_below(&d->r, 24)) {
        i.only = 1 + (int)rng_below(&d->r, 2);
        p->varies = true;
    }
    d->at[p->n] = f;
    i.shape = f.shape;
    p->i[p->n++] = i;
    return true;
}

static void draw_rprogram(rprogram *p, uint64_t seed)
{
    static const int64_t extent[][2] = {{3, 4}, {5, 8}, {4, 16}, {7, 5}};
    static const shape_name first[MAX_FIXED] = {MATRIX, ROW, SQUARE, MATRIX, ROW, COLUMN};
    int total = 0;
    drawing d = {.p = p, .r = {seed * 7919 + 5}};
    *p = (rprogram){.seed = seed, .n_fixed = MAX_FIXED, .n_params = 3, .steps = 4};
    int64_t which = rng_below(&d.r, 4);
    p->rows = extent[which][0], p->columns = extent[which][1];
    p->method = (method)rng_below(&d.r, 4);
    p->data = (const tn_dtype[]){TN_F32, TN_F16, TN_F32, TN_BF16}[seed % 4];
    for (int k = 0; k < MAX_FIXED; k++) {
        p->fixed[k] = first[k];
        d.fixed[k] =
            (fact){.shape = first[k], .mag = 3, .deps = 1u << k, .grad = k < p->n_params, .here = true};
    }
    int target = 10 + (int)rng_below(&d.r, MAX_INSTR - 12);
    for (int tries = 0; p->n < target && tries < 1000; tries++) draw_instr(&d, &total);
}

/* ---- running ---- */

typedef struct running {
    tn_session *s;
    const rprogram *p;
    tn_tensor *fixed[MAX_FIXED], *kept[MAX_KEPT], *v[MAX_INSTR];
    tn_optim *opt;
    int step;
    instr_op faulty; /* goes wrong; N_INSTRS: none */
    result *r;
} running;

static int shape_of(const rprogram *p, shape_name s, int64_t *shape)
{
    const int64_t r = p->rows, c = p->columns;
    const int64_t all[N_SHAPES][2] = {{r, c}, {c, 0}, {r, 1}, {0, 0}, {c, r}, {c, c}};
    memcpy(shape, all[s], sizeof all[s]);
    return s == ONE ? 0 : s == ROW ? 1 : 2;
}

static tn_tensor *some_tensor(tn_session *s, const rprogram *p, shape_name name, tn_dtype dtype,
                              uint64_t seed)
{
    double v[256];
    int64_t shape[2] = {0, 0};
    int ndim = shape_of(p, name, shape);
    rng r = {seed};
    for (int k = 0; k < 256; k++) v[k] = rng_real(&r, -1.5, 1.5);
    return tensor_of(s, v, dtype, ndim, shape);
}

static tn_tensor *operand(const running *r, int k)
{
    return k < 0 ? NULL : k >= KEPT ? r->kept[k - KEPT] : k >= FIXED ? r->fixed[k - FIXED] : r->v[k];
}

static void read_out(running *r, tn_tensor *t)
{
    if (!t || tn_error(r->s) || r->r->n == MAX_OUT) return;
    value *v = &r->r->out[r->r->n];
    read_value(t, v);
    if (tn_error(r->s))
        free(v->v);
    else
        r->r->n++;
}

/* The halves of its columns change places. */
static tn_tensor *exchanged(tn_tensor *x, int64_t half)
{
    return tn_concat(2, (tn_tensor *[]){tn_slice(x, 1, half, TN_END, 1), tn_slice(x, 1, 0, half, 1)}, 1);
}

/* Half of its rows, from one on that each step names anew, and zeros. */
static tn_tensor *moved(tn_tensor *x, int step)
{
    const int64_t rows = tn_dim(x, 0), length = (rows + 1) / 2;
    return tn_pad(tn_narrow(x, 0, step % (rows - length + 1), length), 0, 0, rows - length, 0);
}

static tn_tensor *value_from(running *r, const instr *i, tn_tensor *x, tn_tensor *y)
{
    const int axis = i->f == 0 ? 1 : 0, n = i->f == 2 ? 0 : 1; /* of reductions: rows, columns, all */
    const bool keep = i->f == 0;
    switch (i->op) {
#define X(name, weight, value)                                                                               \
    case I_##name: return value;
        INSTRS(X)
#undef X
    case N_INSTRS: break;
    }
    return NULL;
}

static bool has_gradients(const running *r)
{
    bool any = false;
    for (int k = 0; k < r->p->n_params; k++) any = any || tn_has_gradient(r->fixed[k]);
    return any;
}

static void act(running *r, const instr *i, tn_tensor *x)
{
    tn_tensor *old;
    switch (i->op) {
    case I_MODE: tn_train(r->s, !tn_is_training(r->s)); break;
    case I_FLUSH: tn_flush(r->s); break;
    case I_READ: read_out(r, x); break;
    case I_ASSIGN:
        if (x) tn_assign(r->fixed[i->to], tn_cast(tn_mul_scalar(x, i->f), tn_dtype_of(r->fixed[i->to])));
        break;
    case I_KEEP:
        if (!x) break;
        old = r->kept[i->to];
        r->kept[i->to] = tn_keep(i->a >= FIXED ? x : tn_mul_scalar(x, i->f));
        tn_free(old);
        break;
    case I_BACKWARD:
        if (x && tn_wants_gradient(x)) tn_backward(weighted(r->s, x, r->p->seed + (uint64_t)(i - r->p->i)));
        break;
    case I_GRADIENT: read_out(r, tn_gradient(r->fixed[i->to])); break;
    default: /* UPDATE */
        if (!has_gradients(r)) break;
        if (r->p->method == SGD_CLIPPED) tn_clip_grad_norm(r->opt, 0.5);
        tn_optim_step(r->opt);
    }
}

static void run_body(running *r)
{
    const rprogram *p = r->p;
    memset(r->v, 0, sizeof r->v);
    for (int k = 0; k < p->n && !tn_error(r->s); k++) {
        const instr *i = &p->i[k];
        if (i->dropped || i->only == 1 + (r->step + 1) % 2) continue;
        tn_tensor *x = operand(r, i->a), *y = operand(r, i->b);
        bool wrong = i->op == r->faulty;
        if (i->op >= I_MODE) {
            if (!wrong || r->step != 1) act(r, i, x);
        } else if ((x || i->a == NONE) && (y || i->b == NONE)) {
            r->v[k] = value_from(r, i, x, y);
            if (wrong) r->v[k] = tn_mul_scalar(r->v[k], 1.0001);
        }
    }
}

/* Runs the program in s, which is new, and closes it. late_plans: those made in the last step. */
static result run_rprogram(tn_session *s, const rprogram *p, instr_op faulty, uint64_t *late_plans)
{
    result out = {0};
    running r = {.s = s, .p = p, .faulty = faulty, .r = &out};
    tn_stats before = {.size = sizeof before}, after = before;
    for (int k = 0; k < p->n_fixed; k++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", k);
        bool param = k < p->n_params;
        tn_tensor *init = some_tensor(s, p, p->fixed[k], param ? TN_F32 : p->data, p->seed + (uint64_t)k);
        r.fixed[k] = param ? tn_param(s, name, init) : tn_buffer(s, name, init);
    }
    r.opt = p->method == ADAMW
                ? tn_adamw(s, tn_all_params(s), .lr = 0.02, .eps = 0.1, .weight_decay = 0.1)
                : tn_sgd(s, tn_all_params(s), .lr = 0.01, .momentum = p->method == MOMENTUM ? 0.5 : 0);
    for (r.step = 0; r.step < p->steps && !tn_error(s); r.step++) {
        tn_get_stats(s, &before);
        tn_step_begin(s);
        run_body(&r);
        tn_train(s, true);
        tn_step_end(s);
        tn_get_stats(s, &after);
    }
    for (int k = 0; k < p->n_fixed; k++) read_out(&r, r.fixed[k]);
    for (int k = 0; k < MAX_KEPT; k++) read_out(&r, r.kept[k]);
    out.status = tn_error(s);
    snprintf(out.text, sizeof out.text, "%s", tn_error_text(s));
    if (late_plans) *late_plans = after.plans - before.plans;
    tn_clear_error(s);
    assert_int_equal(tn_close(s), 0);
    return out;
}

/* ---- printing ---- */

static void print_operand(FILE *f, const char *before, int k)
{
    if (k == NONE) return;
    if (k >= KEPT)
        fprintf(f, "%skept%d", before, k - KEPT);
    else if (k >= FIXED)
        fprintf(f, "%st%d", before, k - FIXED);
    else
        fprintf(f, "%sv%d", before, k);
}

static void print_rprogram(const rprogram *p, FILE *f)
{
    static const char *const words[] = {"sgd", "sgd with clipping", "sgd with momentum", "adamw"};
    fprintf(f, "  seed %llu, [%lld, %lld], buffers of %s, %s, %d steps of\n", (unsigned long long)p->seed,
            (long long)p->rows, (long long)p->columns, tn_dtype_name(p->data), words[p->method], p->steps);
    for (int k = 0; k < p->n; k++) {
        const instr *i = &p->i[k];
        if (i->dropped) continue;
        fprintf(f, "  v%d = %s(", k, instr_name[i->op]);
        print_operand(f, "", i->a);
        print_operand(f, ", ", i->b);
        fprintf(f, ") to %d, %g%s\n", i->to, i->f,
                i->only == 1   ? ", in even steps"
                : i->only == 2 ? ", in odd steps"
                               : "");
    }
}
