/* vars.c - the expressions of the body that a user calls: a pointer to each value, declared when it is first
 * asked for, and run-time numbers, which follow from the members of the struct. Start with ex_operand. */
#include "export.h"

#include "../../fuser/text/text.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- variables ---- */

static bool is_function(const tn_export *x, const char *name)
{
    char head[EXPORT_NAME + 24];
    snprintf(head, sizeof head, "static void %s(", name);
    for (int i = 0; i < x->n_kernel; i++)
        if (!strcmp(x->kernel[i].name, name)) return true;
    return x->kernels.p && strstr(x->kernels.p, head);
}

bool ex_is_reserved(const char *name)
{
    static const char words[] =
        /* what a file calls its own */
        " m run add move stream start number ticket at fault arena room shared call matmul matmul_panel "
        "product conv2d "
        "conv2d_weight_grad conv2d_weight_join convolution conv2d_3x3 conv2d_3x3_weights "
        "conv2d_3x3_weight_grad "
        "conv2d_3x3_weight_join tile row_tile whole_tile whole_columns blocks_of part pixel pixel_of "
        "next_pixel pixels_of "
        "put_pixel spread_tile spread_data spread_gradient spread_weight join_pixels join_weights tiled "
        "tiles_of "
        "place_of_tiles packing pack_f32 pack_f16 pack_bf16 pack_int8 finish least gather under over same "
        "find copy put "
        "saved index_fault count_at main "
        /* C, C++, their macros of small letters, and the types and macros of the headers included */
        "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const "
        "const_cast constexpr continue decltype default delete do double dynamic_cast else enum explicit "
        "export extern false float for friend goto if inline int linux long mutable namespace new noexcept "
        "not not_eq nullptr operator or or_eq private protected public register reinterpret_cast restrict "
        "return short signed sizeof static static_assert static_cast struct switch template this "
        "thread_local throw true try typedef typeid typename typeof union unix unsigned using virtual void "
        "volatile wchar_t while xor xor_eq NULL offsetof size_t ptrdiff_t max_align_t memcpy memset memmove "
        "memcmp ";
    const size_t n = strlen(name);
    for (const char *w = words; (w = strstr(w, name)); w += n)
        if (w[-1] == ' ' && w[n] == ' ') return true;
    const bool fixed = !strncmp(name, "int", 3) || !strncmp(name, "uint", 4); /* int32_t and the like */
    return (fixed && n > 5 && !strcmp(name + n - 2, "_t")) || !strncmp(name, "tn_", 3) ||
           !strncmp(name, "TN_", 3) || (*name == '_' && (name[1] == '_' || isupper((unsigned char)name[1])));
}

/* name, or name_2 and so on where that is taken. */
static void unique_var(tn_export *x, const char *want, char *out)
{
    fu_identifier(out, EXPORT_NAME - 8, want);
    const size_t n = strlen(out);
    for (int k = 2;; k++) {
        bool taken = ex_is_reserved(out) || is_function(x, out);
        for (int i = 0; i < x->n_slot && !taken; i++) taken = x->var[i] != out && !strcmp(x->var[i], out);
        for (int i = 0; i < x->n_mark && !taken; i++) taken = !strcmp(x->mark[i].name, out);
        for (int i = 0; i < x->n_region && !taken; i++) {
            const size_t m = strlen(x->region[i].name);
            taken = !strncmp(x->region[i].name, out, m) && !strcmp(out + m, "_scale");
        }
        if (!taken) return;
        snprintf(out + n, EXPORT_NAME - n, "_%d", k);
    }
}

void ex_refuse_dtype(tn_export *x, const tn_tensor *t, tn_dtype d)
{
    char of[200] = "a value";
    if (t) tn_node_where(t, of, sizeof of);
    ex_fail(x, TN_E_UNSUPPORTED, "%s is of %s, for which C99 has no type: export a step in f32", of,
            tn_dtype_name(d));
}

/* The variable that points to what lies in a slot, declared when it is first asked for. */
static const char *var_of(tn_export *x, int slot)
{
    const ex_place *p = &x->place[slot];
    const char *type = p->kind == EX_REGION ? ex_region_type(x, &x->region[p->index]) : ex_type(x, p->dtype);
    const int size = (int)tn_dtype_size(p->dtype);
    tn_tensor *t = slot < x->f->node.n + x->f->leaf.n ? tn_node_at(x->f, slot) : NULL;
    char *v = x->var[slot];
    if (*v) return v;
    if (!type) {
        ex_refuse_dtype(x, t, p->dtype);
        return "0";
    }
    if (p->kind == EX_MARK && !p->offset) {
        snprintf(v, EXPORT_NAME, "%s", x->mark[p->index].name);
        return v;
    }
    const char *name = !t ? "scratch" : t->name ? t->name : t->base->name ? t->base->name : NULL;
    if (!name && t->base->of) name = t->base->of->name;
    char of[120] = "", shape[80] = "", where[200] = "";
    if (!name && t) {
        const tn_call *c = t->call;
        snprintf(of, sizeof of, "%s%.60s", c && c->backward ? "d_" : "", c && c->name ? c->name : "value");
        name = of;
    }
    unique_var(x, name, v);
    if (t) tn_shape_text(shape, sizeof shape, t->ndim, t->shape);
    if (t && slot < x->f->node.n) tn_node_where(t, where, sizeof where);
    switch (p->kind) {
    case EX_ARENA:
        tn_put(&x->step, "    %s *const %s = (%s *)(void *)(arena + %zu);", type, v, type, p->offset);
        break;
    case EX_REGION: {
        ex_region *r = &x->region[p->index];
        r->read = true;
        tn_put(&x->step, "    %s%s *const %s = ", ex_is_member(x, r) ? "" : "const ", type, v);
        ex_put_region(x, r, &x->step);
        tn_put(&x->step, " + %zu;", p->offset / (size_t)size);
        break;
    }
    case EX_MARK:
        tn_put(&x->step, "    const %s *const %s = %s + %zu;", type, v, x->mark[p->index].name,
               p->offset / (size_t)size);
        break;
    case EX_NOWHERE: ex_fail(x, TN_E_INTERNAL, "'%s' lies nowhere", v); break;
    }
    tn_put(&x->step, " /* %s%s%s */\n", shape, *shape && *where ? " " : "", where);
    return v;
}

void ex_operand(tn_export *x, const tn_step *st, int k, char *out, size_t n)
{
    if (st->buf[k] < 0)
        snprintf(out, n, "NULL");
    else if (st->offset[k])
        snprintf(out, n, "%s + %lld", var_of(x, st->buf[k]), (long long)st->offset[k]);
    else
        snprintf(out, n, "%s", var_of(x, st->buf[k]));
}

/* ---- numbers ---- */

static int power_of(tn_export *x, double base, double t)
{
    for (int i = 0; i < x->n_power; i++)
        if (x->base[i] == base && x->power[i] == pow(base, t)) return i;
    x->base[x->n_power] = base;
    x->power[x->n_power] = pow(base, t);
    return x->n_power++;
}

void ex_scalar(tn_export *x, const struct tn_scalar_ref *r, char *out, size_t n)
{
    const tn_tensor *t = tn_node_at(x->f, r->slot);
    const ex_number *formula = NULL;
    if (r->what == TN_WORD_SEED) {
        snprintf(out, n, "m->seed");
        return;
    }
    if (r->what == TN_WORD_DRAW) {
        snprintf(out, n, "m->draw + %llu", (unsigned long long)(t->attr->draw - x->s->step_draw));
        return;
    }
    const tn_number v = t->base->attr->number;
    if (r->what == TN_WORD_I64) {
        snprintf(out, n, "%lld", (long long)(v.is_int ? v.i : tn_f64_to_i64(v.f)));
        return;
    }
    for (int i = 0; i < x->n_number; i++)
        if (x->number[i].number == t->base) formula = &x->number[i];
    double c = v.f;
    if (!isfinite(c)) {
        snprintf(out, n, "%s(double)%s", c < 0 ? "-" : "", isnan(c) ? "TN_NAN" : "TN_INF");
        return;
    }
    if (!formula || (!formula->rate && formula->base == 0)) {
        tn_snprintf(out, n, "%.17g", c);
        return;
    }
    char factor[80] = "";
    if (formula->base > 0) {
        const int k = power_of(x, formula->base, formula->t);
        c /= pow(1 - x->power[k], formula->exponent);
        if (formula->exponent == -1)
            snprintf(factor, sizeof factor, " / (1 - power%d)", k);
        else if (formula->exponent == -0.5)
            snprintf(factor, sizeof factor, " / tn_sqrt_f64(1 - power%d)", k);
        else
            ex_fail(x, TN_E_UNSUPPORTED, "no text for the exponent %g", formula->exponent);
    }
    tn_snprintf(out, n, "%s%.17g%s", formula->rate ? "m->rate * " : "", c, factor);
}
