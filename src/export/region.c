/* region.c - the memory that a step finds and leaves, in regions: members of the struct where the step writes
 * to them, else arrays of the file. All parameters that an optimizer moves are one, as they are in the
 * session.
 *
 * Start with ex_region_of. */
#include "export.h"

#include "../../fuser/text/text.h"

#include <stdio.h>
#include <string.h>

/* Regions are members of the struct and arrays of the file. */
static bool is_taken(const tn_export *x, const char *name)
{
    static const char *const own[] = {"arena", "seed",   "draw",   "rate", "fault", "steps",
                                      "saved", "ticket", "number", "run",  "pool"};
    for (int i = 0; i < x->n_region; i++)
        if (!strcmp(x->region[i].name, name)) return true;
    for (int i = 0; i < x->n_mark; i++)
        if (!strcmp(x->mark[i].name, name)) return true;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(own[i], name)) return true;
    return false;
}

static int add_region(tn_export *x, const char *low, size_t bytes, tn_dtype d, const char *name)
{
    if (!tn_reserve(&x->region, &x->cap_region, x->n_region + 1, sizeof *x->region)) return -1;
    ex_region *r = &x->region[x->n_region];
    *r = (ex_region){.low = low, .bytes = bytes, .dtype = d};
    char base[EXPORT_NAME - 16];
    fu_identifier(base, sizeof base, name && *name ? name : "data");
    snprintf(r->name, sizeof r->name, "%s", base);
    for (int k = 2; is_taken(x, r->name); k++) snprintf(r->name, sizeof r->name, "%s_%d", base, k);
    return x->n_region++;
}

static int region_of(tn_export *x, const tn_tensor *t, const char *at, tn_storage *holder)
{
    for (int i = 0; i < x->n_region; i++)
        if (at >= x->region[i].low && at < x->region[i].low + x->region[i].bytes) return i;
    for (int d = 0; d < TN_DTYPE_COUNT; d++) {
        const tn_slab *b = &x->s->slab[d];
        const size_t bytes = (size_t)b->count * tn_dtype_size((tn_dtype)d);
        if (!b->values) continue;
        if (at >= b->value_base && at < b->value_base + bytes && !x->slabs)
            return add_region(x, tn_node_home(t->base, &holder),
                              (size_t)tn_node_numel(t->base) * tn_dtype_size((tn_dtype)d), (tn_dtype)d,
                              t->base->name);
        if (at >= b->value_base && at < b->value_base + bytes)
            return add_region(x, b->value_base, bytes, (tn_dtype)d, "parameters");
        if (at < b->gradient_base || at >= b->gradient_base + bytes) continue;
        int r = add_region(x, b->gradient_base, bytes, (tn_dtype)d, "gradients");
        if (r >= 0) x->region[r].zero = true;
        return r;
    }
    while (holder && holder->within) holder = holder->within;
    if (!holder || !holder->data) return -1;
    const tn_tensor *b = t->base, *named = b->of ? b->of : b;
    return add_region(x, holder->data, holder->bytes, t->dtype,
                      b->name       ? b->name
                      : named->name ? named->name
                                    : "");
}

int ex_region_of(tn_export *x, const tn_tensor *t, const char **at)
{
    tn_storage *holder = NULL;
    *at = tn_node_home(t, &holder);
    return *at ? region_of(x, t, *at, holder) : -1;
}

bool ex_is_member(const tn_export *x, const ex_region *r)
{
    return r->written || x->cuda; /* where no constant of the file lies in the memory that kernels read */
}

void ex_put_region(const tn_export *x, const ex_region *r, tn_growing *t)
{
    const bool member = ex_is_member(x, r);
    tn_put(t, "%s%s%s", member ? "m->" : "", r->name, member ? "" : "_data");
}

static bool has_name(const tn_export *x, const ex_region *r)
{
    tn_storage *holder = NULL;
    for (int i = 0; i < x->s->n_params + x->s->n_buffers; i++) {
        const tn_tensor *p = i < x->s->n_params ? x->s->params[i] : x->s->buffers[i - x->s->n_params];
        const char *at = tn_node_home(p, &holder);
        if (at >= r->low && at < r->low + r->bytes) return true;
    }
    return false;
}

/* Memory that the step only reads and the user has not named may be gone by the end: it is copied now. */
int ex_copy_constants(tn_export *x)
{
    TN_EACH(r, x->region, x->n_region) {
        if (r->data) continue;
        r->data = tn_calloc(1, r->bytes + 8);
        if (!r->data) return ex_fail(x, TN_E_NOMEM, "no memory for %zu bytes of %s", r->bytes, r->name);
        r->mine = !r->written;
        if (x->blank && !r->written && !has_name(x, r)) {
            const void *known = x->s->device->uploaded(x->s->device, r->low, r->bytes);
            if (!known)
                return ex_fail(
                    x, TN_E_UNSUPPORTED,
                    "%s: a constant whose elements were computed by a GPU that is not there: pass it as an "
                    "input",
                    r->name);
            memcpy(r->data, known, r->bytes);
        }
        if (r->mine && !x->blank && x->s->device->download(x->s->device, r->data, r->low, r->bytes))
            return ex_fail(x, TN_E_DEVICE, "%s cannot be read", r->name);
    }
    return TN_OK;
}
