/* evaluate.c - accuracy and mean loss over a whole data set.
 *
 * Batches go in a fixed order and their sums are added on the host in double precision, so a result does not
 * depend on how items fall into batches but for the rounding inside one. Read evaluate first. */
#include "nn.h"

#include <math.h>

enum {
    BATCH = 256,
    ELEMENTS = 1 << 22,
    TOKENS = 4096
}; /* items in a batch, elements of their x; of a text, tokens */

typedef struct evaluation {
    const char *op;
    tn_session *s;
    tn_dataset *d;
    tn_classify_fn *classify; /* or ... */
    tn_measure_fn *measure;   /* ... this */
    void *user;
    int64_t *labels, *best; /* [batch, labels of one]; best NULL: the loss is wanted */
    double sum;             /* of losses, or how many are right */
    int64_t count;          /* labels, or items, that count */
} evaluation;

/* Whether f gave a tensor that is alive. */
static int given(const evaluation *e, const tn_tensor *x, const char *name)
{
    if (tn_error(e->s)) return tn_error(e->s);
    if (!x) return tn_fail(e->s, TN_E_NULL, e->op, "%s gave NULL", name);
    if (tn_ndim(x) >= 0) return TN_OK;
    return tn_fail(e->s, TN_E_STALE, e->op,
                   "%s gave a tensor that is no more: it runs inside a step, which it must not end", name);
}

/* Takes a batch into the sums; labels are read. Runs inside a step. */
static int classify(evaluation *e, const tn_batch *b)
{
    const int64_t rows = tn_numel(b->y);
    const int ndim = tn_ndim(b->y);
    int64_t counted = 0;
    for (int64_t i = 0; i < rows; i++) counted += e->labels[i] != NN_NO_LABEL;
    tn_tensor *logits = e->classify(e->s, b->x, e->user);
    int status = given(e, logits, "classify");
    if (status) return status;
    bool fits = tn_ndim(logits) == ndim + 1;
    for (int i = 0; i < ndim && fits; i++) fits = tn_dim(logits, i) == tn_dim(b->y, i);
    if (!fits)
        return tn_fail(e->s, TN_E_SHAPE, e->op,
                       "classify gave %d axes, the first of %lld; [%lld, %sclasses] expected",
                       tn_ndim(logits), (long long)tn_dim(logits, 0), (long long)b->n,
                       ndim == 1      ? ""
                       : e->d->corpus ? "ctx, "
                                      : "the labels' other axes, ");
    e->count += counted;
    if (!e->best) {
        const tn_loss_options o = {.reduction = TN_REDUCE_SUM, .size = sizeof(o)};
        if (counted) e->sum += tn_item(tn_cross_entropy(logits, b->y, &o));
        return tn_error(e->s);
    }
    status = tn_read(tn_argmax(logits, -1, false), TN_I64, e->best, (size_t)rows * sizeof(*e->best));
    for (int64_t i = 0; i < rows && !status; i++)
        e->sum += e->labels[i] != NN_NO_LABEL && e->best[i] == e->labels[i];
    return status;
}

static int measure(evaluation *e, const tn_batch *b)
{
    tn_tensor *value = e->measure(e->s, b, e->user);
    int status = given(e, value, "measure");
    if (status) return status;
    e->sum += tn_item(value) * (double)b->n;
    e->count += b->n;
    return tn_error(e->s);
}

/* Adds up what the ranks have found. */
static double share(evaluation *e)
{
    double of[2] = {e->sum, (double)e->count};
    if (tn_ranks(e->s) == 1) return of[0] / of[1];
    tn_tensor *own = tn_from(e->s, of, TN_F64, 1, (int64_t[]){2}), *all = tn_mean_over_ranks(own);
    const int status = tn_read(all, TN_F64, of, sizeof(of));
    tn_free(all);
    tn_free(own);
    return status ? NAN : of[0] / of[1];
}

static double run(evaluation *e, nn_feed *f)
{
    tn_session *s = e->s;
    bool was = tn_is_training(s);
    int status = TN_OK;
    tn_batch b;
    tn_train(s, false);
    tn_no_grad_begin(s);
    while (!status && tn_nn_feed_take(f, &b)) {
        if (e->classify) status = tn_read(b.y, TN_I64, e->labels, (size_t)tn_numel(b.y) * sizeof(*e->labels));
        if (status || (status = tn_step_begin(s))) break;
        int64_t own;
        const evaluation before = *e;
        status = e->classify ? classify(e, &b) : measure(e, &b);
        tn_nn_feed_whole(f, &own);
        if (!own) *e = before; /* another rank's item */
        int ended = tn_step_end(s);
        if (!status) status = ended ? ended : tn_error(s);
    }
    tn_no_grad_end(s);
    tn_train(s, was);
    return status || tn_error(s) ? NAN : share(e);
}

static bool refused(const evaluation *e)
{
    const tn_dataset *d = e->d;
    if (!d || (!e->classify && !e->measure))
        return tn_fail(e->s, TN_E_NULL, e->op, "%s is NULL", d ? "the function" : "the data set");
    if (d->s != e->s) return tn_fail(e->s, TN_E_SESSION, e->op, "the data set belongs to another session");
    if (e->measure) return false;
    const tn_dtype y = d->arrays == 2 ? d->array[1].dtype : TN_F32;
    if (y == TN_I32 || y == TN_I64 || y == TN_U8) return false;
    return tn_fail(e->s, TN_E_ARG, e->op,
                   "the data set is not one array and its labels, of integers: tn_evaluate_mean takes any");
}

static double evaluate(evaluation e, bool loss)
{
    if (!e.s || tn_error(e.s) || refused(&e)) return NAN;
    const int64_t item = e.d->arrays ? e.d->array[0].item : 1, most = e.d->corpus ? TOKENS : ELEMENTS;
    nn_pass pass = {
        .end = e.d->n, .batch = most / item < BATCH || e.d->corpus ? most / item : BATCH, .op = e.op};
    if (pass.batch < 1) pass.batch = 1;
    pass.rank = tn_rank(e.s);
    pass.ranks = tn_ranks(e.s);
    pass.threads = tn_nn_feed_threads(e.d, NULL, 0);
    const size_t labels = e.classify ? (size_t)(pass.batch * e.d->array[1].item) * sizeof(int64_t) : 0;
    e.labels = tn_malloc(labels);
    e.best = loss ? NULL : tn_malloc(labels);
    nn_feed *f = e.labels && (loss || e.best) ? tn_nn_feed_open(e.d, &pass) : NULL;
    double result = NAN;
    if (f)
        result = run(&e, f);
    else
        tn_fail(e.s, TN_E_NOMEM, e.op, "no memory for a batch of %lld", (long long)pass.batch);
    tn_nn_feed_close(f);
    tn_free_mem(e.labels);
    tn_free_mem(e.best);
    return result;
}

TN_DEFINE(double, evaluate, s, (s, d, f, user), tn_session *s, tn_dataset *d, tn_classify_fn *f, void *user)
{
    return evaluate((evaluation){.op = "evaluate", .s = s, .d = d, .classify = f, .user = user}, false);
}

TN_DEFINE(double, evaluate_loss, s, (s, d, f, user), tn_session *s, tn_dataset *d, tn_classify_fn *f,
          void *user)
{
    return evaluate((evaluation){.op = "evaluate_loss", .s = s, .d = d, .classify = f, .user = user}, true);
}

TN_DEFINE(double, evaluate_mean, s, (s, d, f, user), tn_session *s, tn_dataset *d, tn_measure_fn *f,
          void *user)
{
    return evaluate((evaluation){.op = "evaluate_mean", .s = s, .d = d, .measure = f, .user = user}, true);
}
