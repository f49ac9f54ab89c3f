/* feed.c - puts the batches of a pass together, on threads of its own ahead of who takes them, or as they are
 * taken.
 *
 * A slot holds one batch on the host. Threads fill the oldest slot that has items left, CHUNK items at a
 * time; what a slot holds is a function of the pass alone, so that their number and their speed change
 * nothing but when it is there. There are AHEAD slots, which is what bounds the memory. Read tn_nn_feed_take
 * first, then worker. */
#include "augment.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

enum { AHEAD = 2, USUAL_THREADS = 8, MOST_THREADS = 64, CHUNK = 4 };

typedef struct slot {
    void *values[TN_MAX_ARRAYS]; /* [batch, item] each */
    int64_t first, n;            /* its items of the pass; n 0: it is past the end */
    int64_t whole, counts;       /* of all ranks; of these those that are this rank's */
    int64_t taken, filled;       /* of them, those that a thread has begun with and done */
    bool ready;
    float *soft;                           /* [batch, classes]: labels of mixed items */
    int64_t bad;                           /* the first item that could not be made, */
    nn_why why;                            /* and why */
    int64_t damaged;                       /* items found to be so, */
    char damage[sizeof((nn_why){0}.text)]; /* and how one of them is */
} slot;

struct nn_feed {
    tn_dataset *d;
    nn_pass pass;
    nn_draw draw; /* what pass.draw points to */
    int64_t next; /* the first item of the pass that is in no slot */
    slot slot[AHEAD];
    int slots, head;       /* how many; the one that is taken next */
    tn_batch batch;        /* that was taken last, */
    int64_t whole, counts; /* and of how many items: all ranks', and of this one */
    bool stop;
    int threads;
    pthread_t thread[MOST_THREADS];
    pthread_mutex_t lock; /* for what changes in slots, next and stop */
    pthread_cond_t work, ready;
};

/* The next batch of the pass becomes the slot's. */
static void assign(nn_feed *f, slot *t)
{
    const nn_pass *p = &f->pass;
    const int64_t left = f->pass.end - f->next, most = p->batch * p->ranks;
    t->whole = left < 0 ? 0 : left < most ? left : most;
    const int64_t each = t->whole / p->ranks, more = t->whole % p->ranks;
    t->first = f->next + p->rank * each + (p->rank < more ? p->rank : more);
    t->n = t->counts = each + (p->rank < more);
    if (t->whole && !t->n) { /* takes part with an item of another rank's, which does not count */
        t->n = 1;
        t->first--;
    }
    t->taken = t->filled = t->damaged = 0;
    t->ready = !t->n;
    t->why.status = TN_OK;
    f->next += t->whole;
}

/* The item of the data set that is item i of the slot; of a text, where its window begins. */
static int64_t item_at(const nn_feed *f, const slot *t, int64_t i)
{
    const nn_pass *p = &f->pass;
    if (p->order) return p->order[t->first + i];
    if (!f->d->corpus) return t->first + i;
    const int64_t ctx = f->d->array[0].item,
                  room = f->d->corpus->n - ctx; /* a part shorter than a window has one place */
    uint32_t place;
    if (!p->drawn) return (t->first + i) * ctx;
    tn_nn_places(&place, t->first + i, 1, room > 0 ? (uint32_t)room : 1, p->seed, p->epoch);
    return place;
}

/* What item i becomes: in a share of its own itself, and the rest item j; one that has no label is left out. */
static void share(const nn_feed *f, const slot *t, int64_t i, int64_t j, float of[2])
{
    const int32_t *y = t->values[1];
    const bool has[2] = {y[i] != NN_NO_LABEL, y[j] != NN_NO_LABEL};
    const float r = (float)tn_nn_share(&f->draw, item_at(f, t, i));
    of[0] = has[0] && has[1] ? r : has[0];
    of[1] = has[0] && has[1] ? 1 - r : has[1];
}

/* Items are mixed with those that stand as far from the batch's other end. Labels become shares of the classes. */
static void mix(const nn_feed *f, slot *t)
{
    const int64_t item = f->d->array[0].item, classes = f->d->classes;
    const int32_t *y = t->values[1];
    float *x = t->values[0], of_i[2], of_j[2];
    memset(t->soft, 0, (size_t)(t->n * classes) * sizeof(float));
    for (int64_t i = 0; i < t->n; i++)
        if (y[i] != NN_NO_LABEL && (y[i] < 0 || y[i] >= classes)) {
            tn_nn_why(&t->why, TN_E_INDEX, "labels[%lld] is %d, must be from 0 to %lld", (long long)i, y[i],
                      (long long)classes - 1);
            return;
        }
    for (int64_t i = 0; i < t->n; i++) {
        const int64_t j = t->n - 1 - i;
        share(f, t, i, j, of_i);
        share(f, t, j, i, of_j);
        if (y[i] != NN_NO_LABEL) t->soft[i * classes + y[i]] += of_i[0];
        if (y[j] != NN_NO_LABEL) t->soft[i * classes + y[j]] += of_i[1];
        if (i == j && y[i] == NN_NO_LABEL) memset(x + i * item, 0, (size_t)item * sizeof(*x));
        for (int64_t k = 0; k < item && i < j; k++) {
            float *a = x + i * item + k, *b = x + j * item + k;
            const float one = *a, other = *b;
            *a = of_i[0] * one + of_i[1] * other;
            *b = of_j[0] * other + of_j[1] * one;
        }
    }
}

/* Fills items of the slot from `from` on, up to CHUNK or to its end; places in its values are each item's
 * own. */
static void fill_some(nn_feed *f, slot *t, int64_t from)
{
    const int64_t to = from + CHUNK < t->n ? from + CHUNK : t->n;
    nn_why why = {0}, damage = {0};
    int64_t i = from, damaged = 0;
    for (int status = TN_OK; i < to && !status; i++) {
        nn_why here = {0};
        void *at[TN_MAX_ARRAYS];
        for (int a = 0; a < f->d->arrays; a++)
            at[a] = (char *)t->values[a] +
                    (size_t)(i * f->d->array[a].item) * tn_dtype_size(f->d->array[a].dtype);
        status = tn_nn_item(f->d, item_at(f, t, i), f->pass.draw, at, &here);
        if (status == NN_DAMAGED) {
            if (*here.text && !damaged++) damage = here;
            status = TN_OK;
        } else if (status) {
            why = here;
            why.status = status;
            break;
        }
    }
    pthread_mutex_lock(&f->lock);
    if (why.status && (!t->why.status || i < t->bad)) {
        t->why = why;
        t->bad = i;
    }
    if (damaged && !t->damaged) memcpy(t->damage, damage.text, sizeof(t->damage));
    t->damaged += damaged;
    t->filled += to - from;
    const bool last = t->filled == t->n;
    pthread_mutex_unlock(&f->lock);
    if (!last) return;
    if (t->soft && !t->why.status) mix(f, t);
    pthread_mutex_lock(&f->lock);
    t->ready = true;
    pthread_cond_signal(&f->ready);
    pthread_mutex_unlock(&f->lock);
}

static slot *slot_to_fill(nn_feed *f)
{
    for (int i = 0; i < f->slots; i++) {
        slot *t = &f->slot[(f->head + i) % f->slots];
        if (t->taken < t->n) return t;
    }
    return NULL;
}

static void *worker(void *arg)
{
    nn_feed *f = arg;
    pthread_mutex_lock(&f->lock);
    while (!f->stop) {
        slot *t = slot_to_fill(f);
        if (!t) {
            pthread_cond_wait(&f->work, &f->lock);
            continue;
        }
        const int64_t from = t->taken;
        t->taken += CHUNK;
        pthread_mutex_unlock(&f->lock);
        fill_some(f, t, from);
        pthread_mutex_lock(&f->lock);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* As many threads as can be had; without any, batches are put together as they are taken. */
static void start(nn_feed *f)
{
    sigset_t all, old;
    const int wanted = f->pass.threads < MOST_THREADS ? f->pass.threads : MOST_THREADS;
    sigfillset(&all); /* the program's signals are for its own threads */
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_mutex_lock(&f->lock); /* until the count is known */
    while (f->threads < wanted && !pthread_create(&f->thread[f->threads], NULL, worker, f)) f->threads++;
    if (!f->threads) f->slots = 1;
    for (int i = 0; i < f->slots; i++) assign(f, &f->slot[i]);
    pthread_mutex_unlock(&f->lock);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

int tn_nn_feed_threads(const tn_dataset *d, const nn_draw *draw, int wanted)
{
    if (wanted) return wanted > 0 ? wanted : 0;
    if (!d->slow) return draw ? 1 : 0;
    return tn_threads(d->s) < USUAL_THREADS ? tn_threads(d->s) : USUAL_THREADS;
}

nn_feed *tn_nn_feed_open(tn_dataset *d, const nn_pass *pass)
{
    nn_feed *f = tn_calloc(1, sizeof(*f));
    if (!f) return NULL;
    f->d = d;
    f->pass = *pass;
    if (!f->pass.ranks) f->pass.ranks = 1;
    if (pass->draw) f->draw = *pass->draw;
    if (pass->draw) f->pass.draw = &f->draw;
    const bool mixes = pass->draw && pass->draw->how.mixup > 0;
    f->next = pass->at;
    f->slots = pass->threads > 0 ? AHEAD : 1;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->work, NULL);
    pthread_cond_init(&f->ready, NULL);
    bool good = true;
    for (int i = 0; i < f->slots; i++) {
        slot *t = &f->slot[i];
        for (int a = 0; a < d->arrays; a++) {
            const nn_array *of = &d->array[a];
            t->values[a] = tn_malloc((size_t)(pass->batch * of->item) * tn_dtype_size(of->dtype));
            good = good && t->values[a];
        }
        if (mixes) t->soft = tn_malloc((size_t)(pass->batch * d->classes) * sizeof(float));
        good = good && (t->soft || !mixes);
    }
    if (!good) {
        tn_nn_feed_close(f);
        return NULL;
    }
    start(f);
    return f;
}

static void free_tensors(nn_feed *f)
{
    for (int a = 0; a < f->d->arrays; a++) tn_free(f->batch.of[a]);
    f->batch = (tn_batch){.x = NULL};
}

static bool make_tensors(nn_feed *f, const slot *t)
{
    tn_batch *b = &f->batch;
    if (t->why.status) tn_fail(f->d->s, t->why.status, f->pass.op, "%s", t->why.text);
    if (t->damaged)
        tn_warn(f->d->s, "%lld damaged, and %s%s: %s", (long long)t->damaged,
                t->soft ? "left out of what is mixed" : "handed over as zeros with the label -100",
                t->damaged > 1 ? ", one of them" : "", t->damage);
    f->d->damaged += t->damaged;
    for (int a = 0; a < f->d->arrays && !tn_error(f->d->s); a++)
        b->of[a] = a == 1 && t->soft ? tn_from(f->d->s, t->soft, TN_F32, 2, (int64_t[]){t->n, f->d->classes})
                                     : tn_nn_dataset_tensor(f->d, a, t->n, t->values[a]);
    b->x = b->of[0];
    b->y = b->of[1];
    b->n = t->n;
    b->number = (t->first + t->n - 1) / (f->pass.batch * f->pass.ranks);
    f->whole = t->whole;
    f->counts = t->counts;
    return !tn_error(f->d->s);
}

int tn_nn_feed_take(nn_feed *f, tn_batch *b)
{
    slot *t = &f->slot[f->head];
    for (int64_t i = 0; i < t->n && !f->threads; i += CHUNK) fill_some(f, t, i);
    pthread_mutex_lock(&f->lock);
    while (!t->ready) pthread_cond_wait(&f->ready, &f->lock);
    pthread_mutex_unlock(&f->lock);
    free_tensors(f);
    if (!t->n || !make_tensors(f, t)) return 0;
    *b = f->batch;
    pthread_mutex_lock(&f->lock);
    assign(f, t);
    f->head = (f->head + 1) % f->slots;
    pthread_cond_broadcast(&f->work);
    pthread_mutex_unlock(&f->lock);
    return 1;
}

void tn_nn_feed_close(nn_feed *f)
{
    if (!f) return;
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_cond_broadcast(&f->work);
    pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < f->threads; i++) pthread_join(f->thread[i], NULL);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->work);
    pthread_cond_destroy(&f->ready);
    free_tensors(f);
    for (int i = 0; i < AHEAD; i++)
        for (int a = 0; a <= TN_MAX_ARRAYS; a++)
            tn_free_mem(a < TN_MAX_ARRAYS ? f->slot[i].values[a] : (void *)f->slot[i].soft);
    tn_free_mem(f);
}

int64_t tn_nn_feed_whole(const nn_feed *f, int64_t *counts)
{
    if (counts) *counts = f->counts;
    return f->whole;
}
