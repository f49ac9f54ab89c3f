/* test_math.c - the prelude's elementary functions: error in ulp, special values, vectorisation, both
 * dialects.
 *
 * The same loops are checked in two ways: compiled into this program with the library's flags, and compiled
 * at run time the way kernels are, by gcc and by clang, with and without contraction to fused multiply-add.
 * The arguments are a stride over all floats plus the places where something changes: each exponent, the
 * ends of each function's ranges, and their neighbours. tests/long/ulp.c walks every float.
 *
 * Read first: check_all, which every variant goes through. */
#include "tests/test.h"
#include <dlfcn.h>

#include "../src/device/prelude/math.h"
#include "long/ulp_error.h"
#include "nvrtc.h"

#define PRELUDE "src/device/prelude/"

typedef void loop1(const float *x, float *y, int n);
typedef void loop2(const float *x, const float *y, float *z, int n);

enum {
#define INDEX(name, exact, least) F_##name,
    TN_EACH_FUNCTION(INDEX) FUNCTIONS
};

static const struct {
    const char *name;
    double (*exact)(double);
    int least;
} table[] = {
#define ROW(name, exact, least) {#name, exact, least},
    TN_EACH_FUNCTION(ROW)};

#define LOOP(name, exact, least)                                                                             \
    static void loop_##name(const float *x, float *y, int n)                                                 \
    {                                                                                                        \
        for (int i = 0; i < n; i++) y[i] = tn_##name(x[i]);                                                  \
    }
TN_EACH_FUNCTION(LOOP)

static void loop_pow(const float *x, const float *y, float *z, int n)
{
    for (int i = 0; i < n; i++) z[i] = tn_pow(x[i], y[i]);
}

/* ------------------------------------------------------------------------------------- arguments */

typedef struct points {
    float *x, *y;
    double *exact[FUNCTIONS];
    int n;
} points;

static void add(points *p, uint32_t bits)
{
    if (p->x) p->x[p->n] = tn_test_float(bits);
    p->n++;
}

static void add_around(points *p, float x, int reach)
{
    for (int sign = 0; sign < 2; sign++)
        for (int d = -reach; d <= reach; d++) add(p, (tn_test_bits(x) + (uint32_t)d) ^ (uint32_t)sign << 31);
}

static void collect(points *p)
{
    static const float places[] = {
        1e-30f,      1e-8f,       0.125f,
        0.25f,       0.34657359f, 0.35f,
        0.443614f,   0.5f,        0.54930614f,
        0.69314718f, 0.70710678f, 1.0f,
        1.41421356f, 1.5f,        2.0f,
        2.5f,        3.93f,       4.0f,
        9.01f,       10.0f,       16.63f,
        17.33f,      18.0f,       87.336544f,
        88.029691f,  88.722839f,  89.0f,
        103.27893f,  103.97208f,  104.0f,
        8388607.5f,  8388608.0f,  0x1p24f,
        0x1p31f,     0x1p16f,     0x1p81f,
        0x1p82f,     0x1p83f,     16367173.0f * 0x1p72f /* as close to a multiple of pi/2 as an f32 comes */
    };
    p->n = 0;
    for (uint64_t u = 0; u < 0x100000000u; u += 8191) add(p, (uint32_t)u);
    for (uint32_t e = 0; e < 512; e++)
        for (int d = -3; d <= 3; d++) {
            add(p, (e << 23) + (uint32_t)d);
            add(p, (e << 23) + 0x3504f3u + (uint32_t)d);
        }
    for (uint32_t q = 1; q < 400; q++) add_around(p, (float)(q * 0.78539816339744831), 2);
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++) add_around(p, places[i], 40);
}

static points all;

static int setup(void **state)
{
    (void)state;
    collect(&all);
    all.x = malloc((size_t)all.n * sizeof *all.x);
    all.y = malloc((size_t)all.n * sizeof *all.y);
    if (!all.x || !all.y) return -1;
    collect(&all);
    for (int f = 0; f < FUNCTIONS; f++) {
        all.exact[f] = malloc((size_t)all.n * sizeof(double));
        if (!all.exact[f]) return -1;
        for (int i = 0; i < all.n; i++) all.exact[f][i] = table[f].exact((double)all.x[i]);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(all.x);
    free(all.y);
    for (int f = 0; f < FUNCTIONS; f++) free(all.exact[f]);
    return 0;
}

static void check_function(const char *variant, int f, loop1 *loop)
{
    loop(all.x, all.y, all.n);
    double limit = f >= F_floor ? 0 : f == F_sqrt ? 0.5 : 2;
    for (int i = 0; i < all.n; i++) {
        double e = tn_ulp_error(all.y[i], all.exact[f][i], table[f].least);
        if (!(e <= limit))
            fail_msg("%s %s(%a) = %a, not %a: %.3f ulp", variant, table[f].name, (double)all.x[i],
                     (double)all.y[i], all.exact[f][i], e);
    }
}

static void check_pow(const char *variant, loop2 *loop)
{
    static const float edge[] = {0,     0.5f,  1,       1.5f,       2,       3,       0x1p-149f,
                                 1e-3f, 1e10f, 0x1p23f, 8388609.0f, 0x1p24f, 3.4e38f, 0x1p-126f};
    enum { EDGES = 2 * (sizeof edge / sizeof *edge) + 3, N = EDGES * EDGES, RANDOM = 200000 };
    float v[EDGES] = {tn_test_float(0x7f800000), tn_test_float(0xff800000), tn_test_float(0x7fc00000)};
    for (unsigned i = 0; i < sizeof edge / sizeof *edge; i++) {
        v[3 + 2 * i] = edge[i];
        v[4 + 2 * i] = -edge[i];
    }
    static float x[N + RANDOM], y[N + RANDOM], z[N + RANDOM];
    for (int i = 0; i < N; i++) {
        x[i] = v[i / EDGES];
        y[i] = v[i % EDGES];
    }
    rng r = {1};
    for (int i = N; i < N + RANDOM; i++) {
        const uint64_t s = rng_next(&r);
        x[i] = tn_test_float((uint32_t)(s >> 32));
        if (i % 3) x[i] = fabsf(x[i]);
        y[i] = i % 3 ? (float)((double)(int32_t)(uint32_t)s * 0x1p-31 * 151 / log2((double)x[i]))
                     : (float)((int)(s % 41) - 20);
    }
    loop(x, y, z, N + RANDOM);
    for (int i = 0; i < N + RANDOM; i++) {
        double exact = pow((double)x[i], (double)y[i]), e = tn_ulp_error(z[i], exact, TN_RELATIVE);
        if (!(e <= 2))
            fail_msg("%s pow(%a, %a) = %a, not %a: %.3f ulp", variant, (double)x[i], (double)y[i],
                     (double)z[i], exact, e);
    }
}

/* ---------------------------------------------------------------------------------------- the tests */

TEST(test_built_in)
{
#define CHECK(name, exact, least) check_function("built in", F_##name, loop_##name);
    TN_EACH_FUNCTION(CHECK)
    check_pow("built in", loop_pow);
}

/* One loop a line, so that the compiler's remarks can be told apart by line number. */
static void write_source(FILE *f)
{
    fprintf(
        f,
        "#include \"math.h\"\n#define L(f) void loop_##f(const float *restrict x, float *restrict y, int n) "
        "{ for (int i = 0; i < n; i++) y[i] = tn_##f(x[i]); }\n");
    for (int i = 0; i < FUNCTIONS; i++) fprintf(f, "L(%s)\n", table[i].name);
    fprintf(f, "void loop_pow(const float *restrict x, const float *restrict y, float *restrict z, int n) "
               "{ for (int i = 0; i < n; i++) z[i] = tn_pow(x[i], y[i]); }\n");
}

static int command(const char *format, ...)
{
    char text[2048];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    return system(text);
}

static void check_vectorised(const char *variant, const char *remarks)
{
    FILE *f = fopen(remarks, "r");
    assert_non_null(f);
    char seen[FUNCTIONS + 1] = {0}, line[1024];
    while (fgets(line, sizeof line, f)) {
        char *at = strstr(line, "loops.c:");
        int n = at && strstr(line, "vectorized") ? atoi(at + 8) - 3 : -1;
        if (n >= 0 && n <= FUNCTIONS) seen[n] = 1;
    }
    fclose(f);
    for (int i = 0; i <= FUNCTIONS; i++)
        if (!seen[i]) fail_msg("%s does not vectorise %s", variant, i < FUNCTIONS ? table[i].name : "pow");
}

static int have_wide_vectors(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2");
#elif defined(__aarch64__)
    return 1;
#else
    return 0;
#endif
}

static void check_compiled(const char *cc, const char *contract)
{
    char dir[] = "/tmp/test_math_XXXXXX", path[128], variant[64];
    if (command("%s --version >/dev/null 2>&1", cc)) skip();
    snprintf(variant, sizeof variant, "%s, contract %s:", cc, contract);
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/loops.c", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    write_source(f);
    fclose(f);
    int status = command(
        "%s -std=c11 -I" PRELUDE " -Wall -Wextra -Wno-missing-prototypes -Werror -O3 -march=native "
        "-fno-math-errno -fno-trapping-math -ffp-contract=%s %s -shared -fPIC %s/loops.c -o %s/loops.so "
        "-lm 2>%s/remarks",
        cc, contract, strstr(cc, "clang") ? "-Rpass=loop-vectorize" : "-fopt-info-vec-optimized", dir, dir,
        dir);
    snprintf(path, sizeof path, "%s/loops.so", dir);
    void *lib = status ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (lib) {
        for (int i = 0; i < FUNCTIONS; i++) {
            char name[32];
            loop1 *loop;
            snprintf(name, sizeof name, "loop_%s", table[i].name);
            *(void **)&loop = dlsym(lib, name);
            assert_non_null(loop);
            check_function(variant, i, loop);
        }
        loop2 *pow_loop;
        *(void **)&pow_loop = dlsym(lib, "loop_pow");
        assert_non_null(pow_loop);
        check_pow(variant, pow_loop);
        dlclose(lib);
        snprintf(path, sizeof path, "%s/remarks", dir);
        if (have_wide_vectors()) check_vectorised(variant, path);
    } else {
        command("cat %s/remarks >&2", dir);
    }
    command("rm -rf %s", dir);
    assert_non_null(lib);
}

TEST(test_gcc_fast) { (void)state, check_compiled("gcc", "fast"); }
TEST(test_gcc_off) { (void)state, check_compiled("gcc", "off"); }
TEST(test_clang_fast) { (void)state, check_compiled("clang", "fast"); }
TEST(test_clang_off) { (void)state, check_compiled("clang", "off"); }

/* The short forms of sin and cos, where they hold; beyond, nobody asks them. */
TEST(test_near)
{
    for (int i = 0; i < all.n; i++) {
        float x = all.x[i];
        if (!(fabsf(x) <= TN_NEAR)) continue;
        double s = tn_ulp_error(tn_sin_near_f32(x), all.exact[F_sin][i], TN_RELATIVE);
        double c = tn_ulp_error(tn_cos_near_f32(x), all.exact[F_cos][i], TN_RELATIVE);
        if (!(s <= 2 && c <= 2)) fail_msg("near %a: sin %.3f, cos %.3f ulp", (double)x, s, c);
    }
}

/* The short form of exp, to the bit. */
TEST(test_low)
{
    int n = 0;
    for (int i = 0; i < all.n; i++) {
        float x = all.x[i];
        if (!(x >= TN_EXP_LEAST && x <= 88)) continue;
        float low = tn_exp_low_f32(x), full = tn_exp_f32(x);
        if (memcmp(&low, &full, sizeof low))
            fail_msg("exp %a: %a, short %a", (double)x, (double)full, (double)low);
        n++;
    }
    for (float x = TN_EXP_LEAST; x < -86; x = nextafterf(x, 0)) {
        float low = tn_exp_low_f32(x), full = tn_exp_f32(x);
        if (memcmp(&low, &full, sizeof low))
            fail_msg("exp %a: %a, short %a", (double)x, (double)full, (double)low);
    }
    assert_true(n > 100);
}

TEST(test_generic)
{
    float nan = TN_NAN, inf = TN_INF;
    assert_true(isnan(tn_max(nan, 1.0f)) && isnan(tn_max(1.0f, nan)) && isnan(tn_min(nan, 1.0f)));
    assert_true(isnan(tn_min(1.0f, nan)) && tn_sign(nan) == 0 && isnan(tn_abs(nan)));
    assert_true(tn_max(-inf, 2.0f) == 2 && tn_min(inf, 2.0f) == 2 && tn_max(1.0, 2) == 2.0);
    assert_true(tn_sign(-3.0f) == -1 && tn_sign(5.0) == 1 && !signbit(tn_sign(-0.0f)) && tn_sign(-0.0f) == 0);
    assert_true(tn_isnan(nan) && !tn_isnan(inf) && !tn_isfinite(nan) && !tn_isfinite(-inf) &&
                tn_isfinite(3e38f));
    assert_true(tn_isnan((double)nan) && tn_isfinite(1e300));

    int32_t i = -7;
    int64_t l = -(INT64_C(1) << 40);
    uint8_t u = 200;
    bool t = true, f = false;
    assert_true(tn_abs(i) == 7 && tn_sign(i) == -1 && tn_max(i, 3) == 3 && tn_min(i, 3) == -7);
    assert_true(tn_abs(l) == INT64_C(1) << 40 && tn_sign(l) == -1 && tn_max(l, l + 1) == l + 1 &&
                tn_min(l, 0) == l);
    assert_true(tn_abs(u) == 200 && tn_sign(u) == 1 && tn_max(u, 100) == 200 && tn_min(u, 100) == 100);
    assert_true(tn_abs(t) == 1 && tn_sign(f) == 0 && tn_max(f, t) == 1 && tn_min(f, t) == 0);
    assert_int_equal(sizeof tn_abs(u), 1);
    assert_int_equal(sizeof tn_exp(1.0f), 4);
    assert_int_equal(sizeof tn_exp(1.0), 8);
    assert_true(tn_abs(INT32_MIN + 1) == INT32_MAX);
}

TEST(test_f64)
{
    for (double x = -40; x < 40; x += 0.37) {
        double a = fabs(x);
        assert_true(tn_exp(x) == exp(x) && tn_expm1(x) == expm1(x) && tn_log(a) == log(a) &&
                    tn_log1p(a) == log1p(a));
        assert_true(tn_sin(x) == sin(x) && tn_cos(x) == cos(x) && tn_atan(x) == atan(x) &&
                    tn_tanh(x) == tanh(x) && tn_erf(x) == erf(x) && tn_ndtr(x) == tn_exact_ndtr(x));
        assert_true(tn_sqrt(a) == sqrt(a) && tn_rsqrt(a) == 1 / sqrt(a) && tn_pow(a, x) == pow(a, x));
        assert_true(tn_floor(x) == floor(x) && tn_ceil(x) == ceil(x) && tn_trunc(x) == trunc(x));
        assert_true(tn_round(x) == rint(x) &&
                    fabs(tn_sigmoid(x) - tn_exact_sigmoid(x)) <= 4e-16 * tn_sigmoid(x));
    }
    assert_true(tn_sigmoid(-1000.0) == 0 && tn_sigmoid(1000.0) == 1 && tn_sigmoid(-700.0) > 0);
}

/* ------------------------------------------------------------------------------------------ CUDA C */

static void append_file(char *text, size_t size, const char *path)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t at = strlen(text);
    at += fread(text + at, 1, size - at - 1, f);
    text[at] = 0;
    fclose(f);
}

static void check_cuda(const char *arch)
{
    nvrtc n = {0};
    if (!nvrtc_open(&n)) skip();
    enum { SIZE = 1 << 17 };
    char *text = calloc(SIZE, 1);
    assert_non_null(text);
    append_file(text, SIZE, PRELUDE "abi.h");
    append_file(text, SIZE, PRELUDE "exact.h");
    append_file(text, SIZE, PRELUDE "math.h");
    append_file(text, SIZE, PRELUDE "philox.h");
    append_file(text, SIZE, PRELUDE "half.h");
    char *at = text + strlen(text);
    for (int i = 0; i < FUNCTIONS; i++)
        at += sprintf(at,
                      "extern \"C\" __global__ void k_%s(const float *x, float *y, double *z)\n"
                      "{ int i = threadIdx.x; y[i] = tn_%s(x[i]); z[i] = tn_%s(z[i]); }\n",
                      table[i].name, table[i].name, table[i].name);
    at += sprintf(at,
                  "template <class T> __device__ T orders(T a, T b) { return tn_max(tn_abs(a), "
                  "tn_min(tn_sign(b), b)); }\n"
                  "extern \"C\" __global__ void k_rest(float *x, double *y, int32_t *i, int64_t *l, uint8_t "
                  "*u, bool *b,\n"
                  "    uint32_t *w, tn_half *h, tn_bfloat16 *q)\n{\n"
                  "    x[0] = tn_pow(x[1], x[2]) + (tn_isnan(x[3]) ? TN_INF : TN_NAN) + tn_isfinite(x[4]);\n"
                  "    y[0] = tn_pow(y[1], y[2]) + tn_isnan(y[3]) + tn_isfinite(y[4]);\n"
                  "    x[5] = orders(x[5], x[6]); y[5] = orders(y[5], y[6]); i[0] = orders(i[0], i[1]);\n"
                  "    l[0] = orders(l[0], l[1]); u[0] = orders(u[0], u[1]); b[0] = orders(b[0], b[1]);\n"
                  "    tn_philox_fill(1, 2, 3, 64, w); tn_normal_fill(1, 2, 3, 64, x + 64);\n"
                  "    x[7] = tn_uniform(w[0]) + tn_dropped(w[1], 0.5) + tn_philox_normal(1, 2, 3);\n"
                  "    x[8] = tn_half_to_f32(h[0]) + tn_bfloat16_to_f32(q[0]);\n"
                  "    h[1] = tn_f32_to_half(x[9]); q[1] = tn_f32_to_bfloat16(x[9]);\n}\n");
    char *log;
    int status = nvrtc_compile(&n, text, arch, &log);
    if (status || strstr(log, "warning")) fail_msg("NVRTC for %s: %d\n%s", arch, status, log);
    free(log);
    free(text);
}

TEST(test_nvrtc_sm_80) { (void)state, check_cuda("sm_80"); }
TEST(test_nvrtc_sm_90) { (void)state, check_cuda("sm_90"); }

RUN_TESTS(setup, teardown)
