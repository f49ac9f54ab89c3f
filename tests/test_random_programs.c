/* test_random_programs.c - random training programs, several steps each, eager and fused on the cpu and on
 * the reference device: every value read must agree, and so must everything that outlives the last step.
 *
 *     test_random_programs [--programs N] [--seed S] [--one SEED] [--shrink 0]
 *
 * Kernels are compiled ahead, many to a unit (check.h). A program that disagrees is shrunk by striking out
 * lines as long as it still does, and printed. Read first: check_rprogram, then shrink. */
#include "random_programs.h"
#include "src/core/sanitized.h"

enum { AT_ONCE = 30, PAIR = 2 };

#if defined(TN_ASAN) /* whose kernels take several times as long to compile and run */
static int n_programs = 30;
#else
static int n_programs = 300;
#endif
static int shrinks = 1;
static uint64_t first_seed = 1, only_seed;

static struct tally {
    long instr[N_INSTRS], refused, settled;
    long long elements, undecided;
    double worst;
} tally;

/* For the drill below: in place of the cpu, the reference device with this line going wrong. */
static instr_op faulty = N_INSTRS;

static tn_session *open_one(tn_device_kind device, tn_mode mode, const rprogram *p)
{
    tn_session *s = tn_open(.device = device, .mode = mode, .seed = p->seed, .threads = 1, .log = quiet);
    assert_non_null(s);
    return s;
}

static void note_kernels(const rprogram *p)
{
    if (!Ahead.s[0]) ahead_open(subject_device());
    for (int i = 0; i < PAIR; i++) {
        tn_session *s = open_one(subject_device(), i ? TN_EAGER : TN_FUSED, p);
        s->device->compile = ahead_note;
        s->device->ready = NULL;
        s->device->launch = ahead_launch;
        s->device->gemm = ahead_gemm;
        s->device->download = ahead_download;
        result r = run_rprogram(s, p, N_INSTRS, NULL);
        result_free(&r);
    }
}

/* Up to where neither was refused a value that was not kept. */
static void cut_short(result *a, result *b)
{
    if (a->status != TN_E_NOT_KEPT && b->status != TN_E_NOT_KEPT) return;
    for (int n = a->n < b->n ? a->n : b->n; a->n > n || b->n > n;) {
        result *longer = a->n > n ? a : b;
        free(longer->out[--longer->n].v);
    }
    a->status = b->status = TN_OK;
    tally.refused++;
}

static bool run_both(const rprogram *p, const result *want, const result *noisy, char *text)
{
    bool ok = true;
    for (int i = 0; i < PAIR && ok; i++) {
        uint64_t late = 0;
        bool drill = faulty < N_INSTRS;
        tn_session *s = open_one(drill ? TN_REF : subject_device(), i ? TN_FUSED : TN_EAGER, p);
        result got = run_rprogram(s, p, faulty, &late), w = *want;
        /* a copy that can be cut short; the values are want's */
        for (int k = 0; k < w.n; k++) {
            w.out[k].v = malloc((size_t)w.out[k].n * sizeof(double) + 1);
            assert_non_null(w.out[k].v);
            memcpy(w.out[k].v, want->out[k].v, (size_t)w.out[k].n * sizeof(double));
        }
        bool whole = got.status == TN_OK && w.status == TN_OK;
        cut_short(&w, &got);
        verdict v = compare(&w, noisy, &got);
        ok = v.ok;
        if (!ok) snprintf(text, 640, "%s: %.600s", i ? "fused" : "eager", v.text);
        if (ok && whole && !p->varies && late) {
            snprintf(text, 640, "%s: %d plans made in the last step", i ? "fused" : "eager", (int)late);
            ok = false;
        }
        tally.settled += whole && !p->varies;
        tally.elements += v.elements;
        tally.undecided += v.undecided;
        tally.worst = fmax(tally.worst, v.worst);
        result_free(&got);
        result_free(&w);
    }
    return ok;
}

static bool check_rprogram(const rprogram *p, char *text)
{
    result noisy[NOISY_RUNS], want = run_rprogram(open_one(TN_REF, TN_EAGER, p), p, N_INSTRS, NULL);
    bool ok = want.status == TN_OK || want.status == TN_E_NOT_KEPT;
    if (!ok) snprintf(text, 640, "ref: %.600s", want.text);
    for (int k = 0; k < NOISY_RUNS; k++) {
        tn_session *s = open_one(TN_REF, TN_EAGER, p);
        tn_ref_set_noise(s->device, 2, noise_seed(k));
        noisy[k] = run_rprogram(s, p, N_INSTRS, NULL);
        assert_int_equal(noisy[k].n, want.n);
    }
    ok = ok && run_both(p, &want, noisy, text);
    result_free(&want);
    for (int k = 0; k < NOISY_RUNS; k++) result_free(&noisy[k]);
    return ok;
}

/* ---- shrinking ---- */

static bool fails_without(rprogram *p, int k)
{
    char text[640];
    p->i[k].dropped = true;
    if (!check_rprogram(p, text)) return true;
    p->i[k].dropped = false;
    return false;
}

/* Takes a parameter or buffer of the same shape for an operand that was computed. */
static bool fails_with_less(rprogram *p, int *operand)
{
    char text[640];
    int before = *operand;
    if (before < 0 || before >= FIXED) return false;
    for (int k = 0; k < p->n_fixed; k++) {
        if (p->fixed[k] != p->i[before].shape) continue;
        *operand = FIXED + k;
        if (!check_rprogram(p, text)) return true;
        *operand = before;
    }
    return false;
}

static int lines(const rprogram *p)
{
    int n = 0;
    for (int k = 0; k < p->n; k++) n += !p->i[k].dropped;
    return n;
}

static void shrink(rprogram *p)
{
    char text[640];
    for (; p->steps > 1; p->steps--) {
        rprogram fewer = *p;
        fewer.steps--;
        if (check_rprogram(&fewer, text)) break;
    }
    for (bool smaller = true; smaller;) {
        smaller = false;
        for (int k = p->n - 1; k >= 0; k--) {
            instr *i = &p->i[k];
            if (i->dropped) continue;
            if (fails_without(p, k) || fails_with_less(p, &i->a) || fails_with_less(p, &i->b)) smaller = true;
        }
    }
}

static void report(rprogram *p)
{
    char text[640] = "";
    int before = lines(p);
    if (shrinks) shrink(p);
    check_rprogram(p, text);
    print_error("program of seed %llu, shrunk from %d to %d lines:\n", (unsigned long long)p->seed, before,
                lines(p));
    print_rprogram(p, stderr);
    fail_msg("seed %llu: %s", (unsigned long long)p->seed, text);
}

/* ---- the tests ---- */

static void print_tally(void)
{
    print_message("lines:");
    for (int k = 0; k < N_INSTRS; k++) print_message(" %s %ld", instr_name[k], tally.instr[k]);
    print_message(
        "\n%lld elements compared, %lld undecided (%.3f %%), worst error %.2f of its bound; %ld runs "
        "refused a value, %ld settled\n",
        tally.elements, tally.undecided, 100.0 * (double)tally.undecided / (double)tally.elements,
        tally.worst, tally.refused, tally.settled);
}

TEST(eager_and_fused_agree_with_the_reference)
{
    static rprogram p[AT_ONCE];
    char text[640];
    tally = (struct tally){0};
    print_message("%d programs from seed %llu\n", n_programs, (unsigned long long)first_seed);
    for (int done = 0; done < n_programs; done += AT_ONCE) {
        int n = n_programs - done < AT_ONCE ? n_programs - done : AT_ONCE;
        for (int k = 0; k < n; k++) {
            draw_rprogram(&p[k], first_seed + (uint64_t)(done + k));
            for (int j = 0; j < p[k].n; j++) tally.instr[p[k].i[j].op]++;
            note_kernels(&p[k]);
        }
        ahead_compile();
        for (int k = 0; k < n; k++)
            if (!check_rprogram(&p[k], text)) report(&p[k]);
    }
    ahead_close();
    print_tally();
    if (n_programs < 100) return;
    for (int k = 0; k < N_INSTRS; k++)
        if (tally.instr[k] * 10 < n_programs) fail_msg("%s stands in too few programs", instr_name[k]);
    assert_true(tally.undecided * 100 < tally.elements);
    assert_true(tally.refused * 10 < PAIR * n_programs);
    assert_true(tally.settled * 4 > PAIR * n_programs);
}

/* A value that is off by a ten-thousandth, an assignment, an update or a random draw that goes missing in one
 * step, is found, and the program shrunk to few lines with that one among them. */
TEST(a_wrong_line_is_found_and_shrunk)
{
    static const instr_op wrong[] = {I_TANH, I_PRODUCT, I_FLIP, I_ASSIGN, I_KEEP, I_UPDATE};
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
        rprogram p;
        char text[640];
        bool found = false, there = false;
        faulty = wrong[w];
        for (uint64_t seed = 1; !found && seed < 60; seed++) {
            draw_rprogram(&p, seed);
            found = !check_rprogram(&p, text);
        }
        if (!found) fail_msg("nobody sees that %s is wrong", instr_name[wrong[w]]);
        shrink(&p);
        for (int k = 0; k < p.n; k++) there = there || (!p.i[k].dropped && p.i[k].op == wrong[w]);
        if (there && lines(&p) <= 6) continue;
        print_rprogram(&p, stderr);
        fail_msg("%s was shrunk to %d lines", instr_name[wrong[w]], lines(&p));
    }
    faulty = N_INSTRS;
}

static void one(void **state)
{
    (void)state;
    rprogram p;
    char text[640];
    draw_rprogram(&p, only_seed);
    print_rprogram(&p, stdout);
    if (!check_rprogram(&p, text)) report(&p);
}

int main(int argc, char **argv)
{
    OPTION(n_programs, "programs");
    OPTION(shrinks, "shrink");
    OPTION(first_seed, "seed");
    OPTION(only_seed, "one");
    if (only_seed) only_test("one", one);
    return run_all_tests(NULL, NULL);
}
