/* checkpoint.c - tn_save and tn_load: which tensors and numbers make up a training run, and where they go.
 *
 * In the file: each parameter and buffer under its name; for optimizer k "optimizer.k.step", the update
 * counts of its parameters (I64), "optimizer.k.exp_avg.NAME" and the like for those that have been updated,
 * and "optimizer.k.gradient_sum.NAME" for those an update is being gathered for; as metadata strings
 * "format", "seed" and "draw" of the random generator, "optimizer.k.method", ".lr" and ".gathered",
 * "data.k.count",
 * ".epoch" and ".at" of data set k. Saving and loading walk the same list (struct item), so that they cannot
 * differ. Read make_items first.
 */
#include "nn.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME = 320 };

typedef struct item {
    char name[NAME];
    tn_tensor *tensor;           /* what is saved and loaded ... */
    tn_optim *optim;             /* ... or of this optimizer the counts ... */
    const nn_optim_entry *entry; /* ... or state `which` of this entry */
    int which;
    bool param;
    const nn_saved *saved; /* loading: where it comes from; NULL: the file has no such state */
    tn_tensor *loaded, *made;
} item;

typedef struct list {
    item *items;
    int n, room;
    bool failed;
} list;

static item *add(list *l)
{
    if (l->n == l->room) {
        int room = l->room ? 2 * l->room : 64;
        item *grown = tn_realloc(l->items, (size_t)room * sizeof(item));
        if (!grown) {
            l->failed = true;
            return NULL;
        }
        l->items = grown;
        l->room = room;
    }
    item *i = &l->items[l->n++];
    memset(i, 0, sizeof(*i));
    return i;
}

static void add_tensor(list *l, tn_tensor *t, bool param)
{
    item *i = add(l);
    if (!i) return;
    snprintf(i->name, NAME, "%s", tn_name(t));
    i->tensor = t;
    i->param = param;
}

static void add_state(list *l, tn_optim *o, int number, int which)
{
    const char *kind = tn_nn_state_name(o->method, which);
    bool kept = which == NN_SUM || o->method != NN_SGD || o->momentum > 0;
    for (int k = 0; k < o->n && kind && kept; k++) {
        item *i = add(l);
        if (!i) return;
        snprintf(i->name, NAME, "optimizer.%d.%s.%s", number, kind, tn_name(o->entries[k].param));
        i->optim = o;
        i->entry = &o->entries[k];
        i->which = which;
    }
}

/* Everything that may be in a file, whether it is or not. */
static int make_items(tn_session *s, nn_state *st, list *l, const char *op)
{
    for (int k = 0; k < tn_param_count(s); k++) add_tensor(l, tn_param_at(s, k), true);
    for (int k = 0; k < tn_buffer_count(s); k++) add_tensor(l, tn_buffer_at(s, k), false);
    for (int k = 0; k < l->n; k++)
        if (!strncmp(l->items[k].name, "optimizer.", 10) || !strcmp(l->items[k].name, "__metadata__"))
            return tn_fail(s, TN_E_ARG, op, "the name '%s' is kept for checkpoints themselves",
                           l->items[k].name);
    int number = 0;
    for (tn_optim *o = st->optims; o; o = o->next, number++) {
        item *i = add(l);
        if (!i) break;
        snprintf(i->name, NAME, "optimizer.%d.step", number);
        i->optim = o;
        for (int which = 0; which < NN_STATES; which++) add_state(l, o, number, which);
    }
    return l->failed ? tn_fail(s, TN_E_NOMEM, op, "no memory for the list of tensors") : TN_OK;
}

/* State an optimizer has not come to have is not in the file. */
static bool is_there(const item *i)
{
    if (!i->entry) return true;
    return i->which == NN_SUM ? i->entry->summed : i->entry->steps > 0;
}

static void keep_if(list *l, bool (*test)(const item *i))
{
    int n = 0;
    for (int k = 0; k < l->n; k++)
        if (test(&l->items[k])) l->items[n++] = l->items[k];
    l->n = n;
}

static int item_shape(const item *i, int64_t *shape)
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

static size_t dtype_bytes(tn_dtype d)
{
#define TN_X(name, text, bytes) bytes,
    static const size_t size[] = {TN_DTYPES(TN_X)};
#undef TN_X
    return d < TN_DTYPE_COUNT ? size[d] : 0;
}

static tn_dtype item_dtype(const item *i)
{
    const tn_tensor *t = i->entry ? i->entry->param : i->tensor;
    return t ? tn_dtype_of(t) : TN_I64;
}

static size_t item_bytes(const item *i)
{
    int64_t shape[TN_MAX_DIMS], n = 1;
    int ndim = item_shape(i, shape);
    for (int k = 0; k < ndim; k++) n *= shape[k];
    return (size_t)n * dtype_bytes(item_dtype(i));
}

/* ---- saving
 * ------------------------------------------------------------------------------------------------ */

static void write_header(tn_session *s, nn_state *st, const list *l, nn_text *t)
{
    size_t at = 0;
    int number = 0;
    for (int i = 0; i < 8; i++) tn_nn_text_add(t, " "); /* the length goes here */
    tn_nn_text_add(t, "{\"__metadata__\":{\"format\":\"libtensor\",\"version\":\"%s\"", tn_version());
    tn_nn_text_add(t, ",\"seed\":\"%" PRIu64 "\",\"draw\":\"%" PRIu64 "\"", tn_seed(s), tn_rng_draw(s));
    for (tn_optim *o = st->optims; o; o = o->next, number++)
        tn_nn_text_add(t,
                       ",\"optimizer.%d.method\":\"%s\",\"optimizer.%d.lr\":\"%.17g\""
                       ",\"optimizer.%d.gathered\":\"%d\"",
                       number, tn_nn_method_name(o->method), number, o->lr, number, o->gathered);
    number = 0;
    for (tn_dataset *d = st->datasets; d; d = d->next, number++) {
        int64_t epoch, place;
        tn_nn_dataset_position(d, &epoch, &place);
        tn_nn_text_add(t,
                       ",\"data.%d.count\":\"%" PRId64 "\",\"data.%d.epoch\":\"%" PRId64
                       "\",\"data.%d.at\":\"%" PRId64 "\"",
                       number, d->n, number, epoch, number, place);
    }
    tn_nn_text_add(t, "}");
    for (int i = 0; i < l->n; i++) {
        const item *e = &l->items[i];
        int64_t shape[TN_MAX_DIMS];
        int ndim = item_shape(e, shape);
        tn_nn_text_add(t, ",");
        tn_nn_text_quote(t, e->name);
        tn_nn_text_add(t, ":{\"dtype\":\"%s\",\"shape\":[", tn_nn_safetensors_type(item_dtype(e)));
        for (int k = 0; k < ndim; k++) tn_nn_text_add(t, "%s%" PRId64, k ? "," : "", shape[k]);
        tn_nn_text_add(t, "],\"data_offsets\":[%zu,%zu]}", at, at + item_bytes(e));
        at += item_bytes(e);
    }
    tn_nn_text_add(t, "}");
    while (!t->failed && t->size % 8) tn_nn_text_add(t, " "); /* the data are aligned */
    for (int i = 0; !t->failed && i < 8; i++) t->text[i] = (char)((uint64_t)(t->size - 8) >> (8 * i));
}

static int write_item(FILE *f, const item *e, void *buffer, size_t bytes)
{
    int status = TN_OK;
    if (e->tensor) {
        status = tn_read(e->tensor, item_dtype(e), buffer, bytes);
    } else if (e->entry) {
        status = tn_nn_optim_read(e->optim, e->entry, e->which, buffer);
    } else {
        int64_t *steps = buffer;
        for (int k = 0; k < e->optim->n; k++) steps[k] = e->optim->entries[k].steps;
    }
    if (status) return status;
    return fwrite(buffer, 1, bytes, f) == bytes ? TN_OK : TN_E_IO;
}

/* The name is in place after a crash only once its folder is on the disk as well; best effort. */
static void sync_folder(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int n = slash ? (int)(slash - path) + 1 : 1;
    if (snprintf(folder, sizeof(folder), "%.*s", n, slash ? path : ".") >= (int)sizeof(folder)) return;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

static int write_file(tn_session *s, const char *path, const list *l, const nn_text *header, void *buffer,
                      const char *op)
{
    char temporary[PATH_MAX];
    if (snprintf(temporary, sizeof(temporary), "%s.%ld.part", path, (long)getpid()) >= (int)sizeof(temporary))
        return tn_fail(s, TN_E_ARG, op, "the path is too long");
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666), status = TN_OK;
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
    if (!f) {
        if (fd >= 0) close(fd);
        return tn_fail(s, TN_E_IO, op, "%s: %s", temporary, strerror(errno));
    }
    if (fwrite(header->text, 1, header->size, f) != header->size) status = TN_E_IO;
    for (int i = 0; !status && i < l->n; i++)
        status = write_item(f, &l->items[i], buffer, item_bytes(&l->items[i]));
    if (!status && (fflush(f) || fsync(fd))) status = TN_E_IO;
    if (status == TN_E_IO) tn_fail(s, TN_E_IO, op, "%s: %s", temporary, strerror(errno));
    if (fclose(f) && !status) status = tn_fail(s, TN_E_IO, op, "%s: %s", temporary, strerror(errno));
    if (!status && rename(temporary, path)) status = tn_fail(s, TN_E_IO, op, "%s: %s", path, strerror(errno));
    if (status)
        unlink(temporary);
    else
        sync_folder(path);
    return status;
}

int tn_save(tn_session *s, const char *path)
{
    static const char op[] = "tn_save";
    if (!s) return TN_E_NULL;
    if (!path) return tn_fail(s, TN_E_NULL, op, "path is NULL");
    nn_state *st = tn_nn_state(s);
    list l = {0};
    nn_text header = {0};
    void *buffer = NULL;
    size_t most = 0;
    int status = tn_error(s);
    if (!status && !st) status = TN_E_NOMEM;
    if (!status) status = make_items(s, st, &l, op);
    keep_if(&l, is_there);
    if (!status) {
        for (int i = 0; i < l.n; i++)
            if (item_bytes(&l.items[i]) > most) most = item_bytes(&l.items[i]);
        write_header(s, st, &l, &header);
        buffer = tn_malloc(most);
        if (header.failed || !buffer) status = tn_fail(s, TN_E_NOMEM, op, "no memory for %zu bytes", most);
    }
    if (!status) status = write_file(s, path, &l, &header, buffer, op);
    tn_free_mem(buffer);
    tn_free_mem(header.text);
    tn_free_mem(l.items);
    return status;
}

/* ---- loading
 * ----------------------------------------------------------------------------------------------- */

typedef struct loading {
    tn_session *s;
    const char *path;
    nn_safetensors file;
    bool pytorch;    /* 4-d weights are OIHW */
    bool run;        /* a training run, not weights alone */
    bool optimizers; /* whose optimizer state is wanted */
} loading;

static const char load_op[] = "tn_load";

static void shape_text(char *out, size_t size, int ndim, const int64_t *shape)
{
    size_t at = (size_t)snprintf(out, size, "[");
    for (int k = 0; k < ndim && at < size; k++)
        at += (size_t)snprintf(out + at, size - at, "%s%lld", k ? ", " : "", (long long)shape[k]);
    if (at < size) snprintf(out + at, size - at, "]");
}

static bool floating(tn_dtype d)
{
    return d == TN_F32 || d == TN_F16 || d == TN_BF16 || d == TN_F64;
}

static bool turned(const loading *ld, const item *e)
{
    return ld->pytorch && e->param && tn_ndim(e->tensor) == 4;
}

/* What the file may lack: state of parameters that were not updated before it was written, and sums. */
static bool may_lack(const list *l, const item *e)
{
    if (!e->entry || e->which == NN_SUM) return e->entry != NULL;
    for (int k = 0; k < l->n; k++) {
        const item *steps = &l->items[k];
        if (steps->optim != e->optim || steps->entry) continue;
        int64_t n = 0;
        memcpy(&n, steps->saved->data + 8 * (e->entry - e->optim->entries), 8);
        return n == 0;
    }
    return false;
}

/* Finds the item in the file and demands that it fits. */
static int match(const loading *ld, const list *l, item *e)
{
    char want[128], got[128];
    int64_t shape[TN_MAX_DIMS];
    int ndim = item_shape(e, shape);
    e->saved = tn_nn_safetensors_find(&ld->file, e->name);
    if (!e->saved && may_lack(l, e)) return TN_OK;
    if (!e->saved) return tn_fail(ld->s, TN_E_SHAPE, load_op, "%s: '%s' is missing", ld->path, e->name);
    if (turned(ld, e)) { /* what is OHWI here is OIHW there */
        int64_t in = shape[3];
        shape[3] = shape[2];
        shape[2] = shape[1];
        shape[1] = in;
    }
    if (ndim != e->saved->ndim || memcmp(shape, e->saved->shape, (size_t)ndim * sizeof(*shape))) {
        shape_text(want, sizeof(want), ndim, shape);
        shape_text(got, sizeof(got), e->saved->ndim, e->saved->shape);
        return tn_fail(ld->s, TN_E_SHAPE, load_op, "%s: '%s' has the shape %s, %s expected", ld->path,
                       e->name, got, want);
    }
    tn_dtype d = item_dtype(e);
    bool fits = d == e->saved->dtype || (e->tensor && floating(d) && floating(e->saved->dtype));
    if (!fits)
        return tn_fail(ld->s, TN_E_DTYPE, load_op, "%s: '%s' is %s, %s expected", ld->path, e->name,
                       e->saved->type, tn_dtype_name(d));
    return TN_OK;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}

/* A tensor in the file that nothing here has: a sign of another model, unless it is known to be harmless. */
static int match_rest(const loading *ld, const list *l)
{
    for (int i = 0; i < ld->file.n; i++) {
        const char *name = ld->file.saved[i].name;
        bool known = !strncmp(name, "optimizer.", 10) || ends_with(name, ".num_batches_tracked");
        for (int k = 0; !known && k < l->n; k++) known = l->items[k].saved == &ld->file.saved[i];
        if (!known)
            return tn_fail(ld->s, TN_E_SHAPE, load_op, "%s: '%s' is in the file only", ld->path, name);
    }
    return TN_OK;
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

static int match_optimizers(const loading *ld, const nn_state *st)
{
    int number = 0;
    for (const tn_optim *o = st->optims; o; o = o->next, number++) {
        char key[64];
        snprintf(key, sizeof(key), "optimizer.%d.method", number);
        const char *method = tn_nn_safetensors_meta(&ld->file, key);
        if (!method || strcmp(method, tn_nn_method_name(o->method)))
            return tn_fail(ld->s, TN_E_SHAPE, load_op, "%s: optimizer %d is '%s', '%s' expected", ld->path,
                           number, method ? method : "missing", tn_nn_method_name(o->method));
    }
    return TN_OK;
}

/* Makes the new values; nothing of the model has changed yet. */
static int prepare(const loading *ld, item *e)
{
    if (!e->tensor) return TN_OK;
    e->made = tn_from(ld->s, e->saved->data, e->saved->dtype, e->saved->ndim, e->saved->shape);
    e->loaded = e->made;
    if (turned(ld, e)) e->loaded = tn_permute(e->loaded, 4, (const int[]){0, 2, 3, 1});
    if (e->saved->dtype != item_dtype(e)) e->loaded = tn_cast(e->loaded, item_dtype(e));
    return e->loaded ? TN_OK : tn_error(ld->s);
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

static int prepare_state(const loading *ld, const list *l, int number, optim_state *a)
{
    tn_optim *o = a->o;
    a->steps = tn_calloc((size_t)o->n, sizeof(*a->steps));
    a->data = tn_calloc((size_t)o->n * NN_STATES, sizeof(*a->data));
    if (!a->steps || !a->data)
        return tn_fail(ld->s, TN_E_NOMEM, load_op, "no memory for the state of %d parameters", o->n);
    for (int k = 0; k < l->n; k++) {
        const item *e = &l->items[k];
        if (e->optim != o) continue;
        if (!e->entry)
            memcpy(a->steps, e->saved->data, (size_t)o->n * sizeof(*a->steps));
        else if (e->saved && (e->which != NN_SUM || o->accumulate > 1))
            a->data[e->which * o->n + (e->entry - o->entries)] = e->saved->data;
    }
    for (int k = 0; k < o->n; k++)
        if (a->steps[k] < 0)
            return tn_fail(ld->s, TN_E_FORMAT, load_op, "%s: '%s' has been updated %lld times", ld->path,
                           tn_name(o->entries[k].param), (long long)a->steps[k]);
    if (!meta_number(ld, "optimizer", number, "gathered", &a->gathered) || a->gathered >= o->accumulate)
        a->gathered = 0;
    return tn_nn_optim_prepare(o, a->steps, a->data, &a->made);
}

/* The state of all optimizers, not yet theirs. NULL with *n = 0 where none is wanted. */
static int prepare_states(const loading *ld, nn_state *st, const list *l, optim_state **out, int *n)
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
    const char *seed = tn_nn_safetensors_meta(&ld->file, "seed"),
               *draw = tn_nn_safetensors_meta(&ld->file, "draw");
    if (seed && draw) tn_set_rng(ld->s, strtoull(seed, NULL, 10), strtoull(draw, NULL, 10));
    for (tn_optim *o = st->optims; ld->optimizers && o; o = o->next, number++) {
        snprintf(key, sizeof(key), "optimizer.%d.lr", number);
        const char *lr = tn_nn_safetensors_meta(&ld->file, key);
        if (lr) tn_optim_set_lr(o, strtod(lr, NULL));
    }
    number = 0;
    for (tn_dataset *d = st->datasets; d; d = d->next, number++) {
        int64_t count, epoch, at;
        /* Another set of data starts from its own beginning. */
        if (!meta_number(ld, "data", number, "count", &count) || count != d->n) continue;
        if (!meta_number(ld, "data", number, "epoch", &epoch) || !meta_number(ld, "data", number, "at", &at))
            continue;
        if (at > d->n) continue;
        d->next_epoch = epoch;
        d->next_at = at;
    }
}

static int load(loading *ld, nn_state *st, list *l)
{
    int status = make_items(ld->s, st, l, load_op), n = 0;
    if (status) return status;
    const char *format = tn_nn_safetensors_meta(&ld->file, "format");
    ld->pytorch = format && !strcmp(format, "pt");
    ld->run = format && !strcmp(format, "libtensor");
    ld->optimizers = ld->run && tn_nn_safetensors_meta(&ld->file, "optimizer.0.method");
    int m = 0;
    for (int i = 0; i < l->n; i++) /* weights alone: what optimizers have is not asked for */
        if (ld->optimizers || !l->items[i].optim) l->items[m++] = l->items[i];
    l->n = m;
    for (int i = 0; !status && i < l->n; i++) status = match(ld, l, &l->items[i]);
    if (!status) status = match_rest(ld, l);
    if (!status && ld->optimizers) status = match_optimizers(ld, st);
    for (int i = 0; !status && i < l->n; i++) status = prepare(ld, &l->items[i]);
    optim_state *states = NULL;
    if (!status) status = prepare_states(ld, st, l, &states, &n);
    if (!status) status = tn_flush(ld->s);
    for (int i = 0; !status && i < l->n; i++)
        if (l->items[i].tensor) status = tn_assign(l->items[i].tensor, l->items[i].loaded);
    if (!status) status = tn_flush(ld->s);
    for (int k = 0; k < n && !status; k++) {
        tn_nn_optim_commit(states[k].o, states[k].steps, states[k].data, (int)states[k].gathered,
                           &states[k].made);
        memset(&states[k].made, 0, sizeof(states[k].made));
    }
    drop_states(states, n);
    if (!status && ld->run) load_numbers(ld, st);
    return status;
}

int tn_load(tn_session *s, const char *path)
{
    if (!s) return TN_E_NULL;
    if (!path) return tn_fail(s, TN_E_NULL, load_op, "path is NULL");
    nn_state *st = tn_nn_state(s);
    if (tn_error(s) || !st) return tn_error(s);
    loading ld = {.s = s, .path = path};
    nn_why why = {0};
    list l = {0};
    int status = tn_nn_safetensors_read(path, &ld.file, &why);
    if (status) return tn_fail(s, status, load_op, "%s", why.text);
    tn_no_grad_begin(s);
    status = load(&ld, st, &l);
    tn_no_grad_end(s);
    for (int i = 0; i < l.n; i++) tn_free(l.items[i].made);
    tn_free_mem(l.items);
    tn_nn_safetensors_free(&ld.file);
    return status;
}
