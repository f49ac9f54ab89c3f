/* test_profile.c - target profiles: their text, which one a session goes by, a calibration, and what they
 * decide and predict. Start with written. */
#include "tests/test.h"
#include <tensor_nn.h>

#include "src/report/view.h"
#include "src/runtime/profile.h"

#include "folder.h"
#include "said.h"

enum { LONGEST = 4096 };

static tn_session *open_with_cache(const char *cache, int threads)
{
    forget();
    tn_session *s = tn_open(.device = TN_CPU, .mode = TN_FUSED, .threads = threads, .seed = 1, .log = hear,
                            .cache_dir = cache);
    assert_non_null(s);
    return s;
}

static const char *written(const tn_target_profile *p)
{
    static char text[LONGEST];
    assert_in_range(tn_profile_print(p, text, sizeof text), 1, LONGEST - 1);
    return text;
}

/* ---- text ---- */

TEST(what_is_printed_is_parsed)
{
    for (int d = 0; d < 2; d++) {
        const tn_target_profile *p = tn_profile_reference(d ? TN_DIALECT_CUDA : TN_DIALECT_C);
        tn_target_profile q;
        char text[LONGEST];
        int line;
        snprintf(text, sizeof text, "%s", written(p));
        assert_true(tn_profile_parse(text, &q, &line));
        assert_string_equal(written(&q), text);
        assert_memory_equal(q.band, p->band, sizeof q.band);
        assert_memory_equal(q.gemm, p->gemm, sizeof q.gemm);
        assert_true(q.stream_bytes == p->stream_bytes && q.launch_us == p->launch_us);
    }
}

TEST(what_is_wrong_is_named_by_its_line)
{
    static const struct {
        const char *from, *to;
        int line;
    } wrong[] = {
        {"target profile 1", "target profile 2", 1},
        {"threads 2", "threads 0", 4},
        {"threads 2", "threads nan", 4},
        {"threads 2", "threads 2 2", 4},
        {"threads 2", "thread 2", 4},
        {"launch_us 1", "launch_us inf", 6},
        {"launch_us 1", "launch_us -1", 6},
        {"launch_us 1", "launch_us 1e", 6},
        {"launch_us 1", "launch_us 1e999", 6},
        {"launch_us 1", "launch_us 0x1", 6},
        {"launch_us 1", "threads 2", 6},
        {"band 250000", "band 2500000", 10}, /* larger than the one after it */
        {"band 250000", "bond 250000", 9},
        {"machine two", "machine \x01", 3},
        {"name reference", "name ref<b>", 2},
        {"name reference", "name a-name-that-is-longer-than-names-may-be", 2},
    };
    const char *good = written(tn_profile_reference(TN_DIALECT_C));
    char whole[LONGEST], text[LONGEST];
    snprintf(whole, sizeof whole, "%s", good);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const char *at = strstr(whole, wrong[i].from);
        tn_target_profile p = {.threads = 77};
        int line = 0;
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - whole), whole, wrong[i].to,
                 at + strlen(wrong[i].from));
        assert_false(tn_profile_parse(text, &p, &line));
        assert_int_equal(line, wrong[i].line);
        assert_true(p.threads == 77); /* left alone */
    }
    int n = 0;
    for (const char *c = whole; *c; c++) n += *c == '\n';
    const char *enough = strchr(strstr(whole, "conv "), '\n');
    for (const char *c = whole; c < enough; c++) { /* whatever is missing at the end is missed */
        if (*c != '\n') continue;
        tn_target_profile p;
        int line;
        snprintf(text, sizeof text, "%.*s", (int)(c - whole), whole);
        assert_false(tn_profile_parse(text, &p, &line));
        assert_in_range(line, 1, n);
    }
}

TEST(noise_is_refused_or_understood)
{
    rng g = {99};
    char whole[LONGEST], text[LONGEST], again[LONGEST];
    snprintf(whole, sizeof whole, "%s", written(tn_profile_reference(TN_DIALECT_C)));
    size_t n = strlen(whole);
    int understood = 0;
    for (int i = 0; i < 50000; i++) {
        memcpy(text, whole, n + 1);
        for (int k = 0; k <= i % 4; k++) {
            const uint64_t r = rng_next(&g);
            size_t at = (size_t)(r >> 33) % n;
            static const char some[] = "0123456789.e+- \nbandgmcov";
            unsigned kind = (unsigned)(r >> 20) % 4;
            if (kind == 0)
                text[at] = (char)(r >> 24);
            else if (kind == 1)
                memmove(text + at, text + at + 1, strlen(text + at));
            else if (kind == 2)
                text[at] = some[(r >> 24) % (sizeof some - 1)];
            else
                text[at] = whole[(at * 7) % n];
        }
        tn_target_profile p, q;
        int line;
        if (!tn_profile_parse(text, &p, &line)) continue;
        understood++;
        assert_true(p.n_band > 0 && p.n_gemm > 0 && p.n_conv > 0 && p.threads >= 1 && p.launch_us > 0);
        assert_true(isfinite(tn_profile_at(&p, 1e6).copy) && tn_profile_at(&p, 1e6).copy > 0);
        snprintf(again, sizeof again, "%s", written(&p));
        assert_true(tn_profile_parse(again, &q, &line));
        assert_string_equal(written(&q), again);
    }
    assert_in_range(understood, 500, 45000);
}

TEST(numbers_are_rounded_and_stay)
{
    tn_target_profile a = *tn_profile_reference(TN_DIALECT_C), b, c;
    for (int i = 0; i < a.n_band; i++) a.band[i].copy *= 1.037;
    a.launch_us = 1.2345;
    b = a;
    tn_profile_round(&b, NULL);
    assert_true(b.launch_us != a.launch_us && fabs(log(b.launch_us / a.launch_us)) < .06);
    c = b;
    tn_profile_round(&c, NULL);
    assert_string_equal(written(&c), written(&b));
    char text[LONGEST];
    snprintf(text, sizeof text, "%s", written(&b));
    for (int i = 0; i < b.n_band; i++) c.band[i].read *= i & 1 ? 1.15 : .87; /* measured again */
    c.instruction_ps *= 1.1;
    tn_profile_round(&c, &b);
    assert_string_equal(written(&c), text);
    c.gemm[0].gflops *= 1.5; /* another machine */
    tn_profile_round(&c, &b);
    assert_string_not_equal(written(&c), text);
}

TEST(between_the_bands_it_is_in_between)
{
    const tn_target_profile *p = tn_profile_reference(TN_DIALECT_C);
    assert_true(tn_profile_at(p, 1).read == tn_profile_at(p, p->band[0].bytes).read);
    assert_true(fabs(tn_profile_at(p, 1e15).copy - p->band[p->n_band - 1].copy) < 1e-9);
    for (int i = 0; i + 1 < p->n_band; i++) {
        double at = tn_profile_at(p, sqrt(p->band[i].bytes * p->band[i + 1].bytes)).read;
        assert_true(at < p->band[i].read && at > p->band[i + 1].read);
    }
}

/* ---- which one ---- */

static const char *reference_name(void)
{
    static char name[64];
    tn_profile_digest(tn_profile_reference(TN_DIALECT_C), name, sizeof name);
    return name;
}

TEST(a_session_finds_its_profile)
{
    char path[600];
    char dir[300];
    snprintf(dir, sizeof dir, "%s", fresh_dir());
    unsetenv("TENSOR_PROFILE");
    tn_session *s = open_with_cache(dir, 1);
    assert_string_equal(tn_profile_name(s), reference_name());
    assert_true(tn_profile_path(s, path, sizeof path));
    assert_int_equal(tn_close(s), 0);
    tn_target_profile p = *tn_profile_reference(TN_DIALECT_C);
    snprintf(p.name, sizeof p.name, "mine");
    spill_text(path, written(&p));
    s = open_with_cache(dir, 1);
    assert_int_equal(strncmp(tn_profile_name(s), "mine ", 5), 0);
    assert_string_equal(said, "");
    tn_close(s);
    s = open_with_cache(dir, 2); /* another number of threads is another machine */
    assert_string_equal(tn_profile_name(s), reference_name());
    tn_close(s);
    setenv("TENSOR_PROFILE", path, 1);
    s = open_with_cache(dir, 2);
    assert_int_equal(strncmp(tn_profile_name(s), "mine ", 5), 0);
    tn_close(s);
    setenv("TENSOR_PROFILE", "reference", 1);
    s = open_with_cache(dir, 1);
    assert_string_equal(tn_profile_name(s), reference_name());
    assert_string_equal(said, "");
    tn_close(s);
}

TEST(a_broken_file_is_refused_with_a_line)
{
    char dir[300], path[400];
    snprintf(dir, sizeof dir, "%s", fresh_dir());
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/p.txt", dir);
    static const char *const broken[] = {"", "target profile 1\nname x\nthreads many\n", "\177ELF"};
    setenv("TENSOR_PROFILE", path, 1);
    for (int i = 0; i < 4; i++) {
        if (i < 3) spill_text(path, broken[i]);
        if (i == 3) unlink(path);
        tn_session *s = open_with_cache(dir, 1);
        assert_string_equal(tn_profile_name(s), reference_name());
        assert_non_null(strstr(said, path));
        assert_non_null(strstr(said, "the reference profile serves"));
        if (i == 1) assert_non_null(strstr(said, "line 3 "));
        assert_int_equal(tn_error(s), 0);
        tn_close(s);
    }
    setenv("TENSOR_PROFILE", "reference", 1);
}

TEST(a_calibration_is_kept)
{
    char dir[300], path[600], text[LONGEST];
    snprintf(dir, sizeof dir, "%s", fresh_dir());
    unsetenv("TENSOR_PROFILE");
    tn_session *s = open_with_cache(dir, 2);
    assert_int_equal(tn_calibrate_to(s, 1e6), 0);
    assert_string_equal(tn_profile_name(s), reference_name()); /* until it is opened anew */
    assert_true(tn_profile_path(s, path, sizeof path));
    tn_target_profile p;
    assert_true(tn_profile_load(s, path, true, &p));
    assert_int_equal(p.n_band, 2);
    assert_true(p.threads == 2);
    snprintf(text, sizeof text, "%s", written(&p));
    tn_profile_round(&p, NULL);
    assert_string_equal(written(&p), text); /* on the grid */
    tn_close(s);
    s = open_with_cache(dir, 2);
    assert_int_equal(strncmp(tn_profile_name(s), "calibrated ", 11), 0);
    assert_string_equal(said, "");
    tn_close(s);
    s = tn_open(.device = TN_REF, .log = hear);
    assert_int_equal(tn_calibrate(s), TN_E_UNSUPPORTED);
    tn_close(s);
    setenv("TENSOR_PROFILE", "reference", 1);
}

/* ---- what it decides and predicts ---- */

static tn_target_profile changed(double bandwidth, double instruction)
{
    tn_target_profile p = *tn_profile_reference(TN_DIALECT_C);
    snprintf(p.name, sizeof p.name, "changed");
    for (int i = 0; i < p.n_band; i++) {
        p.band[i].read *= bandwidth;
        p.band[i].copy *= bandwidth;
        p.band[i].stream *= bandwidth;
    }
    p.instruction_ps *= instruction;
    return p;
}

/* A training step of y = tanh(exp(x)) * w, where forward could keep what backward needs. */
static tn_view step_by(const tn_target_profile *p, tn_session **session)
{
    const int64_t shape[] = {2048, 512};
    tn_session *s = *session = open_with_cache(NULL, 2);
    tn_view v;
    s->target.profile = p;
    s->target.last_bytes = (int64_t)p->stream_bytes;
    tn_tensor *x = tn_keep(tn_ones(s, TN_F32, 2, shape));
    tn_requires_grad(x, true);
    for (int i = 0; i < 2; i++) {
        tn_step_begin(s);
        tn_tensor *y = tn_tanh(tn_exp(x));
        tn_tensor *rows = tn_sum(y, TN_AXES(0), false);
        tn_backward(tn_sum(tn_mul(y, rows), TN_ALL, false));
        assert_int_equal(tn_step_end(s), 0);
    }
    assert_int_equal(tn_view_make(s, &v), 0);
    return v;
}

static int64_t bytes_by(double bandwidth, double instruction)
{
    tn_target_profile p = changed(bandwidth, instruction);
    tn_session *s;
    tn_view v = step_by(&p, &s);
    int64_t bytes = v.total.bytes;
    assert_true(v.total.predicted_ms > 0);
    tn_view_free(&v);
    tn_close(s);
    return bytes;
}

TEST(arithmetic_is_repeated_where_it_is_cheap)
{
    int64_t slow_memory = bytes_by(1, .01), as_is = bytes_by(1, 1), slow_arithmetic = bytes_by(1, 100);
    assert_true(slow_memory <= as_is && as_is <= slow_arithmetic);
    assert_true(slow_memory < slow_arithmetic);
    assert_int_equal(bytes_by(.01, 1), bytes_by(.01, 1)); /* a function of graph and profile */
}

static double predicted_by(const tn_target_profile *p, int64_t n)
{
    tn_session *s = open_with_cache(NULL, 2);
    s->target.profile = p;
    tn_tensor *x = tn_keep(tn_ones(s, TN_F32, 1, &n)), *y = tn_keep(x);
    tn_view v;
    tn_step_begin(s);
    tn_assign(y, x);
    assert_int_equal(tn_step_end(s), 0);
    assert_int_equal(tn_view_make(s, &v), 0);
    double ms = v.total.predicted_ms;
    tn_view_free(&v);
    tn_close(s);
    return ms;
}

TEST(a_copy_is_predicted_as_it_was_measured)
{
    tn_target_profile p = changed(1, 1e-3), half = changed(.5, 1e-3);
    for (int i = 1; i < p.n_band; i++) {
        int64_t n = (int64_t)(p.band[i].bytes / 8);
        bool past = (double)n * 4 > p.stream_bytes;
        double want = p.band[i].bytes * 1e-6 / (past ? p.band[i].stream : p.band[i].copy),
               ms = predicted_by(&p, n) - p.launch_us * 1e-3;
        if (fabs(ms - want) > .02 * want) fail_msg("%lld: %g ms, not %g", (long long)n, ms, want);
        double slow = predicted_by(&half, n) - p.launch_us * 1e-3;
        if (fabs(slow - 2 * want) > .04 * want) fail_msg("%lld: %g ms, not %g", (long long)n, slow, 2 * want);
    }
}

TEST(every_reason_has_words_and_a_remedy)
{
#define TN_X(name, removable, text, remedy) TN_CUT_##name,
    static const tn_cut_reason all[] = {TN_CUT_REASONS(TN_X)};
#undef TN_X
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_true(strlen(tn_cut_text(all[i])) > 5);
        assert_true(strlen(tn_cut_remedy(all[i])) > 5);
        bool none = !strncmp(tn_cut_remedy(all[i]), "none needed", 11);
        assert_int_equal(none, !tn_cut_removable(all[i]));
    }
}

TEST_ON(a_boundary_says_what_it_costs, open_with_cache(NULL, 2))
{
    const int64_t shape[] = {512, 512};
    tn_tensor *x = tn_keep(tn_ones(s, TN_F32, 2, shape));
    tn_view v;
    tn_step_begin(s); /* sums over rows of what is summed over columns: two kernels */
    tn_tensor *y = tn_softmax(tn_exp(x), 1);
    tn_keep(tn_softmax(y, 0));
    assert_int_equal(tn_step_end(s), 0);
    assert_int_equal(tn_view_make(s, &v), 0);
    assert_true(v.n_boundary > 0);
    int told = 0;
    for (int i = 0; i < v.n_boundary; i++) told += v.boundary[i].ms > 0;
    assert_true(told > 0);
    tn_view_free(&v);
}

RUN_TESTS(make_base, drop_base)
