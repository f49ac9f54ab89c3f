/* evaluate.c - accuracy over a whole data set. */
#include "nn.h"

#include <math.h>

enum { BATCH = 256 };

/* How many of the n items from `first` on f gets right; -1 on error. Runs inside a step. */
static int64_t count_right(tn_session *s, tn_dataset *d, int64_t first, int64_t n, tn_classify_fn *f,
                           void *user, float *x, int32_t *labels, int64_t *best)
{
    tn_nn_dataset_copy(d, NULL, first, n, x, labels);
    tn_tensor *logits = f(s, tn_nn_dataset_tensor(d, n, x), user);
    if (!logits) return -1;
    if (tn_ndim(logits) != 2 || tn_dim(logits, 0) != n) {
        tn_fail(s, TN_E_SHAPE, "tn_evaluate",
                "classify gave %d axes, the first of %lld; [%lld, classes] expected", tn_ndim(logits),
                (long long)tn_dim(logits, 0), (long long)n);
        return -1;
    }
    if (tn_read(tn_argmax(logits, 1, false), TN_I64, best, (size_t)n * sizeof(*best))) return -1;
    int64_t right = 0;
    for (int64_t i = 0; i < n; i++) right += best[i] == labels[i];
    return right;
}

double tn_evaluate(tn_session *s, tn_dataset *d, tn_classify_fn *f, void *user)
{
    static const char op[] = "tn_evaluate";
    if (!s || tn_error(s)) return NAN;
    if (!d || !f || d->s != s) {
        if (d && f)
            tn_fail(s, TN_E_SESSION, op, "the data set belongs to another session");
        else
            tn_fail(s, TN_E_NULL, op, "%s is NULL", d ? "classify" : "data set");
        return NAN;
    }
    float *x = tn_malloc((size_t)(BATCH * d->item) * sizeof(*x));
    int32_t *labels = tn_malloc(BATCH * sizeof(*labels));
    int64_t *best = tn_malloc(BATCH * sizeof(*best)), right = 0;
    bool was = tn_is_training(s), ok = x && labels && best;
    if (!ok) tn_fail(s, TN_E_NOMEM, op, "no memory for a batch of %d", BATCH);
    tn_train(s, false);
    tn_no_grad_begin(s);
    for (int64_t at = 0; ok && at < d->n; at += BATCH) {
        int64_t n = d->n - at < BATCH ? d->n - at : BATCH;
        if (tn_step_begin(s)) {
            ok = false;
            break;
        }
        int64_t k = count_right(s, d, at, n, f, user, x, labels, best);
        ok = tn_step_end(s) == TN_OK && k >= 0 && !tn_error(s);
        right += k;
    }
    tn_no_grad_end(s);
    tn_train(s, was);
    tn_free_mem(x);
    tn_free_mem(labels);
    tn_free_mem(best);
    return ok ? (double)right / (double)d->n : NAN;
}
