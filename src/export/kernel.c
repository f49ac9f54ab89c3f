/* kernel.c - a kernel of the plan as a function of C99.
 *
 * A kernel's text (fuser/text) takes its operands, extents and numbers from a tn_args. Here its operands
 * become parameters, its extents constants and its run-time numbers parameters, too:
 *
 *     void layer_norm_128(const tn_args *a, int64_t begin, int64_t end)
 *     {
 *         const float *in = a->buf[0];
 *         float *out = a->buf[1];
 *         ..
 *
 * becomes
 *
 *     static void layer_norm_128(const float *restrict in, float *restrict out)
 *     {
 *         const int64_t begin = 0, end = 256;
 *         ..
 *
 * and two kernels that are then the same are one function. Start with ex_take_function. */
#include "export.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 1024 };

static bool apart(const tn_export *x, const tn_step *st, int a, int b)
{
    const ex_place *p = &x->place[st->buf[a]], *q = &x->place[st->buf[b]];
    if (p->kind != q->kind || (p->kind != EX_ARENA && p->index != q->index)) return true;
    return p->offset + p->bytes <= q->offset || q->offset + q->bytes <= p->offset;
}

static bool equal(const tn_export *x, const tn_step *st, int a, int b)
{
    const ex_place *p = &x->place[st->buf[a]], *q = &x->place[st->buf[b]];
    return !apart(x, st, a, b) && p->dtype == q->dtype &&
           p->offset + (size_t)st->offset[a] * tn_dtype_size(p->dtype) ==
               q->offset + (size_t)st->offset[b] * tn_dtype_size(q->dtype);
}

/* Which parameters lie in memory that no other one is written to through. */
static void find_aliases(const tn_export *x, const tn_step *st, ex_function *fn)
{
    const int first_out = st->n_buf - st->n_out;
    for (int i = 0; i < fn->n; i++) {
        struct ex_param *p = &fn->param[i];
        p->same = -1;
        for (int k = 0; k < i && p->same < 0; k++)
            if (fn->param[k].same < 0 && (p->buf >= first_out || fn->param[k].buf >= first_out) &&
                equal(x, st, p->buf, fn->param[k].buf))
                p->same = k;
        if (p->same >= 0 && p->buf >= first_out) fn->param[p->same].only_read = false;
    }
    for (int i = 0; i < fn->n; i++) {
        struct ex_param *p = &fn->param[i];
        p->alone = true;
        for (int k = 0; k < fn->n; k++)
            if (k != i && p->same != k && fn->param[k].same != i &&
                (!p->only_read || !fn->param[k].only_read) && !apart(x, st, p->buf, fn->param[k].buf))
                p->alone = false;
    }
}

static const char *after(const char *text, const char *word)
{
    const size_t n = strlen(word);
    return strncmp(text, word, n) ? NULL : text + n;
}

/* A declaration of an operand becomes a parameter. */
static bool take_param(ex_function *fn, const char *line)
{
    const char *at = strstr(line, " = a->buf["), *star = at ? strchr(line, '*') : NULL;
    if (!at || !star || star > at || fn->n == TN_MAX_KERNEL_BUFS) return false;
    struct ex_param *p = &fn->param[fn->n];
    while (*line == ' ') line++;
    const char *type = after(line, "const ");
    p->only_read = type != NULL;
    if (!type) type = line;
    snprintf(p->type, sizeof p->type, "%.*s", (int)(star - type - 1), type);
    snprintf(p->name, sizeof p->name, "%.*s", (int)(at - star - 1), star + 1);
    p->buf = (int)strtol(at + strlen(" = a->buf["), NULL, 10);
    fn->n++;
    return true;
}

static void take_scalar(tn_export *x, ex_function *fn, int which)
{
    for (int i = 0; i < fn->n_scalar; i++)
        if (fn->scalar[i] == which) return;
    if (fn->n_scalar == EXPORT_SCALARS)
        ex_fail(x, TN_E_UNSUPPORTED, "a kernel of more than %d run-time numbers", (int)EXPORT_SCALARS);
    else
        fn->scalar[fn->n_scalar++] = which;
}

/* One line of a kernel with its extents and numbers put in. */
static void take_line(tn_export *x, const tn_step *st, ex_function *fn, const char *line, size_t n)
{
    for (const char *s = line, *end = line + n; s < end;) {
        const char *e;
        char *close = NULL;
        if ((e = after(s, "a->dim["))) {
            const long k = strtol(e, &close, 10);
            tn_put(&fn->body, "%lld", (long long)st->dim[k]);
            s = close + 1;
        } else if ((e = after(s, "a->scalar["))) {
            const long k = strtol(e, &close, 10);
            tn_put(&fn->body, "scalar%ld", k);
            take_scalar(x, fn, (int)k);
            s = close + 3; /* ].f */
        } else if ((e = after(s, "index_fault(a, "))) {
            tn_put(&fn->body, "index_fault(fault, ");
            fn->faults = true;
            s = e;
        } else if ((e = after(s, "__builtin_inff()"))) {
            tn_put(&fn->body, "TN_INF");
            s = e;
        } else if ((e = after(s, "__builtin_nanf(\"\")"))) {
            tn_put(&fn->body, "TN_NAN");
            s = e;
        } else if (after(s, "a->") && (s == line || !ex_is_word(s[-1]))) {
            ex_fail(x, TN_E_UNSUPPORTED, "the kernel %s has no form that stands alone", st->name);
            return;
        } else {
            tn_put_bytes(&fn->body, s++, 1);
        }
    }
    tn_put_bytes(&fn->body, "\n", 1);
}

static bool stands_in(const char *text, const char *end, const char *name, size_t length)
{
    for (const char *at = text; (at = strstr(at, name)) && at < end; at += length)
        if ((at == text || !ex_is_word(at[-1])) && !ex_is_word(at[length])) return true;
    return false;
}

/* Where the block ends in which a line with this indentation stands, after it. */
static const char *block_end(const char *text, size_t indent)
{
    while (*text && (*text == '#' || *text == '\n' || strspn(text, " ") >= indent))
        text += strcspn(text, "\n") + 1;
    return text;
}

static bool in_a_macro(const char *body, const char *name, size_t length)
{
    for (const char *line = body; (line = strstr(line, "#define ")); line++)
        if (stands_in(line, line + strcspn(line, "\n"), name, length)) return true;
    return false;
}

/* Drops indices and values that nothing reads, the last one first, as one may be made of those before it. */
static void drop_unread(tn_growing *body)
{
    for (char *line = body->p ? body->p + body->n : NULL; line && line > body->p;) {
        char name[EXPORT_NAME], *end = line;
        do line--;
        while (line > body->p && line[-1] != '\n');
        const size_t indent = strspn(line, " ");
        const char *from = after(line + indent, "const ");
        from = from ? from + strcspn(from, " \n") : line;
        from += *from == ' ';
        const size_t n = from > line ? strcspn(from, " ,;*(\n") : 0;
        if (!n || n >= sizeof name || strncmp(from + n, " = ", 3) != 0) continue;
        snprintf(name, sizeof name, "%.*s", (int)n, from);
        if (strchr(from, ';') != end - 2 || stands_in(end, block_end(end, indent), name, n) ||
            in_a_macro(body->p, name, n))
            continue;
        memmove(line, end, strlen(end) + 1);
        body->n -= (size_t)(end - line);
    }
}

/* Reads the function that begins at `text`, its signature, to its end. */
void ex_take_function(tn_export *x, const tn_step *st, ex_function *fn, const char *text)
{
    const char *line = strstr(text, "\n{\n") + 3;
    *fn = (ex_function){.n = 0};
    while (*line && *line != '}') {
        const char *end = strchr(line, '\n'), *word = line;
        const size_t n = (size_t)(end - line);
        char copy[LINE];
        snprintf(copy, sizeof copy, "%.*s", (int)(n < sizeof copy ? n : sizeof copy - 1), line);
        while (*word == ' ') word++;
        const bool hint = after(word, "#pragma") || strstr(copy, "tn_prefetch(") ||
                          strstr(copy, "*next_line =") || after(word, "const int64_t next = ");
        if (!hint && !take_param(fn, copy)) take_line(x, st, fn, line, n);
        line = end + 1;
    }
    drop_unread(&fn->body);
}

/* Bytes of the arrays that a function declares. */
static size_t arrays(const char *body)
{
    size_t bytes = 0;
    for (const char *line = body; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        while (*line == ' ') line++;
        char type[20] = "", name[60] = "", close[3] = "";
        unsigned long count = 0;
        if (sscanf(line, "%19s %59[a-zA-Z0-9_][%lu%2[];]", type, name, &count, close) < 4) continue;
        bytes += count * (strchr(type, '6') || !strcmp(type, "double") ? 8
                          : !strncmp(type, "uint8", 5)                 ? 1
                                                                       : 4);
    }
    return bytes;
}

static void put_signature(tn_growing *t, const tn_step *st, const ex_function *fn, bool parts)
{
    const char *comma = "";
    TN_EACH(p, fn->param, fn->n) {
        if (p->same >= 0) continue;
        tn_put(t, "%s%s%s *%s%s", comma, p->only_read ? "const " : "", p->type, p->alone ? "restrict " : "",
               p->name);
        comma = ", ";
    }
    for (int i = 0; i < fn->n_scalar; i++) {
        tn_put(t, "%s%s scalar%d", comma, ex_scalar_type(st->scalar[fn->scalar[i]].what), fn->scalar[i]);
        comma = ", ";
    }
    if (fn->faults) tn_put(t, "%sint *fault", comma);
    if (fn->faults) comma = ", ";
    if (parts) tn_put(t, "%sint64_t begin, int64_t end", comma);
}

bool ex_is_taken(const tn_export *x, const char *name)
{
    for (int i = 0; i < x->n_slot; i++)
        if (!strcmp(x->var[i], name)) return true;
    for (int i = 0; i < x->n_mark; i++)
        if (!strcmp(x->mark[i].name, name)) return true;
    for (int i = 0; i < x->n_kernel; i++)
        if (!strcmp(x->kernel[i].name, name)) return true;
    return false;
}

/* The same text under the same name is one function; the same name with another text gets a number. */
static int name_function(tn_export *x, const char *base, const char *rest, char *out)
{
    for (int k = 1;; k++) {
        char head[EXPORT_NAME + 24];
        if (k == 1)
            snprintf(out, EXPORT_NAME, "%.50s", base);
        else
            snprintf(out, EXPORT_NAME, "%.50s_v%d", base, k);
        snprintf(head, sizeof head, "static void %s(", out);
        const char *there = x->kernels.p ? strstr(x->kernels.p, head) : NULL;
        if (ex_is_taken(x, out)) continue;
        if (!there) return 0;
        if (!strncmp(there + strlen(head), rest, strlen(rest))) return 1;
    }
}

void ex_put_calls(tn_export *x, const tn_step *st, tn_growing *t)
{
    char last[200] = "", where[200];
    int n = 0;
    for (int i = 0; i < st->n_nodes; i++) {
        tn_node_where(x->f->node.at[x->plan->node_of[st->first_node + i]], where, sizeof where);
        if (!strcmp(where, last) || n > 8) continue;
        snprintf(last, sizeof last, "%s", where);
        for (char *c = where; *c; c++)
            if (*c == '*') *c = '.';
        tn_put(t, "%s%s", n++ ? ", " : "", where);
    }
    if (!n) tn_put(t, "%s", st->name);
}

void ex_put_function(tn_export *x, const tn_step *st, ex_function *fn, const char *name, bool finish)
{
    tn_growing rest = {0};
    find_aliases(x, st, fn);
    put_signature(&rest, st, fn, x->options.threads);
    tn_put(&rest, ")\n{\n");
    if (!x->options.threads)
        tn_put(&rest, "    const int64_t begin = 0, end = %lld;\n",
               (long long)(finish ? st->grid.finish_n : st->grid.n));
    for (int i = 0; i < fn->n; i++)
        if (fn->param[i].same >= 0)
            tn_put(&rest, "    %s%s *const %s = %s;\n", fn->param[i].only_read ? "const " : "",
                   fn->param[i].type, fn->param[i].name, fn->param[fn->param[i].same].name);
    tn_put(&rest, "%s", fn->body.p ? fn->body.p : "");
    for (const char *d = fn->body.p; d && (d = strstr(d, "#define ")); d++) /* each function's its own */
        tn_put(&rest, "#undef %.*s\n", (int)strcspn(d + 8, "( "), d + 8);
    tn_put(&rest, "}\n\n");
    const size_t stack = arrays(fn->body.p);
    if (stack > x->stack_bytes) x->stack_bytes = stack;
    char part[EXPORT_NAME + 20];
    const bool known = name_function(x, name, rest.p, fn->name);
    snprintf(part, sizeof part, "struct %s_CALL {", fn->name);
    if (!known) {
        tn_put(&x->kernels, "/* ");
        ex_put_calls(x, st, &x->kernels);
        tn_put(&x->kernels, " */\nstatic void %s(%s", fn->name, rest.p);
    }
    if (ex_in_parts(x, st, finish) && !strstr(x->kernels.p, part)) ex_put_part(st, fn, &x->kernels);
    tn_growing_free(&rest);
    tn_growing_free(&fn->body);
}
