/* formula.c - reading formulas: "x / (1 + exp(-b * x))". C's operators with C's precedence, numbers, the
 * names that are given, and the elementwise rows of ops.def as functions, with or without tn_ before them.
 * Any text is read to an end or refused with the position of what does not fit. Start with tn_formula_read.
 */
#include "formula.h"

#include <ctype.h>
#include <string.h>

#include "../core/notation.h"

enum { DEEPEST = 64 };

typedef struct reader {
    const char *text, *at;
    int n_name, depth;
    const char *const *name;
    tn_formula *out;
    tn_errbuf *why;
} reader;

static bool refuse(reader *r, const char *at, const char *wanted)
{
    char found[40];
    int n = 0;
    const unsigned char *c = (const unsigned char *)at;
    while (n < 20 && (isalnum(c[n]) || c[n] == '_')) n++;
    if (!n && isprint(*c)) n = 1;
    if (n)
        snprintf(found, sizeof found, "'%.*s'", n, at);
    else
        snprintf(found, sizeof found, *c ? "byte %d" : "the end", *c);
    snprintf(r->why->text, sizeof r->why->text, "position %d: wanted %s, found %s", (int)(at - r->text) + 1,
             wanted, found);
    return false;
}

static void skip(reader *r)
{
    while (*r->at == ' ' || *r->at == '\t' || *r->at == '\n') r->at++;
}

/* Takes the sign if it stands here. */
static bool take(reader *r, const char *sign)
{
    skip(r);
    const size_t n = strlen(sign);
    if (strncmp(r->at, sign, n)) return false;
    r->at += n;
    return true;
}

static bool put(reader *r, struct tn_formula_item item)
{
    if (r->out->n == TN_FORMULA_MOST) return refuse(r, r->at, "the end after so many operations (256)");
    r->out->item[r->out->n++] = item;
    return true;
}

static bool put_row(reader *r, tn_op op)
{
    return put(r, (struct tn_formula_item){.kind = TN_ITEM_ROW, .op = op});
}

/* The elementwise row of this name. */
static bool find_row(const char *name, size_t n, tn_op *op)
{
    for (int i = 0; i < TN_OP_COUNT; i++) {
        const tn_op_info *o = tn_op_get((tn_op)i);
        if (o->kind != TN_KIND_ELTWISE || strlen(o->name) != n || memcmp(o->name, name, n)) continue;
        *op = (tn_op)i;
        return true;
    }
    return false;
}

static bool choice(reader *r);

static bool call(reader *r, const char *name, size_t n)
{
    tn_op op;
    const bool prefixed = n > 3 && !memcmp(name, "tn_", 3);
    if (!find_row(prefixed ? name + 3 : name, prefixed ? n - 3 : n, &op))
        return refuse(r, name, "an elementwise operator of the library, such as exp, tanh or maximum");
    const int arity = tn_op_get(op)->arity;
    for (int i = 0; i < arity; i++) {
        if (i && !take(r, ",")) return refuse(r, r->at, "',' and another argument");
        if (!choice(r)) return false;
    }
    return take(r, ")") ? put_row(r, op) : refuse(r, r->at, "')' after the arguments");
}

/* Of digits, a point and an exponent alone: no hexadecimal ones, infinities or suffixes. */
static bool number(reader *r)
{
    char *end;
    const double v = tn_strtod(r->at, &end);
    const size_t n = strspn(r->at, "0123456789.");
    const char *at = r->at + n;
    if (*at == 'e' || *at == 'E') at += 1 + (at[1] == '+' || at[1] == '-');
    at += strspn(at, "0123456789");
    if (end != at || isalnum((unsigned char)*at) || *at == '.' || v - v != 0)
        return refuse(r, r->at, "a decimal number");
    r->at = end;
    return put(r, (struct tn_formula_item){.kind = TN_ITEM_NUMBER, .value = v});
}

static bool primary(reader *r)
{
    if (take(r, "(")) {
        if (!choice(r)) return false;
        return take(r, ")") || refuse(r, r->at, "')'");
    }
    const char *name = r->at;
    if (isdigit((unsigned char)*name) || (*name == '.' && isdigit((unsigned char)name[1]))) return number(r);
    if (!isalpha((unsigned char)*name) && *name != '_')
        return refuse(r, name, "a name, a number, '(' or '-'");
    while (isalnum((unsigned char)*r->at) || *r->at == '_') r->at++;
    const size_t n = (size_t)(r->at - name);
    if (take(r, "(")) return call(r, name, n);
    for (int i = 0; i < r->n_name; i++) {
        if (strlen(r->name[i]) != n || memcmp(r->name[i], name, n)) continue;
        r->out->uses |= 1u << i;
        return put(r, (struct tn_formula_item){.kind = TN_ITEM_NAME, .name = i});
    }
    return refuse(r, name, "the name of an operand or a number, or a function and '('");
}

static bool prefix(reader *r)
{
    if (++r->depth > DEEPEST) return refuse(r, r->at, "less nesting");
    bool ok;
    skip(r);
    if (take(r, "-"))
        ok = prefix(r) && put_row(r, TN_OP_neg);
    else if (take(r, "+"))
        ok = prefix(r);
    else if (take(r, "!"))
        ok = prefix(r) && put_row(r, TN_OP_logical_not);
    else
        ok = primary(r);
    r->depth--;
    return ok;
}

/* Binary operators, those that bind loosest first; of two that begin alike the longer one first. */
static const struct {
    const char *sign;
    int level;
    tn_op op;
} BINARY[] = {{"||", 0, TN_OP_logical_or}, {"&&", 1, TN_OP_logical_and}, {"==", 2, TN_OP_eq},
              {"!=", 2, TN_OP_ne},         {"<=", 3, TN_OP_le},          {">=", 3, TN_OP_ge},
              {"<", 3, TN_OP_lt},          {">", 3, TN_OP_gt},           {"+", 4, TN_OP_add},
              {"-", 4, TN_OP_sub},         {"*", 5, TN_OP_mul},          {"/", 5, TN_OP_div}};
enum { BINARIES = sizeof BINARY / sizeof *BINARY, LEVELS = 6 };

static bool binary(reader *r, int level)
{
    if (level == LEVELS) return prefix(r);
    if (!binary(r, level + 1)) return false;
    for (;;) {
        int i = 0;
        while (i < BINARIES && !(BINARY[i].level == level && take(r, BINARY[i].sign))) i++;
        if (i == BINARIES) return true;
        if (!binary(r, level + 1) || !put_row(r, BINARY[i].op)) return false;
    }
}

/* c ? x : y */
static bool choice(reader *r)
{
    if (++r->depth > DEEPEST) return refuse(r, r->at, "less nesting");
    bool ok = binary(r, 0);
    if (ok && take(r, "?")) {
        ok = choice(r) && (take(r, ":") || refuse(r, r->at, "':' and what is chosen else"));
        ok = ok && choice(r) && put_row(r, TN_OP_where);
    }
    r->depth--;
    return ok;
}

bool tn_formula_read(const char *text, int n, const char *const *name, tn_formula *out, tn_errbuf *why)
{
    reader r = {.text = text, .at = text, .n_name = n, .name = name, .out = out, .why = why};
    out->n = 0;
    out->uses = 0;
    if (strlen(text) > TN_FORMULA_TEXT)
        return snprintf(why->text, sizeof why->text, "it is longer than 4096 characters"), false;
    if (!choice(&r)) return false;
    skip(&r);
    if (*r.at == '^') return refuse(&r, r.at, "an operator (powers are pow(x, y))");
    return !*r.at || refuse(&r, r.at, "an operator or the end");
}

tn_tensor *tn_formula_make(const tn_formula *f, tn_graph *g, tn_dtype d, tn_tensor *const *value)
{
    tn_tensor *stack[TN_FORMULA_MOST], *in[3];
    int top = 0;
    for (int i = 0; i < f->n; i++) {
        const struct tn_formula_item *t = &f->item[i];
        tn_tensor *made = NULL;
        switch (t->kind) {
        case TN_ITEM_NAME: made = value[t->name]; break;
        case TN_ITEM_NUMBER: made = tn_mk_typed(g, TN_OP_constant, tn_number_f(t->value), d); break;
        case TN_ITEM_ROW: {
            const int n = tn_op_get(t->op)->arity;
            top -= n;
            for (int k = 0; k < n; k++) in[k] = stack[top + k];
            if (n == 3 && in[0]->dtype != TN_BOOL)
                in[0] = tn_mk2(TN_OP_ne, in[0], tn_mk_typed(g, TN_OP_constant, tn_number_f(0), d));
            made = n == 1   ? tn_mk1(t->op, in[0])
                   : n == 2 ? tn_mk2(t->op, in[0], in[1])
                            : tn_mk3(t->op, in[0], in[1], in[2]);
            break;
        }
        }
        if (!made) return NULL;
        stack[top++] = made;
    }
    return stack[0];
}
