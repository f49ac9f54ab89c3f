/* own.c - operators of the user: what they are defined as, and how they are applied. One by formula becomes
 * rows of ops.def, so that it fuses, runs on each device and is differentiated like anything else; a gradient
 * that is given is a rule over its operands. One by a C function is a node of its own kind (core/host.h), its
 * gradients are slices of another. Start with tn_define_with. */
#include <ctype.h>
#include <string.h>

#include "formula.h"
#include "../core/host.h"
#include "../../include/tensor_extend.h"
#include "ops.h"

static const char GRADIENT[] = "g", RESULT[] = "out";

struct tn_own {
    tn_session *s;
    tn_own *next;
    char *name, *text; /* text: signature and formulas, as they were given */
    int64_t id;
    int n_operand, n_number;
    bool has_gradient;
    tn_formula formula, gradient[TN_MAX_ARGS];
    tn_host host; /* where `forward` is NULL, it is one by formula */
};

/* ---- signatures ---- */

static bool is_letter(char c) { return isalpha((unsigned char)c) || c == '_'; }

/* Reads "name(x, y; b)" into `names`, which it cuts into pieces: the name first. */
static bool read_signature(const char *text, char *pieces, const char **name, tn_own *o, tn_errbuf *why)
{
    const char *at = text, *wanted = "the operator's name";
    int n = 0, *count = NULL;
    for (;;) {
        at += strspn(at, " ");
        const char *from = at;
        if (!is_letter(*at)) break;
        while (is_letter(*at) || isdigit((unsigned char)*at)) *pieces++ = *at++;
        *pieces++ = 0;
        name[n] = pieces - (at - from) - 1;
        bool again = !strcmp(name[n], GRADIENT) || !strcmp(name[n], RESULT);
        for (int i = 1; i < n && count; i++) again = again || !strcmp(name[i], name[n]);
        if (count && again) {
            wanted = "another name (g and out are the result's gradient and the result)";
            at = from;
            break;
        }
        n++;
        if (count) ++*count;
        at += strspn(at, " ");
        const bool full = count && *count == TN_MAX_ARGS && *at == ',';
        wanted = !count                   ? "'(' and the operands"
                 : full                   ? "no more names (6 at most)"
                 : count == &o->n_operand ? "',', ';' or ')'"
                                          : "',' or ')'";
        if (!count && *at == '(')
            count = &o->n_operand;
        else if (count == &o->n_operand && *at == ';')
            count = &o->n_number;
        else if (count && *at == ')')
            return !*++at ? true
                          : (tn_err(why, 0, "position %d: wanted the end", (int)(at - text) + 1), false);
        else if (!count || *at != ',' || full)
            break;
        at++;
        wanted = "a name";
    }
    tn_err(why, 0, "position %d: wanted %s", (int)(at - text) + 1, wanted);
    return false;
}

/* ---- defining ---- */

static void own_free(tn_own *o)
{
    tn_free_mem(o->name);
    tn_free_mem(o->text);
    tn_free_mem(o);
}

static void free_all(void *first)
{
    tn_own **list = first;
    while (*list) {
        tn_own *next = (*list)->next;
        own_free(*list);
        *list = next;
    }
    tn_free_mem(list);
}

/* The session's definitions. */
static tn_own **definitions(tn_session *s)
{
    tn_own **list = tn_on_close_arg(s, free_all);
    if (list) return list;
    list = tn_calloc(1, sizeof *list);
    if (list && tn_on_close(s, free_all, list)) {
        tn_free_mem(list);
        return NULL;
    }
    return list;
}

static tn_own *refused(tn_own *o, int status, const char *what, const char *text, const char *why)
{
    tn_fail(o->s, status, "define", "%s%s%.200s%s%s%s", what, text ? " \"" : "", text ? text : "",
            text ? "\"" : "", *why ? ", " : "", why);
    own_free(o);
    return NULL;
}

/* Lists a new definition, or gives the one there is. */
static tn_own *listed(tn_own *o)
{
    tn_own **list = definitions(o->s);
    if (!list || !o->name || !o->text) return refused(o, TN_E_NOMEM, "no memory", NULL, "");
    for (tn_own *d = *list; d; d = d->next) {
        if (strcmp(d->name, o->name)) continue;
        if (strcmp(d->text, o->text) || memcmp(&d->host, &o->host, sizeof d->host))
            return refused(o, TN_E_ARG, "another operator has this name", o->name, "it was defined before");
        own_free(o);
        return d;
    }
    o->id = *list ? (*list)->id + 1 : 1;
    o->next = *list;
    return *list = o;
}

/* Reads all formulas, of names o->n_operand operands, o->n_number numbers, g and out. NULL: they are fine. */
static const char *read_formulas(tn_own *o, const char *formula, const tn_define_options *options,
                                 const char **name, tn_errbuf *why)
{
    const int n = o->n_operand + o->n_number;
    if (!tn_formula_read(formula, n, name, &o->formula, why)) return formula;
    for (int i = 0; i < n; i++)
        if (!(o->formula.uses >> i & 1)) {
            tn_err(why, 0, "%s '%s' does not stand in it", i < o->n_operand ? "operand" : "number", name[i]);
            return formula;
        }
    name[n] = GRADIENT;
    name[n + 1] = RESULT;
    for (int i = 0; i < TN_MAX_ARGS; i++) o->has_gradient = o->has_gradient || options->gradient[i];
    for (int i = 0; i < TN_MAX_ARGS && o->has_gradient; i++) {
        const char *text = options->gradient[i];
        tn_formula *f = &o->gradient[i];
        if (!text != (i >= o->n_operand)) {
            tn_err(why, 0, text ? "gradient %d is of no operand" : "gradient %d is missing", i);
            return formula;
        }
        if (!text) break;
        if (!tn_formula_read(text, n + 2, name, f, why)) return text;
        const bool none = f->n == 1 && f->item[0].kind == TN_ITEM_NUMBER && f->item[0].value == 0;
        if (none)
            f->n = 0;
        else if (!(f->uses >> n & 1)) {
            tn_err(why, 0, "g, the gradient of the result, does not stand in it");
            return text;
        }
    }
    return NULL;
}

/* Signature and formulas in one text. */
static char *text_of(const char *signature, const char *formula, const tn_define_options *options)
{
    size_t n = strlen(signature) + strlen(formula) + 2;
    for (int i = 0; i < TN_MAX_ARGS; i++) n += options->gradient[i] ? strlen(options->gradient[i]) + 1 : 0;
    char *text = tn_malloc(n);
    if (!text) return NULL;
    strcat(strcat(strcpy(text, signature), "\n"), formula);
    for (int i = 0; i < TN_MAX_ARGS; i++)
        if (options->gradient[i]) strcat(strcat(text, "\n"), options->gradient[i]);
    return text;
}

/* What every definition begins with: `pieces` holds the signature's names, which name[] is a list of. NULL:
 * why has been said. what: that makes the operator, and must not be missing. */
static tn_own *begun(tn_session *s, const char *signature, const char *what, bool missing, char *pieces,
                     const char **name)
{
    tn_errbuf why = {""};
    if (!s) return NULL;
    if (!signature || missing) {
        tn_fail(s, TN_E_NULL, "define", "%s is NULL", signature ? what : "the signature");
        return NULL;
    }
    tn_own *o = tn_calloc(1, sizeof *o);
    if (!o) return tn_fail(s, TN_E_NOMEM, "define", "no memory"), NULL;
    o->s = s;
    if (strlen(signature) >= TN_FORMULA_TEXT / 2)
        return refused(o, TN_E_ARG, "the signature is longer than 2047 characters", NULL, "");
    if (!read_signature(signature, pieces, name, o, &why))
        return refused(o, TN_E_ARG, "signature", signature, why.text);
    return o;
}

TN_DEFINE(tn_own *, define_with, s, (s, signature, formula, options), tn_session *s, const char *signature,
          const char *formula, const tn_define_options *options)
{
    tn_define_options given = {.size = sizeof given};
    tn_errbuf why = {""};
    char pieces[TN_FORMULA_TEXT];
    const char *name[2 * TN_MAX_ARGS + 3];
    tn_own *o = begun(s, signature, "the formula", !formula, pieces, name);
    if (!o) return NULL;
    if (options)
        memcpy(&given, options, options->size && options->size < sizeof given ? options->size : sizeof given);
    const char *wrong = read_formulas(o, formula, &given, name + 1, &why);
    if (wrong) {
        char what[100];
        snprintf(what, sizeof what, "%.60s: %s", name[0], wrong == formula ? "formula" : "gradient");
        return refused(o, TN_E_ARG, what, wrong, why.text);
    }
    o->name = tn_strdup(name[0]);
    o->text = text_of(signature, formula, &given);
    return listed(o);
}

TN_DEFINE(tn_own *, define_host_with, s, (s, signature, forward, options), tn_session *s,
          const char *signature, tn_host_fn *forward, const tn_host_options *options)
{
    tn_host_options given = {.size = sizeof given};
    char pieces[TN_FORMULA_TEXT];
    const char *name[2 * TN_MAX_ARGS + 3];
    tn_own *o = begun(s, signature, "the function", !forward, pieces, name);
    if (!o) return NULL;
    if (options)
        memcpy(&given, options, options->size && options->size < sizeof given ? options->size : sizeof given);
    o->host = (tn_host){forward, given.gradient, given.shape, given.user};
    o->name = tn_strdup(name[0]);
    o->text = tn_strdup(signature);
    return listed(o);
}

/* ---- applying ---- */

/* By the gradients that were given: formulas of the operands, the numbers, g and out. */
static bool given_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    const tn_own *o = r->own;
    tn_tensor *value[2 * TN_MAX_ARGS + 2];
    const int n = o->n_operand + o->n_number;
    for (int i = 0; i < n; i++) value[i] = i < o->n_operand ? r->args[i] : r->saved[i - o->n_operand];
    value[n] = g;
    value[n + 1] = r->out;
    for (int i = 0; i < o->n_operand; i++) {
        if (!(r->args[i]->flags & TN_F_REQUIRES_GRAD) || !o->gradient[i].n) continue;
        gin[i] = tn_mk_cast(tn_formula_make(&o->gradient[i], g->graph, g->dtype, value),
                            (tn_dtype)r->args[i]->dtype);
        if (!gin[i]) return false;
    }
    return true;
}

/* The operands as the formula computes with them: of one shape, floating or bool; d is the dtype, `result`
 * the one that the operator's has. */
static bool bring_together(const tn_own *o, tn_tensor **x, tn_dtype *d, tn_dtype *result)
{
    tn_graph *g = x[0]->graph;
    int64_t shape[TN_MAX_DIMS];
    int ndim = 0;
    *result = tn_common_dtype(o->n_operand, x);
    if (!tn_dtype_is_float(*result)) *result = TN_F32;
    *d = *result == TN_F64 ? TN_F64 : TN_F32;
    for (int i = 0; i < o->n_operand; i++)
        if (!tn_broadcast_shape(ndim, shape, x[i]->ndim, x[i]->shape, &ndim, shape)) {
            char a[128], b[128];
            return tn_error_set(g, TN_E_SHAPE, "shapes %s and %s do not broadcast",
                                tn_tensor_text(a, sizeof a, x[0]), tn_tensor_text(b, sizeof b, x[i])) != NULL;
        }
    for (int i = 0; i < o->n_operand; i++) {
        if (x[i]->dtype != TN_BOOL) x[i] = tn_mk_cast(x[i], *d);
        x[i] = tn_mk_expand(x[i], ndim, shape);
        if (!x[i]) return false;
    }
    return true;
}

static tn_tensor *by_formula(const tn_own *o, tn_tensor **x, const double *numbers)
{
    tn_tensor *value[2 * TN_MAX_ARGS];
    tn_graph *g = x[0]->graph;
    tn_dtype d, result;
    if (!bring_together(o, x, &d, &result)) return NULL;
    const uint32_t first = g->n_nodes;
    for (int i = 0; i < o->n_operand; i++) value[i] = x[i];
    for (int i = 0; i < o->n_number; i++) {
        value[o->n_operand + i] = tn_mk_typed(g, TN_OP_scalar, tn_number_f(numbers[i]), d);
        if (!value[o->n_operand + i]) return NULL;
    }
    tn_tensor *out = tn_formula_make(&o->formula, g, d, value);
    if (out && out->dtype != TN_BOOL) out = tn_mk_cast(out, d);
    if (out && out->id < first) out = tn_mk_alias(out);
    if (out && o->has_gradient && tn_dtype_is_float(out->dtype)) {
        tn_rule *r = tn_rule_set(out, first, given_rule, o->n_operand, x);
        if (!r) return NULL;
        r->own = o;
        for (int i = 0; i < o->n_number; i++) tn_rule_save(r, i, value[o->n_operand + i]);
    }
    return out && out->dtype != TN_BOOL ? tn_mk_cast(out, result) : out;
}

/* By the user's gradient: one function for all operands, whose gradients lie one behind the other. */
static bool host_rule(tn_rule *r, tn_tensor *g, tn_tensor **gin)
{
    tn_tensor *out = r->out, *all = NULL;
    uint32_t wanted = 0;
    int64_t at = 0;
    for (int i = 0; i < r->n_args; i++)
        if (r->args[i]->flags & TN_F_REQUIRES_GRAD && tn_node_numel(r->args[i])) wanted |= 1u << i;
    if (wanted && !(all = tn_mk_host_gradient(out, g, wanted))) return false;
    for (int i = 0; i < r->n_args; i++) {
        const int64_t n = tn_node_numel(r->args[i]);
        if (!(wanted >> i & 1)) continue;
        gin[i] = tn_mk_reshape(tn_mk_slice1(all, 0, at, 1, n), r->args[i]->ndim, r->args[i]->shape);
        if (!gin[i]) return false;
        at += n;
    }
    return true;
}

static tn_tensor *by_function(const tn_own *o, tn_tensor **x, const double *numbers)
{
    const uint32_t first = x[0]->graph->n_nodes;
    tn_dtype result = tn_common_dtype(o->n_operand, x), d;
    if (!tn_dtype_is_float(result)) result = TN_F32;
    d = result == TN_F64 ? TN_F64 : TN_F32;
    for (int i = 0; i < o->n_operand; i++)
        if (tn_dtype_is_float(x[i]->dtype) && !(x[i] = tn_mk_cast(x[i], d))) return NULL;
    tn_tensor *out = tn_mk_host(&o->host, o->n_operand, x, numbers, d);
    if (!out) return NULL;
    if (o->host.gradient && out->flags & TN_F_REQUIRES_GRAD) {
        tn_rule *r = tn_rule_set(out, first, host_rule, o->n_operand, x);
        if (!r) return NULL;
        tn_rule_save(r, 0, out);
    }
    return tn_mk_cast(out, result);
}

TN_AT(tn_tensor *, apply_with, (op, operands), tn_own *op, const tn_operands *operands)
{
    tn_operands given = {.size = sizeof given};
    if (!op) return NULL;
    if (operands)
        memcpy(&given, operands,
               operands->size && operands->size < sizeof given ? operands->size : sizeof given);
    tn_tensor *x[TN_MAX_ARGS] = {given.x0, given.x1, given.x2, given.x3, given.x4, given.x5};
    tn_number one = tn_number_f(given.numbers[0]);
    int64_t bits[TN_MAX_ARGS];
    const bool many = op->n_number > (op->host.forward ? 0 : 1); /* one alone may change between steps */
    for (int i = 0; i < TN_MAX_ARGS; i++) bits[i] = tn_bits(given.numbers[i]);
    const tn_op_key key = {.part = {&op->id, bits},
                           .bytes = {sizeof op->id, many ? sizeof bits : 0},
                           .number = op->n_number == 1 && !many ? &one : NULL};
    int n = op->n_operand, last = n;
    for (int i = n; i < TN_MAX_ARGS; i++)
        if (x[i]) last = i + 1;
    tn_scope sc = tn_enter_list_as(&key, op->name, file, line, "x0, x1, x2, x3, x4, x5", n, x);
    if (!sc.g) return NULL;
    if (!sc.ok) return tn_leave(&sc, NULL);
    if (last > n)
        return tn_leave(&sc, tn_error_set(sc.g, TN_E_ARG, "%d operands are given, and it has %d", last, n));
    if (sc.g->session != op->s)
        return tn_leave(&sc, tn_error_set(sc.g, TN_E_SESSION, "it was defined in another session"));
    return tn_leave(&sc, (op->host.forward ? by_function : by_formula)(op, x, given.numbers));
}
