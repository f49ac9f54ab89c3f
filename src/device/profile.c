/* profile.c - target profiles as numbers and as text. Start with tn_profile_parse, which knows the format. */
#include "profile.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../core/hash.h"
#include "../core/print.h"

/* Two threads of a server processor with AVX-512, 1 MiB of cache each and 32 MiB together. */
static const tn_target_profile reference = {
    .name = "reference",
    .machine = "two threads with vectors of 64 bytes, 1 MiB of cache each and 32 MiB together",
    .threads = 2,
    .stream_bytes = 32 << 20,
    .launch_us = 1,
    .library_us = 2,
    .instruction_ps = 7,
    .n_band = 4,
    .band = {{.25e6, 200, 150, 25}, {1.5e6, 120, 95, 25}, {16e6, 60, 50, 25}, {128e6, 25, 16, 24}},
    .n_gemm = 4,
    .gemm = {{10e3, 6}, {.5e6, 80}, {15e6, 200}, {1e9, 220}},
    .n_conv = 3,
    .conv = {{1e6, 30}, {33e6, 150}, {1e9, 280}},
};

/* An H100: published bandwidth and f32 peak, four fifths of them. */
static const tn_target_profile reference_cuda = {
    .name = "reference-cuda",
    .machine = "132 multiprocessors, 50 MB of cache, HBM3",
    .threads = 1,
    .stream_bytes = 0,
    .launch_us = 2,
    .library_us = 3,
    .instruction_ps = .04,
    .n_band = 3,
    .band = {{1e6, 4000, 4000, 4000}, {32e6, 4500, 4500, 4500}, {200e6, 2700, 2700, 2700}},
    .n_gemm = 3,
    .gemm = {{1e7, 3000}, {1e9, 25000}, {1e11, 50000}},
    .n_conv = 3,
    .conv = {{1e7, 2000}, {1e9, 20000}, {1e11, 40000}},
};

const tn_target_profile *tn_profile_reference(tn_dialect dialect)
{
    return dialect == TN_DIALECT_CUDA ? &reference_cuda : &reference;
}

const tn_target_profile *tn_target_rates(const tn_target *t)
{
    return t->profile ? t->profile : tn_profile_reference(t->dialect);
}

/* ---- between the points ---- */

/* Returns the place of x between a and b, on a logarithmic scale: 0 at or below a, 1 at or beyond b. */
static double between(double a, double b, double x)
{
    return x <= a ? 0 : x >= b ? 1 : log(x / a) / log(b / a);
}

static double mix(double a, double b, double at) { return exp(log(a) + at * (log(b) - log(a))); }

tn_profile_band tn_profile_at(const tn_target_profile *p, double bytes)
{
    int i = 0;
    while (i + 2 < p->n_band && bytes > p->band[i + 1].bytes) i++;
    const tn_profile_band *a = &p->band[i], *b = &p->band[i + 1 < p->n_band ? i + 1 : i];
    double at = a == b ? 0 : between(a->bytes, b->bytes, bytes);
    return (tn_profile_band){bytes, mix(a->read, b->read, at), mix(a->copy, b->copy, at),
                             mix(a->stream, b->stream, at)};
}

double tn_profile_gflops(const tn_profile_rate *rate, int n, double flops)
{
    int i = 0;
    while (i + 2 < n && flops > rate[i + 1].flops) i++;
    const tn_profile_rate *a = &rate[i], *b = &rate[i + 1 < n ? i + 1 : i];
    return mix(a->gflops, b->gflops, a == b ? 0 : between(a->flops, b->flops, flops));
}

/* ---- reading ---- */

typedef struct reader {
    const char *at, *end; /* the rest of a line */
} reader;

static bool word(reader *r, char *out, size_t n)
{
    size_t k = 0;
    while (r->at < r->end && *r->at == ' ') r->at++;
    while (r->at < r->end && *r->at != ' ') {
        if (k + 1 >= n) return false;
        out[k++] = *r->at++;
    }
    out[k] = 0;
    return k > 0;
}

/* A decimal number without a sign, such as 12, 0.5 or 1.5e+06. */
static bool number(reader *r, double least, double most, double *out)
{
    char text[32], *end;
    if (!word(r, text, sizeof text) || *text == '+' || *text == '-') return false;
    if (text[strspn(text, "0123456789.e+-")]) return false;
    double v = tn_strtod(text, &end);
    if (*end || !(v >= least && v <= most)) return false;
    *out = v;
    return true;
}

static bool at_end(reader *r)
{
    while (r->at < r->end && *r->at == ' ') r->at++;
    return r->at == r->end;
}

/* The rest of the line, printable. */
static bool text_of(reader *r, char *out, size_t n)
{
    while (r->at < r->end && *r->at == ' ') r->at++;
    size_t k = (size_t)(r->end - r->at);
    if (!k || k >= n) return false;
    for (size_t i = 0; i < k; i++)
        if ((unsigned char)r->at[i] < 0x20 || (unsigned char)r->at[i] > 0x7e) return false;
    memcpy(out, r->at, k);
    out[k] = 0;
    r->at = r->end;
    return true;
}

static bool rate(reader *r, tn_profile_rate *list, int *n)
{
    tn_profile_rate v;
    if (*n == TN_PROFILE_POINTS || !number(r, 1, 1e18, &v.flops) || !number(r, 1e-3, 1e9, &v.gflops) ||
        (*n && v.flops <= list[*n - 1].flops))
        return false;
    list[(*n)++] = v;
    return true;
}

static bool band(reader *r, tn_target_profile *p)
{
    tn_profile_band v;
    if (p->n_band == TN_PROFILE_POINTS || !number(r, 1, 1e18, &v.bytes) || !number(r, 1e-3, 1e9, &v.read) ||
        !number(r, 1e-3, 1e9, &v.copy) || !number(r, 1e-3, 1e9, &v.stream) ||
        (p->n_band && v.bytes <= p->band[p->n_band - 1].bytes))
        return false;
    p->band[p->n_band++] = v;
    return true;
}

static bool take_line(reader *r, tn_target_profile *p, unsigned *seen)
{
    char key[32];
    unsigned bit = 4;
    if (!word(r, key, sizeof key)) return false;
    if (!strcmp(key, "band")) return band(r, p);
    if (!strcmp(key, "gemm")) return rate(r, p->gemm, &p->n_gemm);
    if (!strcmp(key, "conv")) return rate(r, p->conv, &p->n_conv);
    if (!strcmp(key, "name")) {
        if (*seen & 1) return false;
        *seen |= 1;
        return word(r, p->name, sizeof p->name) && !strpbrk(p->name, "\"\\<>&");
    }
    if (!strcmp(key, "machine")) {
        if (*seen & 2) return false;
        *seen |= 2;
        return text_of(r, p->machine, sizeof p->machine);
    }
#define TN_X(name, least, most, what)                                                                        \
    if (!strcmp(key, #name)) {                                                                               \
        if (*seen & bit) return false;                                                                       \
        *seen |= bit;                                                                                        \
        return number(r, least, most, &p->name);                                                             \
    }                                                                                                        \
    bit <<= 1;
    TN_PROFILE_NUMBERS(TN_X)
#undef TN_X
    return false;
}

bool tn_profile_parse(const char *text, tn_target_profile *out, int *line)
{
    tn_target_profile p = {.n_band = 0};
    static const char first[] = "target profile 1";
    unsigned seen = 0, all = 3, bit = 4;
#define TN_X(name, least, most, what) all |= bit, bit <<= 1;
    TN_PROFILE_NUMBERS(TN_X)
#undef TN_X
    *line = 0;
    while (*text) {
        size_t n = strcspn(text, "\n");
        reader r = {text, text + n};
        ++*line;
        if (*line == 1 ? n != sizeof first - 1 || memcmp(text, first, n)
                       : !take_line(&r, &p, &seen) || !at_end(&r))
            return false;
        text += n + (text[n] != 0);
    }
    if (seen != all || !p.n_band || !p.n_gemm || !p.n_conv) {
        ++*line;
        return false;
    }
    *out = p;
    return true;
}

/* ---- writing ---- */

typedef struct writer {
    char *p;
    size_t n, at;
} writer;

static void put(writer *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(writer *w, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int k = tn_vsnprintf(w->at < w->n ? w->p + w->at : NULL, w->at < w->n ? w->n - w->at : 0, fmt, ap);
    va_end(ap);
    if (k > 0) w->at += (size_t)k;
}

static void put_numbers(writer *w, const char *key, int n, const double *v)
{
    put(w, "%s", key);
    for (int i = 0; i < n; i++) put(w, " %.10g", v[i]);
    put(w, "\n");
}

int tn_profile_print(const tn_target_profile *p, char *out, size_t n)
{
    writer w = {out, n, 0};
    put(&w, "target profile 1\nname %s\nmachine %s\n", p->name, p->machine);
#define TN_X(name, least, most, what) put_numbers(&w, #name, 1, &p->name);
    TN_PROFILE_NUMBERS(TN_X)
#undef TN_X
    for (int i = 0; i < p->n_band; i++) {
        const tn_profile_band *b = &p->band[i];
        put_numbers(&w, "band", 4, (const double[]){b->bytes, b->read, b->copy, b->stream});
    }
    for (int i = 0; i < p->n_gemm; i++)
        put_numbers(&w, "gemm", 2, (const double[]){p->gemm[i].flops, p->gemm[i].gflops});
    for (int i = 0; i < p->n_conv; i++)
        put_numbers(&w, "conv", 2, (const double[]){p->conv[i].flops, p->conv[i].gflops});
    return (int)w.at;
}

void tn_profile_digest(const tn_target_profile *p, char *out, size_t n)
{
    char text[4096];
    int k = tn_profile_print(p, text, sizeof text);
    size_t length = k < (int)sizeof text ? (size_t)k : sizeof text - 1;
    snprintf(out, n, "%s %08x", p->name, (unsigned)(tn_hash_bytes(text, length) >> 32));
}

/* ---- rounding ---- */

/* The nearest of the numbers 10^(k/24), each a tenth larger than the one before, to three digits. */
static void settle(double *v, const double *before)
{
    enum { A_DECADE = 24 };
    if (!(*v > 0)) return;
    if (before && *before > 0 && *v <= 1.2 * *before && *v >= *before / 1.2) {
        *v = *before;
        return;
    }
    char text[32];
    tn_snprintf(text, sizeof text, "%.2e", pow(10, round(log10(*v) * A_DECADE) / A_DECADE));
    *v = tn_strtod(text, NULL);
}

static void settle_rates(tn_profile_rate *list, int n, const tn_profile_rate *before, int n_before)
{
    for (int i = 0; i < n; i++)
        settle(&list[i].gflops, i < n_before && before[i].flops == list[i].flops ? &before[i].gflops : NULL);
}

void tn_profile_round(tn_target_profile *p, const tn_target_profile *before)
{
    settle(&p->launch_us, before ? &before->launch_us : NULL);
    settle(&p->library_us, before ? &before->library_us : NULL);
    settle(&p->instruction_ps, before ? &before->instruction_ps : NULL);
    for (int i = 0; i < p->n_band; i++) {
        const tn_profile_band *b = before && i < before->n_band && before->band[i].bytes == p->band[i].bytes
                                       ? &before->band[i]
                                       : NULL;
        settle(&p->band[i].read, b ? &b->read : NULL);
        settle(&p->band[i].copy, b ? &b->copy : NULL);
        settle(&p->band[i].stream, b ? &b->stream : NULL);
    }
    settle_rates(p->gemm, p->n_gemm, before ? before->gemm : NULL, before ? before->n_gemm : 0);
    settle_rates(p->conv, p->n_conv, before ? before->conv : NULL, before ? before->n_conv : 0);
}
