/* growth.c - how the host's time for a step grows with the program: each shape is recorded, planned, run,
 * explained and ended at n and at 4 n, and more than MOST times the time is too much: n log n comes to 4.6, n
 * squared to 16. growth [n] [shape]. Start with main.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <tensor_nn.h>

enum { MOST = 8 };

static tn_tensor *values(tn_session *s)
{
    return tn_full(s, 0.01, TN_F32, TN_SHAPE(8, 8));
}

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

static const struct shape {
    const char *name;
    void (*run)(tn_session *s, int n);
    bool outside; /* of steps */
} shapes[] = {{"layers", layers, false},
              {"assignments", assignments, false},
              {"assignments_outside", assignments, true},
              {"backwards", backwards, false},
              {"backwards_outside", backwards, true}};

static double seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec + 1e-6 * (double)u.ru_utime.tv_usec;
}

static double time_of(const struct shape *f, int n)
{
    tn_session *s = tn_open(.device = TN_CPU, .seed = 1, .threads = 1);
    FILE *nowhere = fopen("/dev/null", "w");
    for (int i = 0; i < n && !strcmp(f->name, "layers"); i++) named(s, i);
    named(s, 0);
    const double start = seconds();
    if (!f->outside) tn_step_begin(s);
    f->run(s, n);
    if (!f->outside) tn_step_end(s);
    if (nowhere) tn_explain(s, nowhere);
    const double end = seconds();
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
        const double once = time_of(&shapes[i], n), four = time_of(&shapes[i], 4 * n);
        const bool grows = once < 0 || four > MOST * once + 0.01;
        printf("%-20s %6d: %7.3f s, %6d: %7.3f s, %5.1f times%s\n", shapes[i].name, n, once, 4 * n, four,
               four / once, grows ? ", too much" : "");
        slow += grows;
    }
    return slow > 0;
}
