/* notes.h - fuzz targets that read short texts: profiles of a machine, and settings in the environment. */
#pragma once

#include <math.h>

#include "fuzz.h"
#include "src/core/settings.h"
#include "src/device/profile.h"

/* ---- profiles ---- */

static void fuzz_one_profile(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), again[8192];
    FUZZ_CHECK(text);
    if (size) memcpy(text, data, size);
    text[size] = 0;
    tn_target_profile p, q;
    int line = 0;
    if (!tn_profile_parse(text, &p, &line)) {
        FUZZ_CHECK(line > 0);
        free(text);
        return;
    }
    free(text);
    static const double of[] = {0, 1, 1e3, 1e6, 1e9, 1e18, 1e300};
    for (int i = 0; i < 7; i++) {
        tn_profile_band b = tn_profile_at(&p, of[i]);
        FUZZ_CHECK(isfinite(b.read) && b.read > 0 && isfinite(b.copy) && isfinite(b.stream));
        FUZZ_CHECK(isfinite(tn_profile_gflops(p.gemm, p.n_gemm, of[i])) &&
                   isfinite(tn_profile_gflops(p.conv, p.n_conv, of[i])));
    }
    FUZZ_CHECK(tn_profile_print(&p, again, sizeof again) < (int)sizeof again);
    FUZZ_CHECK(tn_profile_parse(again, &q, &line)); /* what is written is read */
    FUZZ_CHECK(p.n_band == q.n_band && p.n_gemm == q.n_gemm && p.n_conv == q.n_conv &&
               !strcmp(p.name, q.name));
    tn_profile_round(&p, &q);
}

static size_t fuzz_good_profile(unsigned k, uint8_t *out, size_t room)
{
    int n = tn_profile_print(tn_profile_reference(k & 1 ? TN_DIALECT_CUDA : TN_DIALECT_C), (char *)out, room);
    return n < 0 ? 0 : (size_t)n < room ? (size_t)n : room;
}

/* ---- settings ---- */

static const char *const fuzz_variable[] = {
    "TENSOR_DEVICE", "TENSOR_MODE",       "TENSOR_PRECISION", "TENSOR_THREADS", "TENSOR_REPLAY",
    "TENSOR_PLANS",  "TENSOR_KERNEL_OPT", "TENSOR_DEBUG",     "TENSOR_CHECK",   "TENSOR_TUNE",
    "TENSOR_CACHE",  "TENSOR_DUMP",       "TENSOR_CC",        "TENSOR_PROFILE"};
enum { FUZZ_VARIABLES = sizeof fuzz_variable / sizeof *fuzz_variable };

static int fuzz_said;
static void fuzz_count(int level, const char *text, void *user)
{
    (void)level, (void)user;
    fuzz_said += strlen(text) > 20;
}

/* One line for each variable: what it is set to. */
static void fuzz_one_settings(const uint8_t *data, size_t size)
{
    static char *before[FUZZ_VARIABLES];
    static bool kept;
    for (int i = 0; i < FUZZ_VARIABLES && !kept; i++) {
        const char *is = getenv(fuzz_variable[i]);
        before[i] = is ? strdup(is) : NULL;
    }
    kept = true;
    size_t at = 0;
    for (int i = 0; i < FUZZ_VARIABLES; i++) {
        char value[1024];
        size_t n = 0;
        while (at < size && data[at] != '\n' && data[at] && n + 1 < sizeof value)
            value[n++] = (char)data[at++];
        value[n] = 0;
        at++;
        setenv(fuzz_variable[i], value, 1);
    }
    tn_settings s = tn_settings_read(fuzz_count, NULL);
    FUZZ_CHECK(s.threads >= 0 && s.threads <= TN_THREADS_MAX && s.plans >= 1 && s.plans <= TN_PLANS_MAX);
    FUZZ_CHECK(s.kernel_opt >= 0 && s.kernel_opt <= 3 && s.debug >= 0 && s.debug <= TN_DEBUG_MAX);
    FUZZ_CHECK(s.device >= TN_AUTO && s.device <= TN_REF && s.mode >= TN_MODE_AUTO && s.mode <= TN_EAGER);
    for (int i = 0; i < FUZZ_VARIABLES; i++)
        if (before[i])
            setenv(fuzz_variable[i], before[i], 1);
        else
            unsetenv(fuzz_variable[i]);
}

static size_t fuzz_good_settings(unsigned k, uint8_t *out, size_t room)
{
    static const char *const good[] = {
        "auto\nfused\nf32\n2\non\n256\n3\n0\n0\n0\n/tmp/c\nstderr\ncc\nreference\n",
        "cuda\neager\ntf32\n256\noff\n65536\n0\n5\n1\n1\n\nfolder\nclang -O1\n/etc/passwd\n",
        "REF\nEager\nF32\n0\n1\n1\n2\n1\non\noff\n"};
    size_t n = strlen(good[k % 3]);
    if (n > room) n = room;
    memcpy(out, good[k % 3], n);
    return n;
}

/* ---- operators of the user's own ---- */

/* Three lines: signature, formula, the first operand's gradient. */
static void fuzz_one_formula(const uint8_t *data, size_t size)
{
    static tn_session *s;
    static int made;
    if (!s || made >= 200) {
        if (s) FUZZ_CHECK(tn_close(s) == TN_OK);
        s = tn_open(.device = TN_REF, .threads = 1, .log = fuzz_quiet);
        made = 0;
    }
    FUZZ_CHECK(s);
    char *text = malloc(size + 24), *line[3] = {text, NULL, NULL};
    FUZZ_CHECK(text);
    const int n_name = snprintf(text, 24, "n%d_", made); /* no other has its name */
    if (size) memcpy(text + n_name, data, size);
    text[(size_t)n_name + size] = 0;
    for (int i = 1; i < 3 && (line[i] = strchr(line[i - 1], '\n')); i++) *line[i]++ = 0;
    const char *gradient = line[2] && *line[2] ? line[2] : NULL;
    tn_own *f = line[1] ? tn_define(s, line[0], line[1], .gradient = {gradient}) : NULL;
    FUZZ_CHECK(!line[1] || !f == !!*tn_error_text(s));
    tn_clear_error(s);
    for (int n = 1; f && n <= TN_OWN_MAX; n++) { /* whichever number of operands it has */
        tn_step_begin(s);
        tn_tensor *x[TN_OWN_MAX] = {NULL};
        for (int i = 0; i < n; i++) tn_requires_grad(x[i] = tn_full(s, .5, TN_F64, TN_SHAPE(2)), true);
        tn_tensor *y = tn_apply(f, x[0], x[1], x[2], x[3], x[4], x[5], .numbers = {2, 3, 4});
        if (y && tn_dtype_of(y) == TN_F64) tn_backward(tn_sum(y, TN_ALL, false));
        tn_clear_error(s);
        tn_step_end(s);
        tn_clear_error(s);
    }
    made += f != NULL;
    free(text);
}

static size_t fuzz_good_formula(unsigned k, uint8_t *out, size_t room)
{
    static const char *const good[] = {
        "f(x)\nx / (1 + tn_exp(-x))\n", "f(x)\nexp(2.5e-1*x)\ng * .25 * out",
        "g2(x, y_1; b)\nx >= b && !y_1 ? pow(x, y_1) : x - -y_1 / where(x < y_1, 1, b)\n",
        "f(x; a, b)\nmaximum(a, x) * (b || x != 3)\na*g + out * b"};
    size_t n = strlen(good[k % 4]);
    if (n > room) n = room;
    memcpy(out, good[k % 4], n);
    return n;
}

static const fuzz_target fuzz_formula = {"formula", fuzz_one_formula, fuzz_good_formula, 1 << 11, true};
static const fuzz_target fuzz_profile = {"profile", fuzz_one_profile, fuzz_good_profile, 1 << 12, true};
static const fuzz_target fuzz_settings = {"settings", fuzz_one_settings, fuzz_good_settings, 1 << 11, true};
