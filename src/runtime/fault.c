/* fault.c - the error of an index out of range: whose it is, its value, where it stands, what is allowed.
 *
 * A kernel that meets one leaves a fault word, a node and a value (src/device/prelude/abi.h); a loop of a
 * vector's width leaves the largest value it met and the first node of its kernel that indexes. So each node
 * of the kernel that indexes is asked whether the argument that its index comes from holds that value. Where
 * the argument does, and can be looked into, the place is known too. It cannot be looked into where another
 * kernel has yet to compute it, or where it is in a device's own memory: then the error gives no place.
 *
 * Start with tn_index_error. */
#include "../core/convert.h"
#include "log.h"

bool tn_node_indexes(const tn_tensor *n)
{
    return tn_kind_looks_up(tn_kind_of(n)) || tn_kind_of(n) == TN_KIND_SCATTER;
}

tn_index_site tn_index_site_of(const tn_tensor *n)
{
    const tn_tensor *wide = tn_kind_looks_up(tn_kind_of(n)) ? n->in[0] : n;
    return (tn_index_site){.name = n->attr->indexed_by ? n->attr->indexed_by : "index",
                           .extent = wide->shape[n->attr->axis]};
}

/* place: "[1, 3]", or NULL where that is not known. */
static void set_error(tn_graph *g, const tn_index_site *site, const char *place, int64_t value)
{
    char allowed[80];
    snprintf(allowed, sizeof allowed, "must be from 0 to %lld", (long long)site->extent - 1);
    if (place)
        tn_error_set(g, TN_E_INDEX, "%s%s is %lld, %s", site->name, place, (long long)value, allowed);
    else if (site->extent < 0)
        tn_error_set(g, TN_E_INDEX, "index %lld is out of range", (long long)value);
    else
        tn_error_set(g, TN_E_INDEX, "index %lld is out of range: %s %s", (long long)value, site->name,
                     allowed);
}

void tn_index_error_at(tn_session *s, const tn_index_site *site, int64_t value)
{
    set_error(&s->graph, site, NULL, value);
}

/* Returns the user's tensor from which the call that n belongs to has made n's index without changing a
 * value. */
static const tn_tensor *argument_of(const tn_tensor *n)
{
    const tn_tensor *t = n->in[1];
    while (t->call == n->call && t->n_in) {
        const tn_op_info *o = tn_op_get(t->op);
        int same = o->kind == TN_KIND_CAST || (o->kind == TN_KIND_VIEW && o->arity == 1) ? 0 : -1;
        for (int i = 1; i < t->n_in && o->kind == TN_KIND_ELTWISE && o->arity == 3; i++)
            if (!tn_is_number(t->in[i])) same = i;
        if (same < 0) break;
        t = t->in[same];
    }
    return t;
}

/* Row-major over t's elements: the first that `value` names, or with NULL the first outside of the extent.
 * Its place becomes text, its value *found. */
static bool find(const tn_session *s, const tn_tensor *t, int64_t extent, const int64_t *value,
                 int64_t *found, char *place, size_t size)
{
    const void *data = t->base->flags & TN_F_DONE ? tn_node_data(t) : NULL;
    if (!data || !(s->device->shares_host_memory || s->device->is_reference)) return false;
    tn_dtype stored = tn_stored_dtype(&s->graph, t->dtype);
    int64_t at[TN_MAX_DIMS] = {0};
    for (int64_t k = 0, n = tn_node_numel(t); k < n; k++) {
        int64_t from = 0;
        for (int i = 0; i < t->ndim; i++) from += at[i] * t->stride[i];
        const char *p = (const char *)data + from * (int64_t)tn_dtype_size(stored);
        *found = tn_load_i64(p, stored, 0);
        if (value ? *found == *value : *found < 0 || *found >= extent) {
            *place = 0;
            if (t->ndim) tn_shape_text(place, size, t->ndim, at);
            return true;
        }
        for (int i = t->ndim - 1; i >= 0 && ++at[i] == t->shape[i]; i--) at[i] = 0;
    }
    return false;
}

bool tn_index_error(tn_session *s, const tn_tensor *n, const int64_t *value)
{
    char place[160];
    int64_t bad = 0, same;
    tn_index_site site = tn_index_site_of(n);
    if (value && *value >= 0 && *value < site.extent) return false;
    if (value)
        bad = *value;
    else if (!find(s, n->in[1], site.extent, NULL, &bad, place, sizeof place))
        return false;
    if (!find(s, argument_of(n), site.extent, &bad, &same, place, sizeof place)) return false;
    tn_call *open = s->graph.call;
    if (n->call) s->graph.call = n->call;
    set_error(&s->graph, &site, place, bad);
    s->graph.call = open;
    return true;
}
