/* loader.c - one pass over a data set, batch by batch.
 *
 * A loader fixes its order when it is opened (see tn_nn_order), and hands on what feed.c puts together. A
 * data set knows which pass comes next, so that "for each epoch: open, loop" needs no counter and a
 * checkpoint can say where to go on: at what has been handed out, however much more is ready. Read tn_next
 * first. */
#include "augment.h"

struct tn_loader {
    tn_dataset *d;
    int64_t epoch, at, end; /* at: items handed out; end: of those to hand out (drop_last leaves some) */
    int64_t batch;          /* items that all ranks together take at a time */
    bool cut;               /* ends before the pass does (.batches): the next loader goes on with it */
    uint32_t *order;        /* [n of the data set]; NULL: as they stand, or drawn */
    nn_feed *feed;
    nn_progress progress;
};

static void destroy(void *p)
{
    tn_loader *l = p;
    tn_nn_feed_close(l->feed);
    tn_free_mem(l->order);
}

/* Elements of a batch can be counted. */
static bool fits(const tn_dataset *d, int64_t batch, int64_t batches)
{
    const int64_t most = INT64_MAX / 8 / batch;
    for (int a = 0; a < d->arrays; a++)
        if (d->array[a].item > most) return false;
    return batches <= most;
}

/* Labels of which it is not said what they are below: they are counted. */
static int64_t count_classes(const tn_dataset *d)
{
    int64_t most = -1;
    const int32_t *y = (const int32_t *)d->array[1].data;
    for (int64_t i = 0; i < d->n && y; i++)
        if (y[i] > most) most = y[i];
    return most + 1;
}

/* What is asked of images, or why it cannot be done; true where anything is. */
static bool augments(tn_dataset *d, const tn_augment *a, nn_why *why)
{
    const double number[] = {a->pad,      a->crop[0],    a->crop[1], a->brightness,
                             a->contrast, a->saturation, a->mixup};
    bool any = a->flip;
    for (size_t i = 0; i < sizeof(number) / sizeof(*number); i++) {
        any = any || number[i] != 0;
        if (!(number[i] >= 0) || number[i] > (i ? 4 : 1 << 14))
            tn_nn_why(why, TN_E_ARG, "augment: %g is no number that any of it can be", number[i]);
    }
    if (!any) return false;
    if (a->crop[1] != 0 && (!(a->crop[0] > 0) || a->crop[0] > a->crop[1] || a->crop[1] > 1 || a->pad))
        tn_nn_why(why, TN_E_ARG,
                  "augment: crop {%g, %g} must rise from above 0 to at most 1, and goes without pad",
                  a->crop[0], a->crop[1]);
    if (!d->arrays || d->array[0].raw != NN_PIXELS)
        tn_nn_why(why, TN_E_ARG, "augment: the data set has no images (an array of them has a .std)");
    for (int i = 1; i < d->arrays; i++)
        if (a->crop[1] != 0 && tn_nn_follows(d, i))
            tn_nn_why(why, TN_E_UNSUPPORTED, "augment: crop would scale array %d, a map of the pixels", i);
    if (a->mixup > 0 && (d->arrays != 2 || d->array[1].dtype != TN_I32 || d->array[1].ndim))
        tn_nn_why(why, TN_E_ARG, "augment: mixup wants images and their labels, of i32");
    else if (a->mixup > 0 && !d->classes)
        d->classes = count_classes(d);
    if (a->mixup > 0 && !d->classes && !why->status)
        tn_nn_why(why, TN_E_ARG, "augment: mixup needs to know the classes");
    return true;
}

/* A loop over this pass does nothing, which is seldom what was meant. */
static void warn_of_none(const tn_dataset *d, const tn_loader_options *o, const nn_pass *p, int64_t whole)
{
    const long long came = (long long)(p->at / whole), more = (long long)o->batches;
    if (!p->end)
        tn_warn(d->s, "loader_open: no batch: .drop_last leaves out the %lld items, fewer than a batch has",
                (long long)d->n);
    else if (more)
        tn_warn(d->s,
                "loader_open: no batch is left: .batches = %lld counts from where the pass began, which has "
                "come to %lld; %lld more of this pass are .batches = %lld",
                more, came, more, came + more);
    else
        tn_warn(
            d->s,
            "loader_open: no batch is left of this pass, which has come to %lld; the next one begins anew",
            came);
}

TN_DEFINE(tn_loader *, loader_open_with, d ? d->s : NULL, (d, options), tn_dataset *d,
          const tn_loader_options *options)
{
    NN_OPTIONS(tn_loader_options, o, options);
    static const char op[] = "loader_open";
    if (!d) return NULL;
    const int64_t wanted = o->batch ? o->batch : d->arrays ? 64 : 1;
    if (wanted < 0 || o->batches < 0)
        return tn_nn_fail(d->s, TN_E_ARG, op, "batch %lld and batches %lld must not be below 0",
                          (long long)wanted, (long long)o->batches);
    nn_why why = {0};
    nn_draw draw = {.how = o->augment};
    const bool drawn = d->corpus && o->shuffle, augmented = augments(d, &o->augment, &why);
    if (why.status) return tn_nn_fail(d->s, why.status, op, "%s", why.text);
    const int ranks = tn_ranks(d->s);
    const int64_t part = (d->n + ranks - 1) / ranks, batch = wanted > part && !drawn ? part : wanted,
                  whole = batch * ranks;
    tn_loader *l = fits(d, batch, o->batches) ? tn_nn_own(d->s, sizeof(*l), destroy, op) : NULL;
    nn_pass pass = {.drawn = drawn,
                    .epoch = d->next_epoch,
                    .at = d->next_at,
                    .batch = batch,
                    .rank = tn_rank(d->s),
                    .ranks = ranks,
                    .op = "next"};
    pass.seed = o->seed ? o->seed : tn_seed(d->s);
    pass.end = o->drop_last ? d->n - d->n % (wanted * ranks) : d->n;
    const bool cut = l && o->batches && (drawn || o->batches * whole < pass.end);
    if (cut) pass.end = o->batches * whole;
    char text[160];
    snprintf(text, sizeof(text), "batches of %lld, items %lld to %lld of %lld, pass %lld, %s, seed %llu",
             (long long)batch, (long long)pass.at, (long long)pass.end, (long long)d->n,
             (long long)pass.epoch,
             drawn        ? "drawn"
             : o->shuffle ? "shuffled"
                          : "in order",
             (unsigned long long)pass.seed);
    if (tn_same_on_ranks(d->s, op, text)) {
        if (l) tn_nn_drop(d->s, l);
        return NULL;
    }
    draw.key = tn_nn_key(pass.seed, pass.epoch);
    if (augmented) pass.draw = &draw;
    pass.threads = tn_nn_feed_threads(d, pass.draw, o->workers);
    if (l && o->shuffle && !drawn && (l->order = tn_malloc((size_t)d->n * sizeof(uint32_t))))
        tn_nn_order(l->order, d->n, pass.seed, pass.epoch);
    pass.order = l ? l->order : NULL;
    if (l && (pass.order || drawn || !o->shuffle)) l->feed = tn_nn_feed_open(d, &pass);
    if (!l || !l->feed) {
        if (l) tn_nn_drop(d->s, l);
        return tn_nn_fail(d->s, TN_E_NOMEM, op, "no memory for batches of %lld", (long long)batch);
    }
    l->d = d;
    l->batch = whole;
    l->epoch = pass.epoch;
    l->at = pass.at;
    l->end = pass.end;
    l->cut = cut;
    d->next_epoch++;
    d->next_at = 0;
    if (l->at >= l->end && d->n) warn_of_none(d, o, &pass, whole);
    if (o->progress && !tn_rank(d->s))
        tn_nn_progress_begin(&l->progress, o->progress_to ? o->progress_to : stderr, tn_loader_batches(l),
                             l->at / whole, l->epoch);
    d->pass = l;
    return l;
}

int64_t tn_loader_batches(const tn_loader *l) { return l ? (l->end + l->batch - 1) / l->batch : 0; }

void tn_loader_close(tn_loader *l)
{
    if (!l) return;
    tn_nn_progress_end(&l->progress, tn_error(l->d->s) != TN_OK);
    if (l->d->pass == l) l->d->pass = NULL;
    tn_weigh_rank(l->d->s, 1); /* what comes next is none of its batches */
    tn_nn_drop(l->d->s, l);
}

static void show_value(tn_loader *l, int k, double value)
{
    tn_nn_progress_value(&l->progress, k, value);
    tn_curve_point(l->d->s, l->progress.name[k], value);
}

/* The step that the value was asked for in has ended: it is that step's, not the one before's. */
static void take_watched(tn_loader *l, int k)
{
    nn_progress *p = &l->progress;
    if (p->watch[k] < 0) return;
    show_value(l, k, tn_watched(l->d->s, p->watch[k]));
    p->watch[k] = -1;
}

TN_DEFINE(int, next, l ? l->d->s : NULL, (l, b), tn_loader *l, tn_batch *b)
{
    if (!l) return 0;
    tn_session *s = l->d->s;
    if (!b) tn_fail(s, TN_E_NULL, "next", "batch is NULL");
    for (int i = 0; i < l->progress.n; i++) take_watched(l, i);
    l->progress.skipped = tn_nn_state(s)->scale.skipped;
    if (!tn_error(s)) tn_nn_progress_step(&l->progress, l->at / l->batch + (l->at % l->batch != 0));
    if (l->at >= l->end || tn_error(s)) {
        if (l->cut && l->d->pass == l) {
            l->d->next_epoch = l->epoch;
            l->d->next_at = l->at;
        }
        tn_loader_close(l);
        return 0;
    }
    if (!tn_nn_feed_take(l->feed, b)) {
        tn_loader_close(l);
        return 0;
    }
    int64_t counts;
    const int64_t whole = tn_nn_feed_whole(l->feed, &counts);
    tn_weigh_rank(s, (double)(counts * tn_ranks(s)) / (double)whole);
    l->at += whole;
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
        if (!later && tn_numel(value[p->n]) == 1 && !tn_error(l->d->s)) show_value(l, p->n, now);
    }
    return TN_OK;
}

void tn_nn_dataset_position(const tn_dataset *d, int64_t *epoch, int64_t *at)
{
    const tn_loader *l = d->pass;
    bool inside = l && (l->cut || l->at < l->end);
    *epoch = inside ? l->epoch : d->next_epoch;
    *at = inside ? l->at : d->next_at;
}
