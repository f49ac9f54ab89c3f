/* optim_state.c - what an optimizer keeps from step to step: flat tensors over a row of the parameter slab.
 *
 * A row (struct nn_row) begins empty and grows, in both directions, to cover the parameters that turn out to
 * have gradients: a part of the model that is frozen from the start costs nothing. Growing moves the state
 * over, zeros around it. Checkpoints see the state by parameter. Read tn_nn_optim_cover first. */
#include "optim.h"

#include <string.h>

/* Creation functions make persistent tensors outside of steps only. */
static tn_tensor *keep(tn_tensor *made)
{
    tn_tensor *kept = tn_keep(made);
    tn_free(made);
    return kept;
}

static void free_parts(nn_row *r, bool tensors)
{
    for (int i = 0; i < r->n_part; i++) tn_nn_row_free(&r->part[i], tensors);
    tn_free_mem(r->part);
    r->part = NULL;
    r->n_part = 0;
}

void tn_nn_row_free(nn_row *r, bool tensors)
{
    free_parts(r, tensors);
    for (int k = 0; k < NN_SPREADS; k++) {
        if (tensors) tn_free(r->spread[k].vector);
        tn_free_mem(r->spread[k].value);
    }
    if (tensors) {
        if (r->own_values != r->values) tn_free(r->own_values);
        if (!r->of) tn_free(r->values);
        if (!r->of) tn_free(r->gradients);
        for (int k = 0; k < NN_STATES; k++) tn_free(r->state[k]);
    }
    *r = (nn_row){.dtype = r->dtype};
}

/* The larger of the row and the blocks from first to end. */
static void widen(nn_row *r, int64_t first, int64_t end)
{
    if (first >= end) return;
    if (r->blocks && r->first < first) first = r->first;
    if (r->blocks && r->first + r->blocks > end) end = r->first + r->blocks;
    r->first = first;
    r->blocks = end - first;
}

/* A row of fewer blocks than there are ranks is not worth sharding. */
static int open_range(const tn_optim *o, nn_row *r)
{
    tn_session *s = o->s;
    tn_tensor *unused = NULL;
    r->own_first = 0;
    r->own = r->blocks;
    if (!r->blocks) return TN_OK;
    int status = tn_param_range(s, r->dtype, r->first, r->blocks, &r->values, &r->gradients);
    r->own_values = r->values;
    if (status || !o->shard || r->blocks < tn_ranks(s)) return status;
    r->own = tn_rank_share(s, r->blocks, &r->own_first);
    if (!tn_nn_is_sharded(r)) return TN_OK;
    r->own_values = NULL;
    status = tn_param_range(s, r->dtype, r->first + r->own_first, r->own, &r->own_values, &unused);
    tn_free(unused);
    return status;
}

/* The blocks that a state has, and the first of them in the row. */
static int64_t blocks_of(const nn_row *r, int which, int64_t *first)
{
    *first = which == NN_SUM ? 0 : r->own_first;
    return which == NN_SUM ? r->blocks : r->own;
}

/* A state of the row, of all ranks: x itself where this one has all of it. */
static tn_tensor *whole(const nn_row *r, int which)
{
    tn_tensor *x = r->state[which];
    return which != NN_SUM && tn_nn_is_sharded(r) ? tn_all_gather(x, r->blocks) : x;
}

/* A tensor of what this rank has of the row's state, host memory of all of it. */
static tn_tensor *from_host(tn_session *s, const nn_row *r, int which, const unsigned char *host)
{
    int64_t first;
    const int64_t shape[2] = {blocks_of(r, which, &first), NN_BLOCK};
    const size_t line = NN_BLOCK * tn_dtype_size(r->dtype);
    return keep(tn_from(s, host + (size_t)first * line, r->dtype, 2, shape));
}

/* Returns a tensor for the row `to` that holds a state of the narrower row `from`, and zeros around it. It
 * goes by way of the host, so that it is there at once, whatever comes of the run that the update waits for.
 */
static tn_tensor *widened(tn_session *s, const nn_row *from, const nn_row *to, int which)
{
    const size_t line = NN_BLOCK * tn_dtype_size(to->dtype), at = (size_t)(from->first - to->first) * line;
    unsigned char *host = tn_calloc((size_t)to->blocks, line);
    tn_tensor *made = NULL, *x = whole(from, which);
    if (!host)
        tn_fail(s, TN_E_NOMEM, "optim_step", "no memory for %lld blocks", (long long)to->blocks);
    else if (!tn_read(x, from->dtype, host + at, (size_t)from->blocks * line))
        made = from_host(s, to, which, host);
    tn_free_mem(host);
    if (x != from->state[which]) tn_free(x);
    return made;
}

/* `to` is a wider row: gives it what `from` holds. */
static int move_state(tn_session *s, const nn_row *from, nn_row *to)
{
    for (int k = 0; k < NN_STATES; k++) {
        if (!from->state[k]) continue;
        to->state[k] = widened(s, from, to, k);
        if (!to->state[k]) return tn_error(s);
    }
    return TN_OK;
}

int tn_nn_optim_cover(tn_optim *o)
{
    for (int i = 0; i < NN_ROWS; i++) {
        nn_row *r = &o->rows[i], wide = {.dtype = r->dtype, .first = r->first, .blocks = r->blocks};
        for (int k = 0; k < o->n; k++) {
            const nn_optim_entry *e = &o->entries[k];
            if (e->row == i && (e->fresh || e->summed))
                widen(&wide, e->first / NN_BLOCK, e->first / NN_BLOCK + tn_nn_blocks(e));
        }
        if (wide.blocks == r->blocks) continue;
        wide.summed = r->summed;
        int status = open_range(o, &wide);
        if (!status && r->blocks) status = move_state(o->s, r, &wide);
        nn_row gone = status ? wide : *r;
        if (!status) *r = wide;
        tn_nn_row_free(&gone, true);
        if (status) return status;
    }
    return TN_OK;
}

tn_tensor *tn_nn_optim_state(tn_optim *o, nn_row *r, int which)
{
    int64_t first;
    const int64_t shape[2] = {blocks_of(r, which, &first), NN_BLOCK};
    if (!r->state[which]) r->state[which] = keep(tn_zeros(o->s, r->dtype, 2, shape));
    return r->state[which];
}

/* ---- parts ---- */

/* The first of the parameters at or behind `block` that is to be a part; NULL: there is none. */
static nn_optim_entry *next_large(const tn_optim *o, const nn_row *r, int64_t block)
{
    nn_optim_entry *next = NULL;
    for (int i = 0; i < o->n; i++) {
        nn_optim_entry *e = &o->entries[i];
        if (e->part < 0 || !tn_nn_has(r, e) || e->first < block * NN_BLOCK) continue;
        if (!next || e->first < next->first) next = e;
    }
    return next;
}

/* A part of the row's blocks: parameter e alone, or what they are, with windows of the row's state. */
static int open_part(tn_optim *o, nn_row *r, int64_t first, int64_t blocks, nn_optim_entry *e)
{
    nn_row *p = &r->part[r->n_part];
    int64_t shape[TN_MAX_DIMS] = {blocks, NN_BLOCK};
    const int ndim = e ? tn_ndim(e->param) : 2;
    for (int i = 0; i < ndim && e; i++) shape[i] = tn_dim(e->param, i);
    *p = (nn_row){.dtype = r->dtype, .first = first, .blocks = blocks, .own = blocks, .of = e, .whole = r};
    int status = e ? TN_OK : tn_param_range(o->s, r->dtype, first, blocks, &p->values, &p->gradients);
    if (e) p->values = e->param;
    p->own_values = p->values;
    for (int k = 0; k < NN_MOMENTS && !status; k++) {
        if (!o->method->state[k]) continue;
        tn_tensor *whole = tn_nn_optim_state(o, r, k);
        p->state[k] = whole ? tn_window(whole, (first - r->first) * NN_BLOCK, ndim, shape) : NULL;
        if (!p->state[k]) status = tn_error(o->s);
    }
    return status;
}

static int open_parts(tn_optim *o, nn_row *r, int n_large)
{
    int status = TN_OK;
    const int64_t end = r->first + r->blocks;
    free_parts(r, true);
    r->part = tn_calloc(2 * (size_t)n_large + 1, sizeof(*r->part));
    if (!r->part) return tn_fail(o->s, TN_E_NOMEM, o->method->name, "no memory for %d updates", n_large);
    for (int64_t at = r->first; at < end && !status;) {
        nn_optim_entry *e = next_large(o, r, at);
        const int64_t until = e ? e->first / NN_BLOCK : end;
        if (at < until) {
            status = open_part(o, r, at, until - at, NULL);
            r->n_part++;
        }
        if (e && !status) {
            status = open_part(o, r, until, tn_nn_blocks(e), e);
            e->part = r->n_part++;
        }
        at = e ? until + tn_nn_blocks(e) : end;
    }
    if (status) free_parts(r, true);
    return status;
}

int tn_nn_optim_split(tn_optim *o, nn_row *r, bool apart)
{
    int n = 0;
    bool same = r->n_part > 0;
    for (int i = 0; i < o->n; i++) {
        nn_optim_entry *e = &o->entries[i];
        if (!tn_nn_has(r, e)) continue;
        const bool large = apart && tn_nn_is_due(e) && tn_update_gradient(e->param);
        same = same && large == (e->part >= 0);
        e->part = large ? e->part : -1;
        if (large && e->part < 0) e->part = 0;
        n += large;
    }
    int status = TN_OK;
    if (!n)
        free_parts(r, true);
    else if (!same)
        status = open_parts(o, r, n);
    for (int i = 0; i < r->n_part && !status; i++)
        if (r->part[i].of) r->part[i].gradients = tn_update_gradient(r->part[i].of->param);
    return status;
}

/* ---- counts ---- */

bool tn_nn_optim_waits(const tn_optim *o)
{
    return o->n_before && tn_nn_stats(o->s).runs < o->before[o->n_before - 1].run;
}

/* The oldest update whose run has failed, as have all behind it; n_before: there is none. */
static int first_failed(const tn_optim *o)
{
    int k = 0;
    while (k < o->n_before && !tn_run_failed(o->s, o->before[k].run)) k++;
    return k;
}

void tn_nn_optim_settle(tn_optim *o)
{
    int k = first_failed(o);
    bool overflow = false;
    if (o->flagged && k == o->n_before) { /* of a device that tells late this asks for a failure as well */
        overflow = tn_item(o->fine) == 0;
        k = first_failed(o);
        overflow = overflow && k-- == o->n_before;
    }
    o->flagged = false;
    if (k == o->n_before) return;
    const nn_before *b = &o->before[k];
    for (int i = 0; i < o->n; i++) {
        o->entries[i].steps = b->entry[i].steps;
        o->entries[i].summed = b->entry[i].summed && !overflow; /* sums have it in them */
    }
    for (int i = 0; i < NN_ROWS; i++) o->rows[i].summed = b->row_summed[i] && !overflow;
    o->gathered = overflow ? 0 : b->gathered;
    o->swapped = b->swapped;
    o->n_before = k;
}

/* In fused mode an update runs after it is recorded, and may be refused then: with a label out of range no
 * weight moves, and the number of updates must not either. A device may tell of it some updates later. */
int tn_nn_optim_remember(tn_optim *o)
{
    if (o->n_before == NN_LATE && tn_synchronize(o->s)) return tn_error(o->s);
    tn_nn_optim_settle(o);
    if (tn_error(o->s)) return tn_error(o->s);
    if (o->n_before == NN_LATE) o->n_before = 0;
    nn_before *b = &o->before[o->n_before++];
    b->run = tn_nn_stats(o->s).runs + 1;
    b->gathered = o->gathered;
    b->swapped = o->swapped;
    for (int i = 0; i < o->n; i++) b->entry[i] = (struct nn_count){o->entries[i].steps, o->entries[i].summed};
    for (int i = 0; i < NN_ROWS; i++) b->row_summed[i] = o->rows[i].summed;
    return TN_OK;
}

/* ---- checkpoints ---- */

int tn_nn_optim_bring(tn_optim *o, int which)
{
    for (int i = 0; i < NN_ROWS; i++) {
        nn_row *r = &o->rows[i];
        if (!r->state[which] || tn_error(o->s)) continue;
        r->brought = which == NN_SUM && r->summed && tn_ranks(o->s) > 1 ? tn_mean_over_ranks(r->state[which])
                                                                        : whole(r, which);
        if (r->brought == r->state[which]) r->brought = NULL;
    }
    return tn_flush(o->s); /* now, and not as this rank or that one reads it */
}

void tn_nn_optim_let_go(tn_optim *o)
{
    for (int i = 0; i < NN_ROWS; i++) {
        tn_free(o->rows[i].brought);
        o->rows[i].brought = NULL;
    }
}

tn_tensor *tn_nn_optim_where(const tn_optim *o, const nn_optim_entry *e, int which, int64_t *first)
{
    const nn_row *r = &o->rows[e->row];
    *first = e->first - r->first * NN_BLOCK;
    return r->state[which];
}

int tn_nn_optim_read(const tn_optim *o, const nn_optim_entry *e, int which, void *out)
{
    const nn_row *r = &o->rows[e->row];
    size_t bytes = (size_t)e->count * tn_dtype_size(r->dtype);
    if (!r->state[which]) {
        memset(out, 0, bytes);
        return TN_OK;
    }
    int64_t first = e->first - r->first * NN_BLOCK;
    tn_tensor *flat = tn_reshape(r->brought ? r->brought : r->state[which], 1, (const int64_t[]){-1});
    tn_tensor *part = tn_slice(flat, 0, first, first + e->count, 1);
    int status = tn_read(part, r->dtype, out, bytes);
    tn_free(part); /* outside of steps nobody else would */
    tn_free(flat);
    return status;
}

/* State `which` of a new row, from the file's bytes. */
static int fill(tn_optim *o, nn_row *r, int index, int which, const unsigned char *const *data)
{
    size_t size = tn_dtype_size(r->dtype);
    unsigned char *host = NULL;
    for (int k = 0; k < o->n; k++) {
        const nn_optim_entry *e = &o->entries[k];
        const unsigned char *from = data[which * o->n + k];
        if (e->row != index || !from || !e->count) continue;
        if (!host && !(host = tn_calloc((size_t)r->blocks * NN_BLOCK, size)))
            return tn_fail(o->s, TN_E_NOMEM, "load", "no memory for the state of an optimizer");
        memcpy(host + (size_t)(e->first - r->first * NN_BLOCK) * size, from, (size_t)e->count * size);
        if (which == NN_SUM) r->summed = true;
    }
    if (!host) return TN_OK;
    r->state[which] = from_host(o->s, r, which, host);
    tn_free_mem(host);
    return r->state[which] ? TN_OK : tn_error(o->s);
}

int tn_nn_optim_prepare(tn_optim *o, const int64_t *steps, const unsigned char *const *data, nn_restored *out)
{
    int status = TN_OK;
    memset(out, 0, sizeof(*out));
    for (int i = 0; i < NN_ROWS && !status; i++) {
        nn_row *r = &out->rows[i];
        r->dtype = o->rows[i].dtype;
        for (int k = 0; k < o->n; k++) {
            const nn_optim_entry *e = &o->entries[k];
            bool any = steps[k] != 0;
            for (int which = 0; which < NN_STATES; which++) any |= data[which * o->n + k] != NULL;
            if (e->row == i && any) widen(r, e->first / NN_BLOCK, e->first / NN_BLOCK + tn_nn_blocks(e));
        }
        status = open_range(o, r);
        for (int which = 0; which < NN_STATES && !status; which++) status = fill(o, r, i, which, data);
    }
    if (status) tn_nn_optim_discard(out);
    return status;
}

void tn_nn_optim_commit(tn_optim *o, const int64_t *steps, const unsigned char *const *data, int gathered,
                        nn_restored *in)
{
    for (int i = 0; i < NN_ROWS; i++) {
        tn_nn_row_free(&o->rows[i], true);
        o->rows[i] = in->rows[i];
    }
    for (int k = 0; k < o->n; k++) {
        o->entries[k].steps = steps[k];
        o->entries[k].summed = data[NN_SUM * o->n + k] != NULL;
    }
    o->gathered = gathered;
    o->swapped = in->swapped;
    o->n_before = 0; /* these counts stay, even if an earlier update fails to run */
    o->flagged = false;
}

void tn_nn_optim_discard(nn_restored *in)
{
    for (int i = 0; i < NN_ROWS; i++) tn_nn_row_free(&in->rows[i], true);
}
