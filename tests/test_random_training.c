/* test_random_training.c - random training runs as people write them: layers, mixed dtypes, several losses
 * and optimizers, frozen parameters, accumulated gradients, moving averages, batches of other sizes,
 * evaluation in between.
 *
 * Two kinds of answers are compared. What the reference device says, exactly and with rounding noise
 * (check.h), is what a run on the cpu must come to, fused and eager. And of one run there are forms that
 * differ in nothing a number may depend on, so that their bits must be the same: with other threads, recorded
 * anew in each step, with two plans in memory, saved and resumed in another session, in turns with another
 * session.
 *
 *     test_random_training [--runs N] [--seed S] [--one SEED]
 *
 * Everything about a run is drawn from its seed as it goes. Read first: step, then check_run.
 */
#define MAX_OUT 160
#include "check.h"

#include <tensor_nn.h>
#include <unistd.h>

enum { LAYERS = 4, STEPS = 5, CLASSES = 4, AT_ONCE = 10 };

#if defined(TN_ASAN)
static int n_runs = 5;
#else
static int n_runs = 12;
#endif
static uint64_t first_seed = 1, only_seed;
static char base[64];

typedef enum layer_kind { LINEAR, LAYER_NORM, RMS_NORM, BATCH_NORM, GROUP_NORM, ATTENTION, KINDS } layer_kind;

/* What is drawn once. */
typedef struct recipe {
    uint64_t seed;
    int64_t n, t, c;
    int layers, steps, accumulate, optims, save_at;
    layer_kind kind[LAYERS];
    tn_dtype carried, data; /* between layers; of the input */
    double scale;           /* of the loss; the rate is by so much smaller */
    bool adam, ema, wide, second, clipped;
    double dropout;
} recipe;

typedef struct run {
    const recipe *p;
    tn_session *s;
    void *layer[LAYERS];
    tn_linear *head;
    tn_tensor *gain, *average, *kept;
    tn_optim *opt[2];
    result *out;
    int step;
} run;

static const tn_dtype halves[] = {TN_F32, TN_F32, TN_F16, TN_BF16};

static recipe draw(uint64_t seed)
{
    rng r = {seed * 7919};
    recipe p = {.seed = seed};
    p.n = 3 + rng_below(&r, 3);
    p.t = rng_below(&r, 2) ? 3 + rng_below(&r, 3) : 1;
    p.c = 8 << rng_below(&r, 2);
    p.layers = 1 + (int)rng_below(&r, LAYERS);
    p.steps = STEPS;
    for (int k = 0; k < p.layers; k++) p.kind[k] = (layer_kind)rng_below(&r, KINDS);
    p.carried = halves[rng_below(&r, 4)];
    p.data = halves[rng_below(&r, 4)];
    static const double scales[] = {1, 1, 1, 1e8, 1e-8, 1024};
    p.scale = scales[rng_below(&r, p.carried == TN_F16 || p.data == TN_F16 ? 3 : 6)];
    p.adam = p.scale == 1 && rng_below(&r, 2);
    p.accumulate = rng_below(&r, 4) ? 1 : 2;
    p.optims = 1 + (rng_below(&r, 4) == 0);
    p.ema = rng_below(&r, 2);
    p.wide = rng_below(&r, 4) == 0;
    p.second = rng_below(&r, 5) == 0 && p.carried == TN_F32 && p.data == TN_F32;
    p.clipped = rng_below(&r, 3) == 0;
    p.dropout = rng_below(&r, 3) ? 0 : 0.3;
    p.save_at = 1 + (int)rng_below(&r, STEPS - 1);
    return p;
}

static void say(run *r, tn_tensor *x)
{
    if (x && r->out->n < MAX_OUT) read_value(x, &r->out->out[r->out->n++]);
}

static void make(run *r, tn_session *s)
{
    const recipe *p = r->p;
    r->s = s;
    for (int k = 0; k < p->layers; k++) {
        char name[16];
        snprintf(name, sizeof name, "l%d", k);
        switch (p->kind[k]) {
        case LINEAR:
            r->layer[k] = tn_linear_new(s, name, p->c, p->c);
            break;
        case LAYER_NORM:
            r->layer[k] = tn_layer_norm_new(s, name, p->c);
            break;
        case RMS_NORM:
            r->layer[k] = tn_rms_norm_new(s, name, p->c);
            break;
        case BATCH_NORM:
            r->layer[k] = tn_batch_norm_new(s, name, p->c);
            break;
        case GROUP_NORM:
            r->layer[k] = tn_group_norm_new(s, name, 2, p->c);
            break;
        case ATTENTION:
            r->layer[k] = tn_multi_head_attention_new(s, name, p->c, 2, .causal = 1);
            break;
        case KINDS:
            break;
        }
    }
    r->head = tn_linear_new(s, "head", p->c, CLASSES);
    r->gain = tn_param(s, "gain", tn_full(s, 1, p->wide ? TN_F64 : TN_F32, TN_SHAPE(p->c)));
    r->average = tn_buffer(s, "average", tn_zeros(s, TN_F32, TN_SHAPE(CLASSES, p->c)));
    double lr = (p->adam ? 1e-3 : 0.05) / p->scale;
    tn_tensor *first[64], *second[64];
    int nf = 0, ns = 0;
    for (int i = 0; i < tn_param_count(s); i++) {
        tn_tensor *x = tn_param_at(s, i);
        if (p->optims == 2 && strstr(tn_name(x), "weight"))
            second[ns++] = x;
        else
            first[nf++] = x;
    }
    tn_params a = {nf, first}, b = {ns, second};
    for (int k = 0; k < p->optims; k++)
        r->opt[k] =
            p->adam ? tn_adamw(s, k ? b : a, .lr = lr, .weight_decay = 0.1, .eps = 0.01,
                               .accumulate = p->accumulate)
                    : tn_sgd(s, k ? b : a, .lr = lr, .momentum = k ? 0 : 0.5, .accumulate = p->accumulate);
}

static tn_tensor *apply(run *r, int k, tn_tensor *x)
{
    switch (r->p->kind[k]) {
    case LINEAR:
        return tn_linear_forward(r->layer[k], x);
    case LAYER_NORM:
    case RMS_NORM:
    case BATCH_NORM:
    case GROUP_NORM:
        return tn_norm_forward(r->layer[k], x);
    case ATTENTION:
        return tn_multi_head_attention_forward(r->layer[k], x);
    case KINDS:
        break;
    }
    return NULL;
}

static tn_tensor *act(rng *g, tn_tensor *x)
{
    switch (rng_below(g, 8)) {
    case 0:
        return tn_gelu(x);
    case 1:
        return tn_tanh(x);
    case 2:
        return tn_silu(x);
    case 3:
        return tn_softplus(x);
    case 4:
        return tn_elu(x, 1.0);
    case 5:
        return tn_add(x, tn_sigmoid(x));
    default:
        return x;
    }
}

/* n items; f16 and bf16 hold each number. */
static tn_tensor *data(run *r, rng *g, int64_t n, tn_dtype dtype)
{
    float v[5 * 5 * 16];
    int64_t count = n * r->p->t * r->p->c;
    for (int64_t i = 0; i < count; i++) v[i] = (float)(rng_below(g, 65) - 32) / 16; /* in 16 bits, too */
    return tn_cast(tn_from(r->s, v, TN_F32, TN_SHAPE(n, r->p->t, r->p->c)), dtype);
}

static tn_tensor *forward(run *r, rng *structure, tn_tensor *x)
{
    const recipe *p = r->p;
    tn_tensor *h = tn_mul(tn_cast(x, TN_F32), r->gain);
    if (p->wide) h = tn_cast(h, TN_F32);
    for (int k = 0; k < p->layers; k++) {
        tn_tensor *y = act(structure, apply(r, k, h));
        if (p->dropout > 0 && rng_below(structure, 2)) y = tn_dropout(y, p->dropout);
        if (rng_below(structure, 2)) y = tn_add(tn_mul_scalar(y, 0.5), h);
        h = rng_below(structure, 2) ? tn_cast(tn_cast(y, p->carried), TN_F32) : y;
    }
    return h;
}

static void step(run *r)
{
    const recipe *p = r->p;
    tn_session *s = r->s;
    /* What the program is: in most steps the same, so that tapes are answered from; what it is given: another
     * one. */
    rng structure = {p->seed}, once = {p->seed * 31 + (uint64_t)r->step},
        g = {p->seed * 131 + (uint64_t)r->step};
    bool odd = rng_below(&once, 3) == 0; /* something is unlike other steps */
    int what = odd ? (int)rng_below(&once, 10) : -1;
    int64_t n = what == 0 ? p->n - 1 : p->n;
    tn_tensor *frozen = what == 1 ? tn_param_at(s, (int)rng_below(&once, tn_param_count(s))) : NULL;
    if (frozen) tn_requires_grad(frozen, false);
    for (int k = 0; k < p->optims; k++)
        tn_optim_set_lr(r->opt[k], tn_lr_cosine(r->step, 2, 8, p->adam ? 1e-3 : 0.05 / p->scale, 0));

    tn_step_begin(s);
    tn_tensor *x = data(r, &g, n, p->data);
    if (what == 2) { /* an evaluation without gradients first */
        tn_train(s, false);
        tn_no_grad_begin(s);
        say(r, tn_mean(forward(r, &(rng){p->seed}, x), TN_ALL, false));
        tn_no_grad_end(s);
        tn_train(s, true);
    }
    tn_tensor *h = forward(r, &structure, x), *view = tn_transpose(r->head->weight, 0, 1);
    tn_tensor *logits = tn_linear_forward(r->head, h);
    int32_t y[25];
    for (int64_t i = 0; i < n * p->t; i++)
        y[i] = (int32_t)rng_below(&g, CLASSES) - (rng_below(&g, 9) ? 0 : 200);
    for (int64_t i = 0; i < n * p->t; i++) y[i] = y[i] < 0 ? -100 : y[i];
    y[0] = 1;
    tn_tensor *labels = tn_from(s, y, TN_I32, TN_SHAPE(n, p->t));
    tn_tensor *loss = tn_cross_entropy(logits, labels, .label_smoothing = rng_below(&structure, 2) ? 0.1 : 0);
    tn_tensor *known =
        tn_cast(tn_ge(labels, tn_zeros(s, TN_I64, TN_SCALAR)), p->carried); /* bool and integers mixed */
    tn_tensor *extra = tn_mean(tn_mul(tn_square(h), tn_unsqueeze(known, -1)), TN_ALL, false);
    int ways = (int)rng_below(&structure, 4);
    if (what == 3) tn_flush(s);
    if (what == 4) say(r, loss);
    if (what == 5) tn_watch(loss);
    if (what == 6) {
        tn_tensor *old = r->kept;
        r->kept = tn_keep(tn_mul_scalar(logits, 2.0));
        tn_free(old);
    }
    if (p->second) {
        tn_tensor *in = r->gain, *by;
        if (!tn_grad(loss, 1, &in, &by) && by)
            loss = tn_add(loss, tn_mul_scalar(tn_cast(tn_sum(tn_square(by), TN_ALL, false), TN_F32), 0.1));
    }
    if (ways == 0) {
        tn_backward(tn_mul_scalar(loss, p->scale));
    } else if (ways == 1) {
        tn_backward(tn_mul_scalar(tn_add(loss, tn_mul_scalar(extra, 0.1)), p->scale));
    } else { /* two, the second seen by some parameters only */
        tn_backward(tn_mul_scalar(loss, p->scale));
        if (what == 7) tn_flush(s);
        if (ways == 3) say(r, tn_gradient(r->gain));
        tn_backward(tn_mul_scalar(extra, 0.1 * p->scale));
    }
    if (what == 8) say(r, tn_gradient(r->head->weight));
    tn_tensor *norm = NULL;
    for (int k = 0; k < p->optims && what != 9; k++) {
        if (p->clipped) norm = tn_clip_grad_norm(r->opt[k], 0.1 * p->scale);
        tn_optim_step(r->opt[k]);
    }
    if (p->ema)
        tn_assign(r->average, tn_lerp(r->average, r->head->weight, tn_full(s, 0.25, TN_F32, TN_SCALAR)));
    /* The view was made before the update, and shows what was there. */
    tn_tensor *before = tn_sum(tn_mul(view, tn_transpose(r->average, 0, 1)), TN_ALL, false);
    say(r, tn_add(loss, tn_mul_scalar(before, 0.0)));
    say(r, before);
    if (norm) say(r, norm);
    tn_step_end(s);
    if (frozen) tn_requires_grad(frozen, true);
}

static tn_session *open_one(tn_device_kind device, tn_mode mode, const recipe *p, int threads)
{
    tn_session *s =
        tn_open(.device = device, .mode = mode, .seed = p->seed, .threads = threads, .log = quiet);
    assert_non_null(s);
    return s;
}

static void end(run *r)
{
    for (int i = 0; i < tn_param_count(r->s); i++) say(r, tn_param_at(r->s, i));
    for (int i = 0; i < tn_buffer_count(r->s); i++) say(r, tn_buffer_at(r->s, i));
    if (r->kept) say(r, r->kept);
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
    for (r.step = 0; r.step < p->steps && !tn_error(s); r.step++) step(&r);
    end(&r);
    return out;
}

/* The same in two sessions, through a file. What was kept goes along by hand. */
static result resumed(const recipe *p, tn_mode mode)
{
    result out = {0};
    run r = {.p = p, .out = &out};
    char path[128];
    snprintf(path, sizeof path, "%s/run.safetensors", base);
    make(&r, open_one(subject_device(), mode, p, 1));
    for (r.step = 0; r.step < p->save_at && !tn_error(r.s); r.step++) step(&r);
    if (r.kept || tn_error(r.s)) {
        for (; r.step < p->steps && !tn_error(r.s); r.step++) step(&r);
        end(&r);
        return out;
    }
    tn_save(r.s, path);
    if (tn_close(r.s)) fail_msg("seed %llu: not saved", (unsigned long long)p->seed);
    int at = r.step;
    r = (run){.p = p, .out = &out};
    make(&r, open_one(subject_device(), mode, p, 2));
    tn_load(r.s, path);
    for (r.step = at; r.step < p->steps && !tn_error(r.s); r.step++) step(&r);
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
        if (!tn_error(a.s)) step(&a);
        if (!tn_error(b.s)) step(&b);
    }
    end(&b);
    end(&a);
    result_free(&other);
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
    static const char *const name[] = {"two threads", "recorded anew", "two plans", "resumed",
                                       "beside another"};
    for (int form = 0; form < 5; form++) {
        if (form == 1) setenv("TENSOR_REPLAY", "off", 1);
        if (form == 2) setenv("TENSOR_PLANS", "2", 1);
        result got = form == 3   ? resumed(p, mode)
                     : form == 4 ? beside(p, mode)
                                 : whole(open_one(subject_device(), mode, p, form ? 1 : 2), p);
        unsetenv("TENSOR_REPLAY");
        unsetenv("TENSOR_PLANS");
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
    for (int mode = 0; mode < 2 && ok; mode++) {
        tn_mode m = mode ? TN_EAGER : TN_FUSED;
        result got = whole(open_one(subject_device(), m, p, 1), p);
        verdict v = compare(&want, noisy, &got);
        tally.elements += v.elements;
        tally.undecided += v.undecided;
        tally.worst = fmax(tally.worst, v.worst);
        ok = v.ok;
        if (!ok) snprintf(text, 640, "%s: %.600s", mode ? "eager" : "fused", v.text);
        if (ok) ok = forms_agree(p, m, &got, text);
        result_free(&got);
    }
    result_free(&want);
    for (int k = 0; k < NOISY_RUNS; k++) result_free(&noisy[k]);
    return ok;
}

static void note(const recipe *p)
{
    if (!Ahead.s[0]) ahead_open(subject_device());
    for (int i = 0; i < 2; i++) {
        tn_session *s = open_one(subject_device(), i ? TN_EAGER : TN_FUSED, p, 1);
        s->device->compile = ahead_note;
        s->device->launch = ahead_launch;
        s->device->gemm = ahead_gemm;
        s->device->conv2d = ahead_conv2d;
        s->device->download = ahead_download;
        result r = whole(s, p);
        result_free(&r);
    }
}

static void describe(const recipe *p)
{
    static const char *const kinds[] = {"linear",     "layer_norm", "rms_norm",
                                        "batch_norm", "group_norm", "attention"};
    fprintf(stderr, "  seed %llu: [%d, %d, %d]", (unsigned long long)p->seed, (int)p->n, (int)p->t,
            (int)p->c);
    for (int k = 0; k < p->layers; k++) fprintf(stderr, " %s", kinds[p->kind[k]]);
    fprintf(stderr, "; data %s, carried %s, scale %g, %s%s%s%s%s%s, accumulate %d, dropout %g, saved at %d\n",
            tn_dtype_name(p->data), tn_dtype_name(p->carried), p->scale, p->adam ? "adamw" : "sgd",
            p->optims == 2 ? " twice" : "", p->ema ? ", average" : "", p->wide ? ", f64 gain" : "",
            p->second ? ", second order" : "", p->clipped ? ", clipped" : "", p->accumulate, p->dropout,
            p->save_at);
}

static void runs_agree(void **state)
{
    (void)state;
    char text[640];
    int failed = 0;
    for (int done = 0; done < n_runs; done += AT_ONCE) {
        int n = n_runs - done < AT_ONCE ? n_runs - done : AT_ONCE;
        for (int k = 0; k < n; k++) {
            recipe p = draw(first_seed + (uint64_t)(done + k));
            note(&p);
        }
        ahead_compile();
        for (int k = 0; k < n; k++) {
            recipe p = draw(first_seed + (uint64_t)(done + k));
            if (check_run(&p, text)) continue;
            describe(&p);
            print_error("  %s\n", text);
            failed++;
        }
    }
    ahead_close();
    print_message(
        "%d runs, %lld elements compared, %lld undecided (%.3f %%), worst error %.2f of its bound\n", n_runs,
        tally.elements, tally.undecided, 100.0 * (double)tally.undecided / (double)(tally.elements + 1),
        tally.worst);
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
    for (int i = 1; i + 1 < argc; i += 2) {
        unsigned long long v = strtoull(argv[i + 1], NULL, 10);
        if (!strcmp(argv[i], "--runs")) n_runs = (int)v;
        if (!strcmp(argv[i], "--seed")) first_seed = v;
        if (!strcmp(argv[i], "--one")) only_seed = v;
    }
    snprintf(base, sizeof base, "/tmp/libtensor-training-XXXXXX");
    assert_non_null(mkdtemp(base));
    const struct CMUnitTest single[] = {cmocka_unit_test(one)}, tests[] = {cmocka_unit_test(runs_agree)};
    int failed =
        only_seed ? cmocka_run_group_tests(single, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", base);
    return system(command) ? 1 : failed;
}
