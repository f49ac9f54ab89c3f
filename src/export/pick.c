/* pick.c - of the prelude's text (src/device/prelude, product.h) the definitions that a file needs.
 *
 * Definitions stand between blank lines at the first column and are named by the line they begin with, after
 * the comment: TN_FN float tn_exp_f32(..), #define TN_SHIFT .., typedef ... They call earlier ones alone, so
 * that one walk from the last to the first finds all that is needed. Of #if .. #else what holds for plain C
 * is kept.
 *
 * Start with ex_pick. */
#include "export.h"

#include "../device/embed.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { PIECES = 400, NESTING = 8 };

typedef struct piece {
    const char *text; /* lines */
    size_t n;
    bool wanted;
} piece;

/* ---- preprocessing ---- */

/* The value of a condition, all of whose macros are of other compilers but those that portable.h stands for.
 */
static bool holds(const char *line)
{
    const bool none = strncmp(line, "#ifndef", 7) == 0;
    if (none) return !strstr(line, "TN_FN");
    return strstr(line, "__GNUC__") == NULL && strstr(line, "!defined(TN_") == NULL &&
           strstr(line, "__cplusplus") == NULL && strstr(line, "AVX512") == NULL &&
           strstr(line, "TN_PHILOX_WIDE") == NULL && strstr(line, " defined(__CUDA") == NULL;
}

/* The lines of `text` that hold, without conditions and includes. Lines of `own` conditions stay, as they
 * are. */
static void preprocess(tn_growing *out, const char *text, bool own)
{
    bool on[NESTING + 1] = {true};
    int depth = 0;
    for (const char *line = text, *end; *line; line = end) {
        end = strchr(line, '\n');
        end = end ? end + 1 : line + strlen(line);
        char head[200];
        const size_t n = (size_t)(end - line);
        memcpy(head, line, n < sizeof head ? n : sizeof head - 1);
        head[n < sizeof head ? n : sizeof head - 1] = 0;
        if (own) {
            tn_put_bytes(out, line, n);
        } else if (!strncmp(line, "#if", 3) && depth < NESTING) {
            depth++;
            on[depth] = on[depth - 1] && holds(head);
        } else if (!strncmp(line, "#else", 5)) {
            on[depth] = on[depth - 1] && !on[depth];
        } else if (!strncmp(line, "#endif", 6)) {
            depth -= depth > 0;
        } else if (on[depth] && strncmp(line, "#include", 8) != 0) {
            tn_put_bytes(out, line, n);
        }
    }
    tn_put(out, "\n");
}

/* Writes out a function that is one expression, TN_FN1(R, name, T, result) or TN_FN2(name, T, result):
 * exact.h. Returns where the text goes on. */
static const char *put_function(tn_growing *out, const char *s)
{
    char type[16], name[EXPORT_NAME], of[16];
    int at = 0;
    const bool two = sscanf(s, "TN_FN2(%63[^,], %15[^,], %n", name, type, &at) == 2 && at;
    if (!two) sscanf(s, "TN_FN1(%15[^,], %63[^,], %15[^,], %n", type, name, of, &at);
    const char *end = strstr(s + at, ")\n");
    tn_put(out, "static inline %s %s(%s %s", type, name, two ? type : of, two ? "a, " : "x");
    if (two) tn_put(out, "%s b", type);
    tn_put(out, ")\n{\n    return %.*s;\n}\n\n", (int)(end - s) - at, s + at);
    return end + 2;
}

/* TN_M32(rint) is tn_rint_f32; TN_FN is static inline. */
static void put_plain(tn_growing *out, const char *s, size_t n)
{
    static const struct {
        const char *from, *to;
    } word[] = {{"TN_FN_LARGE ", "static "},
                {"TN_FN ", "static inline "},
                {"TN_M32(rint)", "tn_rint_f32"},
                {"TN_M64(rint)", "tn_rint_f64"}};
    for (const char *end = s + n; s < end;) {
        size_t k = 0;
        while (k < sizeof word / sizeof *word && strncmp(s, word[k].from, strlen(word[k].from)) != 0) k++;
        if (!strncmp(s, "TN_FN1(", 7) || !strncmp(s, "TN_FN2(", 7)) {
            s = put_function(out, s);
        } else if (k < sizeof word / sizeof *word) {
            tn_put(out, "%s", word[k].to);
            s += strlen(word[k].from);
        } else {
            tn_put_bytes(out, s++, 1);
        }
    }
}

/* ---- definitions ---- */

static int split(const char *text, piece *p)
{
    int n = 0, depth = 0;
    const char *begin = NULL;
    for (const char *line = text, *end; *line; line = end) {
        end = strchr(line, '\n');
        end = end ? end + 1 : line + strlen(line);
        const bool blank = line + 1 == end;
        if (!begin && !blank) begin = line;
        for (const char *c = line; c < end; c++) depth += *c == '{' ? 1 : *c == '}' ? -1 : 0;
        const bool whole = (*line == '}' && depth == 0) || (blank && depth == 0);
        if (begin && whole && n < PIECES) {
            p[n++] = (piece){begin, (size_t)(end - begin), false};
            begin = NULL;
        }
    }
    return n;
}

/* Returns true where the word stands in text, a function's before a bracket or behind &. */
static bool calls(const char *text, size_t n, const char *name, size_t length, bool function)
{
    for (const char *at = text; at + length <= text + n; at++) {
        at = memchr(at, *name, (size_t)(text + n - at) - length + 1);
        if (!at) return false;
        if (!memcmp(at, name, length) && (at == text || !ex_is_word(at[-1])) &&
            (function ? at[length] == '(' || (at > text && at[-1] == '&' && !ex_is_word(at[length]))
                      : !ex_is_word(at[length])))
            return true;
    }
    return false;
}

/* Returns true where one of the names that p defines stands in text. */
static bool defines_one_of(const piece *p, const char *text, size_t n)
{
    for (const char *line = p->text, *end; line < p->text + p->n; line = end) {
        end = memchr(line, '\n', (size_t)(p->text + p->n - line));
        end = end ? end + 1 : p->text + p->n;
        if (*line == '/' || *line == ' ' || *line == '{' || *line == '\n') continue;
        const char *from = line, *to = end;
        bool function = false;
        if (*line == '#' && strncmp(line, "#define ", 8) != 0) continue; /* a condition */
        if (!strncmp(line, "#define ", 8)) {
            from = line + 8;
            for (to = from; ex_is_word(*to);) to++;
        } else if (!strncmp(line, "enum {", 6)) {
            from = line + 6;
        } else if (memchr(line, '(',
                          (size_t)(end - line))) { /* a function: the word in front of the bracket */
            to = memchr(line, '(', (size_t)(end - line));
            for (from = to; from > line && ex_is_word(from[-1]);) from--;
            function = strncmp(line, "typedef ", 8) != 0; /* of a function, which is named as a type */
        }
        for (const char *w = from; w < to;) {
            const char *e = w;
            while (e < to && ex_is_word(*e)) e++;
            if (e > w && !isdigit((unsigned char)*w) && strncmp(w, "static", 6) && strncmp(w, "typedef", 7) &&
                strncmp(w, "struct", 6) && strncmp(w, "union", 5) && strncmp(w, "TN_FN", 5) &&
                strncmp(e - 2, "_t", 2) && calls(text, n, w, (size_t)(e - w), function))
                return true;
            w = e > w ? e : w + 1;
        }
    }
    return false;
}

/* Finds a function of the prelude (tn_..) that `text` calls and no piece defines. */
static bool lacks(const char *text, const piece *p, int n, char missing[EXPORT_NAME])
{
    for (const char *at = text; (at = strstr(at, "tn_")); at += 3) {
        size_t length = 3;
        while (ex_is_word(at[length])) length++;
        if ((at > text && ex_is_word(at[-1])) || at[length] != '(' || length >= EXPORT_NAME) continue;
        memcpy(missing, at, length);
        missing[length] = 0;
        int i = 0;
        while (i < n && !defines_one_of(&p[i], at, length + 1)) i++;
        if (i == n) return true;
    }
    return false;
}

bool ex_pick(tn_growing *out, const char *text, char missing[EXPORT_NAME])
{
    static const tn_embedded files[] = {TN_EMBED_PORTABLE, TN_EMBED_MATH,   TN_EMBED_PHILOX,
                                        TN_EMBED_HALF,     TN_EMBED_BLOCKS, TN_EMBED_PRODUCT_H};
    tn_growing whole = {0}, plain = {0}, needed = {0};
    piece p[PIECES];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        preprocess(&whole, tn_embed_text(files[i]),
                   files[i] == TN_EMBED_PORTABLE || files[i] == TN_EMBED_BLOCKS);
    if (whole.p) put_plain(&plain, whole.p, whole.n);
    tn_put(&needed, "%s", text);
    const int n = plain.p ? split(plain.p, p) : 0;
    for (int i = n - 1; i >= 0 && needed.p; i--) {
        p[i].wanted = defines_one_of(&p[i], needed.p, needed.n);
        if (p[i].wanted) tn_put_bytes(&needed, p[i].text, p[i].n);
    }
    const bool whole_text = needed.p && !lacks(needed.p, p, n, missing);
    for (int i = 0; i < n; i++) {
        if (!p[i].wanted) continue;
        tn_put_bytes(out, p[i].text, p[i].n);
        if (p[i].n < 2 || p[i].text[p[i].n - 2] != '\n') tn_put(out, "\n");
    }
    if (whole.failed || plain.failed || needed.failed) out->failed = TN_E_NOMEM;
    tn_growing_free(&whole);
    tn_growing_free(&plain);
    tn_growing_free(&needed);
    return whole_text || out->failed;
}
