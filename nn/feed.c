/* feed.c - puts the batches of a pass together, on threads of its own ahead of who takes them, or as they are
 * taken.
 *
 * A slot holds one batch on the host. Threads fill the oldest slot that has items left, CHUNK items at a
 * time; what a slot holds is a function of the pass alone, so that their number and their speed change
 * nothing but when it is there. There are AHEAD slots, which is what bounds the memory. Read tn_nn_feed_take
 * first, then worker.
 */
#include "nn.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

enum { AHEAD = 2, USUAL_THREADS = 8, MOST_THREADS = 64, CHUNK = 4 };

typedef struct slot {
    void *values[TN_MAX_ARRAYS]; /* [batch, item] each */
    int64_t first, n;            /* its items of the pass; n 0: it is past the end */
    int64_t taken, filled;       /* of them, those that a thread has begun with and done */
    int64_t bad;                 /* the first item that could not be made, */
    nn_why why;                  /* and why */
} slot;

struct nn_feed {
    const tn_dataset *d;
    nn_pass pass;
    int64_t next; /* the first item of the pass that is in no slot */
    slot slot[AHEAD];
    int slots, head; /* how many; the one that is taken next */
    tn_batch batch;  /* that was taken last */
    bool stop;
    int threads;
    pthread_t thread[MOST_THREADS];
    pthread_mutex_t lock; /* for what changes in slots, next and stop */
    pthread_cond_t work, ready;
};

/* The next batch of the pass becomes the slot's. */
static void assign(nn_feed *f, slot *t)
{
    const int64_t left = f->pass.end - f->next;
    t->first = f->next;
    t->n = left < 0 ? 0 : left < f->pass.batch ? left : f->pass.batch;
    t->taken = t->filled = 0;
    t->why.status = TN_OK;
    f->next += t->n;
}

/* Item i of the slot; its place in the slot's values is its own. */
static int fill(const nn_feed *f, const slot *t, int64_t i, nn_why *why)
{
    const nn_pass *p = &f->pass;
    void *to[TN_MAX_ARRAYS];
    int64_t k = t->first + i;
    for (int a = 0; a < f->d->arrays; a++)
        to[a] =
            (char *)t->values[a] + (size_t)(i * f->d->array[a].item) * tn_dtype_size(f->d->array[a].dtype);
    if (p->drawn) {
        const int64_t room =
            f->d->corpus->n - f->d->array[0].item; /* a part shorter than a window has one place */
        uint32_t place;
        tn_nn_places(&place, k, 1, room > 0 ? (uint32_t)room : 1, p->seed, p->epoch);
        k = place;
    } else if (p->order) {
        k = p->order[k];
    } else if (f->d->corpus) {
        k *= f->d->array[0].item;
    }
    return tn_nn_item(f->d, k, to, why);
}

/* Fills items of the slot from `from` on, up to CHUNK or to its end. */
static void fill_some(nn_feed *f, slot *t, int64_t from)
{
    const int64_t to = from + CHUNK < t->n ? from + CHUNK : t->n;
    nn_why why = {0};
    int64_t i = from;
    while (i < to && !fill(f, t, i, &why)) i++;
    if (f->threads) pthread_mutex_lock(&f->lock);
    if (why.status && (!t->why.status || i < t->bad)) {
        t->why = why;
        t->bad = i;
    }
    t->filled += to - from;
    if (f->threads) {
        if (t->filled == t->n) pthread_cond_signal(&f->ready);
        pthread_mutex_unlock(&f->lock);
    }
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

int tn_nn_feed_threads(const tn_dataset *d, int wanted)
{
    if (wanted) return wanted > 0 ? wanted : 0;
    return d->slow ? tn_threads(d->s) < USUAL_THREADS ? tn_threads(d->s) : USUAL_THREADS : 0;
}

nn_feed *tn_nn_feed_open(const tn_dataset *d, const nn_pass *pass)
{
    nn_feed *f = tn_calloc(1, sizeof(*f));
    if (!f) return NULL;
    f->d = d;
    f->pass = *pass;
    f->next = pass->at;
    f->slots = pass->threads > 0 ? AHEAD : 1;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->work, NULL);
    pthread_cond_init(&f->ready, NULL);
    for (int i = 0; i < f->slots; i++)
        for (int a = 0; a < d->arrays; a++) {
            const nn_array *of = &d->array[a];
            f->slot[i].values[a] = tn_malloc((size_t)(pass->batch * of->item) * tn_dtype_size(of->dtype));
            if (!f->slot[i].values[a]) {
                tn_nn_feed_close(f);
                return NULL;
            }
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
    for (int a = 0; a < f->d->arrays && !tn_error(f->d->s); a++)
        b->of[a] = tn_nn_dataset_tensor(f->d, a, t->n, t->values[a]);
    b->x = b->of[0];
    b->y = b->of[1];
    b->n = t->n;
    b->number = t->first / f->pass.batch;
    return !tn_error(f->d->s);
}

int tn_nn_feed_take(nn_feed *f, tn_batch *b)
{
    slot *t = &f->slot[f->head];
    if (!f->threads)
        for (int64_t i = 0; i < t->n; i += CHUNK) fill_some(f, t, i);
    if (f->threads) pthread_mutex_lock(&f->lock);
    while (t->filled < t->n) pthread_cond_wait(&f->ready, &f->lock);
    if (f->threads) pthread_mutex_unlock(&f->lock);
    free_tensors(f);
    if (!t->n || !make_tensors(f, t)) return 0;
    *b = f->batch;
    if (f->threads) pthread_mutex_lock(&f->lock);
    assign(f, t);
    f->head = (f->head + 1) % f->slots;
    if (f->threads) {
        pthread_cond_broadcast(&f->work);
        pthread_mutex_unlock(&f->lock);
    }
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
        for (int a = 0; a < TN_MAX_ARRAYS; a++) tn_free_mem(f->slot[i].values[a]);
    tn_free_mem(f);
}
