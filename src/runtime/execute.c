/* execute.c - running a plan: an address for each slot, then the steps in order.
 *
 *   bind     leaves where they lie; an assignment's and a placed node's value in the memory it is for; what
 *            outlives the plan in storage of its own; the rest in the session's arena, or where gradients
 *            will be written
 *   step     a launch or a library call; a fault word that one sets stops those after it, so that a broken
 *            batch moves no weights. A device with memory of its own runs the plan as one launch where it can
 *            (device_run.c)
 *
 * Start with tn_execute.
 */
#include <string.h>

#include "device_run.h"
#include "../core/host.h"
#include "log.h"
#include "ranks.h"

/* call: whose result it was for, or NULL for what all share. */
static int no_device_memory(tn_session *s, size_t bytes, tn_call *call)
{
    const char *why = s->device->failure.text;
    return tn_error_of(&s->graph, call, TN_E_NOMEM, "no device memory for %zu bytes%s%s", bytes,
                       why[0] ? ": " : "", why);
}

static void set_address(tn_flush_scratch *f, int slot, void *to)
{
    f->bound = f->bound && f->address[slot] == to;
    f->address[slot] = to;
}

static tn_tensor *node_of(const tn_flush_scratch *f, const tn_plan_value *v)
{
    return v->slot < f->node.n ? f->node.at[v->slot] : NULL;
}

/* A value that is not in the arena. */
static int bind_placed(tn_session *s, tn_flush_scratch *f, const tn_plan_value *v, tn_storage **hold)
{
    tn_tensor *n = node_of(f, v);
    if (n && tn_node_written(n)) {
        tn_storage *b = NULL;
        set_address(f, v->slot, tn_node_home(tn_node_written(n), &b));
        *hold = b;
        if (b) tn_storage_retain(b);
        return TN_OK;
    }
    size_t bytes = v->elems * tn_dtype_size(v->dtype);
    tn_storage *b = *hold = tn_storage_new(&s->graph, bytes);
    if (!b) return no_device_memory(s, bytes, n ? n->call : NULL);
    set_address(f, v->slot, b->data);
    return TN_OK;
}

/* On a device with memory of its own the arena grows where it is: recordings hold its addresses. */
static int grow_arena(tn_session *s, size_t bytes)
{
    tn_device *d = s->device;
    for (size_t range = (size_t)1 << 38; !s->arena && range >= bytes && range >= (size_t)1 << 24;
         range >>= 1) {
        s->arena = d->reserve(d, range);
        s->arena_range = s->arena ? range : 0;
    }
    if (!s->arena || bytes > s->arena_range || d->commit(d, s->arena, 0, bytes))
        return no_device_memory(s, bytes, NULL);
    s->arena_bytes = bytes;
    return TN_OK;
}

static int reserve_arena(tn_session *s, size_t bytes)
{
    if (bytes <= s->arena_bytes) return TN_OK;
    if (!s->device->shares_host_memory) return grow_arena(s, bytes);
    s->device->free(s->device, s->arena);
    s->arena = s->device->alloc(s->device, bytes);
    s->arena_bytes = s->arena ? bytes : 0;
    return s->arena ? TN_OK : no_device_memory(s, bytes, NULL);
}

static tn_word word_of(tn_session *s, tn_tensor *n, int what)
{
    const tn_number v = n->base->attr->number;
    switch (what) {
    case TN_WORD_F64: return (tn_word){.f = v.f};
    case TN_WORD_I64: return (tn_word){.i = v.is_int ? v.i : tn_f64_to_i64(v.f)};
    case TN_WORD_SEED: return (tn_word){.u = s->graph.seed ^ s->graph.salt};
    case TN_WORD_DRAW: return (tn_word){.u = n->attr->draw};
    }
    return (tn_word){.u = 0};
}

/* All run-time scalars of the plan, in the order of its steps. */
static int fill_words(tn_session *s, tn_flush_scratch *f, const tn_plan *p, int *n_word)
{
    int n = 0;
    for (int i = 0; i < p->n_step; i++) n += p->step[i].n_scalar;
    *n_word = n;
    if (!tn_reserve(&f->word, &f->cap_word, n, sizeof *f->word)) return tn_fail_memory(s);
    n = 0;
    for (int i = 0; i < p->n_step; i++)
        TN_EACH(r, p->step[i].scalar, p->step[i].n_scalar) {
            f->word[n++] = word_of(s, tn_node_at(f, r->slot), (int)r->what);
        }
    return TN_OK;
}

static bool make_tables(tn_flush_scratch *f, const tn_plan *p)
{
    int n_slot = f->node.n + f->leaf.n + p->n_scratch;
    f->n_placed = 0;
    if (!tn_reserve(&f->address, &f->cap_address, n_slot, sizeof *f->address) ||
        !tn_reserve(&f->size, &f->cap_size, n_slot, sizeof *f->size) ||
        !tn_reserve(&f->placed, &f->cap_placed, p->n_value, sizeof *f->placed) ||
        !tn_reserve(&f->hold, &f->cap_hold, p->n_value, sizeof *f->hold))
        return false;
    memset(f->address, 0, (size_t)n_slot * sizeof *f->address);
    for (int i = 0; i < f->node.n + f->leaf.n; i++)
        f->size[i] = tn_dtype_size((tn_dtype)tn_node_at(f, i)->dtype);
    for (int i = 0; i < p->n_value; i++) {
        const tn_plan_value *v = &p->value[i];
        const tn_tensor *n = node_of(f, v);
        f->size[v->slot] = tn_dtype_size(v->dtype);
        if (v->root || v->keep || (n && tn_node_written(n))) f->placed[f->n_placed++] = i;
    }
    return true;
}

bool tn_flush_fix(tn_flush_scratch *f, const tn_plan *p)
{
    f->fixed = make_tables(f, p);
    return f->fixed;
}

/* Fills the list of buffers that each launch reads and writes. */
static int set_buffers(tn_session *s, tn_flush_scratch *f, const tn_plan *p)
{
    int n = 0;
    for (int i = 0; i < p->n_step; i++) n += p->step[i].n_buf;
    if (!tn_reserve(&f->buf, &f->cap_buf, n, sizeof *f->buf)) return tn_fail_memory(s);
    void **to = f->buf;
    TN_EACH(st, p->step, p->n_step) {
        for (int k = 0; k < st->n_buf; k++) {
            int slot = st->buf[k];
            *to++ = slot < 0 ? NULL : (char *)f->address[slot] + st->offset[k] * (int64_t)f->size[slot];
        }
    }
    f->bound = f->fixed;
    return TN_OK;
}

static void set_arena(tn_session *s, tn_flush_scratch *f, const tn_plan *p)
{
    int next = 0;
    for (int i = 0; i < p->n_value; i++)
        if (next < f->n_placed && f->placed[next] == i)
            next++;
        else
            set_address(f, p->value[i].slot, tn_plan_room(s, p, &p->value[i]));
    f->arena = s->arena;
}

/* A plan that is replayed mostly finds everything where it was. */
static int bind(tn_session *s, tn_flush_scratch *f, const tn_plan *p)
{
    if (!f->fixed && !make_tables(f, p)) return tn_fail_memory(s);
    if (f->n_placed) memset(f->hold, 0, (size_t)f->n_placed * sizeof *f->hold);
    int status = reserve_arena(s, p->arena_bytes);
    for (int i = 0; i < f->leaf.n; i++) set_address(f, f->node.n + i, tn_node_data(f->leaf.at[i]));
    if (!f->bound || f->arena != s->arena) set_arena(s, f, p);
    for (int i = 0; i < f->n_placed && !status; i++)
        status = bind_placed(s, f, &p->value[f->placed[i]], &f->hold[i]);
    return status || f->bound ? status : set_buffers(s, f, p);
}

/* The fault of a step belongs to the call that indexes in it. */
static int step_fault(tn_session *s, const tn_flush_scratch *f, const tn_plan *p, const tn_step *st)
{
    if (!s->fault.code) return TN_OK;
    tn_tensor *likely = NULL;
    int64_t value = s->fault.value;
    bool said = false;
    for (int i = 0; i < st->n_nodes && !said; i++) {
        int slot = p->node_of[st->first_node + i];
        tn_tensor *n = f->node.at[slot];
        if (!tn_node_indexes(n)) continue;
        said = tn_index_error(s, n, &value);
        if (said || !likely || slot == s->fault.where) likely = n;
    }
    if (!st->n_nodes) { /* it looks through one index alone (fuser/graph/lookups.c) */
        likely = f->node.at[s->fault.where];
        said = tn_index_error(s, likely, &value);
    }
    tn_call *open = s->graph.call;
    tn_index_site site = likely ? tn_index_site_of(likely) : (tn_index_site){"index", -1};
    if (likely && likely->call) s->graph.call = likely->call;
    if (!said) tn_index_error_at(s, &site, value);
    if (likely) likely->flags |= TN_F_REFUSED;
    s->graph.call = open;
    s->fault = (tn_fault){0};
    return TN_E_INDEX;
}

/* buf: what a library call reads and writes. */
static void set_operands(tn_step *st, void **buf)
{
    if (st->kind == TN_STEP_GEMM) {
        st->gemm.a = buf[0];
        st->gemm.b = buf[1];
        st->gemm.then = st->kernel;
        st->gemm.bias = buf[2];
        st->gemm.c = st->kernel ? NULL : buf[3];
    } else if (st->kind == TN_STEP_CONV) {
        st->conv.in0 = buf[0];
        st->conv.in1 = buf[1];
        st->conv.bias = buf[2];
        st->conv.out = buf[3];
    }
}

/* Memory for all library calls, before the first step has assigned to anything. A plan that has it keeps it
 * until the device has given some back. */
static int make_ready(tn_session *s, void **buf, tn_plan *p, int *at, tn_errbuf *err)
{
    tn_device *d = s->device;
    int status = TN_OK;
    if (!d->ready || p->ready == d->shed + 1) return TN_OK;
    for (int i = 0; i < p->n_step && !status; i++) {
        tn_step *st = &p->step[i];
        set_operands(st, buf);
        buf += st->n_buf;
        *at = i;
        if (st->kind == TN_STEP_GEMM) status = d->ready(d, &st->gemm, NULL, err);
        if (st->kind == TN_STEP_CONV) status = d->ready(d, NULL, &st->conv, err);
    }
    if (!status) p->ready = d->shed + 1;
    return status;
}

/* Calls a function of the user's; for a device with memory of its own on copies. */
static int run_host(tn_session *s, const tn_tensor *n, void **buf, tn_errbuf *err)
{
    tn_device *d = s->device;
    if (d->shares_host_memory) return tn_host_run(n, (const void *const *)buf, buf[n->n_in], err);
    void *copy[TN_MAX_ARGS + 3] = {NULL};
    int status = TN_OK;
    for (int i = 0; i <= n->n_in && !status; i++) {
        const tn_tensor *x = i < n->n_in ? n->in[i] : n;
        const size_t bytes = (size_t)tn_node_numel(x) * tn_dtype_size(x->dtype);
        copy[i] = tn_malloc(bytes + 1);
        if (!copy[i])
            status = tn_err(err, TN_E_NOMEM, "no memory for an operand on the host");
        else if (i < n->n_in && bytes)
            status = d->download(d, copy[i], buf[i], bytes);
    }
    if (!status) status = tn_host_run(n, (const void *const *)copy, copy[n->n_in], err);
    const size_t bytes = (size_t)tn_node_numel(n) * tn_dtype_size(n->dtype);
    if (!status && bytes) status = d->upload(d, buf[n->n_in], copy[n->n_in], bytes);
    for (int i = 0; i <= n->n_in; i++) tn_free_mem(copy[i]);
    return status;
}

/* `buf`: what the step reads and writes; `word`: its scalars, where its kernel can read them; node: HOST,
 * what it computes. */
static int run_step(tn_session *s, void **buf, tn_step *st, const tn_word *word, const tn_tensor *node,
                    tn_errbuf *err)
{
    int status = TN_OK;
    const tn_args a = {.buf = buf,
                       .dim = st->dim,
                       .scalar = word,
                       .fault = &s->fault,
                       .n_buf = st->n_buf,
                       .n_dim = st->n_dim};
    switch (st->kind) {
    case TN_STEP_KERNEL:
        status = s->device->launch(s->device, st->kernel, &a, &st->grid, err);
        s->stats.kernels++;
        break;
    case TN_STEP_GEMM:
        set_operands(st, buf);
        st->gemm.args = &a;
        status = s->device->gemm(s->device, &st->gemm, err);
        st->gemm.args = NULL;
        s->stats.library_calls++;
        break;
    case TN_STEP_CONV:
        set_operands(st, buf);
        status = s->device->conv2d(s->device, &st->conv, err);
        s->stats.library_calls++;
        break;
    case TN_STEP_RANKS: /* it has begun in parts */ status = tn_ranks_wait(s); break;
    case TN_STEP_HOST: status = run_host(s, node, buf, err); break;
    }
    s->stats.bytes_moved += (uint64_t)st->bytes;
    return status;
}

/* What a HOST step computes; of others NULL. */
static const tn_tensor *host_node(const tn_flush_scratch *f, const tn_plan *p, const tn_step *st)
{
    return st->kind == TN_STEP_HOST ? f->node.at[p->node_of[st->first_node]] : NULL;
}

static tn_part part_of(const tn_plan *p, const tn_begin *b)
{
    const int64_t *dim = p->step[b->step].dim;
    return (tn_part){(tn_together)dim[TN_RANKS_HOW], b->first, b->n, dim[TN_RANKS_ALL], dim[TN_RANKS_LINES],
                     (size_t)dim[TN_RANKS_SIZE]};
}

/* Begins what can begin behind step `after`. What is gathered goes into weights: ranks agree ahead of each,
 * where the host waits for it (agree_now). */
static int begin_parts(tn_session *s, const tn_flush_scratch *f, const tn_plan *p, int after, bool *agreed)
{
    int status = TN_OK;
    for (int i = 0; i < p->n_begin && !status; i++) {
        const tn_begin *b = &p->begin[i];
        if (b->after != after) continue;
        const tn_part part = part_of(p, b);
        if (b->step >= p->together && !(*agreed && s->device->take_fault)) {
            status = tn_ranks_agree(s, TN_OK);
            *agreed = true;
        }
        if (!status) status = tn_ranks_start(s, &part, f->buf[b->buf], f->buf[b->buf + 1]);
    }
    return status;
}

static bool assigns(const tn_flush_scratch *f, const tn_plan *p, const tn_step *st)
{
    for (int k = 0; k < st->n_nodes; k++)
        if (tn_kind_of(f->node.at[p->node_of[st->first_node + k]]) == TN_KIND_ASSIGN) return true;
    return false;
}

/* Whether ranks agree ahead of step i: where the host waits for each, behind the last mean; a device that
 * tells late has indices looked at ahead of all assignments, and its kernels do nothing once all know of a
 * fault. */
static bool agree_now(const tn_session *s, const tn_flush_scratch *f, const tn_plan *p, int i, bool *agreed)
{
    if (*agreed || !p->together) return false;
    *agreed = s->device->take_fault ? i < p->n_step && assigns(f, p, &p->step[i]) : i == p->together;
    return *agreed;
}

/* One after the other. Stops at a fault too, with TN_OK: it is in s->fault. */
static int run_steps(tn_session *s, tn_flush_scratch *f, tn_plan *p, const tn_word *word, int *at,
                     tn_errbuf *err)
{
    bool agreed = false;
    int status = begin_parts(s, f, p, -1, &agreed);
    void **buf = f->buf;
    if (!status && agree_now(s, f, p, 0, &agreed)) status = tn_ranks_agree(s, TN_OK);
    for (int i = 0; i < p->n_step && !status && !s->fault.code; i++) {
        bool probing = tn_probing(s);
        *at = i;
        if (probing) tn_probe_before(s, i);
        status = run_step(s, buf, &p->step[i], word, host_node(f, p, &p->step[i]), err);
        if (probing && !status && !s->fault.code) status = tn_probe_after(s, f, p, i);
        if (!status && agree_now(s, f, p, i + 1, &agreed)) status = tn_ranks_agree(s, TN_OK);
        if (!status && !s->fault.code) status = begin_parts(s, f, p, i, &agreed);
        buf += p->step[i].n_buf;
        word += p->step[i].n_scalar;
    }
    return status;
}

/* The error of a step: of a function of the user's in the name of the call that it is. */
static void step_failed(tn_session *s, const tn_flush_scratch *f, const tn_plan *p, const tn_step *st,
                        int status, const tn_errbuf *err)
{
    const char *why = err->text[0] ? err->text : tn_status_text(status);
    const tn_tensor *n = host_node(f, p, st);
    tn_error_of(&s->graph, n ? n->call : NULL, status, "%s%s%s", n ? "" : st->name, n ? "" : ": ", why);
}

static int run_plan(tn_session *s, tn_flush_scratch *f, tn_plan *p, int n_slot)
{
    tn_errbuf err = {""};
    int n_word = 0, at = 0, status = fill_words(s, f, p, &n_word);
    if (status || !p->n_step) return status;
    if (s->device->shares_host_memory) {
        status = make_ready(s, f->buf, p, &at, &err);
        if (!status) status = run_steps(s, f, p, f->word, &at, &err);
        if (s->device->ready) s->device->ready(s->device, NULL, NULL, NULL);
    } else {
        struct tn_plan_run *r = tn_device_run(s, f, p, f->word, n_word);
        if (!r) return s->graph.error.status;
        status = tn_device_run_steps(s, f, p, r, n_slot, run_steps, &at, &err);
    }
    if (status) step_failed(s, f, p, &p->step[at], status, &err);
    if (!status) status = step_fault(s, f, p, &p->step[at]);
    bool meets = status && at + 1 < p->together; /* the others go on, until all tell how it went */
    for (int i = 0; i < p->n_begin && status; i++) {
        const tn_part part = part_of(p, &p->begin[i]);
        if (p->begin[i].after < at) continue;
        meets = true;
        if (p->begin[i].step < p->together) tn_ranks_miss(s, &part);
    }
    if (meets) status = tn_ranks_agree(s, status);
    return status;
}

/* Saves what assignments overwrite that may have to be taken back: all, or those ahead of what ranks agree
 * on. */
static int keep_old(tn_session *s, const tn_flush_scratch *f, const tn_plan *p, tn_saved *kept)
{
    bool fine = true;
    for (int i = 0; i < f->node.n && p->undo && fine; i++) fine = tn_keep_old(kept, f->node.at[i]);
    for (int i = 0; i < p->together && !p->undo; i++)
        for (int k = 0; k < p->step[i].n_nodes && fine; k++) {
            const tn_tensor *n = f->node.at[p->node_of[p->step[i].first_node + k]];
            if (tn_kind_of(n) == TN_KIND_ASSIGN) fine = tn_keep_old(kept, n);
        }
    return fine ? TN_OK : tn_fail_memory(s);
}

int tn_execute(tn_session *s, tn_flush_scratch *f, tn_plan *p)
{
    int n_slot = f->node.n + f->leaf.n + p->n_scratch;
    tn_saved kept = {0};
    int status = bind(s, f, p);
    if (!status && s->device->shares_host_memory) status = keep_old(s, f, p, &kept);
    if (p->together) status = tn_ranks_begin(s, f, p, status);
    if (!status) status = run_plan(s, f, p, n_slot);
    tn_put_back(&kept, status != TN_OK);
    for (int i = 0; i < f->n_placed; i++) {
        if (!f->hold[i]) continue;
        tn_tensor *n = node_of(f, &p->value[f->placed[i]]);
        if (status || !n) {
            tn_storage_release(f->hold[i]);
            continue;
        }
        n->buf = f->hold[i];
        n->flags |= TN_F_DONE;
    }
    return status;
}
