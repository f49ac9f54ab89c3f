/* checkpoint_load.c - tn_load: a file is checked whole, new values are made, and only then anything changes.
 *
 *   parameters   go through the slab: its values are read, overlaid on the host and assigned as one
 *   buffers      are assigned one by one
 *   optimizers   get new state tensors (optim_state.c)
 *
 * Read load first. */
#include "checkpoint.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct loading {
    tn_session *s;
    const char *path;
    nn_safetensors file;
    const nn_state *st;
    bool pytorch;    /* images are [c, h, w] */
    bool run;        /* a training run, not weights alone */
    bool optimizers; /* whose optimizer state is wanted */
    bool partial;
} loading;

static const char load_op[] = "load";
static const int64_t MOST = INT64_C(1) << 53; /* of what is counted, so that counting on is safe */

static void shape_text(char *out, size_t size, int ndim, const int64_t *shape)
{
    size_t at = (size_t)snprintf(out, size, "[");
    for (int k = 0; k < ndim && at < size; k++)
        at += (size_t)snprintf(out + at, size - at, "%s%lld", k ? ", " : "", (long long)shape[k]);
    if (at < size) snprintf(out + at, size - at, "]");
}

/* Returns how often, as the file says, the entry's parameter was updated. */
static int64_t updates_of(const nn_items *l, const nn_item *e)
{
    int64_t n = 0;
    for (int k = 0; k < l->n && !n; k++) {
        const nn_item *steps = &l->items[k];
        if (steps->optim == e->optim && !steps->entry)
            memcpy(&n, steps->saved->data + 8 * (e->entry - e->optim->entries), 8);
    }
    return n;
}

static int match_counts(const loading *ld, const nn_item *e)
{
    for (int k = 0; k < e->optim->n; k++) {
        int64_t n;
        memcpy(&n, e->saved->data + 8 * k, 8);
        if (n < 0 || n > MOST)
            return tn_fail(ld->s, TN_E_FORMAT, load_op, "%s: '%s' has been updated %lld times", ld->path,
                           tn_name(e->optim->entries[k].param), (long long)n);
    }
    return TN_OK;
}

/* State is there where the parameter was updated before the file was written, and nowhere else. Sums may be
 * there or not. */
static int match_state(const loading *ld, const nn_items *l, const nn_item *e)
{
    if (e->which == NN_SUM) return TN_OK;
    int64_t n = updates_of(l, e);
    if (!n == !e->saved) return TN_OK;
    if (!e->saved) return tn_fail(ld->s, TN_E_SHAPE, load_op, "%s: '%s' is missing", ld->path, e->name);
    return tn_fail(ld->s, TN_E_FORMAT, load_op, "%s: '%s' is there, but '%s' has been updated 0 times",
                   ld->path, e->name, tn_name(e->entry->param));
}

/* Finds the item in the file and demands that it fits. */
static int match(const loading *ld, const nn_items *l, nn_item *e)
{
    char want[128], got[128];
    int64_t shape[TN_MAX_DIMS];
    int ndim = tn_nn_item_shape(e, shape);
    if (e->entry) {
        int status = match_state(ld, l, e);
        if (status || !e->saved) return status;
    }
    if (!e->saved && ((e->tensor && ld->partial) || (e->state && !ld->run))) return TN_OK;
    if (!e->saved) return tn_fail(ld->s, TN_E_SHAPE, load_op, "%s: '%s' is missing", ld->path, e->name);
    if (ld->pytorch && e->tensor) {
        nn_turn turn;
        tn_nn_turn_of(ld->st, e->tensor, &turn);
        tn_nn_turn_shape(&turn, ndim, shape);
    }
    if (ndim != e->saved->ndim || memcmp(shape, e->saved->shape, (size_t)ndim * sizeof(*shape))) {
        shape_text(want, sizeof(want), ndim, shape);
        shape_text(got, sizeof(got), e->saved->ndim, e->saved->shape);
        return tn_fail(ld->s, TN_E_SHAPE, load_op, "%s: '%s' has the shape %s, %s expected", ld->path,
                       e->name, got, want);
    }
    tn_dtype d = tn_nn_item_dtype(e);
    bool fits =
        d == e->saved->dtype || (e->tensor && tn_dtype_is_float(d) && tn_dtype_is_float(e->saved->dtype));
    if (!fits)
        return tn_fail(ld->s, TN_E_DTYPE, load_op, "%s: '%s' is %s, %s expected", ld->path, e->name,
                       e->saved->type, tn_dtype_name(d));
    return e->optim && !e->entry ? match_counts(ld, e) : TN_OK;
}

/* Whether something here has it, or it is known to be harmless. */
static bool is_known(const nn_items *l, const nn_saved *saved)
{
    bool known =
        !strncmp(saved->name, "optimizer.", 10) || tn_nn_ends_with(saved->name, ".num_batches_tracked");
    for (int k = 0; !known && k < l->n; k++) known = l->items[k].saved == saved;
    return known;
}

/* A tensor in the file that nothing here has: a sign of another model, unless it is known to be harmless. */
static int match_rest(const loading *ld, const nn_items *l)
{
    for (int i = 0; i < ld->file.n; i++) {
        const char *name = ld->file.saved[i].name;
        if (!ld->partial && !is_known(l, &ld->file.saved[i]))
            return tn_fail(ld->s, TN_E_SHAPE, load_op, "%s: '%s' is in the file only", ld->path, name);
    }
    int loaded = 0;
    for (int k = 0; k < l->n; k++) loaded += l->items[k].saved != NULL;
    if (loaded || !ld->partial) return TN_OK;
    return tn_fail(ld->s, TN_E_SHAPE, load_op,
                   "%s: none of its tensors has a name of this session: '%s' is the first there, '%s' here",
                   ld->path, ld->file.n ? ld->file.saved[0].name : "", l->n ? l->items[0].name : "");
}

/* ---- what is said of a part ---- */

static void add_name(tn_load_report *r, size_t *at, int n, const char *before, const char *name)
{
    const size_t room = sizeof(r->text) - 8, length = strlen(name) + (n ? 2 : strlen(before));
    if (*at < room && length < room - *at)
        *at += (size_t)snprintf(r->text + *at, sizeof(r->text) - *at, "%s%s", n ? ", " : before, name);
    else if (*at < room) {
        snprintf(r->text + *at, sizeof(r->text) - *at, ", ..");
        *at = room;
    }
}

static void tell(const loading *ld, const nn_items *l, tn_load_report *given)
{
    tn_load_report r = {0};
    size_t at = 0;
    for (int k = 0; k < l->n; k++) r.loaded += l->items[k].saved && l->items[k].tensor;
    at = (size_t)snprintf(r.text, sizeof(r.text), "%d tensors loaded", r.loaded);
    for (int k = 0; k < l->n; k++)
        if (l->items[k].tensor && !l->items[k].saved && !l->items[k].state)
            add_name(&r, &at, r.missing++, "; not in the file, as they were: ", l->items[k].name);
    for (int i = 0; i < ld->file.n + ld->file.dropped; i++)
        if (i >= ld->file.n || !is_known(l, &ld->file.saved[i]))
            add_name(&r, &at, r.left_out++, "; left out of the file: ", ld->file.saved[i].name);
    if (given)
        *given = r;
    else if (ld->partial && (r.missing || r.left_out))
        tn_warn(ld->s, "%s: %s: %s", load_op, ld->path, r.text);
}

static bool meta_number(const loading *ld, const char *kind, int number, const char *key, int64_t *out)
{
    char name[64], *end;
    snprintf(name, sizeof(name), "%s.%d.%s", kind, number, key);
    const char *text = tn_nn_safetensors_meta(&ld->file, name);
    if (!text || *text < '0' || *text > '9') return false;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return !errno && !*end;
}

/* One number of the metadata: TN_OK where it is one of at most `most` (0: any real one), or is not there. */
static int match_number(const loading *ld, const char *name, uint64_t most)
{
    const char *text = tn_nn_safetensors_meta(&ld->file, name);
    if (!text) return TN_OK;
    char *end;
    errno = 0;
    bool good = *text >= '0' && *text <= '9';
    if (good && !most)
        good = isfinite(tn_strtod(text, &end)) && !*end;
    else if (good)
        good = strtoull(text, &end, 10) <= most && !errno && !*end;
    if (good) return TN_OK;
    return tn_fail(ld->s, TN_E_FORMAT, load_op, "%s: '%s' is '%.40s', which is no %s", ld->path, name, text,
                   most ? "count" : "rate");
}

/* A run's file has all of some numbers or none of them: one that lacks some is damaged. */
static int match_all(const loading *ld, int n, const char *const *key)
{
    int missing = -1, found = 0;
    for (int i = 0; i < n; i++)
        if (tn_nn_safetensors_meta(&ld->file, key[i]))
            found++;
        else
            missing = i;
    if (!found || missing < 0) return TN_OK;
    return tn_fail(ld->s, TN_E_FORMAT, load_op, "%s: '%s' is missing", ld->path, key[missing]);
}

/* Whether optimizers have left anything in the file; else it has weights alone. */
static bool has_optimizers(const loading *ld)
{
    for (int i = 0; i < ld->file.n; i++)
        if (!strncmp(ld->file.saved[i].name, "optimizer.", 10)) return true;
    return tn_nn_safetensors_meta(&ld->file, "optimizer.0.method") ||
           tn_nn_safetensors_meta(&ld->file, "optimizer.0.lr");
}

static int match_numbers(const loading *ld, const nn_state *st)
{
    static const char *const position[] = {"count", "epoch", "at"};
    char key[64];
    int number = 0, status = TN_OK;
    for (const tn_optim *o = st->optims; ld->optimizers && o && !status; o = o->next, number++) {
        char method[64];
        snprintf(method, sizeof(method), "optimizer.%d.method", number);
        snprintf(key, sizeof(key), "optimizer.%d.lr", number);
        status = match_all(ld, 2, (const char *const[]){method, key});
        if (!status) status = match_number(ld, key, 0);
        snprintf(key, sizeof(key), "optimizer.%d.gathered", number);
        if (!status) status = match_number(ld, key, INT32_MAX);
    }
    number = 0;
    for (const tn_dataset *d = st->datasets; d && !status; d = d->next, number++) {
        int64_t count = 0, at = 0;
        char all[3][64];
        const char *const names[3] = {all[0], all[1], all[2]};
        for (int k = 0; k < 3 && !status; k++) {
            snprintf(key, sizeof(key), "data.%d.%s", number, position[k]);
            snprintf(all[k], sizeof(all[k]), "%s", key);
            status = match_number(ld, key, MOST);
        }
        if (!status) status = match_all(ld, 3, names);
        if (status || !meta_number(ld, "data", number, "count", &count) || count != d->n) continue;
        if (meta_number(ld, "data", number, "at", &at) && at > d->n && !d->corpus) /* windows have no end */
            status = tn_fail(ld->s, TN_E_FORMAT, load_op, "%s: '%s' is %lld, of %lld items", ld->path, key,
                             (long long)at, (long long)count);
    }
    if (!status) status = match_all(ld, 3, (const char *const[]){"scale", "scale.good", "scale.skipped"});
    if (!status) status = match_number(ld, "scale", 0);
    if (!status) status = match_number(ld, "scale.good", INT32_MAX);
    if (!status) status = match_number(ld, "scale.skipped", MOST);
    if (!status) status = match_all(ld, 2, (const char *const[]){"seed", "draw"});
    if (!status) status = match_number(ld, "seed", UINT64_MAX);
    return status ? status : match_number(ld, "draw", UINT64_MAX);
}

static int match_optimizers(const loading *ld, const nn_state *st)
{
    int number = 0;
    for (const tn_optim *o = st->optims; o; o = o->next, number++) {
        char key[64];
        snprintf(key, sizeof(key), "optimizer.%d.method", number);
        const char *method = tn_nn_safetensors_meta(&ld->file, key);
        if (!method || strcmp(method, o->method->name))
            return tn_fail(ld->s, TN_E_SHAPE, load_op, "%s: optimizer %d is '%s', '%s' expected", ld->path,
                           number, method ? method : "missing", o->method->name);
    }
    return TN_OK;
}

/* The new values of all parameters of one dtype, as the slab has them. */
typedef struct slab {
    tn_tensor *values, *made;
} slab;

/* The values of a parameter or a buffer as they are here. */
static int take_values(const loading *ld, const nn_item *e, unsigned char *to)
{
    nn_turn turn;
    const int64_t n = tn_numel(e->tensor);
    const tn_dtype d = tn_nn_item_dtype(e), from = e->saved->dtype;
    const size_t size = tn_dtype_size(d), bytes = (size_t)n * size;
    tn_nn_turn_of(ld->st, e->tensor, &turn);
    const bool turned = ld->pytorch && tn_nn_turns(&turn);
    const unsigned char *values = e->saved->data;
    unsigned char *converted = NULL;
    int status = TN_OK;
    if (d != from && n) {
        if (!(converted = tn_malloc(bytes)))
            return tn_fail(ld->s, TN_E_NOMEM, load_op, "no memory for '%s'", e->name);
        tn_tensor *t = tn_from(ld->s, values, from, 1, &n);
        status = t ? tn_read(t, d, converted, bytes) : tn_error(ld->s);
        tn_free(t);
        values = converted;
    }
    if (!status && !turned && n) memcpy(to, values, bytes);
    for (int64_t i = 0; !status && turned && i < n; i++)
        memcpy(to + (size_t)i * size, values + (size_t)tn_nn_turn_index(&turn, i) * size, size);
    tn_free_mem(converted);
    return status;
}

static int overlay(const loading *ld, const nn_item *e, unsigned char *host)
{
    int64_t first = 0, count = 0;
    tn_param_segment(e->tensor, &first, &count);
    return take_values(ld, e, host + (size_t)first * tn_dtype_size(tn_nn_item_dtype(e)));
}

static int prepare_slab(const loading *ld, const nn_items *l, tn_dtype d, slab *out)
{
    tn_param_slab(ld->s, d, &out->values, NULL);
    if (!out->values) return TN_OK;
    int64_t n = tn_numel(out->values);
    size_t bytes = (size_t)n * tn_dtype_size(d);
    unsigned char *host = tn_malloc(bytes);
    if (!host) return tn_fail(ld->s, TN_E_NOMEM, load_op, "no memory for %zu bytes of parameters", bytes);
    int status = tn_read(out->values, d, host, bytes);
    for (int i = 0; i < l->n && !status; i++)
        if (l->items[i].param && l->items[i].saved && tn_nn_item_dtype(&l->items[i]) == d)
            status = overlay(ld, &l->items[i], host);
    if (!status && !(out->made = tn_from(ld->s, host, d, 1, &n))) status = tn_error(ld->s);
    tn_free_mem(host);
    return status;
}

static int prepare_buffer(const loading *ld, nn_item *e)
{
    if (!e->tensor || e->param || !e->saved) return TN_OK;
    size_t n = (size_t)tn_numel(e->tensor);
    tn_dtype d = tn_nn_item_dtype(e);
    void *host = tn_malloc(n * tn_dtype_size(d));
    if (!host) return tn_fail(ld->s, TN_E_NOMEM, load_op, "no memory for '%s'", e->name);
    int64_t shape[TN_MAX_DIMS];
    int ndim = tn_nn_item_shape(e, shape), status = take_values(ld, e, host);
    if (!status && !(e->made = tn_from(ld->s, host, d, ndim, shape))) status = tn_error(ld->s);
    tn_free_mem(host);
    return status;
}

static int assign_all(const nn_items *l, const slab *slabs)
{
    int status = TN_OK;
    for (int d = 0; d < NN_ROWS && !status; d++)
        if (slabs[d].made) status = tn_assign(slabs[d].values, slabs[d].made);
    for (int i = 0; i < l->n && !status; i++)
        if (l->items[i].made) status = tn_assign(l->items[i].tensor, l->items[i].made);
    return status;
}

/* An optimizer's state as tn_nn_optim_prepare wants it. */
typedef struct optim_state {
    tn_optim *o;
    int64_t *steps;
    const unsigned char **data;
    nn_restored made;
    int64_t gathered;
} optim_state;

static void drop_states(optim_state *a, int n)
{
    for (int k = 0; k < n; k++) {
        tn_nn_optim_discard(&a[k].made);
        tn_free_mem(a[k].steps);
        tn_free_mem(a[k].data);
    }
    tn_free_mem(a);
}

static int prepare_state(const loading *ld, const nn_items *l, int number, optim_state *a)
{
    tn_optim *o = a->o;
    a->steps = tn_calloc((size_t)o->n, sizeof(*a->steps));
    a->data = tn_calloc((size_t)o->n * NN_STATES, sizeof(*a->data));
    if (!a->steps || !a->data)
        return tn_fail(ld->s, TN_E_NOMEM, load_op, "no memory for the state of %d parameters", o->n);
    /* A sum of more steps than this optimizer gathers is none of its sums. */
    if (!meta_number(ld, "optimizer", number, "gathered", &a->gathered) || a->gathered >= o->accumulate)
        a->gathered = 0;
    for (int k = 0; k < l->n; k++) {
        const nn_item *e = &l->items[k];
        if (e->optim != o) continue;
        if (!e->entry)
            memcpy(a->steps, e->saved->data, (size_t)o->n * sizeof(*a->steps));
        else if (e->saved && (e->which != NN_SUM || a->gathered))
            a->data[e->which * o->n + (e->entry - o->entries)] = e->saved->data;
    }
    const int status = tn_nn_optim_prepare(o, a->steps, a->data, &a->made);
    int64_t swapped = 0;
    a->made.swapped = meta_number(ld, "optimizer", number, "swapped", &swapped) && swapped;
    return status;
}

/* The state of all optimizers, not yet theirs. NULL with *n = 0 where none is wanted. */
static int prepare_states(const loading *ld, nn_state *st, const nn_items *l, optim_state **out, int *n)
{
    int count = 0, status = TN_OK;
    *out = NULL;
    *n = 0;
    for (tn_optim *o = st->optims; ld->optimizers && o; o = o->next) count++;
    if (!count) return TN_OK;
    *out = tn_calloc((size_t)count, sizeof(**out));
    if (!*out) return tn_fail(ld->s, TN_E_NOMEM, load_op, "no memory for the state of %d optimizers", count);
    for (tn_optim *o = st->optims; o && !status; o = o->next) {
        (*out)[*n].o = o;
        status = prepare_state(ld, l, *n, &(*out)[*n]);
        ++*n;
    }
    return status;
}

static void load_numbers(const loading *ld, nn_state *st)
{
    char key[64];
    int number = 0;
    const char *scale = tn_nn_safetensors_meta(&ld->file, "scale");
    if (scale && tn_strtod(scale, NULL) > 0) {
        tn_set_loss_scale(ld->s, tn_strtod(scale, NULL), st->scale.interval);
        st->scale.good = atoi(tn_nn_safetensors_meta(&ld->file, "scale.good"));
        st->scale.skipped = strtoll(tn_nn_safetensors_meta(&ld->file, "scale.skipped"), NULL, 10);
        st->scale.on = true;
    }
    const char *seed = tn_nn_safetensors_meta(&ld->file, "seed"),
               *draw = tn_nn_safetensors_meta(&ld->file, "draw");
    if (seed && draw) tn_set_rng(ld->s, strtoull(seed, NULL, 10), strtoull(draw, NULL, 10));
    for (tn_optim *o = st->optims; ld->optimizers && o; o = o->next, number++) {
        snprintf(key, sizeof(key), "optimizer.%d.lr", number);
        const char *lr = tn_nn_safetensors_meta(&ld->file, key);
        if (lr) tn_optim_set_lr(o, tn_strtod(lr, NULL));
    }
    number = 0;
    for (tn_dataset *d = st->datasets; d; d = d->next, number++) {
        int64_t count, epoch, at;
        /* Another set of data starts from its own beginning. */
        if (!meta_number(ld, "data", number, "count", &count) || count != d->n) continue;
        if (!meta_number(ld, "data", number, "epoch", &epoch) || !meta_number(ld, "data", number, "at", &at))
            continue;
        d->next_epoch = epoch;
        d->next_at = at;
        d->pass = NULL; /* a loader that is open was of another position */
    }
}

/* Whose layout the file has: what its mark or the caller says. Nothing in the numbers does, so that where it
 * matters and nobody says, or a layer was not told what it stands behind, the file is refused. */
static int choose_layout(loading *ld, const nn_items *l, const tn_load_options *o)
{
    const char *mark = tn_nn_safetensors_meta(&ld->file, "format");
    const nn_orders orders = tn_nn_orders_of(ld->st, l, true);
    tn_layout layout = o->layout;
    ld->run = mark && !strcmp(mark, "libtensor");
    if (ld->run && layout == TN_LAYOUT_PYTORCH)
        return tn_fail(ld->s, TN_E_ARG, load_op,
                       "%s: .layout is TN_LAYOUT_PYTORCH, but this library has written the file, in its own",
                       ld->path);
    if (!layout && ld->run) layout = TN_LAYOUT_TENSOR;
    if (!layout && mark && !strcmp(mark, "pt")) layout = TN_LAYOUT_PYTORCH;
    if (!layout && orders.turns)
        return tn_fail(ld->s, TN_E_ARG, load_op,
                       "%s: does not say in whose layout '%s' is: load it with .layout = TN_LAYOUT_PYTORCH "
                       "([c, h, w]) or TN_LAYOUT_TENSOR ([h, w, c])",
                       ld->path, orders.turns->name);
    ld->pytorch = layout == TN_LAYOUT_PYTORCH;
    return ld->pytorch && !o->no_flatten ? tn_nn_check_told(ld->s, load_op, ld->path, &orders) : TN_OK;
}

static int load(loading *ld, nn_state *st, nn_items *l, const tn_load_options *o, slab *slabs)
{
    int status = tn_nn_make_items(ld->s, st, l, load_op), n = 0;
    for (int i = 0; i < l->n; i++) l->items[i].saved = tn_nn_safetensors_find(&ld->file, l->items[i].name);
    if (!status) status = choose_layout(ld, l, o);
    if (status) return status;
    ld->partial = o->partial;
    if (ld->partial || o->rename[0].from) ld->run = false;
    ld->optimizers = ld->run && has_optimizers(ld);
    int m = 0;
    for (int i = 0; i < l->n; i++) /* weights alone: what optimizers have is not asked for */
        if (ld->optimizers || !l->items[i].optim) l->items[m++] = l->items[i];
    l->n = m;
    for (int i = 0; !status && i < l->n; i++) status = match(ld, l, &l->items[i]);
    if (!status) status = match_rest(ld, l);
    if (!status && ld->optimizers) status = match_optimizers(ld, st);
    if (!status && ld->run) status = match_numbers(ld, st);
    for (int d = 0; d < NN_ROWS && !status; d++) status = prepare_slab(ld, l, d ? TN_F64 : TN_F32, &slabs[d]);
    for (int i = 0; !status && i < l->n; i++) status = prepare_buffer(ld, &l->items[i]);
    optim_state *states = NULL;
    if (!status) status = prepare_states(ld, st, l, &states, &n);
    if (!status) status = tn_flush(ld->s);
    if (!status)
        status = tn_synchronize(ld->s); /* behind a run that failed unseen nothing would be assigned */
    if (!status) status = assign_all(l, slabs);
    if (!status) status = tn_flush(ld->s);
    for (int k = 0; k < n && !status; k++) {
        tn_nn_optim_commit(states[k].o, states[k].steps, states[k].data, (int)states[k].gathered,
                           &states[k].made);
        memset(&states[k].made, 0, sizeof(states[k].made));
    }
    drop_states(states, n);
    if (!status && ld->run) load_numbers(ld, st);
    if (!status) tell(ld, l, o->report);
    return status;
}

TN_DEFINE(int, load_with, s, (s, path, options), tn_session *s, const char *path,
          const tn_load_options *options)
{
    NN_OPTIONS(tn_load_options, o, options);
    if (!s) return TN_E_NULL;
    if (!path) return tn_fail(s, TN_E_NULL, load_op, "path is NULL");
    if (o->layout != TN_LAYOUT_MARKED && o->layout != TN_LAYOUT_TENSOR && o->layout != TN_LAYOUT_PYTORCH)
        return tn_fail(s, TN_E_ARG, load_op, "layout %d is none of TN_LAYOUT_", (int)o->layout);
    nn_state *st = tn_nn_state(s);
    if (tn_error(s) || !st) return tn_error(s);
    loading ld = {.s = s, .path = path, .st = st};
    nn_why why = {0};
    nn_items l = {0};
    int status = tn_nn_safetensors_read(path, &ld.file, &why);
    if (!status && o->rename[0].from) status = tn_nn_rename(path, &ld.file, o->rename, &why);
    if (status) {
        tn_nn_safetensors_free(&ld.file);
        return tn_fail(s, status, load_op, "%s", why.text);
    }
    tn_no_grad_begin(s);
    slab slabs[NN_ROWS] = {{NULL, NULL}, {NULL, NULL}};
    status = load(&ld, st, &l, o, slabs);
    tn_no_grad_end(s);
    for (int i = 0; i < l.n; i++) tn_free(l.items[i].made);
    for (int d = 0; d < NN_ROWS; d++) tn_free(slabs[d].made);
    tn_free_mem(l.items);
    tn_nn_safetensors_free(&ld.file);
    return status;
}
