/* test_random_training.c - random training runs as people write them: layers, mixed dtypes, several losses
 * and optimizers, frozen parameters, accumulated gradients, moving averages, batches of other sizes, values
 * kept from step to step, views held over updates, evaluation in between.
 *
 * Two kinds of answers are compared. What the reference device says, exactly and with rounding noise
 * (check.h), is what a run on the cpu must come to, fused and eager. And of one run there are forms that
 * differ in nothing a number may depend on, so that their bits must be the same: with other threads, recorded
 * anew in each step, with two plans in memory, saved and resumed in another session, in turns with another
 * session, beside it in another thread, with values looked at between steps, with steps that end in an error
 * first, and, where --levels asks for it, with kernels of each level of optimisation. Runs in which layers
 * are computed again for backward, by tn_checkpoint_begin or for a memory budget, may add up in another order
 * and are compared with the reference.
 *
 *     test_random_training [--runs N] [--seed S] [--one SEED] [--levels 1] [--half 1] [--forms 0]
 *
 * --half 1 takes of N runs those whose data is f16 or bf16; --forms 0 leaves out what is compared by its bits.
 *
 * Read first: step (random_training.h), then check_run. */
#include "../src/runtime/session.h"
#include "folder.h"
#include "random_training.h"

#include <pthread.h>

enum { AT_ONCE = 10 };

#if defined(TN_ASAN)
static int n_runs = 2;
#else
static int n_runs = 8;
#endif
static uint64_t first_seed = 1, only_seed;
static bool levels, half, forms = true;
static FILE *nowhere;

static tn_session *open_one(tn_device_kind device, tn_mode mode, const recipe *p, int threads)
{
    tn_session *s = tn_open(.device = device, .mode = mode, .seed = p->seed, .threads = threads, .log = quiet,
                            .memory_budget = p->budget);
    assert_non_null(s);
    if (p->seed % 2) s->apart = 1; /* so small they are, none would have an update of its own */
    return s;
}

static void end(run *r)
{
    for (int i = 0; i < tn_param_count(r->s); i++) say(r, tn_param_at(r->s, i));
    for (int i = 0; i < tn_buffer_count(r->s); i++) say(r, tn_buffer_at(r->s, i));
    if (r->kept) say(r, r->kept);
    if (r->old) say(r, r->old);
    r->out->status = tn_error(r->s);
    snprintf(r->out->text, sizeof r->out->text, "%s", tn_error_text(r->s));
    tn_clear_error(r->s);
    tn_close(r->s);
}

static result whole(tn_session *s, const recipe *p)
{
    result out = {0};
    run r = {.p = p, .out = &out};
    make(&r, s);
    for (r.step = 0; r.step < p->steps && !tn_error(s); r.step++) step(&r, FINE);
    end(&r);
    return out;
}

static tn_tensor *moved(tn_session *s, const value *v)
{
    return v->v ? tensor_of(s, v->v, v->dtype, v->ndim, v->shape) : NULL;
}

/* The same in two sessions, through a file. What was kept goes along by hand. */
static result resumed(const recipe *p, tn_mode mode)
{
    result out = {0};
    run r = {.p = p, .out = &out};
    char path[128];
    snprintf(path, sizeof path, "%s/run.safetensors", base);
    make(&r, open_one(subject_device(), mode, p, 1));
    for (r.step = 0; r.step < p->save_at && !tn_error(r.s); r.step++) step(&r, FINE);
    value kept = {0}, old = {0};
    if (r.kept) read_value(r.kept, &kept);
    if (r.old) read_value(r.old, &old);
    tn_save(r.s, path);
    if (tn_close(r.s)) fail_msg("seed %llu: not saved", (unsigned long long)p->seed);
    int at = r.step;
    r = (run){.p = p, .out = &out};
    make(&r, open_one(subject_device(), mode, p, 2));
    tn_load(r.s, path);
    r.kept = moved(r.s, &kept);
    r.old = moved(r.s, &old);
    free(kept.v);
    free(old.v);
    for (r.step = at; r.step < p->steps && !tn_error(r.s); r.step++) step(&r, FINE);
    end(&r);
    return out;
}

/* In turns with another run. */
static result beside(const recipe *p, tn_mode mode)
{
    recipe q = draw(p->seed + 1);
    result out = {0}, other = {0};
    run a = {.p = p, .out = &out}, b = {.p = &q, .out = &other};
    make(&a, open_one(subject_device(), mode, p, 1));
    make(&b, open_one(subject_device(), mode == TN_EAGER ? TN_FUSED : TN_EAGER, &q, 1));
    for (; a.step < p->steps; a.step++, b.step++) {
        if (!tn_error(a.s)) step(&a, FINE);
        if (!tn_error(b.s)) step(&b, FINE);
    }
    end(&b);
    end(&a);
    result_free(&other);
    return out;
}

static void *in_a_thread(void *arg)
{
    const recipe *p = arg;
    result r = whole(open_one(subject_device(), p->seed % 2 ? TN_EAGER : TN_FUSED, p, 1), p);
    result_free(&r);
    return NULL;
}

/* At the same time as another run. */
static result along(const recipe *p, tn_mode mode)
{
    recipe q = draw(p->seed + 1);
    pthread_t t;
    if (pthread_create(&t, NULL, in_a_thread, &q)) fail_msg("no thread");
    result out = whole(open_one(subject_device(), mode, p, 1), p);
    pthread_join(t, NULL);
    return out;
}

/* Between steps everything is looked at, and the model evaluated outside of them. */
static result looked_at(const recipe *p, tn_mode mode)
{
    result out = {0}, aside = {0};
    run r = {.p = p, .out = &out};
    make(&r, open_one(subject_device(), mode, p, 1));
    for (; r.step < p->steps && !tn_error(r.s); r.step++) {
        step(&r, FINE);
        tn_explain(r.s, nowhere);
        for (int i = 0; i < tn_param_count(r.s); i++) tn_print(tn_param_at(r.s, i), nowhere);
        r.out = &aside;
        tn_train(r.s, false);
        tn_no_grad_begin(r.s);
        tn_tensor *x = data(&r, &(rng){p->seed}, p->n, p->data), *y = forward(&r, &(rng){p->seed}, x);
        say(&r, y);
        tn_no_grad_end(r.s);
        tn_train(r.s, true);
        r.out = &out;
        result_free(&aside);
    }
    end(&r);
    return out;
}

/* Before some steps the same step fails. */
static result after_failures(const recipe *p)
{
    result out = {0}, aside = {0};
    run r = {.p = p, .out = &out};
    rng g = {p->seed * 17};
    make(&r, open_one(subject_device(), TN_FUSED, p, 1));
    for (; r.step < p->steps && !tn_error(r.s); r.step++) {
        for (int fault; (fault = (int)rng_below(&g, 2 * FAULTS)) < FAULTS && fault;) {
            r.out = &aside;
            step(&r, fault);
            r.out = &out;
            result_free(&aside);
            if (!tn_error(r.s)) fail_msg("seed %llu: fault %d is none", (unsigned long long)p->seed, fault);
            tn_clear_error(r.s);
            tn_train(r.s, true);
        }
        step(&r, FINE);
    }
    end(&r);
    return out;
}

static bool same_bits(const char *form, const result *a, const result *b, char *text)
{
    if (a->status != b->status || a->n != b->n) {
        snprintf(text, 640, "%s: status %d and %d results (%.200s), not %d and %d (%.200s)", form, b->status,
                 b->n, b->text, a->status, a->n, a->text);
        return false;
    }
    for (int k = 0; k < a->n; k++)
        for (int64_t i = 0; i < a->out[k].n; i++)
            if (a->out[k].n != b->out[k].n || memcmp(&a->out[k].v[i], &b->out[k].v[i], sizeof(double))) {
                if (isnan(a->out[k].v[i]) && isnan(b->out[k].v[i])) continue;
                snprintf(text, 640, "%s: result %d of %d, element %d: %.17g, not %.17g", form, k, a->n,
                         (int)i, b->out[k].v[i], a->out[k].v[i]);
                return false;
            }
    return true;
}

static bool forms_agree(const recipe *p, tn_mode mode, const result *plain, char *text)
{
    static const char *const name[] = {"two threads",    "recorded anew",     "two plans", "resumed",
                                       "beside another", "in another thread", "looked at", "after failures",
                                       "level 0",        "level 1",           "level 2",   "level 3"};
    for (int form = 0; form < (levels ? 12 : 8); form++) {
        if (form == 7 && mode == TN_EAGER) continue; /* what stands before what fails has been done */
        const char *level = getenv("TENSOR_KERNEL_OPT");
        char *before = level ? strdup(level) : NULL;
        if (form >= 8) setenv("TENSOR_KERNEL_OPT", (const char[]){(char)('0' + form - 8), 0}, 1);
        if (form == 1) setenv("TENSOR_REPLAY", "off", 1);
        if (form == 2) setenv("TENSOR_PLANS", "2", 1);
        result got = form == 3   ? resumed(p, mode)
                     : form == 4 ? beside(p, mode)
                     : form == 5 ? along(p, mode)
                     : form == 6 ? looked_at(p, mode)
                     : form == 7 ? after_failures(p)
                                 : whole(open_one(subject_device(), mode, p, form ? 1 : 2), p);
        unsetenv("TENSOR_REPLAY");
        unsetenv("TENSOR_PLANS");
        if (before && form >= 8) setenv("TENSOR_KERNEL_OPT", before, 1);
        if (!before) unsetenv("TENSOR_KERNEL_OPT");
        free(before);
        char what[64];
        snprintf(what, sizeof what, "%s, %s", mode == TN_EAGER ? "eager" : "fused", name[form]);
        bool ok = same_bits(what, plain, &got, text);
        result_free(&got);
        if (!ok) return false;
    }
    return true;
}

static struct tally {
    long long elements, undecided;
    double worst;
} tally;

/* Ways of one recipe that must come to the answer of the reference: eager, fused, with layers that are
 * computed again for backward, and with so small a budget that as much is computed again as can be. */
enum { FUSED, EAGERLY, AGAIN, BUDGET, OWN_WAYS };
static const char *const own_way[] = {"fused", "eager", "computed again", "on a budget"};

static tn_session *open_way(recipe *p, int way)
{
    p->again = way == AGAIN;
    p->budget = way == BUDGET ? 1 : 0;
    return open_one(subject_device(), way == EAGERLY ? TN_EAGER : TN_FUSED, p, 1);
}

static bool check_run(const recipe *p, char *text)
{
    result noisy[NOISY_RUNS], want = whole(open_one(TN_REF, TN_EAGER, p, 1), p);
    bool ok = want.status == TN_OK;
    if (!ok) snprintf(text, 640, "ref: %.600s", want.text);
    for (int k = 0; k < NOISY_RUNS; k++) {
        tn_session *s = open_one(TN_REF, TN_EAGER, p, 1);
        tn_ref_set_noise(s->device, 2, noise_seed(k));
        noisy[k] = whole(s, p);
        if (noisy[k].n != want.n) ok = false, snprintf(text, 640, "ref with noise: %.600s", noisy[k].text);
    }
    for (int way = 0; way < OWN_WAYS && ok; way++) {
        recipe q = *p;
        tn_session *s = open_way(&q, way);
        result got = whole(s, &q);
        verdict v = compare(&want, noisy, &got);
        tally.elements += v.elements;
        tally.undecided += v.undecided;
        tally.worst = fmax(tally.worst, v.worst);
        ok = v.ok;
        if (!ok) snprintf(text, 640, "%s: %.600s", own_way[way], v.text);
        if (ok && forms && way <= EAGERLY) ok = forms_agree(p, way == EAGERLY ? TN_EAGER : TN_FUSED, &got, text);
        result_free(&got);
    }
    result_free(&want);
    for (int k = 0; k < NOISY_RUNS; k++) result_free(&noisy[k]);
    return ok;
}

static void note(const recipe *p)
{
    if (!Ahead.s[0]) ahead_open(subject_device());
    for (int i = 0; i < OWN_WAYS; i++) {
        recipe q = *p;
        tn_session *s = open_way(&q, i);
        s->device->compile = ahead_note;
        s->device->ready = NULL;
        s->device->launch = ahead_launch;
        s->device->gemm = ahead_gemm;
        s->device->conv2d = ahead_conv2d;
        s->device->download = ahead_download;
        result r = whole(s, &q);
        result_free(&r);
    }
}

static void describe(const recipe *p)
{
    fprintf(stderr, "  seed %llu: [%d, %d, %d]", (unsigned long long)p->seed, (int)p->n, (int)p->t,
            (int)p->c);
    for (int k = 0; k < p->layers; k++) fprintf(stderr, " %s", layer_names[p->kind[k]]);
    fprintf(
        stderr,
        "; data %s, carried %s%s, scale %g, %s%s%s%s%s%s%s%s, accumulate %d, dropout %g, view %d, saved at "
        "%d\n",
        tn_dtype_name(p->data), tn_dtype_name(p->carried), p->mixed ? " as it is" : "", p->scale,
        p->adam ? "adamw" : "sgd", p->optims == 2 ? " twice" : "", p->ema ? ", average" : "",
        p->wide ? ", f64 gain" : "", p->second ? ", second order" : "", p->clipped ? ", clipped" : "",
        p->tied ? ", tied" : "", p->embedded ? ", embedded" : "", p->accumulate, p->dropout, p->view,
        p->save_at);
}

static bool taken(const recipe *p) { return !half || p->data != TN_F32; }

TEST(runs_agree)
{
    char text[640];
    int failed = 0, compared = 0;
    for (int done = 0; done < n_runs; done += AT_ONCE) {
        int n = n_runs - done < AT_ONCE ? n_runs - done : AT_ONCE;
        for (int k = 0; k < n; k++) {
            recipe p = draw(first_seed + (uint64_t)(done + k));
            if (taken(&p)) note(&p);
        }
        ahead_compile();
        for (int k = 0; k < n; k++) {
            recipe p = draw(first_seed + (uint64_t)(done + k));
            if (!taken(&p) || (++compared && check_run(&p, text))) continue;
            describe(&p);
            print_error("  %s\n", text);
            failed++;
        }
    }
    ahead_close();
    print_message(
        "%d runs, %lld elements compared, %lld undecided (%.3f %%), worst error %.2f of its bound\n",
        compared, tally.elements, tally.undecided,
        100.0 * (double)tally.undecided / (double)(tally.elements + 1), tally.worst);
    if (failed) fail_msg("%d runs disagree", failed);
}

static void one(void **state)
{
    (void)state;
    char text[640];
    recipe p = draw(only_seed);
    describe(&p);
    if (!check_run(&p, text)) fail_msg("%s", text);
}

int main(int argc, char **argv)
{
    OPTION(n_runs, "runs");
    OPTION(first_seed, "seed");
    OPTION(only_seed, "one");
    OPTION(levels, "levels");
    OPTION(half, "half");
    OPTION(forms, "forms");
    nowhere = fopen("/dev/null", "w");
    assert_non_null(nowhere);
    if (only_seed) only_test("one", one);
    return run_all_tests(make_base, drop_base);
}
