/* einsum.c - sums of products named by letters, as torch.einsum has them: a pair of operands at a time, from
 * the left, becomes one product [batch, rows, inner] x [batch, inner, columns]. Start with pair. */
#include <ctype.h>
#include <string.h>

#include "ops.h"

/* An operand, or what a pair has become, and the letter of each axis. */
typedef struct term {
    tn_tensor *x;
    char letter[TN_MAX_DIMS + 2]; /* those that "..." stands for are digits, the last axis '0' */
} term;

static bool has(const char *letters, char c) { return strchr(letters, c) != NULL; }

static void append(char *letters, char c)
{
    const size_t n = strlen(letters);
    letters[n] = c;
    letters[n + 1] = 0;
}

/* x with the axes in the order of `letters`, which are some of its own; it is summed over the others. */
static bool in_order(term *t, const char *letters)
{
    uint32_t gone = 0;
    int perm[TN_MAX_DIMS], n = (int)strlen(letters);
    char left[TN_MAX_DIMS + 1] = "";
    for (int i = 0; t->letter[i]; i++)
        if (has(letters, t->letter[i]))
            append(left, t->letter[i]);
        else
            gone |= 1u << i;
    tn_dtype d = t->x ? t->x->dtype : TN_F32;
    if (gone) t->x = tn_mk_cast(total(t->x, gone), d);
    t->x = t->x && gone ? drop_axes(t->x, gone) : t->x;
    for (int i = 0; i < n; i++) perm[i] = (int)(strchr(left, letters[i]) - left);
    if (strcmp(left, letters)) t->x = tn_mk_permute(t->x, perm);
    strcpy(t->letter, letters);
    return t->x != NULL;
}

/* Collapses the axes of x into three, of so many letters each. */
static tn_tensor *in_three(tn_tensor *x, size_t first, size_t second)
{
    int64_t s[3] = {1, 1, 1};
    for (size_t i = 0; i < (size_t)x->ndim; i++) s[i < first ? 0 : i < first + second ? 1 : 2] *= x->shape[i];
    return tn_mk_reshape(x, 3, s);
}

/* a and b as one: what `needed` names stays. */
static bool pair(term *a, term *b, const char *needed)
{
    char batch[TN_MAX_DIMS + 1] = "", inner[TN_MAX_DIMS + 1] = "", rows[TN_MAX_DIMS + 1] = "",
                             columns[TN_MAX_DIMS + 1] = "", order[3 * TN_MAX_DIMS + 1];
    for (const char *c = a->letter; *c; c++)
        if (has(b->letter, *c))
            append(has(needed, *c) ? batch : inner, *c);
        else if (has(needed, *c))
            append(rows, *c);
    for (const char *c = b->letter; *c; c++)
        if (!has(a->letter, *c) && has(needed, *c)) append(columns, *c);
    const size_t nb = strlen(batch), nr = strlen(rows), ni = strlen(inner), nc = strlen(columns);
    if (nb + nr + nc > TN_MAX_DIMS)
        return tn_error_set(a->x->graph, TN_E_SHAPE, "'%s' and '%s' make more than %d axes", a->letter,
                            b->letter, TN_MAX_DIMS) != NULL;
    snprintf(order, sizeof order, "%s%s%s", batch, rows, inner);
    if (!in_order(a, order)) return false;
    snprintf(order, sizeof order, "%s%s%s", batch, inner, columns);
    if (!in_order(b, order)) return false;
    int64_t shape[TN_MAX_DIMS];
    for (size_t i = 0; i < nb + nr; i++) shape[i] = a->x->shape[i];
    for (size_t i = 0; i < nc; i++) shape[nb + nr + i] = b->x->shape[nb + ni + i];
    tn_tensor *x = in_three(a->x, nb, nr), *y = in_three(b->x, nb, ni);
    a->x = x && y ? tn_mk_reshape(tn_mk_matmul(x, y, NULL), (int)(nb + nr + nc), shape) : NULL;
    strcat(strcat(strcpy(a->letter, batch), rows), columns);
    return a->x != NULL;
}

/* Reads the letters of one operand, or of the result, up to ',', "->" or the end; "..." as one '.'. false:
 * they are none. */
static bool read_letters(const char **at, char *letter)
{
    int n = 0;
    for (; **at && **at != ',' && **at != '-'; ++*at) {
        if (**at == ' ') continue;
        const bool dots = !strncmp(*at, "...", 3);
        if ((!dots && !isalpha((unsigned char)**at)) || n > TN_MAX_DIMS || memchr(letter, **at, (size_t)n))
            return false;
        letter[n++] = **at;
        if (dots) *at += 2;
    }
    letter[n] = 0;
    return true;
}

/* Puts n digits in the place of the '.', so that the letters are those of as many axes. */
static bool spell_dots(char *letter, int n)
{
    char *dot = strchr(letter, '.');
    if (!dot) return strlen(letter) <= TN_MAX_DIMS;
    if (n < 0 || strlen(letter) - 1 + (size_t)n > TN_MAX_DIMS) return false;
    memmove(dot + n, dot + 1, strlen(dot));
    for (int i = 0; i < n; i++) dot[i] = (char)('0' + n - 1 - i);
    return true;
}

/* Without "->": what "..." stands for, and what stands once, in the order of the alphabet. */
static void usual_result(int n, const term *t, int n_dots, char *out)
{
    size_t k = (size_t)n_dots;
    for (int i = 0; i < n_dots; i++) out[i] = (char)('0' + n_dots - 1 - i);
    for (int c = 'A'; c <= 'z'; c++) {
        int times = 0;
        for (int i = 0; i < n; i++) times += isalpha(c) && has(t[i].letter, (char)c);
        if (times == 1 && k < TN_MAX_DIMS) out[k++] = (char)c;
    }
    out[k] = 0;
}

static bool parse(tn_graph *g, const char *equation, int n, tn_tensor **in, term *t, char *out)
{
    const char *at = equation;
    bool good = true;
    int n_dots = 0;
    int64_t extent[128] = {0};
    for (int i = 0; i < n && good; i++) {
        t[i].x = in[i];
        good = read_letters(&at, t[i].letter) && (i + 1 < n ? *at == ',' : !*at || !strncmp(at, "->", 2));
        if (i + 1 < n) at += good;
        const int own = in[i]->ndim - (int)strlen(t[i].letter) + 1;
        if (strchr(t[i].letter, '.') && own > n_dots) n_dots = own;
        good = good && spell_dots(t[i].letter, own > 0 ? own : 0);
    }
    usual_result(n, t, n_dots, out);
    if (good && *at) {
        at += 2;
        good = read_letters(&at, out) && !*at && spell_dots(out, n_dots);
        for (const char *c = out; good && *c; c++) {
            int times = 0;
            for (int i = 0; i < n; i++) times += has(t[i].letter, *c);
            if (!times)
                return tn_error_set(g, TN_E_ARG, "'%s': '%c' of the result stands in no operand", equation,
                                    *c) != NULL;
        }
    }
    if (!good)
        return tn_error_set(g, TN_E_ARG,
                            "'%s' does not name the axes of %d tensors: wanted letters for each, no letter "
                            "twice in one, "
                            "as in \"bij,bjk->bik\"",
                            equation, n) != NULL;
    for (int i = 0; i < n; i++) {
        bool fits = (int)strlen(t[i].letter) == in[i]->ndim;
        for (int k = 0; k < in[i]->ndim && fits; k++) {
            int64_t *e = &extent[(int)t[i].letter[k]];
            const bool spread = isdigit((unsigned char)t[i].letter[k]) && (*e == 2 || in[i]->shape[k] == 1);
            fits = !*e || spread || *e == in[i]->shape[k] + 1;
            if (!spread || *e <= 2) *e = in[i]->shape[k] + 1;
        }
        if (fits) continue;
        tn_error_set(g, TN_E_SHAPE, "operand %d %s does not fit '%s' of \"%s\"", i, TN_TENSOR_TEXT(in[i]),
                     t[i].letter, equation);
        return false;
    }
    for (int i = 0; i < n; i++) { /* what "..." stands for broadcasts */
        int64_t shape[TN_MAX_DIMS];
        for (int k = 0; k < in[i]->ndim; k++) shape[k] = extent[(int)t[i].letter[k]] - 1;
        if (!(t[i].x = tn_mk_expand(in[i], in[i]->ndim, shape))) return false;
    }
    return true;
}

enum { MOST_OPERANDS = 8 };

TN_AT(tn_tensor *, einsum, (equation, n, xs), const char *equation, int n, tn_tensor *const *xs)
{
    tn_tensor *in[UINT8_MAX];
    const tn_op_key key = {.part = {equation}, .bytes = {equation ? strlen(equation) : 0}};
    tn_scope sc = tn_enter_join(&key, "einsum", n, xs, in, file, line);
    term t[MOST_OPERANDS];
    char out[TN_MAX_DIMS + 2], needed[MOST_OPERANDS * TN_MAX_DIMS + 1];
    if (sc.ok && (!equation || n > MOST_OPERANDS))
        return tn_leave_error(&sc, equation ? TN_E_ARG : TN_E_NULL, "%s",
                              equation ? "more than 8 tensors" : "the equation is NULL");
    if (!sc.ok || !parse(sc.g, equation, n, in, t, out)) return tn_leave(&sc, NULL);
    for (int i = 1; i < n; i++) {
        strcpy(needed, out);
        for (int k = i + 1; k < n; k++) strcat(needed, t[k].letter);
        if (!pair(&t[0], &t[i], needed)) return tn_leave(&sc, NULL);
    }
    return tn_leave(&sc, in_order(&t[0], out) ? t[0].x : NULL);
}
