/* growth.c - how the host's work for a step grows with the program: each shape is recorded, planned, run,
 * explained and ended at n and at 4 n. n log n comes to 4.6 times as much, n squared to 16. growth [n]
 * [shape]. Start with main.
 *
 * Built by `make growth`, with -fsanitize-coverage=trace-pc, it counts the basic blocks that the host's
 * thread enters: that is the same on each run and on any machine, and more than 5.5 times as many is too
 * much. Built otherwise it measures time, and leaves room for noise. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <tensor_nn.h>

static _Thread_local uint64_t blocks;

/* Called at each basic block of what is built so. */
void __sanitizer_cov_trace_pc(void);
#if defined(__has_attribute)
#if __has_attribute(no_sanitize_coverage)
__attribute__((no_sanitize_coverage))
#endif
#endif
void __sanitizer_cov_trace_pc(void)
{
    blocks++;
}

static tn_tensor *values(tn_session *s) { return tn_full(s, 0.01, TN_F32, TN_SHAPE(8, 8)); }

static tn_tensor *named(tn_session *s, int i)
{
    char name[32];
    snprintf(name, sizeof name, "w%d", i);
    return tn_find(s, name) ? tn_find(s, name) : tn_param(s, name, values(s));
}

static void layers(tn_session *s, int n)
{
    tn_tensor *x = values(s);
    for (int i = 0; i < n; i++) x = tn_dropout(tn_tanh(tn_matmul(x, named(s, i))), 0.1);
    tn_backward(tn_sum(x, TN_ALL, false));
}

static void assignments(tn_session *s, int n)
{
    tn_tensor *w = named(s, 0);
    for (int i = 0; i < n; i++) tn_assign(w, tn_mul_scalar(w, 0.999));
}

static void backwards(tn_session *s, int n)
{
    tn_tensor *w = named(s, 0);
    for (int i = 0; i < n; i++) tn_backward(tn_sum(tn_mul(w, w), TN_ALL, false));
}

/* Layers that change width, and norms by hand. */
static void norms(tn_session *s, int n)
{
    tn_tensor *x = values(s), *w = named(s, 0);
    for (int i = 0; i < n; i++) {
        tn_tensor *mean = tn_mean(x, TN_AXES(0), true);
        x = tn_relu(tn_mul(tn_sub(x, mean), tn_add_scalar(w, 1)));
        x = tn_slice(tn_concat(2, (tn_tensor *[]){x, x}, 1), 1, 4, 12, 1);
    }
    tn_backward(tn_sum(x, TN_ALL, false));
}

static void update(tn_session *s, int n)
{
    tn_tensor *loss = NULL;
    tn_optim *o = tn_adamw(s, tn_all_params(s), .lr = 1e-3);
    for (int i = 0; i < n; i++) {
        tn_tensor *part = tn_sum(tn_square(named(s, i)), TN_ALL, false);
        loss = loss ? tn_add(loss, part) : part;
    }
    tn_backward(loss);
    tn_optim_step(o);
}

/* Values that are large enough to be made again, of weights that are updated behind them. */
static void large(tn_session *s, int n)
{
    enum { ROWS = 64, WIDTH = 256 };
    tn_tensor *x = tn_randn(s, TN_F32, TN_SHAPE(ROWS, WIDTH)), *w = tn_find(s, "wide");
    if (!w) w = tn_param(s, "wide", tn_ones(s, TN_F32, TN_SHAPE(WIDTH)));
    tn_optim *o = tn_sgd(s, TN_PARAMS(w), .lr = 1e-3);
    for (int i = 0; i < n; i++) {
        x = tn_gelu(tn_layer_norm(x, w, w));
        if (i % 3 == 1) x = tn_softmax(tn_add(x, tn_slice(x, 0, 0, ROWS, 1)), -1);
    }
    tn_backward(tn_mean(x, TN_ALL, false));
    tn_optim_step(o);
}

static void kept(tn_session *s, int n)
{
    tn_tensor **k = malloc((size_t)n * sizeof(tn_tensor *)), *w = named(s, 0);
    for (int i = 0; i < n; i++) k[i] = tn_keep(tn_mul_scalar(w, i));
    tn_flush(s);
    for (int i = 0; i < n; i++) tn_free(k[i]);
    free(k);
}

static void lookups(tn_session *s, int n)
{
    tn_tensor *w = named(s, 0), *x = values(s);
    for (int i = 0; i < n; i++) {
        tn_tensor *at = tn_argmax(tn_add_scalar(x, i), 1, false);
        x = tn_add(x, tn_index_select(w, 0, at));
        tn_assign(w, tn_mul_scalar(w, 0.999));
    }
}

/* A step that ends with an error, and one after it. */
static void refused(tn_session *s, int n)
{
    tn_tensor *w = named(s, 0);
    for (int i = 0; i < n; i++) tn_assign(w, tn_mul_scalar(w, 0.999));
    tn_matmul(w, tn_full(s, 1, TN_F32, TN_SHAPE(3, 3)));
    tn_step_end(s);
    tn_clear_error(s);
    tn_step_begin(s);
    for (int i = 0; i < n; i++) tn_assign(w, tn_mul_scalar(w, 0.999));
}

static const struct shape {
    const char *name;
    void (*run)(tn_session *s, int n);
    bool outside; /* of steps */
} shapes[] = {{"layers", layers, false},
              {"norms", norms, false},
              {"update", update, false},
              {"kept", kept, false},
              {"lookups", lookups, false},
              {"refused", refused, false},
              {"assignments", assignments, false},
              {"assignments_outside", assignments, true},
              {"backwards", backwards, false},
              {"backwards_outside", backwards, true},
              {"large", large, false}};

/* Blocks in millions, or seconds where none are counted. */
static double work(void)
{
    if (blocks) return 1e-6 * (double)blocks;
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec + 1e-6 * (double)u.ru_utime.tv_usec;
}

static double work_of(const struct shape *f, int n)
{
    tn_session *s = tn_open(.device = TN_CPU, .seed = 1, .threads = 1);
    FILE *nowhere = fopen("/dev/null", "w");
    const bool many = f->run == layers || f->run == update;
    for (int i = 0; i < n && many; i++) named(s, i);
    named(s, 0);
    const double start = work();
    if (!f->outside) tn_step_begin(s);
    f->run(s, n);
    if (!f->outside) tn_step_end(s);
    if (nowhere) tn_explain(s, nowhere);
    const double end = work();
    if (tn_error(s)) fprintf(stderr, "%s: %s\n", f->name, tn_error_text(s));
    if (nowhere) fclose(nowhere);
    return tn_close(s) ? -1 : end - start;
}

int main(int argc, char **argv)
{
    const int n = argc > 1 ? atoi(argv[1]) : 1000;
    int slow = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (argc > 2 && strcmp(argv[2], shapes[i].name)) continue;
        const double once = work_of(&shapes[i], n), four = work_of(&shapes[i], 4 * n);
        const bool grows = once < 0 || four > (blocks ? 5.5 * once : 8 * once + 0.01);
        const char *unit = blocks ? "million blocks" : "s";
        printf("%-20s %6d: %7.3f %s, %6d: %7.3f %s, %5.2f times%s\n", shapes[i].name, n, once, unit, 4 * n,
               four, unit, four / once, grows ? ", too much" : "");
        slow += grows;
    }
    return slow > 0;
}
