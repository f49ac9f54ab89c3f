/* evaluate.c - accuracy and mean loss over a whole data set.
 *
 * Batches go in a fixed order and their sums are added on the host in double precision, so a result does not
 * depend on how items fall into batches but for the rounding inside one. Read evaluate first.
 */
#include "nn.h"

#include <math.h>

enum { BATCH = 256, TOKENS = 4096 }; /* images in a batch; of a text, characters in the windows of a batch */

typedef struct evaluation {
    const char *op;
    tn_session *s;
    tn_dataset *d;
    tn_classify_fn *f;
    void *user;
    int64_t batch;
    void *x;         /* [batch, item] */
    int32_t *labels; /* [batch, labels of one] */
    int64_t *best;   /* as labels; NULL where the loss is wanted */
    double sum;      /* of losses, or how many are right */
    int64_t count;   /* labels that count */
} evaluation;

/* Takes the n items from `first` on into the sums. Runs inside a step. */
static int measure(evaluation *e, int64_t first, int64_t n)
{
    int64_t each = e->d->labels_each, rows = n * each, counted = 0;
    int ndim = e->d->corpus ? 3 : 2;
    tn_nn_dataset_copy(e->d, NULL, first, n, e->x, e->labels);
    for (int64_t i = 0; i < rows; i++) counted += e->labels[i] != NN_NO_LABEL;
    tn_tensor *logits = e->f(e->s, tn_nn_dataset_tensor(e->d, n, e->x), e->user);
    if (!logits)
        return tn_error(e->s) ? tn_error(e->s) : tn_fail(e->s, TN_E_NULL, e->op, "classify gave NULL");
    if (tn_ndim(logits) < 0)
        return tn_error(e->s)
                   ? tn_error(e->s)
                   : tn_fail(e->s, TN_E_STALE, e->op,
                             "classify gave a tensor that is no more: it runs inside a step, which it must "
                             "not end");
    if (tn_ndim(logits) != ndim || tn_dim(logits, 0) != n || (ndim == 3 && tn_dim(logits, 1) != each))
        return tn_fail(e->s, TN_E_SHAPE, e->op,
                       "classify gave %d axes, the first of %lld; [%lld, %sclasses] expected",
                       tn_ndim(logits), (long long)tn_dim(logits, 0), (long long)n, ndim == 3 ? "ctx, " : "");
    e->count += counted;
    if (!e->best) {
        const tn_loss_options o = {.reduction = TN_REDUCE_SUM, .size = sizeof(o)};
        tn_tensor *y = tn_nn_dataset_labels(e->d, n, e->labels);
        if (counted) e->sum += tn_item(tn_cross_entropy(logits, y, &o));
        return tn_error(e->s);
    }
    int status = tn_read(tn_argmax(logits, -1, false), TN_I64, e->best, (size_t)rows * sizeof(*e->best));
    for (int64_t i = 0; i < rows && !status; i++)
        e->sum += e->labels[i] != NN_NO_LABEL && e->best[i] == e->labels[i];
    return status;
}

static double run(evaluation *e)
{
    tn_session *s = e->s;
    bool was = tn_is_training(s);
    int status = TN_OK;
    tn_train(s, false);
    tn_no_grad_begin(s);
    for (int64_t at = 0; !status && at < e->d->n; at += e->batch) {
        if ((status = tn_step_begin(s))) break;
        status = measure(e, at, e->d->n - at < e->batch ? e->d->n - at : e->batch);
        int ended = tn_step_end(s);
        if (!status) status = ended ? ended : tn_error(s);
    }
    tn_no_grad_end(s);
    tn_train(s, was);
    return status ? NAN : e->sum / (double)e->count;
}

static double evaluate(tn_session *s, tn_dataset *d, tn_classify_fn *f, void *user, const char *op, bool loss)
{
    if (!s || tn_error(s)) return NAN;
    if (!d || !f || d->s != s) {
        if (d && f)
            tn_fail(s, TN_E_SESSION, op, "the data set belongs to another session");
        else
            tn_fail(s, TN_E_NULL, op, "%s is NULL", d ? "classify" : "data set");
        return NAN;
    }
    evaluation e = {.op = op, .s = s, .d = d, .f = f, .user = user, .batch = BATCH};
    if (d->corpus) e.batch = d->item < TOKENS ? TOKENS / d->item : 1;
    size_t labels = (size_t)(e.batch * d->labels_each);
    e.x = tn_malloc((size_t)(e.batch * d->item) * sizeof(float)); /* or i32 */
    e.labels = tn_malloc(labels * sizeof(*e.labels));
    e.best = loss ? NULL : tn_malloc(labels * sizeof(*e.best));
    double result = NAN;
    if (e.x && e.labels && (loss || e.best))
        result = run(&e);
    else
        tn_fail(s, TN_E_NOMEM, op, "no memory for a batch of %lld", (long long)e.batch);
    tn_free_mem(e.x);
    tn_free_mem(e.labels);
    tn_free_mem(e.best);
    return result;
}

TN_DEFINE(double, evaluate, s, (s, d, f, user), tn_session *s, tn_dataset *d, tn_classify_fn *f, void *user)
{
    return evaluate(s, d, f, user, "evaluate", false);
}

TN_DEFINE(double, evaluate_loss, s, (s, d, f, user), tn_session *s, tn_dataset *d, tn_classify_fn *f,
          void *user)
{
    return evaluate(s, d, f, user, "evaluate_loss", true);
}
