/* explain_view.c - a log of plans becomes what one wants to be told: launches with what they replace, rows
 * that pair forward with backward, the ledger of what forward keeps for backward, boundaries with a remedy,
 * and the lines that cut the step into segments. Start with tn_view_make.
 */
#include "explain.h"

#include <stdlib.h>
#include <string.h>

typedef struct making {
    tn_view *v;
    int *first;      /* first launch of each segment */
    uint8_t **trait; /* of each segment's nodes: bits below */
    uint8_t **how;   /* of each segment's values: what the ledger says */
    bool failed;
} making;

static void *take(making *m, size_t n, size_t size)
{
    void *p = tn_arena_alloc(&m->v->arena, (n + 1) * size);
    m->failed = m->failed || !p;
    return p;
}

static char *keep_text(making *m, fu_text *t)
{
    char *p = t->failed ? NULL : tn_arena_strdup(&m->v->arena, t->p ? t->p : "");
    m->failed = m->failed || !p;
    fu_text_free(t);
    return p;
}

const char *tn_way_name(tn_way w)
{
    static const char *const name[TN_WAYS] = {"forward", "backward", "both", "update"};
    return name[w];
}

enum { REPEATED = 1, AFTER = 2, LEADS = 4 };

static bool same_call(const tn_note_call *a, const tn_note_call *b)
{
    return a->key == b->key && a->backward == b->backward && a->line == b->line && !a->file == !b->file &&
           (!a->file || !strcmp(a->file, b->file)) && !strcmp(a->name, b->name);
}

/* The value of another segment's note that is slot i of this one; -1: none is. */
static int same_value(const tn_note *n, int i, const tn_note *other, bool nodes_only)
{
    const tn_note_value *v = &n->value[i];
    for (int k = 0; k < (nodes_only ? other->n_node : other->n_value) && v->call >= 0; k++) {
        const tn_note_value *o = &other->value[k];
        if (o->call < 0 || o->at != v->at || o->op != v->op) continue;
        if (same_call(&n->call[v->call], &other->call[o->call])) return k;
    }
    return -1;
}

/* Marks what an earlier segment has computed before, what is made of gradients, and what they are made of. */
static void mark_nodes(making *m, int r)
{
    const tn_step_log *log = m->v->log;
    const tn_note *n = log->run[r].plan->note;
    uint8_t *t = m->trait[r] = tn_arena_alloc(&m->v->arena, (size_t)n->n_value + 1);
    m->failed = m->failed || !t;
    if (!t) return;
    for (int i = 0; i < n->n_node; i++) {
        const tn_note_value *v = &n->value[i];
        bool back = v->call >= 0 && n->call[v->call].backward;
        for (int k = 0; k < v->n_in; k++) {
            const tn_note_value *x = &n->value[v->in[k]];
            bool from = v->in[k] < n->n_node ? t[v->in[k]] & AFTER : x->gradient;
            if (from || (x->call >= 0 && n->call[x->call].backward)) t[i] |= AFTER;
        }
        for (int q = 0; q < r && !back && v->step >= 0 && !(t[i] & REPEATED); q++) {
            const tn_note *o = log->run[q].plan->note;
            int at = same_value(n, i, o, true);
            if (at >= 0 && o->value[at].step >= 0) t[i] |= REPEATED;
        }
    }
    for (int i = n->n_node; i-- > 0;) {
        const tn_note_value *v = &n->value[i];
        bool leads = t[i] & LEADS || (v->call >= 0 && n->call[v->call].backward);
        for (int k = 0; k < v->n_in && leads; k++) t[v->in[k]] |= LEADS;
    }
}

/* ---- launches ---- */

static bool own(const tn_launch *l, int node)
{
    return l->note->value[node].step == l->step;
}

static int node_at(const tn_launch *l, int i)
{
    return l->plan->node_of[l->of->first_node + i];
}

static const tn_note_call *call_of(const tn_note *n, int slot)
{
    int c = n->value[slot].call;
    return c < 0 ? NULL : &n->call[c];
}

static tn_way way_of(const tn_launch *l, const uint8_t *trait)
{
    int way[2] = {0, 0};
    bool after = false, leads = false;
    for (int i = 0; i < l->of->n_nodes; i++) {
        int at = node_at(l, i);
        const tn_note_call *c = call_of(l->note, at);
        if (!own(l, at)) continue;
        after = after || trait[at] & AFTER;
        leads = leads || trait[at] & LEADS || (c && c->backward);
    }
    if (after && !leads) return TN_WAY_UPDATE;
    for (int all = 0; all < 2 && !way[0] && !way[1];
         all++) /* one that only computes others' again: by those */
        for (int i = 0; i < l->of->n_nodes; i++) {
            const tn_note_call *c = call_of(l->note, node_at(l, i));
            if (all || own(l, node_at(l, i))) way[c && c->backward]++;
        }
    return way[0] && way[1] ? TN_WAY_BOTH : way[1] ? TN_WAY_BACKWARD : TN_WAY_FORWARD;
}

/* How eager mode would run a call: one that only loops over elements is one kernel, wherever its nodes went.
 */
typedef struct alone {
    bool simple;
    int last;              /* simple: the launch that makes its last value */
    const bool *outside;   /* of each node: some other call, or a launch of its own, reads it */
    const bool *elsewhere; /* some other call reads it, or nothing does */
    int64_t *seen;         /* scratch, by slot: elements read */
} alone;

/* What the nodes of one call - those in this launch, or for a simple one all - read and write by themselves.
 */
static int64_t bytes_alone(const tn_launch *l, int call, const alone *a)
{
    const tn_note *n = l->note;
    const bool *out = a[call].simple ? a->elsewhere : a->outside;
    int64_t bytes = 0, *seen = a->seen;
    for (int pass = 0; pass < 3; pass++)
        for (int i = 0; i < n->n_node; i++) {
            const tn_note_value *v = &n->value[i];
            if (v->call != call || v->step < 0 || (!a[call].simple && v->step != l->step)) continue;
            if (pass == 1 && out[i]) bytes += (int64_t)tn_note_bytes(v);
            for (int k = 0; k < v->n_in; k++) {
                const tn_note_value *x = &n->value[v->in[k]];
                bool inner =
                    v->in[k] < n->n_node && x->call == call && (a[call].simple || x->step == l->step);
                if (x->number || inner) continue;
                if (pass == 0) seen[v->in[k]] += v->read[k];
                if (pass == 1 && seen[v->in[k]] > 0) {
                    int64_t most = seen[v->in[k]] < x->numel ? seen[v->in[k]] : x->numel;
                    bytes += most * (int64_t)tn_dtype_size((tn_dtype)x->dtype);
                    seen[v->in[k]] = -1;
                }
                if (pass == 2) seen[v->in[k]] = 0;
            }
        }
    return bytes;
}

static bool loops_over_elements(tn_op op)
{
    tn_kind k = tn_op_get(op)->kind;
    return k == TN_KIND_ELTWISE || k == TN_KIND_CAST || k == TN_KIND_IOTA || k == TN_KIND_RANDOM;
}

/* For each call of a segment. The first entry's tables serve all. */
static alone *make_alone(making *m, const tn_plan *p)
{
    const tn_note *n = p->note;
    size_t count = (size_t)n->n_value;
    alone *a = take(m, (size_t)n->n_call, sizeof *a);
    bool *outside = take(m, count, 1), *elsewhere = take(m, count, 1), *read = take(m, count, 1);
    int64_t *seen = take(m, count, sizeof *seen);
    if (m->failed) return NULL;
    for (int i = 0; i < n->n_call; i++) a[i].simple = true;
    for (int i = 0; i < n->n_node; i++) {
        const tn_note_value *y = &n->value[i];
        if (y->call >= 0 && y->step >= 0) {
            a[y->call].simple = a[y->call].simple && loops_over_elements((tn_op)y->op) && !y->written;
            a[y->call].last = y->step;
        }
        for (int k = 0; k < y->n_in && y->step >= 0; k++) {
            const tn_note_value *x = &n->value[y->in[k]];
            read[y->in[k]] = true;
            if (x->call != y->call) elsewhere[y->in[k]] = true;
            if (x->call != y->call || x->step != y->step) outside[y->in[k]] = true;
        }
    }
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].slot < n->n_node && (p->value[i].root || p->value[i].keep))
            outside[p->value[i].slot] = elsewhere[p->value[i].slot] = true;
    for (int i = 0; i < n->n_node; i++) {
        outside[i] = outside[i] || !read[i];
        elsewhere[i] = elsewhere[i] || !read[i];
    }
    a->outside = outside;
    a->elsewhere = elsewhere;
    a->seen = seen;
    return a;
}

/* Whether eager mode needs a kernel for this part of a call: it makes what another call reads, or does more
 * than loop over elements. The rest would stand in the kernel that reads it. */
static bool needs_kernel(const tn_launch *l, int call, const alone *a)
{
    for (int i = 0; i < l->of->n_nodes; i++) {
        int at = node_at(l, i);
        const tn_note_value *v = &l->note->value[at];
        if (!own(l, at) || v->call != call) continue;
        if (a->elsewhere[at] || !loops_over_elements((tn_op)v->op)) return true;
    }
    return false;
}

static void count_before(tn_launch *l, const alone *a)
{
    l->before = !l->repeated; /* eager mode keeps it */
    l->bytes_before = l->repeated ? 0 : l->of->bytes;
    if (l->repeated) return;
    if (l->again || l->of->kind != TN_STEP_KERNEL) return;
    int calls = 0, told = 0;
    int64_t bytes = 0;
    bool whole = true; /* one call, and all that it has */
    for (int i = 0; i < l->of->n_nodes; i++) {
        int at = node_at(l, i), call = l->note->value[at].call;
        bool counted = false;
        if (!own(l, at) || call < 0) {
            whole = false;
            continue;
        }
        for (int k = 0; k < i && !counted; k++)
            counted = own(l, node_at(l, k)) && l->note->value[node_at(l, k)].call == call;
        if (counted) continue;
        told++;
        if (a[call].simple ? a[call].last != l->step : !needs_kernel(l, call, a)) continue;
        calls++;
        bytes += bytes_alone(l, call, a);
    }
    if (told == 1 && calls == 1 && whole) return; /* nothing was joined */
    l->before = calls;
    l->bytes_before = bytes;
}

static void put_ops(fu_text *t, const tn_launch *l)
{
    const tn_note *n = l->note;
    for (int i = 0; i < l->of->n_nodes; i++) {
        const tn_note_call *c = call_of(n, node_at(l, i));
        if (!c) continue;
        const char *name = c->of >= 0 ? n->call[c->of].name : c->name;
        bool told = false;
        int same = 1;
        for (int k = 0; k < l->of->n_nodes; k++) {
            const tn_note_call *o = call_of(n, node_at(l, k));
            if (!o || strcmp(o->of >= 0 ? n->call[o->of].name : o->name, name) || o->backward != c->backward)
                continue;
            if (k < i) told = true;
            bool counted = o == c;
            for (int j = 0; j < k && !counted; j++) counted = call_of(n, node_at(l, j)) == o;
            same += !counted;
        }
        if (told) continue;
        fu_put(t, "%s%s%s", t->n ? " + " : "", name, c->backward && c->of >= 0 ? "'" : "");
        if (same > 1) fu_put(t, " x%d", same);
    }
    if (l->repeated) fu_put(t, " (computed again)");
}

static void put_lines(fu_text *t, const tn_launch *l)
{
    enum { MOST = 6 };
    const tn_note *n = l->note;
    const char *file = NULL;
    int told = 0;
    for (int i = 0; i < l->of->n_nodes; i++) {
        const tn_note_call *c = call_of(n, node_at(l, i));
        if (c && c->of >= 0) c = &n->call[c->of];
        if (!c || !c->file) continue;
        bool before = false;
        for (int k = 0; k < i && !before; k++) {
            const tn_note_call *o = call_of(n, node_at(l, k));
            if (o && o->of >= 0) o = &n->call[o->of];
            before = o && o->file && o->line == c->line && !strcmp(o->file, c->file);
        }
        if (before) continue;
        if (told++ == MOST) {
            fu_put(t, " ..");
            return;
        }
        if (file && !strcmp(file, c->file))
            fu_put(t, ",%d", c->line);
        else
            fu_put(t, "%s%s:%d", file ? " " : "", tn_short_file(c->file), c->line);
        file = c->file;
    }
}

static void make_launches(const tn_session *s, making *m)
{
    const tn_step_log *log = m->v->log;
    for (int r = 0; r < log->n; r++) {
        const tn_run_log *run = &log->run[r];
        const tn_plan *p = run->plan;
        const tn_note *n = p->note;
        const alone *a = make_alone(m, p);
        if (m->failed) return;
        m->first[r] = m->v->n_launch;
        mark_nodes(m, r);
        if (m->failed) return;
        for (int i = 0; i < p->n_step; i++) {
            tn_launch *l = &m->v->launch[m->v->n_launch++];
            *l = (tn_launch){.segment = r, .step = i, .plan = p, .note = n, .of = &p->step[i], .ms = -1};
            l->again = i && l->of->first_node == l[-1].of->first_node && l->of->n_nodes == l[-1].of->n_nodes;
            l->way = l->again ? l[-1].way : way_of(l, m->trait[r]);
            bool all = l->of->n_nodes > 0;
            for (int k = 0; k < l->of->n_nodes; k++)
                all = all && own(l, node_at(l, k)) && m->trait[r][node_at(l, k)] & REPEATED;
            l->repeated = l->again ? l[-1].repeated : all;
            if (run->kernel) l->ms = (run->kernel[2 * i + 1] - run->kernel[2 * i]) * 1e3;
            if (s->mode == TN_FUSED)
                count_before(l, a);
            else
                l->before = 1, l->bytes_before = l->of->bytes;
            fu_text ops = {0}, lines = {0};
            put_ops(&ops, l);
            put_lines(&lines, l);
            l->ops = keep_text(m, &ops);
            l->lines = keep_text(m, &lines);
        }
    }
}

/* ---- rows ---- */

/* Votes for the launches that compute call c of segment r, or the same call in an earlier one. */
static void vote(const making *m, int r, int c, int *votes)
{
    const tn_note_call *want = &m->v->log->run[r].plan->note->call[c];
    for (int q = 0; q <= r; q++) {
        const tn_note *n = m->v->log->run[q].plan->note;
        for (int i = 0; i < n->n_node; i++)
            if (n->value[i].call >= 0 && n->value[i].step >= 0 && same_call(&n->call[n->value[i].call], want))
                votes[m->first[q] + n->value[i].step]++;
    }
}

static void make_rows(making *m)
{
    tn_view *v = m->v;
    int *votes = take(m, (size_t)v->n_launch, sizeof *votes);
    if (m->failed) return;
    for (int i = 0; i < v->n_launch; i++) {
        tn_launch *l = &v->launch[i];
        l->row = -1;
        if (l->again)
            l->row = l[-1].row;
        else if (l->way != TN_WAY_BACKWARD)
            l->row = v->n_row++;
    }
    for (int i = 0; i < v->n_launch; i++) {
        tn_launch *l = &v->launch[i];
        if (l->row >= 0) continue;
        memset(votes, 0, (size_t)v->n_launch * sizeof *votes);
        for (int k = 0; k < l->of->n_nodes; k++) {
            const tn_note_call *c = call_of(l->note, node_at(l, k));
            if (c && c->backward && c->of >= 0 && own(l, node_at(l, k))) vote(m, l->segment, c->of, votes);
        }
        int best = -1;
        for (int k = 0; k < v->n_launch; k++)
            if (v->launch[k].way != TN_WAY_BACKWARD && votes[k] && (best < 0 || votes[k] > votes[best]))
                best = k;
        l->row = l->again ? l[-1].row : best >= 0 ? v->launch[best].row : v->n_row++;
    }
}

static void add(tn_sums *s, const tn_launch *l)
{
    s->kernels++;
    s->before += l->before;
    s->bytes += l->of->bytes;
    s->bytes_before += l->bytes_before;
    s->flops += l->of->flops;
    s->predicted_ms += l->of->predicted_ms;
    s->ms = l->ms < 0 || s->ms < 0 ? -1 : s->ms + l->ms;
    s->copy_ms += l->copy_ms;
}

tn_sums tn_view_row(const tn_view *v, int row, tn_way way)
{
    tn_sums s = {0};
    for (int i = 0; i < v->n_launch; i++)
        if (v->launch[i].row == row && (v->launch[i].way == TN_WAY_BACKWARD) == (way == TN_WAY_BACKWARD))
            add(&s, &v->launch[i]);
    return s;
}

/* ---- the ledger ---- */

/* A value that is spread over a larger shape takes the memory it has. */
static int64_t bytes_held(const tn_note_value *v)
{
    return v->held * (int64_t)tn_dtype_size((tn_dtype)v->dtype);
}

static void ledger_add(making *m, const tn_note *n, int slot, const char *how)
{
    tn_view *v = m->v;
    char name[160];
    int64_t bytes = bytes_held(&n->value[slot]);
    tn_note_name(n, slot, name, sizeof name);
    for (int i = 0; i < v->n_kept; i++)
        if (!strcmp(v->kept[i].how, how) && !strcmp(v->kept[i].name, name)) {
            v->kept[i].bytes += bytes;
            v->kept[i].n++;
            return;
        }
    char *copy = tn_arena_strdup(&v->arena, name);
    m->failed = m->failed || !copy;
    if (copy) v->kept[v->n_kept++] = (tn_kept){copy, how, bytes, 1};
}

static int by_bytes(const void *a, const void *b)
{
    const tn_kept *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    int c = strcmp(x->name, y->name);
    return c ? c : strcmp(x->how, y->how);
}

static bool forward_value(const tn_note *n, int slot)
{
    const tn_note_call *c = slot < n->n_value ? call_of(n, slot) : NULL;
    return slot < n->n_node ? !c || !c->backward
                            : slot < n->n_value && n->value[slot].kept && !(c && c->backward);
}

/* What becomes of the forward values that the launches of segment r's backward need. */
static void ledger_of(making *m, int r)
{
    const tn_note *n = m->v->log->run[r].plan->note;
    const tn_plan *p = m->v->log->run[r].plan;
    const tn_launch *l = &m->v->launch[m->first[r]];
    uint8_t *how = m->how[r] = take(m, (size_t)n->n_value, 1);
    if (m->failed) return;
    enum { KEPT = 1, AGAIN = 2, NEVER = 4 };
    for (int i = 0; i < n->n_node; i++)
        if (m->trait[r][i] & REPEATED) how[i] |= AGAIN;
    for (int s = 0; s < p->n_step; s++) {
        if (l[s].way == TN_WAY_BACKWARD) {
            for (int b = 0; b < p->step[s].n_buf - p->step[s].n_out; b++) {
                int slot = p->step[s].buf[b];
                if (slot >= 0 && slot < n->n_value && forward_value(n, slot))
                    how[n->value[slot].memory] |= KEPT;
            }
            for (int i = 0; i < p->step[s].n_nodes; i++) {
                int at = node_at(&l[s], i);
                if (n->value[at].step != s && forward_value(n, at)) how[at] |= AGAIN;
            }
        } else if (l[s].way == TN_WAY_BOTH)
            for (int i = 0; i < p->step[s].n_nodes; i++) {
                const tn_note_call *c = call_of(n, node_at(&l[s], i));
                const tn_note_value *v = &n->value[node_at(&l[s], i)];
                for (int k = 0; c && c->backward && k < v->n_in; k++)
                    if (v->in[k] < n->n_node && n->value[v->in[k]].step == s && forward_value(n, v->in[k]))
                        how[v->in[k]] |= NEVER;
            }
    }
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].slot < n->n_node) how[p->value[i].slot] &= (uint8_t)~NEVER;
    for (int i = 0; i < n->n_value; i++) {
        int64_t bytes = bytes_held(&n->value[i]);
        for (int q = 0; q < r && how[i] == KEPT; q++) { /* once, in however many segments it is read */
            const tn_note *o = m->v->log->run[q].plan->note;
            int at = same_value(n, i, o, false);
            if (at >= 0 && m->how[q][o->value[at].memory] & KEPT) how[i] = 0;
        }
        if (how[i] & AGAIN && (i >= n->n_node || m->trait[r][i] & REPEATED || !(how[i] & KEPT))) {
            m->v->again_bytes += bytes;
            ledger_add(m, n, i, "computed again");
        } else if (how[i] & KEPT) {
            m->v->kept_bytes += bytes;
            ledger_add(m, n, i, "kept");
        } else if (how[i] & NEVER) {
            m->v->never_bytes += bytes;
            ledger_add(m, n, i, "never stored");
        }
    }
}

/* ---- boundaries ---- */

static char *call_text(making *m, const tn_note *n, int node)
{
    char where[160];
    fu_text t = {0};
    const tn_note_call *c = call_of(n, node);
    if (c && c->backward && c->of >= 0)
        fu_put(&t, "gradient of %s", tn_note_where(&n->call[c->of], where, sizeof where));
    else
        fu_put(&t, "%s",
               c ? tn_note_where(c, where, sizeof where) : tn_op_get((tn_op)n->value[node].op)->name);
    return keep_text(m, &t);
}

static int by_weight(const void *a, const void *b)
{
    const tn_boundary *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    int c = strcmp(x->from, y->from);
    if (!c) c = strcmp(x->to, y->to);
    return c ? c : strcmp(x->reason, y->reason);
}

static void boundaries_of(making *m, int r)
{
    tn_view *v = m->v;
    const tn_plan *p = v->log->run[r].plan;
    for (int i = 0; i < p->n_cut && !m->failed; i++) {
        tn_boundary b = {call_text(m, p->note, p->cut[i].from),
                         call_text(m, p->note, p->cut[i].to),
                         tn_cut_text(p->cut[i].reason),
                         tn_cut_remedy(p->cut[i].reason),
                         (int64_t)tn_note_bytes(&p->note->value[p->cut[i].from]),
                         p->cut[i].saves_ms,
                         1};
        bool found = m->failed;
        for (int k = 0; k < v->n_boundary && !found; k++) {
            tn_boundary *o = &v->boundary[k];
            if (strcmp(o->from, b.from) || strcmp(o->to, b.to) || o->reason != b.reason) continue;
            o->bytes += b.bytes;
            o->saves_ms = o->saves_ms < 0 || b.saves_ms < 0 ? -1 : o->saves_ms + b.saves_ms;
            o->n++;
            found = true;
        }
        if (!found) v->boundary[v->n_boundary++] = b;
    }
}

/* ---- segments ---- */

/* What the run's segment stores for those to come only: no kernel of its own would read it. */
static int64_t stored_for_later(const tn_plan *p)
{
    const tn_note *n = p->note;
    int64_t bytes = 0;
    for (int i = 0; i < p->n_value; i++) {
        const tn_plan_value *v = &p->value[i];
        if (v->slot >= n->n_node || !(v->root || v->keep) || n->value[v->slot].written) continue;
        bool read = false;
        for (int k = 0; k < p->n_step && !read; k++)
            for (int b = 0; b < p->step[k].n_buf - p->step[k].n_out && !read; b++)
                read = p->step[k].buf[b] == v->slot;
        if (!read) bytes += (int64_t)tn_note_bytes(&n->value[v->slot]);
    }
    return bytes;
}

/* Whether the launch repeats something that segment r has computed. */
static bool repeats_of(const making *m, const tn_launch *l, int r)
{
    if (!l->repeated || l->segment <= r) return false;
    const tn_note *o = m->v->log->run[r].plan->note;
    int at = same_value(l->note, node_at(l, 0), o, true);
    return at >= 0 && o->value[at].step >= 0;
}

enum { LEAST_TOLD = 5000 }; /* bytes: 0.01 MB, rounded */

static void make_breaks(making *m)
{
    const tn_step_log *log = m->v->log;
    for (int r = 0; r + 1 < log->n && !m->failed; r++) {
        const tn_run_log *run = &log->run[r];
        const tn_note *next = log->run[r + 1].plan->note;
        int64_t stored = stored_for_later(run->plan), again = 0;
        int kernels = 0;
        double ms = 0;
        for (int i = 0; i < m->v->n_launch; i++) {
            const tn_launch *l = &m->v->launch[i];
            if (!repeats_of(m, l, r)) continue;
            kernels++;
            again += l->of->bytes;
            ms += l->of->predicted_ms;
        }
        fu_text t = {0};
        fu_put(&t, "%s", run->ender);
        if (run->what[0]) fu_put(&t, " of %s", run->what);
        if (run->file) fu_put(&t, " at %s:%d", tn_short_file(run->file), run->line);
        if (next->n_call) fu_put(&t, " before %s", next->call[0].name);
        fu_put(&t, ": ");
        bool worth = stored >= LEAST_TOLD;
        if (worth) fu_put(&t, "%.2f MB stored for what comes after it", (double)stored * 1e-6);
        if (kernels)
            fu_put(&t, "%s%d kernel%s run a second time (%.2f MB, predicted %.3f ms)", worth ? ", " : "",
                   kernels, kernels > 1 ? "s" : "", (double)again * 1e-6, ms);
        fu_put(&t, worth || kernels ? "; move it down" : "nothing more is stored or computed");
        m->v->breaks[m->v->n_break++] = keep_text(m, &t);
    }
}

/* ---- the whole ---- */

void tn_view_add_up(tn_view *v)
{
    v->total = (tn_sums){0};
    memset(v->way, 0, sizeof v->way);
    for (int i = 0; i < v->n_launch; i++) {
        add(&v->total, &v->launch[i]);
        add(&v->way[v->launch[i].way], &v->launch[i]);
    }
}

int tn_view_make(tn_session *s, tn_view *v)
{
    making m = {.v = v};
    *v = (tn_view){.log = tn_step_log_told(s)};
    if (!v->log) return TN_E_STATE;
    int launches = 0, values = 0, cuts = 0;
    for (int r = 0; r < v->log->n; r++) {
        const tn_plan *p = v->log->run[r].plan;
        launches += p->n_step;
        values += p->note->n_value;
        cuts += p->n_cut;
        v->common += p->n_common;
        v->folded += p->n_folded;
        v->guards += p->n_guard;
        v->naive_bytes = p->naive_bytes > v->naive_bytes ? p->naive_bytes : v->naive_bytes;
        v->least_bytes = p->least_bytes > v->least_bytes ? p->least_bytes : v->least_bytes;
        v->arena_bytes = p->arena_bytes > v->arena_bytes ? p->arena_bytes : v->arena_bytes;
    }
    v->launch = take(&m, (size_t)launches, sizeof *v->launch);
    v->kept = take(&m, (size_t)values, sizeof *v->kept);
    v->boundary = take(&m, (size_t)cuts, sizeof *v->boundary);
    v->breaks = take(&m, (size_t)v->log->n, sizeof *v->breaks);
    m.first = take(&m, (size_t)v->log->n, sizeof *m.first);
    m.trait = take(&m, (size_t)v->log->n, sizeof *m.trait);
    m.how = take(&m, (size_t)v->log->n, sizeof *m.how);
    if (!m.failed) make_launches(s, &m);
    if (!m.failed) make_rows(&m);
    for (int r = 0; r < v->log->n && !m.failed; r++) {
        ledger_of(&m, r);
        if (s->mode == TN_FUSED) boundaries_of(&m, r);
    }
    if (!m.failed && s->mode == TN_FUSED) make_breaks(&m);
    if (m.failed) {
        tn_view_free(v);
        return TN_E_NOMEM;
    }
    qsort(v->kept, (size_t)v->n_kept, sizeof *v->kept, by_bytes);
    qsort(v->boundary, (size_t)v->n_boundary, sizeof *v->boundary, by_weight);
    tn_view_add_up(v);
    return TN_OK;
}

void tn_view_free(tn_view *v)
{
    tn_arena_free(&v->arena);
    *v = (tn_view){0};
}
