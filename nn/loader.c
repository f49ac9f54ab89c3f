/* loader.c - one pass over a data set, batch by batch.
 *
 * A loader fixes its order when it is opened (see tn_nn_order), gathers each batch into one host buffer and
 * makes tensors of it. A data set knows which pass comes next, so that "for each epoch: open, loop" needs no
 * counter and a checkpoint can say where to go on. Read tn_next first.
 */
#include "nn.h"

struct tn_loader {
    tn_dataset *d;
    tn_loader *next;
    int64_t epoch, at, end; /* at: items handed out; end: of those to hand out (drop_last leaves some) */
    int64_t batch;
    uint64_t seed;
    bool cut; /* ends before the pass does (.batches): the next loader goes on with it */
    /* [n of the data set]; of a text's windows [batch], where they begin. NULL: as they stand */
    uint32_t *order;
    void *x;       /* [batch, item] */
    int32_t *y;    /* [batch, labels of one] */
    tn_batch last; /* its tensors are freed at the next call */
    nn_progress progress;
};

static uint64_t splitmix(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in 0..n-1 without bias (Lemire, "Fast random integer generation in an interval", 2019, with 32-bit
 * draws): the high half of a product, redrawn in the rare case that the low half says the bucket is short. */
static uint32_t below(uint64_t *state, uint32_t n)
{
    uint64_t m = (splitmix(state) >> 32) * n;
    if ((uint32_t)m < n) {
        uint32_t least = (0u - n) % n;
        while ((uint32_t)m < least) m = (splitmix(state) >> 32) * n;
    }
    return (uint32_t)(m >> 32);
}

void tn_nn_order(uint32_t *order, int64_t n, uint64_t seed, int64_t epoch)
{
    uint64_t state = seed + 0x9e3779b97f4a7c15u * ((uint64_t)epoch + 1);
    for (int64_t i = 0; i < n; i++) order[i] = (uint32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        uint32_t j = below(&state, (uint32_t)(i + 1)), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

/* Windows are drawn with replacement, so a pass needs no list of them: draw i starts a generator of its own.
 * The pass's state is drawn, not counted up, since those of neighbouring passes would overlap. */
void tn_nn_places(uint32_t *places, int64_t first, int64_t n, uint32_t end, uint64_t seed, int64_t epoch)
{
    uint64_t state = seed + 0x9e3779b97f4a7c15u * ((uint64_t)epoch + 1), pass = splitmix(&state);
    for (int64_t i = 0; i < n; i++) {
        state = pass + 0x9e3779b97f4a7c15u * (uint64_t)(first + i);
        places[i] = below(&state, end);
    }
}

static void destroy(void *p)
{
    tn_loader *l = p;
    tn_free_mem(l->order);
    tn_free_mem(l->x);
    tn_free_mem(l->y);
}

TN_DEFINE(tn_loader *, loader_open_with, d ? d->s : NULL, (d, options), tn_dataset *d,
          const tn_loader_options *options)
{
    NN_OPTIONS(tn_loader_options, o, options);
    static const char op[] = "loader_open";
    if (!d) return NULL;
    int64_t batch = o->batch ? o->batch : 64;
    if (batch < 0 || o->batches < 0) {
        tn_fail(d->s, TN_E_ARG, op, "batch %lld and batches %lld must not be below 0", (long long)batch,
                (long long)o->batches);
        return NULL;
    }
    bool drawn = d->corpus && o->shuffle;
    if (batch > d->n && !drawn) batch = d->n;
    int64_t most = INT64_MAX / 8 / batch; /* what a product with batch may be made of */
    bool fits = d->item <= most && d->labels_each <= most && o->batches <= most;
    tn_loader *l = fits ? tn_nn_own(d->s, sizeof(*l), destroy, op) : NULL;
    if (l) {
        l->x = tn_malloc((size_t)(batch * d->item) * sizeof(float));
        l->y = tn_malloc((size_t)(batch * d->labels_each) * sizeof(int32_t));
        l->order = o->shuffle ? tn_malloc((size_t)(drawn ? batch : d->n) * sizeof(uint32_t)) : NULL;
    }
    if (!l || !l->x || !l->y || (o->shuffle && !l->order)) {
        if (l) tn_nn_drop(d->s, l);
        tn_fail(d->s, TN_E_NOMEM, op, "no memory for batches of %lld", (long long)batch);
        return NULL;
    }
    l->d = d;
    l->batch = batch;
    l->epoch = d->next_epoch;
    l->at = d->next_at;
    l->end = o->drop_last ? d->n - d->n % (o->batch ? o->batch : 64) : d->n;
    l->cut = o->batches && (drawn || o->batches * batch < l->end);
    if (l->cut) l->end = o->batches * batch;
    l->seed = o->seed ? o->seed : tn_seed(d->s);
    d->next_epoch++;
    d->next_at = 0;
    if (l->order && !drawn) tn_nn_order(l->order, d->n, l->seed, l->epoch);
    if (o->progress)
        tn_nn_progress_begin(&l->progress, o->progress_to ? o->progress_to : stderr, tn_loader_batches(l),
                             l->at / batch, l->epoch);
    l->next = d->loaders;
    d->loaders = l;
    return l;
}

int64_t tn_loader_batches(const tn_loader *l)
{
    return l ? (l->end + l->batch - 1) / l->batch : 0;
}

void tn_loader_close(tn_loader *l)
{
    if (!l) return;
    tn_nn_progress_end(&l->progress, tn_error(l->d->s) != TN_OK);
    tn_free(l->last.x);
    tn_free(l->last.y);
    for (tn_loader **p = &l->d->loaders; *p; p = &(*p)->next)
        if (*p == l) {
            *p = l->next;
            break;
        }
    tn_nn_drop(l->d->s, l);
}

/* The step that the value was asked for in has ended: it is that step's, not the one before's. */
static void take_watched(tn_loader *l, int k)
{
    nn_progress *p = &l->progress;
    if (p->watch[k] < 0) return;
    tn_nn_progress_value(p, k, tn_watched(l->d->s, p->watch[k]));
    p->watch[k] = -1;
}

TN_DEFINE(int, next, l ? l->d->s : NULL, (l, b), tn_loader *l, tn_batch *b)
{
    if (!l) return 0;
    tn_session *s = l->d->s;
    if (!b) tn_fail(s, TN_E_NULL, "next", "batch is NULL");
    for (int i = 0; i < l->progress.n; i++) take_watched(l, i);
    if (!tn_error(s)) tn_nn_progress_step(&l->progress, l->at / l->batch + (l->at % l->batch != 0));
    if (l->at >= l->end || tn_error(s)) {
        if (l->cut && l->d->next_epoch == l->epoch + 1) {
            l->d->next_epoch = l->epoch;
            l->d->next_at = l->at;
        }
        tn_loader_close(l);
        return 0;
    }
    int64_t n = l->end - l->at < l->batch ? l->end - l->at : l->batch;
    bool drawn = l->d->corpus && l->order;
    if (drawn) {
        int64_t room = l->d->corpus->n - l->d->item; /* a part shorter than a window has one place */
        tn_nn_places(l->order, l->at, n, room > 0 ? (uint32_t)room : 1, l->seed, l->epoch);
    }
    tn_nn_dataset_copy(l->d, l->order, drawn ? 0 : l->at, n, l->x, l->y);
    tn_free(l->last.x);
    tn_free(l->last.y);
    l->last.x = tn_nn_dataset_tensor(l->d, n, l->x);
    l->last.y = tn_nn_dataset_labels(l->d, n, l->y);
    if (!l->last.x || !l->last.y) {
        tn_loader_close(l);
        return 0;
    }
    l->last.n = n;
    l->last.number = l->at / l->batch;
    l->at += n;
    *b = l->last;
    return 1;
}

int tn_progress_with(tn_loader *l, const tn_progress_values *v)
{
    if (!l || !v) return TN_E_NULL;
    nn_progress *p = &l->progress;
    if (!p->out) return TN_OK;
    const char *name[4] = {v->name0, v->name1, v->name2, v->name3};
    tn_tensor *value[4] = {v->value0, v->value1, v->value2, v->value3};
    for (p->n = 0; p->n < 4 && name[p->n]; p->n++) {
        int before = tn_watches(l->d->s);
        double now = value[p->n] ? tn_watch(value[p->n]) : 0.0 / 0.0;
        bool later = tn_watches(l->d->s) > before;
        snprintf(p->name[p->n], sizeof(p->name[0]), "%s", name[p->n]);
        p->watch[p->n] = later ? before : -1;
        if (!later && tn_numel(value[p->n]) == 1 && !tn_error(l->d->s)) tn_nn_progress_value(p, p->n, now);
    }
    return TN_OK;
}

void tn_nn_dataset_position(const tn_dataset *d, int64_t *epoch, int64_t *at)
{
    const tn_loader *l = d->loaders;
    bool inside = l && (l->cut || l->at < l->end);
    *epoch = inside ? l->epoch : d->next_epoch;
    *at = inside ? l->at : d->next_at;
}
