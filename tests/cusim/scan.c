/* scan.c - finds the kernels in CUDA text.
 *
 * A launch hands parameters over as bytes, so that a module must say how its kernels are called. The compiler
 * knows that; what it needs is their names. They stand behind `extern "C" __global__`, with or without launch
 * bounds, and the text is read just well enough to find them.
 *
 * Read first: sim_scan_kernels. */
#include "nvrtc.h"

#include <ctype.h>
#include <string.h>

/* Past white space, comments, and lines of the preprocessor. */
static const char *skip(const char *p)
{
    for (;;) {
        while (isspace((unsigned char)*p)) p++;
        if (p[0] == '/' && p[1] == '/') {
            while (*p && *p != '\n') p++;
        } else if (p[0] == '/' && p[1] == '*') {
            const char *end = strstr(p + 2, "*/");
            if (!end) return p + strlen(p);
            p = end + 2;
        } else if (*p == '#') {
            while (*p && (*p != '\n' || p[-1] == '\\')) p++;
        } else
            return p;
    }
}

static bool word_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* The end of the token at p: a word, a literal, or one character. */
static const char *token(const char *p)
{
    if (*p == '"' || *p == '\'') {
        char quote = *p++;
        while (*p && *p != quote) p += 1 + (*p == '\\' && p[1]);
        return *p ? p + 1 : p;
    }
    if (!word_char(*p)) return *p ? p + 1 : p;
    while (word_char(*p)) p++;
    return p;
}

static bool is(const char *p, const char *end, const char *word)
{
    return (size_t)(end - p) == strlen(word) && !memcmp(p, word, (size_t)(end - p));
}

/* Past what stands in the parentheses that open at p; *comma: the first comma of their own, or the end. */
static const char *past_parentheses(const char *p, const char **comma)
{
    int depth = 0;
    *comma = NULL;
    while (*p) {
        const char *end = token(p);
        depth += *p == '(';
        if (*p == ',' && depth == 1 && !*comma) *comma = p;
        if (*p == ')' && --depth == 0) {
            if (!*comma) *comma = p;
            return end;
        }
        p = skip(end);
    }
    return p;
}

/* Units with two kernels of one name call the second by another, by a line `#define NAME OTHER` before it and
 * an #undef behind it. What *name is called at p. */
static void renamed(const char *text, const char *p, const char **name, const char **end)
{
    static const char word[] = "#define ";
    const size_t n = (size_t)(*end - *name);
    const char *found = NULL;
    for (const char *q = text; (q = strstr(q, word)) && q < p; q++)
        if (!strncmp(q + sizeof word - 1, *name, n) && q[sizeof word - 1 + n] == ' ')
            found = q + sizeof word + n;
    if (!found) return;
    *name = found;
    *end = token(found);
}

/* The kernel of the text whose declaration goes on at p, behind __global__. */
static const char *kernel(const char *text, const char *p, sim_text *rows)
{
    const char *name = NULL, *name_end = NULL, *bound = NULL, *bound_end = NULL;
    while (*p && *p != ';' && *p != '{') {
        const char *end = token(p), *next = skip(end), *comma;
        if (is(p, end, "__launch_bounds__") || is(p, end, "__attribute__")) {
            bool bounds = p[2] == 'l';
            const char *after = past_parentheses(next, &comma);
            if (bounds) bound = next + 1, bound_end = comma;
            p = skip(after);
            continue;
        }
        if (word_char(*p)) name = p, name_end = end;
        if (*p == '(') {
            const char *body = skip(past_parentheses(p, &comma));
            if (name && *body == '{') {
                renamed(text, p, &name, &name_end);
                sim_text_put(rows, "    CUSIM_KERNEL(%.*s, (", (int)(name_end - name), name);
                if (bound)
                    sim_text_add(rows, bound, (size_t)(bound_end - bound));
                else
                    sim_text_put(rows, "0");
                sim_text_put(rows, "))\n");
            }
            return body;
        }
        p = next;
    }
    return p;
}

void sim_scan_kernels(const char *text, bool static_too, sim_text *out)
{
    bool external = false, c = false; /* the tokens before were extern, extern "C" */
    sim_text_put(out, "\nCUSIM_TABLE_BEGIN\n");
    for (const char *p = skip(text); *p;) {
        const char *end = token(p);
        if (is(p, end, "__global__") && c) {
            p = kernel(text, skip(end), out);
            external = c = false;
            continue;
        }
        c = (external && is(p, end, "\"C\"")) || (static_too && is(p, end, "static"));
        external = is(p, end, "extern");
        p = skip(end);
    }
    sim_text_put(out, "CUSIM_TABLE_END\n");
}

bool sim_scan_macro_kernels(const char *text)
{
    for (const char *p = text; (p = strstr(p, "__global__")); p += 10) {
        const char *line = p;
        while (line > text && (line[-1] != '\n' || (line - text > 1 && line[-2] == '\\'))) line--;
        while (*line == ' ' || *line == '\t') line++;
        if (*line == '#') return true;
    }
    return false;
}

/* What a compiler of this machine would find, and NVRTC without include paths does not. What stands under
 * `#if !defined(__CUDACC_RTC__)`, or under the #else of the opposite, is for others. */
const char *sim_scan_refuse(const char *text)
{
    int depth = 0, at = 0; /* at: the depth of the condition on __CUDACC_RTC__, 0: none */
    bool active = true;
    for (const char *p = text; p && *p; p = strchr(p, '\n')) {
        p += *p == '\n';
        const char *q = p, *end = p + strcspn(p, "\n"), *rtc = strstr(p, "__CUDACC_RTC__");
        while (*q == ' ' || *q == '\t') q++;
        if (*q++ != '#') continue;
        while (*q == ' ' || *q == '\t') q++;
        if (!strncmp(q, "if", 2)) {
            depth++;
            if (at || !rtc || rtc > end) continue;
            at = depth;
            active = !memchr(q, '!', (size_t)(end - q)) && strncmp(q, "ifndef", 6);
        } else if (at == depth && !strncmp(q, "else", 4))
            active = !active;
        else if (!strncmp(q, "endif", 5)) {
            if (at == depth) at = 0, active = true;
            depth--;
        } else if (active && !strncmp(q, "include", 7))
            return "#include: NVRTC has no include paths here";
    }
    return NULL;
}
