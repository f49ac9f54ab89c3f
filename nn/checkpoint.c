/* checkpoint.c - tn_save: which tensors and numbers make up a training run, and where they go.
 *
 * In the file: each parameter and buffer under its name; for optimizer k "optimizer.k.step", the update
 * counts of its parameters (I64), "optimizer.k.exp_avg.NAME" and the like for those that have been updated,
 * and "optimizer.k.gradient_sum.NAME" for those an update is being gathered for; as metadata strings
 * "format", "seed" and "draw" of the random generator, "optimizer.k.method", ".lr", ".gathered" and, of
 * averages in the weights' place, ".swapped"; and "data.k.count", ".epoch" and ".at" of data set k. Saving and
 * loading walk the same list (nn_items), so that they cannot differ; loading is checkpoint_load.c. Read
 * tn_nn_make_items first. */
#include "checkpoint.h"

#include <tensor_export.h>

#include <inttypes.h>
#include <string.h>

static nn_item *add(nn_items *l)
{
    if (l->n == l->room) {
        int room = l->room ? 2 * l->room : 64;
        nn_item *grown = tn_realloc(l->items, (size_t)room * sizeof(nn_item));
        if (!grown) {
            l->failed = true;
            return NULL;
        }
        l->items = grown;
        l->room = room;
    }
    nn_item *i = &l->items[l->n++];
    memset(i, 0, sizeof(*i));
    return i;
}

static void add_tensor(nn_items *l, const nn_state *st, tn_tensor *t, bool param)
{
    nn_item *i = add(l);
    if (!i) return;
    snprintf(i->name, NN_NAME, "%s", tn_name(t));
    i->tensor = t;
    i->param = param;
    i->state = tn_nn_is_state(st, t);
}

static void add_state(nn_items *l, tn_optim *o, int number, int which)
{
    const char *kind = tn_nn_state_name(o, which);
    for (int k = 0; k < o->n && kind; k++) {
        nn_item *i = add(l);
        if (!i) return;
        snprintf(i->name, NN_NAME, "optimizer.%d.%s.%s", number, kind, tn_name(o->entries[k].param));
        i->optim = o;
        i->entry = &o->entries[k];
        i->which = which;
    }
}

int tn_nn_make_items(tn_session *s, nn_state *st, nn_items *l, const char *op)
{
    for (int k = 0; k < tn_param_count(s); k++) add_tensor(l, st, tn_param_at(s, k), true);
    for (int k = 0; k < tn_buffer_count(s); k++) add_tensor(l, st, tn_buffer_at(s, k), false);
    for (int k = 0; k < l->n; k++)
        if (!strncmp(l->items[k].name, "optimizer.", 10) || !strcmp(l->items[k].name, "__metadata__"))
            return tn_fail(s, TN_E_ARG, op, "the name '%s' is kept for checkpoints themselves",
                           l->items[k].name);
    int number = 0;
    for (tn_optim *o = st->optims; o; o = o->next, number++) {
        nn_item *i = add(l);
        if (!i) break;
        snprintf(i->name, NN_NAME, "optimizer.%d.step", number);
        i->optim = o;
        for (int which = 0; which < NN_STATES; which++) add_state(l, o, number, which);
    }
    return l->failed ? tn_fail(s, TN_E_NOMEM, op, "no memory for the list of tensors") : TN_OK;
}

/* State an optimizer has not come to have is not in the file. */
static bool is_there(const nn_item *i)
{
    if (!i->entry) return true;
    return i->which == NN_SUM ? i->entry->summed : i->entry->steps > 0;
}

static bool is_weight(const nn_item *i) { return i->tensor && !i->state; }

static void keep_if(nn_items *l, bool (*test)(const nn_item *i))
{
    int n = 0;
    for (int k = 0; k < l->n; k++)
        if (test(&l->items[k])) l->items[n++] = l->items[k];
    l->n = n;
}

int tn_nn_item_shape(const nn_item *i, int64_t *shape)
{
    const tn_tensor *t = i->entry ? i->entry->param : i->tensor;
    if (!t) {
        shape[0] = i->optim->n;
        return 1;
    }
    int ndim = tn_ndim(t);
    for (int k = 0; k < ndim; k++) shape[k] = tn_dim(t, k);
    return ndim;
}

tn_dtype tn_nn_item_dtype(const nn_item *i)
{
    const tn_tensor *t = i->entry ? i->entry->param : i->tensor;
    return t ? tn_dtype_of(t) : TN_I64;
}

static size_t item_bytes(const nn_item *i)
{
    int64_t shape[TN_MAX_DIMS], n = 1;
    int ndim = tn_nn_item_shape(i, shape);
    for (int k = 0; k < ndim; k++) n *= shape[k];
    return (size_t)n * tn_dtype_size(tn_nn_item_dtype(i));
}

nn_orders tn_nn_orders_of(const nn_state *st, const nn_items *l, bool found)
{
    nn_orders o = {NULL, NULL, NULL};
    for (int i = 0; i < l->n; i++) {
        const nn_item *e = &l->items[i];
        nn_turn turn;
        if (!e->tensor || (found && !e->saved)) continue;
        const bool told = tn_nn_turn_of(st, e->tensor, &turn), conv = tn_ndim(e->tensor) == 4;
        if (!o.conv && conv) o.conv = e;
        if (!o.turns && (conv || tn_nn_turns(&turn))) o.turns = e;
        if (!o.untold && !told) o.untold = e;
    }
    return o;
}

int tn_nn_check_told(tn_session *s, const char *op, const char *path, const nn_orders *o)
{
    if (!o->conv || !o->untold) return TN_OK;
    return tn_fail(
        s, TN_E_ARG, op,
        "%s: '%s' may stand behind the flatten of an image, whose columns are in another order in "
        "PyTorch: make its layer with .flattened = {h, w, c}, or, where no layer but those made so "
        "stands behind one, %s with .no_flatten = true",
        path, o->untold->name, op);
}

/* ---- saving ---- */

/* What a run has beside tensors; the number of random ones with so many digits at least. */
static void write_run(tn_session *s, const nn_state *st, int digits, nn_text *t)
{
    int number = 0;
    tn_nn_text_add(t, "\"format\":\"libtensor\",\"version\":\"%s\"", tn_version());
    tn_nn_text_add(t, ",\"profile\":\"%s\"", tn_profile_name(s)); /* for whoever compares two runs */
    if (st->scale.on)
        tn_nn_text_add(t, ",\"scale\":\"%.17g\",\"scale.good\":\"%d\",\"scale.skipped\":\"%" PRId64 "\"",
                       st->scale.factor, st->scale.good, st->scale.skipped);
    tn_nn_text_add(t, ",\"seed\":\"%" PRIu64 "\",\"draw\":\"%0*" PRIu64 "\"", tn_seed(s), digits,
                   tn_rng_draw(s));
    for (tn_optim *o = st->optims; o; o = o->next, number++) {
        tn_nn_text_add(t,
                       ",\"optimizer.%d.method\":\"%s\",\"optimizer.%d.lr\":\"%.17g\""
                       ",\"optimizer.%d.gathered\":\"%d\"",
                       number, o->method->name, number, o->lr, number, o->gathered);
        if (o->swapped) tn_nn_text_add(t, ",\"optimizer.%d.swapped\":\"1\"", number);
    }
    number = 0;
    for (tn_dataset *d = st->datasets; d; d = d->next, number++) {
        int64_t epoch, place;
        tn_nn_dataset_position(d, &epoch, &place);
        tn_nn_text_add(t,
                       ",\"data.%d.count\":\"%" PRId64 "\",\"data.%d.epoch\":\"%" PRId64
                       "\",\"data.%d.at\":\"%" PRId64 "\"",
                       number, d->n, number, epoch, number, place);
    }
}

static void write_header(tn_session *s, const nn_state *st, const nn_items *l, bool pytorch, int digits,
                         nn_text *t)
{
    size_t at = 0;
    tn_nn_text_begin(t);
    if (pytorch)
        tn_nn_text_add(t, "\"format\":\"pt\"");
    else
        write_run(s, st, digits, t);
    tn_nn_text_add(t, "}");
    for (int i = 0; i < l->n; i++) {
        const nn_item *e = &l->items[i];
        int64_t shape[TN_MAX_DIMS];
        int ndim = tn_nn_item_shape(e, shape);
        if (pytorch) {
            nn_turn turn;
            tn_nn_turn_of(st, e->tensor, &turn);
            tn_nn_turn_shape(&turn, ndim, shape);
        }
        tn_nn_text_entry(t, e->name, tn_nn_type_of(tn_nn_item_dtype(e), NN_AS_IS)->name, ndim, shape, at,
                         item_bytes(e));
        at += item_bytes(e);
    }
    tn_nn_text_end(t);
}

typedef struct writing {
    const nn_items *l;
    const nn_text *header;
    const nn_state *pytorch; /* NULL: values keep the order they have here */
    tn_optim *of;            /* whose state `which` is brought together */
    int which;
    unsigned char *buffer; /* of the largest item; for PyTorch of two */
    size_t most;
} writing;

static void turn(const writing *w, const nn_item *e, size_t bytes)
{
    nn_turn t;
    tn_nn_turn_of(w->pytorch, e->tensor, &t);
    if (!tn_nn_turns(&t)) return;
    const size_t size = tn_dtype_size(tn_nn_item_dtype(e));
    const unsigned char *here = memcpy(w->buffer + w->most, w->buffer, bytes);
    for (size_t i = 0; i < bytes / size; i++)
        memcpy(w->buffer + (size_t)tn_nn_turn_index(&t, (int64_t)i) * size, here + i * size, size);
}

/* What ranks have of a state is brought together as its first entry comes, on all of them. */
static int bring(writing *w, const nn_item *e)
{
    if (!e->entry || (w->of == e->optim && w->which == e->which)) return TN_OK;
    if (w->of) tn_nn_optim_let_go(w->of);
    w->of = e->optim;
    w->which = e->which;
    return tn_nn_optim_bring(e->optim, e->which);
}

static int write_item(FILE *f, const writing *w, const nn_item *e, size_t bytes)
{
    int status = TN_OK;
    void *buffer = w->buffer;
    if (e->tensor) {
        status = tn_read(e->tensor, tn_nn_item_dtype(e), buffer, bytes);
    } else if (e->entry) {
        status = tn_nn_optim_read(e->optim, e->entry, e->which, buffer);
    } else {
        int64_t *steps = buffer;
        for (int k = 0; k < e->optim->n; k++) steps[k] = e->optim->entries[k].steps;
    }
    if (status) return status;
    if (w->pytorch) turn(w, e, bytes);
    return fwrite(buffer, 1, bytes, f) == bytes ? TN_OK : TN_E_IO;
}

static int write_all(FILE *f, void *user)
{
    writing *w = user;
    int status = fwrite(w->header->text, 1, w->header->size, f) == w->header->size ? TN_OK : TN_E_IO;
    for (int i = 0; !status && i < w->l->n; i++) {
        status = bring(w, &w->l->items[i]);
        if (!status) status = write_item(f, w, &w->l->items[i], item_bytes(&w->l->items[i]));
    }
    if (w->of) tn_nn_optim_let_go(w->of);
    return status;
}

/* What the first rank does while it writes, on another one. */
static int take_part(tn_session *s, const nn_items *l)
{
    writing w = {.l = l};
    int status = tn_error(s);
    for (int i = 0; !status && i < l->n; i++) status = bring(&w, &l->items[i]);
    if (w.of) tn_nn_optim_let_go(w.of);
    return status;
}

TN_DEFINE(int, save_with, s, (s, path, options), tn_session *s, const char *path,
          const tn_save_options *options)
{
    static const char op[] = "save";
    NN_OPTIONS(tn_save_options, opt, options);
    if (!s) return TN_E_NULL;
    if (!path) return tn_fail(s, TN_E_NULL, op, "path is NULL");
    nn_state *st = tn_nn_state(s);
    nn_items l = {0};
    nn_text header = {0};
    void *buffer = NULL;
    size_t most = 0;
    int status = tn_error(s);
    if (!status && !st) status = TN_E_NOMEM;
    if (!status) status = tn_flush(s); /* an update that waits counts, or not, once it has run */
    if (!status) tn_nn_scale_settle(s, st);
    if (!status) status = tn_nn_make_items(s, st, &l, op);
    keep_if(&l, opt->for_pytorch ? is_weight : is_there);
    if (!status && opt->for_pytorch && !opt->no_flatten) {
        const nn_orders orders = tn_nn_orders_of(st, &l, false);
        status = tn_nn_check_told(s, op, path, &orders);
    }
    if (tn_rank(s)) {
        status = status ? status : take_part(s, &l);
        tn_free_mem(l.items);
        return status;
    }
    if (!status) {
        for (int i = 0; i < l.n; i++)
            if (item_bytes(&l.items[i]) > most) most = item_bytes(&l.items[i]);
        write_header(s, st, &l, opt->for_pytorch, 1, &header);
        buffer = tn_malloc(opt->for_pytorch ? 2 * most : most);
        if (header.failed || !buffer) status = tn_fail(s, TN_E_NOMEM, op, "no memory for %zu bytes", most);
    }
    if (!status) {
        const char *why;
        status = tn_write_whole(
            path, write_all,
            &(writing){&l, &header, .pytorch = opt->for_pytorch ? st : NULL, .buffer = buffer, .most = most},
            &why);
        if (status && !tn_error(s)) tn_fail(s, status, op, "%s: %s", path, why);
    }
    tn_free_mem(buffer);
    tn_free_mem(header.text);
    tn_free_mem(l.items);
    return status;
}

/* ---- of an exported step ---- */

static int tell_item(const nn_item *e)
{
    int64_t first = 0;
    tn_optim *o = e->optim;
    if (e->tensor) return tn_export_saved_tensor(e->tensor, 0, tn_numel(e->tensor));
    if (e->entry) {
        tn_tensor *x = tn_nn_optim_where(o, e->entry, e->which, &first);
        return tn_export_saved_tensor(x, first, e->entry->count);
    }
    int status = TN_OK;
    for (int k = 0; k < o->n && !status; k++) {
        const nn_optim_entry *of = &o->entries[k];
        status = tn_export_saved_number(o->s, of->steps, o->exported && of->fresh);
    }
    return status;
}

/* Tells where a file that trains on has what is saved; of data sets it has none. */
int tn_nn_tell_export(tn_session *s)
{
    nn_state *st = tn_nn_state(s), without = *st;
    nn_items l = {0};
    nn_text header = {0};
    int status = tn_nn_make_items(s, st, &l, "export_end");
    keep_if(&l, is_there);
    without.datasets = NULL;
    if (!status) write_header(s, &without, &l, false, 20, &header);
    if (header.failed) status = tn_fail(s, TN_E_NOMEM, "export_end", "no memory for a list of tensors");
    if (!status) status = tn_export_saved(s, header.text, header.size);
    for (int i = 0; i < l.n && !status; i++) status = tell_item(&l.items[i]);
    tn_free_mem(header.text);
    tn_free_mem(l.items);
    return status;
}
