/* create.c - tensors from nothing: host data, constants, random draws.
 *
 * Inside a step, or a scope, they go with it; outside they are persistent, and their value is written into
 * storage of their own at once. Start with made. */
#include <math.h>
#include <string.h>

#include "../core/convert.h"
#include "../runtime/session.h"

static bool check_shape(tn_graph *g, tn_dtype dtype, int ndim, const int64_t *shape)
{
    if ((unsigned)dtype >= TN_DTYPE_COUNT)
        return tn_error_set(g, TN_E_DTYPE, "unknown dtype %d", (int)dtype) != NULL;
    if (ndim > 0 && ndim <= TN_MAX_DIMS && !shape)
        return tn_error_set(g, TN_E_NULL, "%d axes are announced and shape is NULL", ndim) != NULL;
    if (ndim < 0 || ndim > TN_MAX_DIMS) {
        tn_error_set(g, TN_E_SHAPE, "%d axes; 0 to %d are possible", ndim, TN_MAX_DIMS);
        return false;
    }
    if (tn_countable(ndim, shape)) return true;
    tn_error_set(g, TN_E_SHAPE, "shape %s is not possible", TN_SHAPE_TEXT(ndim, shape));
    return false;
}

tn_tensor *tn_persist(tn_session *s, tn_dtype dtype, int ndim, const int64_t *shape)
{
    tn_graph *g = &s->graph;
    tn_tensor *p = tn_node_new_persistent(g, dtype, ndim, shape);
    if (!p) return NULL;
    size_t bytes = (size_t)tn_node_numel(p) * tn_elem_size(g, dtype);
    p->buf = tn_storage_new(g, bytes);
    if (!p->buf || !tn_reserve(&s->kept, &s->cap_kept, s->n_kept + 1, sizeof *s->kept)) {
        tn_node_free_persistent(g, p);
        return tn_error_set(g, TN_E_NOMEM, "no memory for a tensor of %zu bytes", bytes);
    }
    p->kept = s->n_kept;
    s->kept[s->n_kept++] = p;
    return p;
}

/* Leaves a creation function: what it recorded, in a step; outside of one a persistent copy of it. */
static tn_tensor *made(tn_scope *sc, tn_tensor *node)
{
    if (!node || !sc->g || sc->entry || tn_is_passing(sc->g->session) || sc->g->call_depth > 1)
        return tn_leave(sc, node);
    tn_session *s = sc->g->session;
    tn_tensor *p = tn_persist(s, node->dtype, node->ndim, node->shape);
    if (p) {
        node = tn_node_is_dense(node) && node->base == node ? node : tn_mk_contiguous(node);
        if (node) node->place = p;
        if (!node || tn_run(s, 1, &node))
            p = NULL;
        else { /* the memory is p's alone: it goes with it */
            node->place = NULL;
            tn_node_drop_value(node);
        }
    }
    tn_call_end(sc->g);
    return tn_handle(p);
}

/* ---- host data ---- */

static tn_tensor *leaf_with_storage(tn_graph *g, tn_dtype dtype, int ndim, const int64_t *shape)
{
    tn_session *s = g->session;
    if (!tn_is_passing(s) && g->call_depth == 1) return tn_persist(s, dtype, ndim, shape);
    tn_tensor *n = tn_node_new(g, TN_OP_leaf, dtype, ndim, shape, 0, NULL);
    if (!n) return NULL;
    n->buf = tn_storage_new(g, (size_t)tn_node_numel(n) * tn_elem_size(g, dtype));
    if (!n->buf) return tn_error_set(g, TN_E_NOMEM, "no device memory for a tensor");
    n->flags |= TN_F_DONE;
    return n;
}

static int upload(tn_graph *g, tn_tensor *n, const void *data)
{
    size_t count = (size_t)tn_node_numel(n);
    tn_dtype d = n->dtype;
    tn_device *dev = g->device;
    if (!dev->is_reference) return dev->upload(dev, n->buf->data, data, count * tn_dtype_size(d));
    tn_convert(n->buf->data, tn_stored_dtype(g, d), data, d, count);
    return TN_OK;
}

/* Handles of leaves need no run, so the scope closes without tn_leave's. */
static tn_tensor *close_leaf(tn_scope *sc, tn_tensor *n)
{
    tn_call_end(sc->g);
    return tn_handle(n);
}

/* The leaf's memory goes with the step, and comes from the host anew in the next. */
static void note_upload(const tn_scope *sc, tn_tensor *n)
{
    tn_tape *t = &sc->g->session->tape;
    if (!n || sc->note < 0) return;
    tn_tape_done(sc->g->session, sc->note, 1, &n);
    if (t->recording) t->entry[sc->note].uploads = true;
}

/* The leaf of the step before with new data. */
static tn_tensor *from_again(tn_scope *sc, const void *data)
{
    tn_graph *g = sc->g;
    tn_tensor *n = tn_entry_results(&g->session->tape, sc->entry)[0];
    n->buf = tn_storage_new(g, (size_t)tn_node_numel(n) * tn_elem_size(g, n->dtype));
    if (!n->buf) return tn_error_set(g, TN_E_NOMEM, "no device memory for a tensor");
    n->flags |= TN_F_DONE;
    if (!data && tn_node_numel(n)) return tn_error_set(g, TN_E_NULL, "data is NULL");
    if (upload(g, n, data)) return tn_device_error(g->session, "the copy to the device failed");
    return tn_handle(n);
}

TN_AT(tn_tensor *, from, (s, data, dtype, ndim, shape), tn_session *s, const void *data, tn_dtype dtype,
      int ndim, const int64_t *shape)
{
    tn_scope sc = tn_enter_session_as(TN_ATTR_LIST(shape, ndim, dtype, ndim), s, "from", file, line);
    if (!sc.g) return NULL;
    if (sc.entry) return from_again(&sc, data);
    tn_tensor *n = NULL;
    if (sc.ok && check_shape(sc.g, dtype, ndim, shape)) {
        n = leaf_with_storage(sc.g, dtype, ndim, shape);
        if (n && !data && tn_node_numel(n)) n = tn_error_set(sc.g, TN_E_NULL, "data is NULL");
        if (n && upload(sc.g, n, data)) n = tn_device_error(s, "the copy to the device failed");
    }
    note_upload(&sc, n);
    return close_leaf(&sc, n);
}

/* n's memory from now on is the host's. */
static bool lend(tn_graph *g, tn_tensor *n, void *host, void (*release)(void *, void *), void *user)
{
    n->buf = tn_storage_wrap(g, host, (size_t)tn_node_numel(n) * tn_dtype_size(n->dtype));
    if (!n->buf) return tn_error_set(g, TN_E_NOMEM, "no memory") != NULL;
    n->flags |= TN_F_DONE;
    n->buf->release = release;
    n->buf->release_data = host;
    n->buf->release_user = user;
    return true;
}

static tn_tensor *lent(tn_graph *g, void *host, tn_dtype dtype, int ndim, const int64_t *shape,
                       void (*release)(void *, void *), void *user)
{
    tn_session *s = g->session;
    if (s->device->is_reference || !s->device->shares_host_memory) { /* must be copied anyway */
        tn_tensor *n = leaf_with_storage(g, dtype, ndim, shape);
        if (n && upload(g, n, host)) return tn_device_error(s, "the copy to the device failed");
        if (n && release) release(host, user);
        return n;
    }
    tn_tensor *n = tn_is_passing(s) ? tn_node_new(g, TN_OP_leaf, dtype, ndim, shape, 0, NULL)
                                    : tn_persist(s, dtype, 1, (const int64_t[]){0});
    if (n && n->flags & TN_F_PERSISTENT) {
        tn_storage_release(n->buf);
        n->buf = NULL;
        n->ndim = (uint8_t)ndim;
        for (int i = 0; i < ndim; i++) n->shape[i] = shape[i];
        tn_dense_strides(ndim, shape, n->stride);
    }
    return n && lend(g, n, host, release, user) ? n : NULL;
}

TN_AT(tn_tensor *, borrow, (s, data, dtype, ndim, shape, release, user), tn_session *s, const void *data,
      tn_dtype dtype, int ndim, const int64_t *shape, void (*release)(void *, void *), void *user)
{
    /* a plan may count on how an address is aligned */
    int64_t align = (int64_t)((uintptr_t)data & 63);
    tn_scope sc = tn_enter_session_as(TN_ATTR_LIST(shape, ndim, dtype, ndim, align, data != NULL), s,
                                      "borrow", file, line);
    if (!sc.g) return NULL;
    tn_tensor *n = NULL;
    void *host;
    memcpy(&host, &data, sizeof host); /* the library only reads through it */
    if (sc.entry && s->device->shares_host_memory) {
        n = tn_entry_results(&s->tape, sc.entry)[0];
        return lend(sc.g, n, host, release, user) ? tn_handle(n) : NULL;
    }
    if (sc.entry) {
        tn_tensor *h = from_again(&sc, host);
        if (h && release) release(host, user);
        return h;
    }
    if (sc.ok && check_shape(sc.g, dtype, ndim, shape)) {
        if (data)
            n = lent(sc.g, host, dtype, ndim, shape, release, user);
        else
            tn_error_set(sc.g, TN_E_NULL, "data is NULL");
    }
    note_upload(&sc, n);
    return close_leaf(&sc, n);
}

/* ---- constants ---- */

static tn_tensor *filled(tn_graph *g, tn_number v, tn_dtype dtype, int ndim, const int64_t *shape)
{
    if (!check_shape(g, dtype, ndim, shape)) return NULL;
    if (tn_dtype_is_int(dtype) && !v.is_int && !tn_dtype_holds(dtype, v.f))
        return tn_error_set(g, TN_E_ARG, "value is %g, which %s does not hold", v.f, tn_dtype_name(dtype));
    if (!tn_dtype_is_float(dtype) && !v.is_int) v.i = dtype == TN_BOOL ? v.f != 0 : (int64_t)v.f;
    tn_tensor *x = tn_mk_typed(g, TN_OP_scalar, v, dtype);
    return tn_mk_contiguous(tn_mk_expand(x, ndim, shape));
}

static tn_tensor *full_at(const char *name, tn_session *s, tn_number v, tn_dtype dtype, int ndim,
                          const int64_t *shape, const char *file, int line)
{
    tn_scope sc = tn_enter_session_as(TN_ATTR_LIST(shape, ndim, dtype, tn_bits(v.f), v.i, v.is_int, ndim), s,
                                      name, file, line);
    return made(&sc, sc.ok ? filled(sc.g, v, dtype, ndim, shape) : NULL);
}

TN_AT(tn_tensor *, zeros, (s, dtype, ndim, shape), tn_session *s, tn_dtype dtype, int ndim,
      const int64_t *shape)
{
    return full_at("zeros", s, tn_number_i(0), dtype, ndim, shape, file, line);
}

TN_AT(tn_tensor *, ones, (s, dtype, ndim, shape), tn_session *s, tn_dtype dtype, int ndim,
      const int64_t *shape)
{
    return full_at("ones", s, tn_number_i(1), dtype, ndim, shape, file, line);
}

TN_AT(tn_tensor *, full, (s, value, dtype, ndim, shape), tn_session *s, double value, tn_dtype dtype,
      int ndim, const int64_t *shape)
{
    return full_at("full", s, tn_number_f(value), dtype, ndim, shape, file, line);
}

TN_AT(tn_tensor *, arange, (s, start, end, step, dtype), tn_session *s, double start, double end, double step,
      tn_dtype dtype)
{
    tn_scope sc = tn_enter_session_as(TN_ATTR(tn_bits(start), tn_bits(end), tn_bits(step), dtype), s,
                                      "arange", file, line);
    tn_tensor *n = NULL;
    double count = ceil((end - start) / step);
    if (!sc.ok) return made(&sc, NULL);
    if (!(step != 0) || !isfinite(count) || count > 1e15)
        tn_error_set(sc.g, TN_E_ARG, "from %g to %g by %g has no length", start, end, step);
    else {
        int64_t shape[1] = {count > 0 ? (int64_t)count : 0};
        tn_dtype work = dtype == TN_F64 || dtype == TN_I64 || dtype == TN_I32 ? TN_F64 : TN_F32;
        if (check_shape(sc.g, dtype, 1, shape)) {
            n = tn_mk_iota(sc.g, 0, 1, shape, work);
            n = tn_mk2(TN_OP_mul, n, tn_mk_scalar(sc.g, tn_number_f(step)));
            n = tn_mk_cast(tn_mk2(TN_OP_add, n, tn_mk_scalar(sc.g, tn_number_f(start))), dtype);
        }
    }
    return made(&sc, n);
}

TN_AT(tn_tensor *, eye, (s, n, dtype), tn_session *s, int64_t n, tn_dtype dtype)
{
    tn_scope sc = tn_enter_session_as(TN_ATTR(n, dtype), s, "eye", file, line);
    tn_tensor *x = NULL;
    int64_t shape[2] = {n, n};
    if (sc.ok && check_shape(sc.g, dtype, 2, shape))
        x = tn_mk_cast(
            tn_mk2(TN_OP_eq, tn_mk_iota(sc.g, 0, 2, shape, TN_I64), tn_mk_iota(sc.g, 1, 2, shape, TN_I64)),
            dtype);
    return made(&sc, x);
}

/* ---- random draws ---- */

static tn_tensor *random_at(const char *name, tn_op op, tn_session *s, tn_dtype dtype, int ndim,
                            const int64_t *shape, const char *file, int line)
{
    tn_scope sc = tn_enter_session_as(TN_ATTR_LIST(shape, ndim, dtype, ndim), s, name, file, line);
    tn_tensor *n = NULL;
    if (sc.ok && check_shape(sc.g, dtype, ndim, shape)) {
        if (!tn_dtype_is_float(dtype))
            tn_error_set(sc.g, TN_E_DTYPE, "needs a floating dtype, got %s", tn_dtype_name(dtype));
        else
            n = tn_mk_cast(tn_mk_random(sc.g, op, TN_F32, ndim, shape, NULL), dtype);
    }
    return made(&sc, n);
}

TN_AT(tn_tensor *, rand, (s, dtype, ndim, shape), tn_session *s, tn_dtype dtype, int ndim,
      const int64_t *shape)
{
    return random_at("rand", TN_OP_uniform, s, dtype, ndim, shape, file, line);
}

TN_AT(tn_tensor *, randn, (s, dtype, ndim, shape), tn_session *s, tn_dtype dtype, int ndim,
      const int64_t *shape)
{
    return random_at("randn", TN_OP_normal, s, dtype, ndim, shape, file, line);
}

/* Returns true where the integers from low up to, but not including, high are values of the dtype. */
static bool holds(tn_dtype d, int64_t low, int64_t high)
{
    switch (d) {
    case TN_BOOL: return low >= 0 && high <= 2;
    case TN_U8: return low >= 0 && high <= UINT8_MAX + 1;
    case TN_I32: return low >= INT32_MIN && high <= (int64_t)INT32_MAX + 1;
    case TN_F16: /* its largest is 65504 */ return low >= -65504 && high <= 65505;
    case TN_F32:
    case TN_BF16:
    case TN_F64:
    case TN_I64:
    case TN_DTYPE_COUNT: break;
    }
    return true;
}

TN_AT(tn_tensor *, randint, (s, low, high, dtype, ndim, shape), tn_session *s, int64_t low, int64_t high,
      tn_dtype dtype, int ndim, const int64_t *shape)
{
    tn_scope sc =
        tn_enter_session_as(TN_ATTR_LIST(shape, ndim, low, high, dtype, ndim), s, "randint", file, line);
    tn_tensor *n = NULL;
    if (sc.ok && check_shape(sc.g, dtype, ndim, shape)) {
        if (low >= high || (uint64_t)high - (uint64_t)low > 1 << 24)
            tn_error_set(sc.g, TN_E_ARG, "from %lld up to %lld: needs 1 to 2^24 values", (long long)low,
                         (long long)high);
        else if (!holds(dtype, low, high))
            tn_error_set(sc.g, TN_E_ARG, "from %lld up to %lld: %s does not hold them all", (long long)low,
                         (long long)high, tn_dtype_name(dtype));
        else {
            n = tn_mk_random(sc.g, TN_OP_uniform, TN_F32, ndim, shape, NULL);
            n = tn_mk2(TN_OP_mul, n, tn_mk_scalar(sc.g, tn_number_f((double)(high - low))));
            n = tn_mk_cast(tn_mk1(TN_OP_floor, n), TN_I64);
            n = tn_mk_cast(tn_mk2(TN_OP_add, n, tn_mk_scalar(sc.g, tn_number_i(low))), dtype);
        }
    }
    return made(&sc, n);
}
