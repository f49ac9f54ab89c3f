/* predict.c - how long each step of a plan takes, and what a cut costs, by the target profile.
 *
 *   kernel        launch + the longer of memory and arithmetic + a part of the shorter
 *   library call  call   + the longer of memory and arithmetic
 *
 *   memory       each operand's bytes over the bandwidth at its *distance*: how many bytes have been touched
 *                since it was last, in a plan that is run again and again. What a step has just written is at
 *                hand, what comes around once a step is as far away as the step is large. Writing costs what
 *                a copy takes beyond reading; half of that where the same step has read the memory, which is
 *                then in the cache.
 *   arithmetic   instructions for an element (fu_prog_work) at the profile's rate, or the operations of a
 *                product at the rate of products of its size
 *
 * Bytes and distances follow from the plan, memory in the arena by its offsets. What is predicted
 * decides nothing. Start with tn_plan_predict. */
#include "loops/cost.h"

#include <stdlib.h>

/* A stretch of memory that a step reads or writes. */
typedef struct touch {
    uintptr_t low, high;
    int space; /* 0: addresses; 1: the arena; beyond: values with storage of their own */
    int slot;
    int64_t bytes;
    bool write, past;
} touch;

typedef struct predicting {
    const tn_segment *seg;
    const tn_target *target;
    const tn_target_profile *rates;
    const tn_plan *plan;
    touch *touch;     /* of all steps, in order */
    int *first;       /* of each step */
    int *value;       /* of each slot in plan->value, or -1 */
    double *distance; /* of each touch (find_distances) */
    int *step_of;     /* of each node: the first that computes it, or -1 */
    int *readers;     /* of each slot: steps that read it, each as often as it does */
    tn_arena arena;
} predicting;

static const tn_tensor *tensor_of(const predicting *w, int slot)
{
    if (slot < w->seg->n_node) return w->seg->node[slot];
    return slot < w->seg->n_node + w->seg->n_leaf ? w->seg->leaf[slot - w->seg->n_node] : NULL;
}

static int64_t slot_bytes(const predicting *w, int slot)
{
    const tn_tensor *t = tensor_of(w, slot);
    if (t) return tn_node_numel(t) * (int64_t)tn_dtype_size(t->dtype);
    const tn_plan_value *v = w->value[slot] < 0 ? NULL : &w->plan->value[w->value[slot]];
    return v ? (int64_t)(v->elems * tn_dtype_size(v->dtype)) : 0;
}

/* Fills *t with the addresses of the slot, as far as they are known before the plan runs. */
static void locate(const predicting *w, int slot, touch *t)
{
    const tn_tensor *x = tensor_of(w, slot);
    const tn_plan_value *v = w->value[slot] < 0 ? NULL : &w->plan->value[w->value[slot]];
    int64_t bytes = slot_bytes(w, slot);
    if (v && v->alias >= 0) x = tensor_of(w, v->alias);
    if (x && x->place) x = x->place;
    *t = (touch){.slot = slot, .space = 2 + slot};
    if (x && x->base->buf) {
        t->space = 0;
        t->low = (uintptr_t)x->base->buf->data + (uintptr_t)(x->offset * (int64_t)tn_dtype_size(x->dtype));
    } else if (v && !v->root && !v->keep) {
        t->space = 1;
        t->low = v->offset;
    }
    t->high = t->low + (uintptr_t)bytes;
}

/* Most of `x` lies in `t`. */
static bool covers(const touch *t, const touch *x)
{
    if (t->space != x->space) return false;
    uintptr_t low = t->low > x->low ? t->low : x->low, high = t->high < x->high ? t->high : x->high;
    return high > low && 2 * (high - low) > x->high - x->low;
}

static int list_touches(predicting *w)
{
    int n = 0;
    for (int s = 0; s < w->plan->n_step; s++) {
        const tn_step *st = &w->plan->step[s];
        double whole = 0, listed = 0;
        w->first[s] = n;
        for (int b = 0; b < st->n_buf; b++) {
            if (st->buf[b] < 0) continue;
            touch *t = &w->touch[n++];
            locate(w, st->buf[b], t);
            t->write = b >= st->n_buf - st->n_out;
            t->bytes = st->traffic[b].bytes;
            t->past = st->traffic[b].past;
            listed += (double)t->bytes;
            whole += (double)slot_bytes(w, t->slot);
        }
        for (int i = w->first[s]; i < n && listed <= 0 && whole > 0; i++) /* as large as the operands are */
            w->touch[i].bytes =
                (int64_t)((double)st->bytes * (double)slot_bytes(w, w->touch[i].slot) / whole);
    }
    w->first[w->plan->n_step] = n;
    return n;
}

/* ---- distances ----
 *
 * The distance of a touch: bytes touched since what it looks at was touched by an earlier step, and by its
 * own step; going around the plan's end. Each slot counts once, as it was touched last. Past the caches is
 * further than anything. So two questions are asked: which touch was the last that covers it - what covers it
 * holds its middle, and a tree over all ends of touches lists those that hold a place - and what has been
 * touched between the two, which is a sum over the last touches of all slots, kept in the order of time
 * (Fenwick). */

typedef struct edge {
    int space;
    uintptr_t at;
} edge;

typedef struct looking {
    predicting *w;
    int n;               /* touches */
    edge *edge;          /* where touches begin and end, in order; place i lies between edges i and i + 1 */
    int n_edge, n_place; /* n_place: a power of two */
    int *list, *begin;   /* touches that hold all of a node's places, in order: from list[begin[node]] on */
    int64_t *sum;        /* the Fenwick tree: of times up to 2 n, the bytes of slots touched last at each */
    int *last;           /* of each slot: when it was touched last, or -1 */
    int64_t *bytes;      /* of each slot: how much of it then */
} looking;

static int by_edge(const void *a, const void *b)
{
    const edge *x = a, *y = b;
    return x->space != y->space ? (x->space > y->space) - (x->space < y->space)
                                : (x->at > y->at) - (x->at < y->at);
}

/* The last edge at or before the place. */
static int edge_at(const looking *l, int space, uintptr_t at)
{
    const edge key = {space, at};
    int low = 0, high = l->n_edge;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (by_edge(&l->edge[middle], &key) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

/* The nodes whose places are exactly those of the touch: how many. */
static int nodes_of(const looking *l, const touch *t, int *out)
{
    int n = 0, low = edge_at(l, t->space, t->low) + l->n_place,
        high = edge_at(l, t->space, t->high) + l->n_place;
    for (; low < high; low /= 2, high /= 2) {
        if (low & 1) out[n++] = low++;
        if (high & 1) out[n++] = --high;
    }
    return n;
}

static bool list_edges(looking *l)
{
    const predicting *w = l->w;
    int all = 0, node[64];
    l->edge = tn_arena_alloc(&l->w->arena, 2 * (size_t)(l->n + 1) * sizeof *l->edge);
    if (!l->edge) return false;
    for (int i = 0; i < l->n; i++) {
        l->edge[l->n_edge++] = (edge){w->touch[i].space, w->touch[i].low};
        l->edge[l->n_edge++] = (edge){w->touch[i].space, w->touch[i].high};
    }
    if (l->n_edge) qsort(l->edge, (size_t)l->n_edge, sizeof *l->edge, by_edge);
    for (int i = 0; i < l->n_edge; i++)
        if (!all || by_edge(&l->edge[all - 1], &l->edge[i])) l->edge[all++] = l->edge[i];
    l->n_edge = all;
    for (l->n_place = 1; l->n_place < l->n_edge;) l->n_place *= 2;
    l->begin = tn_arena_alloc(&l->w->arena, (2 * (size_t)l->n_place + 1) * sizeof *l->begin);
    if (!l->begin) return false;
    for (int i = 0; i < l->n; i++)
        for (int k = nodes_of(l, &w->touch[i], node); k-- > 0;) l->begin[node[k]]++;
    all = 0;
    for (int i = 0; i <= 2 * l->n_place; i++) l->begin[i] = all += l->begin[i]; /* ends, for now */
    l->list = tn_arena_alloc(&l->w->arena, (size_t)(all + 1) * sizeof *l->list);
    for (int i = l->n; l->list && i-- > 0;)
        for (int k = nodes_of(l, &w->touch[i], node); k-- > 0;) l->list[--l->begin[node[k]]] = i;
    return l->list != NULL;
}

/* The last touch before `end` that covers x; -1: there is none. */
static int last_before(const looking *l, const touch *x, int end)
{
    int at[32], n = 0, node[32];
    const int place = edge_at(l, x->space, x->low + (x->high - x->low) / 2);
    for (int k = place + l->n_place; k; k /= 2) { /* how many of each list are earlier */
        int low = l->begin[k], high = l->begin[k + 1];
        while (low < high) {
            const int middle = (low + high) / 2;
            if (l->list[middle] < end)
                low = middle + 1;
            else
                high = middle;
        }
        node[n] = k;
        at[n++] = low;
    }
    for (;;) {
        int best = -1;
        for (int k = 0; k < n; k++)
            if (at[k] > l->begin[node[k]] && (best < 0 || l->list[at[k] - 1] > l->list[at[best] - 1]))
                best = k;
        if (best < 0) return -1;
        const int found = l->list[--at[best]];
        if (covers(&l->w->touch[found], x)) return found;
    }
}

static void add_bytes(looking *l, int time, int64_t bytes)
{
    for (int i = time + 1; i <= 2 * l->n; i += i & -i) l->sum[i] += bytes;
}

static int64_t bytes_before(const looking *l, int time)
{
    int64_t bytes = 0;
    for (int i = time; i > 0; i -= i & -i) bytes += l->sum[i];
    return bytes;
}

static void touch_now(looking *l, int i, int time)
{
    const touch *t = &l->w->touch[i];
    if (l->last[t->slot] >= 0) add_bytes(l, l->last[t->slot], -l->bytes[t->slot]);
    l->last[t->slot] = time;
    l->bytes[t->slot] = t->bytes;
    add_bytes(l, time, t->bytes);
}

/* Of touch i of step s, the times of whose touches begin at n: what lies between is that of the round before.
 */
static double distance(looking *l, int s, int i)
{
    const predicting *w = l->w;
    const int first = w->first[s], end = w->first[s + 1], now = l->n + first;
    const touch *x = &w->touch[i];
    int found = last_before(l, x, first), since = found < 0 ? -1 : found + l->n;
    if (found < 0 && (found = last_before(l, x, l->n)) >= first) since = found;
    int64_t sum = bytes_before(l, now) - bytes_before(l, since < 0 ? first : since + 1);
    for (int k = first; k < end; k++) {
        const int slot = w->touch[k].slot;
        bool known = false;
        for (int j = first; j < k && !known; j++) known = w->touch[j].slot == slot;
        if (known) continue;
        sum += w->touch[k].bytes;
        if (l->last[slot] > since && l->last[slot] >= first) sum -= l->bytes[slot];
    }
    const double most = 4 * w->rates->band[w->rates->n_band - 1].bytes;
    return (double)sum < most && since >= 0 && w->touch[found].write && w->touch[found].past ? most
                                                                                             : (double)sum;
}

static bool find_distances(predicting *w, int n, int n_slot)
{
    looking l = {.w = w, .n = n};
    w->distance = tn_arena_alloc(&w->arena, (size_t)(n + 1) * sizeof *w->distance);
    l.sum = tn_arena_alloc(&w->arena, 2 * (size_t)(n + 1) * sizeof *l.sum);
    l.last = tn_arena_alloc(&w->arena, (size_t)(n_slot + 1) * sizeof *l.last);
    l.bytes = tn_arena_alloc(&w->arena, (size_t)(n_slot + 1) * sizeof *l.bytes);
    if (!w->distance || !l.sum || !l.last || !l.bytes || !list_edges(&l)) return false;
    for (int i = 0; i < n_slot; i++) l.last[i] = -1;
    for (int i = 0; i < n; i++) touch_now(&l, i, i);
    for (int s = 0; s < w->plan->n_step; s++) {
        for (int i = w->first[s]; i < w->first[s + 1]; i++) w->distance[i] = distance(&l, s, i);
        for (int i = w->first[s]; i < w->first[s + 1]; i++) touch_now(&l, i, n + i);
    }
    return true;
}

/* ---- times ---- */

static bool read_here(const predicting *w, int s, const touch *x)
{
    for (int i = w->first[s]; i < w->first[s + 1]; i++)
        if (!w->touch[i].write && covers(&w->touch[i], x)) return true;
    return false;
}

static double memory_ns(predicting *w, int s)
{
    double ns = 0;
    for (int i = w->first[s]; i < w->first[s + 1]; i++) {
        const touch *x = &w->touch[i];
        double d = w->distance[i], own = (double)x->bytes;
        if (x->write && read_here(w, s, x))
            ns += fu_write_ns(w->rates, own, d, false) / 2;
        else
            ns += x->write ? fu_write_ns(w->rates, own, d, x->past) : fu_read_ns(w->rates, own, d);
    }
    return ns;
}

/* ---- steps ---- */

/* Small products of a batch run side by side, each at the speed of one of its size. */
static double gemm_rate(const tn_target_profile *r, const tn_gemm *g, double flops)
{
    double one = 2.0 * (double)g->m * (double)g->n * (double)g->k, count = one > 0 ? flops / one : 1;
    double each = tn_profile_gflops(r->gemm, r->n_gemm, one) * (count < r->threads ? count : r->threads);
    double all = tn_profile_gflops(r->gemm, r->n_gemm, flops);
    return count > 1 && each < all ? each : all;
}

/* Chunks that are fewer than what computes leave some of it idle: by how much that takes longer. */
static double idle_by(const tn_target_profile *r, int64_t n, int64_t chunk)
{
    const int64_t chunks = chunk > 0 ? (n + chunk - 1) / chunk : n;
    return chunks > 0 && (double)chunks < r->threads ? r->threads / (double)chunks : 1;
}

/* What a finish takes beyond its share of the kernel's bytes and instructions: a launch, and what few chunks
 * of what has just been written take longer. */
static double finish_ns(const tn_step *st, const tn_target_profile *r)
{
    const double bytes = (double)st->finish.bytes;
    return r->launch_us * 1e3 +
           (idle_by(r, st->grid.finish_n, st->grid.finish_chunk) - 1) *
               (fu_read_ns(r, bytes, bytes) + st->finish.work * r->instruction_ps * 1e-3);
}

static double step_ms(predicting *w, int s)
{
    const tn_step *st = &w->plan->step[s];
    const tn_target_profile *r = w->rates;
    enum { UNKNOWN = 4 }; /* instructions for a byte in kernels that are not made from a loop program */
    double memory = memory_ns(w, s), launch = r->launch_us * 1e3, work = 0, shorter = 0;
    switch (st->kind) {
    case TN_STEP_KERNEL: {
        double work_of = st->work > 0 ? st->work : UNKNOWN * (double)st->bytes;
        double idle = idle_by(r, st->grid.n, st->grid.chunk);
        work = work_of * r->instruction_ps * 1e-3 * idle;
        if (st->flops > 0) work += st->flops / tn_profile_gflops(r->conv, r->n_conv, st->flops);
        memory *= idle;
        shorter = FU_OVERLAP;
        launch += st->grid.finish_n > 0 ? finish_ns(st, r) : 0;
        break;
    }
    case TN_STEP_GEMM:
        work = st->flops / gemm_rate(r, &st->gemm, st->flops) + st->work * r->instruction_ps * 1e-3;
        launch = r->library_us * 1e3;
        break;
    case TN_STEP_CONV:
        work = st->flops / tn_profile_gflops(r->conv, r->n_conv, st->flops);
        launch = r->library_us * 1e3;
        break;
    case TN_STEP_RANKS: /* what the network takes is not the machine's */
    case TN_STEP_HOST: /* nor what a user's function does */ launch = r->library_us * 1e3; break;
    }
    double more = memory > work ? memory : work, less = memory > work ? work : memory;
    return (launch + more + shorter * less) * 1e-6;
}

/* Returns the milliseconds that would be saved if the two sides of a cut were one kernel: a launch, the
 * reading of the value, and where nobody else reads it, its writing. -1: they cannot be one. */
static double cut_ms(predicting *w, const tn_cut *c)
{
    const tn_plan *p = w->plan;
    int from = w->step_of[c->from], to = w->step_of[c->to];
    double ns = 0;
    if (from < 0 || to < 0 || from == to || !tn_cut_removable(c->reason)) return -1;
    for (int i = w->first[to]; i < w->first[to + 1]; i++)
        if (!w->touch[i].write && w->touch[i].slot == c->from)
            ns += fu_read_ns(w->rates, (double)w->touch[i].bytes, w->distance[i]);
    const tn_plan_value *v = w->value[c->from] < 0 ? NULL : &p->value[w->value[c->from]];
    for (int i = w->first[from]; i < w->first[from + 1]; i++)
        if (v && !v->root && !v->keep && w->readers[c->from] <= 1 && w->touch[i].write &&
            w->touch[i].slot == c->from)
            ns += fu_write_ns(w->rates, (double)w->touch[i].bytes, w->distance[i], w->touch[i].past);
    if (p->step[from].kind == TN_STEP_KERNEL && p->step[to].kind == TN_STEP_KERNEL)
        ns += w->rates->launch_us * 1e3;
    return ns * 1e-6;
}

static void *array(predicting *w, int n, size_t size)
{
    return tn_arena_alloc(&w->arena, (size_t)(n + 1) * size);
}

int tn_plan_predict(const tn_segment *seg, const tn_target *target, tn_plan *p)
{
    int n_slot = seg->n_node + seg->n_leaf + p->n_scratch, n = 0;
    predicting w = {.seg = seg, .target = target, .rates = tn_target_rates(target), .plan = p};
    for (int s = 0; s < p->n_step; s++) n += p->step[s].n_buf;
    w.touch = array(&w, n, sizeof *w.touch);
    w.first = array(&w, p->n_step, sizeof *w.first);
    w.value = array(&w, n_slot, sizeof *w.value);
    w.step_of = array(&w, n_slot, sizeof *w.step_of);
    w.readers = array(&w, n_slot, sizeof *w.readers);
    bool ok = w.touch && w.first && w.value && w.step_of && w.readers;
    for (int i = 0; ok && i < n_slot; i++) w.value[i] = w.step_of[i] = -1;
    for (int i = 0; ok && i < p->n_value; i++) w.value[p->value[i].slot] = i;
    for (int s = p->n_step - 1; ok && s >= 0; s--)
        for (int k = 0; k < p->step[s].n_nodes; k++) w.step_of[p->node_of[p->step[s].first_node + k]] = s;
    if (ok) n = list_touches(&w);
    for (int i = 0; ok && i < n; i++) w.readers[w.touch[i].slot] += !w.touch[i].write;
    ok = ok && find_distances(&w, n, n_slot);
    p->predicted_ms = 0;
    for (int s = 0; ok && s < p->n_step; s++) p->predicted_ms += p->step[s].predicted_ms = step_ms(&w, s);
    for (int i = 0; ok && i < p->n_cut; i++) p->cut[i].saves_ms = cut_ms(&w, &p->cut[i]);
    tn_arena_free(&w.arena);
    return ok ? 0 : TN_E_NOMEM;
}
