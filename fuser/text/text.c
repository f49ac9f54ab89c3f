/* text.c - lines of a program, the dialects' tables, literals, names, and expressions made from rows of
 * ops.def. Start with fu_expression. */
#include "text.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The rows in which C and CUDA C are alike: types, and how elements become values. */
#define IN_BOTH                                                                                              \
    .type = {[TN_F32] = "float",   [TN_F16] = "float",   [TN_BF16] = "float", [TN_F64] = "double",           \
             [TN_I32] = "int32_t", [TN_I64] = "int64_t", [TN_U8] = "uint8_t", [TN_BOOL] = "bool"},           \
    .memory =                                                                                                \
        {[TN_F32] = "float",   [TN_F16] = "tn_half", [TN_BF16] = "tn_bfloat16", [TN_F64] = "double",         \
         [TN_I32] = "int32_t", [TN_I64] = "int64_t", [TN_U8] = "uint8_t",       [TN_BOOL] = "uint8_t"},      \
    .load = {[TN_F32] = "%s",                                                                                \
             [TN_F16] = "tn_half_to_f32(%s)",                                                                \
             [TN_BF16] = "tn_bfloat16_to_f32(%s)",                                                           \
             [TN_F64] = "%s",                                                                                \
             [TN_I32] = "%s",                                                                                \
             [TN_I64] = "%s",                                                                                \
             [TN_U8] = "%s",                                                                                 \
             [TN_BOOL] = "%s != 0"},                                                                         \
    .store = {[TN_F32] = "%s",                                                                               \
              [TN_F16] = "tn_f32_to_half(%s)",                                                               \
              [TN_BF16] = "tn_f32_to_bfloat16(%s)",                                                          \
              [TN_F64] = "%s",                                                                               \
              [TN_I32] = "%s",                                                                               \
              [TN_I64] = "%s",                                                                               \
              [TN_U8] = "%s",                                                                                \
              [TN_BOOL] = "%s"},                                                                             \
    .rounded = {[TN_F16] = "tn_rounded_half(%s)", [TN_BF16] = "tn_rounded_bfloat16(%s)"},                    \
    .inf = {"__builtin_inff()", "__builtin_inf()"}, .nan = {"__builtin_nanf(\"\")", "__builtin_nan(\"\")"}

#define IN_C                                                                                                 \
    IN_BOTH, .args = "a->", .wide = "double", .pointer = "%1$s%2$s *%3$s = a->buf[%4$d];",                   \
             .simd = "#pragma omp simd", .block_pitch = FU_BLOCK_TILE, .element = "line[i%d]"

const fu_dialect fu_dialect_c = {IN_C, .align = "_Alignas(64) ", .prefetch = "__builtin_prefetch"};
/* The lines of `simd` and `prefetch` are for the writer of the file to leave out. */
const fu_dialect fu_dialect_c99 = {IN_C, .align = "", .prefetch = "tn_prefetch", .typed = true};

const fu_dialect fu_dialect_cuda = {
    IN_BOTH,
    .args = "a.",
    .wide = "tn_twice",
    .pointer = "%1$s%2$s *const %3$s = (%1$s%2$s *)a.buf[%4$d];",
    .block_pitch = FU_BLOCK + 1, /* so that a column's elements lie in different banks */
    .align = "",
    .element = "v[l]",
    .prefetch = "",
};

const fu_dialect *fu_language(const tn_target *t)
{
    static const fu_dialect *const row[] = {[TN_DIALECT_C] = &fu_dialect_c,
                                            [TN_DIALECT_CUDA] = &fu_dialect_cuda,
                                            [TN_DIALECT_C99] = &fu_dialect_c99};
    return row[t->dialect];
}

/* ---- lines ---- */

void fu_line_v(tn_growing *t, const char *fmt, va_list ap)
{
    for (int i = 0; i < t->indent; i++) tn_put_bytes(t, "    ", 4);
    tn_put_v(t, fmt, ap);
    tn_put_bytes(t, "\n", 1);
}

void fu_line(tn_growing *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fu_line_v(t, fmt, ap);
    va_end(ap);
}

void fu_open(tn_growing *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fu_line_v(t, fmt, ap);
    va_end(ap);
    t->indent++;
}

void fu_decode(tn_growing *t, uint32_t which, const int64_t *extent, const char *what)
{
    int64_t below = 1;
    for (int i = 31; i >= 0; i--) {
        char by[40] = "", mod[40] = "";
        if (!(which >> i & 1)) continue;
        if (below > 1) snprintf(by, sizeof by, " / %lld", (long long)below);
        if (which & ((1u << i) - 1)) snprintf(mod, sizeof mod, " %% %lld", (long long)extent[i]);
        fu_line(t, "const int64_t i%d = %s%s%s;", i, what, by, mod);
        below *= extent[i] ? extent[i] : 1;
    }
}

void fu_close(tn_growing *t)
{
    t->indent--;
    fu_line(t, "}");
}

void fu_put_pointer(tn_growing *t, const fu_dialect *lang, tn_dtype d, const char *name, int buf, bool only)
{
    char line[200];
    snprintf(line, sizeof line, lang->pointer, only ? "const " : "", lang->memory[d], name, buf);
    fu_line(t, "%s", line);
}

/* ---- types, literals, names ---- */

void fu_literal(char *out, size_t n, tn_dtype d, double f, int64_t i, bool is_int)
{
    d = fu_compute_dtype(d);
    if (d == TN_BOOL) {
        snprintf(out, n, "%d", is_int ? i != 0 : f != 0);
        return;
    }
    if (d != TN_F32 && d != TN_F64) {
        int64_t v = is_int ? i : tn_f64_to_i64(f);
        v = d == TN_I32 ? (int32_t)v : d == TN_U8 ? (uint8_t)v : v;
        bool wide = d == TN_I64 || v < -INT32_MAX; /* functions go by the type of what they are given */
        if (v == INT64_MIN)
            snprintf(out, n, "INT64_MIN");
        else
            snprintf(out, n, wide ? "INT64_C(%lld)" : "%lld", (long long)v);
        return;
    }
    double v = is_int ? (double)i : f;
    int wide = d == TN_F64;
    if (isnan(v)) {
        snprintf(out, n, "%s", fu_dialect_c.nan[wide]);
    } else if (isinf(v)) {
        snprintf(out, n, "%s%s", v < 0 ? "-" : "", fu_dialect_c.inf[wide]);
    } else {
        /* the shortest text that reads back as the same number */
        char s[40];
        for (int digits = 1; digits <= 17; digits++) {
            tn_snprintf(s, sizeof s, "%.*g", digits, wide ? v : (double)(float)v);
            double back = tn_strtod(s, NULL);
            if (wide ? back == v : (float)back == (float)v) break;
        }
        snprintf(out, n, "%s%s%s", s, strpbrk(s, ".e") ? "" : ".0", wide ? "" : "f");
    }
}

void fu_limit(char *out, size_t n, tn_dtype d, bool low)
{
    static const char *const whole[TN_DTYPE_COUNT][2] = {[TN_I32] = {"INT32_MAX", "INT32_MIN"},
                                                         [TN_I64] = {"INT64_MAX", "INT64_MIN"},
                                                         [TN_U8] = {"255", "0"},
                                                         [TN_BOOL] = {"1", "0"}};
    if (tn_dtype_is_float(d))
        fu_literal(out, n, d, low ? -(double)INFINITY : (double)INFINITY, 0, false);
    else
        snprintf(out, n, "%s", whole[d][low]);
}

void fu_identifier(char *out, size_t n, const char *from)
{
    static const char *const reserved[] = {
        /* what kernels declare themselves */
        "at", "begin", "ch", "chosen", "col", "end", "far", "from", "from_zero", "inner", "inside", "item",
        "iy", "kx", "ky", "line", "lo", "outer", "ox", "oy", "part", "row", "same", "shift", "shifted", "to",
        "top", "value", "where", "won", "worst", "zero",
        /* C, C++ and what compilers add */
        "asm", "auto", "bool", "break", "case", "char", "class", "const", "continue", "default", "delete",
        "do", "double", "else", "enum", "extern", "false", "float", "for", "goto", "if", "inline", "int",
        "linux", "long", "new", "operator", "private", "public", "register", "restrict", "return", "short",
        "signed", "sizeof", "static", "struct", "switch", "template", "this", "true", "typedef", "typeof",
        "union", "unix", "unsigned", "void", "volatile", "while"};
    size_t k = 0;
    if (n < 4) return;
    for (const char *s = from; *s && k + 2 < n && k < 24; s++) {
        char ch = (unsigned char)*s < 128 && isalnum(*s) ? *s : '_'; /* more is a letter in some locales */
        if (ch == '_' && (k == 0 || out[k - 1] == '_')) continue;
        if (k == 0 && isdigit((unsigned char)ch)) out[k++] = 'v';
        out[k++] = ch;
    }
    while (k && out[k - 1] == '_') k--;
    if (!k) out[k++] = 'v';
    out[k] = 0;
    bool taken = !strncmp(out, "tn_", 3) || !strncmp(out, "TN_", 3);
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved && !taken; i++)
        taken = !strcmp(out, reserved[i]);
    /* a, i0, oy1 .. are loop counters and the like */
    size_t letters = strcspn(out, "0123456789");
    bool short_name = letters == 1 || (letters == 2 && out[letters]);
    if (short_name && strspn(out + letters, "0123456789") == strlen(out + letters)) taken = true;
    if (taken && k + 1 < n) {
        out[k++] = '_';
        out[k] = 0;
    }
}

/* ---- expressions ---- */

const char *fu_suffix(const fu_dialect *lang, tn_dtype d)
{
    static const char *const of[TN_DTYPE_COUNT] = {[TN_F32] = "_f32", [TN_F64] = "_f64", [TN_I32] = "_i32",
                                                   [TN_I64] = "_i64", [TN_U8] = "_u8",   [TN_BOOL] = "_bool"};
    return lang->typed ? of[fu_compute_dtype(d)] : "";
}

void fu_expression(char *out, size_t n, const fu_dialect *lang, const char *row, tn_dtype operand,
                   const char *const *arg)
{
    size_t k = 0;
    for (const char *s = row; *s && k + 1 < n;) {
        if (isalpha((unsigned char)*s) || *s == '_') {
            const char *e = s;
            while (isalnum((unsigned char)*e) || *e == '_') e++;
            size_t len = (size_t)(e - s);
            if (len == 1 && *s >= 'x' && *s <= 'z') {
                const char *x = arg[*s - 'x'];
                const bool minus = k && out[k - 1] == '-' && *x == '-'; /* of -0.0, not a decrement */
                k += (size_t)snprintf(out + k, n - k, minus ? " %s" : "%s", x);
            } else if (len == 1 && *s == 'K' && *e == '(') {
                const char *close = strchr(e, ')');
                char lit[48];
                fu_literal(lit, sizeof lit, operand, tn_strtod(e + 1, NULL), 0, false);
                k += (size_t)snprintf(out + k, n - k, "%s", lit);
                e = close ? close + 1 : e + strlen(e);
            } else {
                const bool generic = !strncmp(s, "tn_", 3) && (len < 4 || strncmp(e - 4, "_f32", 4) != 0);
                k += (size_t)snprintf(out + k, n - k, "%.*s%s", (int)len, s,
                                      generic ? fu_suffix(lang, operand) : "");
            }
            s = e;
        } else if (isdigit((unsigned char)*s)) { /* a number's exponent or suffix is no operand */
            while ((isalnum((unsigned char)*s) || *s == '.') && k + 1 < n) out[k++] = *s++;
        } else {
            out[k++] = *s++;
        }
    }
    out[k < n ? k : n - 1] = 0;
}
