/* bench.h - what the files of fused_vs_eager share.
 *
 *   main.c       options, and what is measured in which order
 *   meter.c      rounds of alternating measurements, and which of them count
 *   cases.c      the fusions: inputs, what is computed, what must move through memory at least
 *   setup.c      sessions, inputs in host memory, copies
 *   case.c       one fusion measured, beside a copy and a kernel by hand; case.h names its parts
 *   optimizer.c  AdamW likewise
 *   models.c     the two example models measured
 *   report.c     the table and the JSON
 *   inside.c     a look into a session's last plan
 *   yardstick.c  kernels by hand, with yard_norm.c and yard_pool.c
 *
 * Read first: struct fusion, then measure_case in case.c. */
#pragma once

#include <tensor_nn.h>

#include "bench/clock.h"
#include "yardstick.h"

enum { MAX_INPUTS = 6, MAX_OUTS = 2, MAX_VARIANTS = 16 };

struct options {
    const char *which, *shape, *json, *device;
    int threads, rounds;
    double patience; /* seconds a case may take to find quiet rounds */
    bool calibrate;
    bool plans;    /* print each case's plans */
    bool cpu_time; /* time what processors gave the process, over its threads, instead of what passed */
};

/* ---- meter.c ---- */

/* Runs one variant once; milliseconds, negative on failure. */
typedef double meter_fn(void *arg, int variant);
struct rounds {
    int kept, discarded; /* for what other processes took */
    bool quiet;          /* false: too few quiet rounds, best times instead of medians */
};
double clock_ms(const struct options *o); /* for what is measured */
/* Each variant's median into median[]; false where one failed. */
bool meter(meter_fn *fn, void *arg, int variants, const struct options *o, double *median, struct rounds *r);

/* ---- cases.c ---- */

/* An input: normal 'n', uniform in [0.5, 1.5) 'u', or i32 below `below` 'i'. */
struct field {
    char kind;
    bool gradient;
    int ndim;
    int64_t dim[4], below;
};

struct in {
    tn_session *s;
    tn_tensor *t[MAX_INPUTS], *g; /* g: d loss / d out */
    tn_optim *opt;
};

/* What must move, in tensors of n x c floats: reads and writes, each once. */
struct moved {
    double reads, writes;
};

/* A fusion. Its whole step is outs, loss = sum over the outs of sum(out * g), backward; where `is_loss`, the
 * out is the loss. Of what must move, what is smaller by orders of magnitude (weights, statistics) is left
 * out; 0 where a library call does the work. */
struct fusion {
    const char *name;
    int (*fields)(int64_t n, int64_t c, struct field *f, struct field *g); /* inputs, and g's shape */
    int (*run)(struct in *i, tn_tensor **out);
    bool is_loss;
    struct moved forward, backward, step;
    double bar_forward, bar_backward; /* the shares aimed at; 0: none */
};
extern const struct fusion fusions[];
extern const int n_fusions;

/* ---- case.c, optimizer.c, setup.c ---- */

struct figures { /* NAN: there is none */
    double eager_ms, fused_ms, predicted_ms, yardstick_ms, compute_ms, share, limit, max_err, bar;
    unsigned long long eager_kernels, fused_kernels, eager_bytes, fused_bytes;
};
struct case_row {
    const char *name;
    char shape[48];
    const char *footprint;
    double copy_gbs, copy_plain_gbs, read_gbs;
    struct figures forward, backward, step;
    bool has_backward;
    struct rounds rounds;
};
bool measure_case(const struct fusion *f, const struct options *o, struct case_row *row);
bool measure_optimizer(const struct options *o, struct case_row *row);
void shape_of(const char *shape, int64_t *n, int64_t *c);
void *host_array(int64_t bytes);
void fill(void *p, const struct field *f, uint64_t seed);
int64_t count_of(const struct field *f);
tn_session *open_mode(const struct options *o, tn_mode mode);

/* Copies of a tensor by a kernel of the library: with plain stores, and past the caches. */
struct copies {
    tn_session *s[2];
    tn_tensor *from[2], *to[2];
};
bool open_copies(struct copies *c, const struct options *o, int64_t elements);
double run_copy(const struct copies *c, int k,
                const struct options *o); /* milliseconds; negative: it failed */
void close_copies(struct copies *c);
/* Lets a kernel by hand write with the kind of stores that is faster here. */
void choose_stores(yard *y, yard_fn *fn);

/* Kernels, library calls and copies of what ran between two looks; its bytes. */
struct work {
    unsigned long long kernels, bytes;
};
struct work work_now(const tn_session *s);

/* ---- models.c ---- */

struct model_row {
    const char *name;
    int batch;
    double eager_ms, fused_ms, predicted_ms, floor_ms, library_ms, copy_gbs, cold_ms, warm_ms, call_ns,
        step_us;
    unsigned long long eager_kernels, fused_kernels, eager_bytes, fused_bytes, eager_peak, fused_peak;
    struct rounds rounds;
};
bool measure_model(const char *name, const struct options *o, struct model_row *row);
/* In a process of its own: prints the milliseconds of a model's first step. */
int first_step(const char *name, const char *cache, const struct options *o);

/* ---- report.c ---- */
void print_case_head(void);
void print_case(const struct case_row *r);
void print_models(const struct model_row *m, int n);
/* Says so where rows show disturbed times, and how many rounds were. */
void print_disturbed(const struct case_row *c, int n_case, const struct model_row *m, int n_model);
bool write_json(const char *path, const struct options *o, int threads, const char *profile,
                const struct case_row *c, int n_case, const struct model_row *m, int n_model);
