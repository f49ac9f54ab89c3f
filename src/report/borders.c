/* borders.c - what crosses a border: values from forward to backward (the ledger), from one kernel to
 * the next (boundaries, with the reason and a remedy), and from one segment of a step to those after it (the
 * lines that cut it). Start with tn_view_ledger. */
#include "making.h"

#include <stdlib.h>
#include <string.h>

/* ---- the ledger ---- */

/* A value that is spread over a larger shape takes the memory it has. */
static int64_t bytes_held(const tn_note_value *v) { return v->held * (int64_t)tn_dtype_size(v->dtype); }

/* What becomes of a value, and of it who needs it: the first such launch, NULL for none. */
typedef struct fate {
    const tn_launch *reader;
    double ms; /* predicted, of computing it again */
    uint8_t how;
} fate;
enum { KEPT = 1, AGAIN = 2, NEVER = 4 };

static void becomes(fate *f, uint8_t how, const tn_launch *reader)
{
    f->how |= how;
    if (!f->reader) f->reader = reader;
}

static void ledger_add(tn_making *m, const tn_note *n, int slot, const char *how, const fate *f)
{
    tn_view *v = m->v;
    char name[160];
    tn_note_name(n, slot, name, sizeof name);
    char *copy = tn_arena_strdup(&v->arena, name);
    m->failed = m->failed || !copy;
    if (!copy) return;
    v->kept[v->n_kept++] = (tn_told){.name = copy,
                                     .how = how,
                                     .reader = f->reader ? f->reader->of->name : "",
                                     .bytes = bytes_held(&n->value[slot]),
                                     .ms = f->ms,
                                     .n = 1};
    v->again_ms += f->ms;
}

static bool forward_value(const tn_note *n, int slot)
{
    const tn_note_call *c = slot < n->n_value ? tn_note_call_of(n, slot) : NULL;
    return slot < n->n_node ? !c || !c->backward
                            : slot < n->n_value && n->value[slot].kept && !(c && c->backward);
}

/* Instructions that a launch spends on a node, about. */
static double weight_of(const tn_launch *l, int node)
{
    const tn_note_value *v = &l->note->value[node];
    const tn_kind kind = tn_op_get(v->op)->kind;
    if (kind == TN_KIND_GEMM || kind == TN_KIND_CONV || kind == TN_KIND_ATTENTION) return l->of->flops / 2;
    if (kind == TN_KIND_ELTWISE) return (double)v->numel * tn_op_get(v->op)->work;
    double most = (double)v->numel;
    for (int k = 0; k < v->n_in; k++) most = (double)v->read[k] > most ? (double)v->read[k] : most;
    return most;
}

/* The node's share of the time that is predicted for a launch which computes it. */
static double share_ms(const tn_launch *l, int node)
{
    double all = 0;
    for (int i = 0; i < l->of->n_nodes; i++) all += weight_of(l, tn_launch_node(l, i));
    return all > 0 ? l->of->predicted_ms * weight_of(l, node) / all : 0;
}

static void find_fates(const tn_making *m, int r, fate *f)
{
    const tn_note *n = m->v->log->run[r].plan->note;
    const tn_launch *l = &m->v->launch[m->first[r]], *end = l + m->v->log->run[r].plan->n_step;
    for (int i = 0; i < n->n_node; i++)
        if (m->trait[r][i] & TN_TRAIT_REPEATED) f[i].how |= AGAIN;
    for (; l < end; l++)
        for (int i = 0; i < l->of->n_nodes && !l->again; i++) {
            const int at = tn_launch_node(l, i);
            const tn_note_call *c = tn_note_call_of(n, at);
            const tn_note_value *v = &n->value[at];
            const bool anew = l->way == TN_WAY_BACKWARD && v->step != l->step && forward_value(n, at);
            if (anew || (c && c->again) || (v->step == l->step && f[at].how & AGAIN)) {
                becomes(&f[at], AGAIN, l);
                f[at].ms += share_ms(l, at);
            }
            for (int k = 0; l->way == TN_WAY_BOTH && c && c->backward && k < v->n_in; k++)
                if (v->in[k] < n->n_node && n->value[v->in[k]].step == l->step && forward_value(n, v->in[k]))
                    becomes(&f[v->in[k]], NEVER, l);
        }
}

/* Finds out what becomes of each forward value that the backward launches of segment r need: it is kept in
 * memory, computed again, or never stored as one kernel does both passes. */
void tn_view_ledger(tn_making *m, int r)
{
    const tn_note *n = m->v->log->run[r].plan->note;
    const tn_plan *p = m->v->log->run[r].plan;
    const tn_launch *l = &m->v->launch[m->first[r]];
    uint8_t *how = m->how[r] = tn_view_take(m, (size_t)n->n_value, 1);
    fate *f = tn_view_take(m, (size_t)n->n_value, sizeof *f);
    if (m->failed) return;
    find_fates(m, r, f);
    for (int s = 0; s < p->n_step; s++)
        for (int b = 0; l[s].way == TN_WAY_BACKWARD && b < p->step[s].n_buf - p->step[s].n_out; b++) {
            int slot = p->step[s].buf[b];
            if (slot >= 0 && slot < n->n_value && forward_value(n, slot))
                becomes(&f[n->value[slot].memory], KEPT, &l[s]);
        }
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].slot < n->n_node) f[p->value[i].slot].how &= (uint8_t)~NEVER;
    for (int i = 0; i < n->n_value; i++) {
        int64_t bytes = bytes_held(&n->value[i]);
        how[i] = f[i].how;
        for (int q = 0, at; how[i] == KEPT; q++) { /* once, in however many segments it is read */
            if ((at = tn_same_value(m, r, i, &q, false)) < 0) break;
            if (m->how[q][m->v->log->run[q].plan->note->value[at].memory] & KEPT) how[i] = 0;
        }
        if (how[i] & AGAIN && (i >= n->n_node || m->trait[r][i] & TN_TRAIT_REPEATED || !(how[i] & KEPT))) {
            m->v->again_bytes += bytes;
            ledger_add(m, n, i, "computed again", &f[i]);
        } else if (how[i] & KEPT) {
            m->v->kept_bytes += bytes;
            f[i].ms = 0;
            ledger_add(m, n, i, "kept", &f[i]);
        } else if (how[i] & NEVER) {
            m->v->never_bytes += bytes;
            ledger_add(m, n, i, "never stored", &f[i]);
        }
    }
}

/* ---- boundaries ---- */

static char *call_text(tn_making *m, const tn_note *n, int node)
{
    tn_growing t = {0};
    const tn_note_call *c = tn_note_call_of(n, node);
    if (c && c->backward && c->of >= 0)
        tn_put(&t, c->again ? "%s, again" : "gradient of %s", TN_NOTE_WHERE(&n->call[c->of]));
    else
        tn_put(&t, "%s", c ? TN_NOTE_WHERE(c) : tn_op_get(n->value[node].op)->name);
    return tn_view_text(m, &t);
}

void tn_view_boundaries(tn_making *m, int r)
{
    tn_view *v = m->v;
    const tn_plan *p = v->log->run[r].plan;
    for (int i = 0; i < p->n_cut && !m->failed; i++)
        v->boundary[v->n_boundary++] =
            (tn_told){.from = call_text(m, p->note, p->cut[i].from),
                      .to = call_text(m, p->note, p->cut[i].to),
                      .reason = tn_cut_text(p->cut[i].reason),
                      .remedy = tn_cut_remedy(p->cut[i].reason),
                      .bytes = (int64_t)tn_note_bytes(&p->note->value[p->cut[i].from]),
                      .ms = p->cut[i].saves_ms,
                      .n = 1};
}

/* ---- segments ---- */

/* Returns the bytes that the run's segment stores for later segments only: no kernel of its own reads
 * them. */
static int64_t stored_for_later(tn_making *m, const tn_plan *p)
{
    const tn_note *n = p->note;
    int64_t bytes = 0;
    bool *read = tn_view_take(m, (size_t)n->n_value, sizeof *read);
    if (m->failed) return 0;
    for (int k = 0; k < p->n_step; k++)
        for (int b = 0; b < p->step[k].n_buf - p->step[k].n_out; b++) {
            const int slot = p->step[k].buf[b];
            if (slot >= 0 && slot < n->n_value) read[slot] = true;
        }
    TN_EACH(v, p->value, p->n_value) {
        if (v->slot >= n->n_node || !(v->root || v->keep) || n->value[v->slot].written) continue;
        if (!read[v->slot]) bytes += (int64_t)tn_note_bytes(&n->value[v->slot]);
    }
    return bytes;
}

/* Counts the kernels that compute a value a second time because a run has ended, at the first run that had
 * computed the value and did not keep it. */
typedef struct repeats {
    int kernels;
    int64_t bytes;
    double ms;
} repeats;

static repeats *find_repeats(tn_making *m)
{
    repeats *of = tn_view_take(m, (size_t)m->v->log->n, sizeof *of);
    for (int i = 0; i < m->v->n_launch && !m->failed; i++) {
        const tn_launch *l = &m->v->launch[i];
        for (int r = 0, at; l->repeated; r++) {
            if ((at = tn_same_value(m, l->segment, tn_launch_node(l, 0), &r, true)) < 0) break;
            if (m->v->log->run[r].plan->note->value[at].step < 0) continue;
            of[r].kernels++;
            of[r].bytes += l->of->bytes;
            of[r].ms += l->of->predicted_ms;
            break;
        }
    }
    return of;
}

enum { LEAST_TOLD = 5000 }; /* bytes: 0.01 MB, rounded */

void tn_view_breaks(tn_making *m)
{
    const tn_step_log *log = m->v->log;
    const repeats *again = find_repeats(m);
    for (int r = 0; r + 1 < log->n && !m->failed; r++) {
        const tn_run_log *run = &log->run[r];
        const tn_note *next = log->run[r + 1].plan->note;
        const int64_t stored = stored_for_later(m, run->plan);
        const int kernels = again[r].kernels;
        tn_growing t = {0};
        tn_put(&t, "%s", run->ender);
        if (run->what[0]) tn_put(&t, " of %s", run->what);
        if (run->file) tn_put(&t, " at %s:%d", tn_short_file(run->file), run->line);
        if (next->n_call) tn_put(&t, " before %s", next->call[0].name);
        tn_put(&t, ": ");
        bool worth = stored >= LEAST_TOLD;
        if (worth) tn_put(&t, "%.2f MB stored for what comes after it", (double)stored * 1e-6);
        if (kernels)
            tn_put(&t, "%s%d kernel%s run a second time (%.2f MB, predicted %.3f ms)", worth ? ", " : "",
                   kernels, kernels > 1 ? "s" : "", (double)again[r].bytes * 1e-6, again[r].ms);
        tn_put(&t, worth || kernels ? "; move it down" : "nothing more is stored or computed");
        m->v->breaks[m->v->n_break++] = tn_view_text(m, &t);
    }
}

void tn_view_unread(tn_making *m)
{
    const tn_step_log *log = m->v->log;
    const tn_run_log *run = &log->run[log->n - 1]; /* the one that ended the step, if one did */
    tn_growing t = {0};
    for (int i = 0; i < run->n_unread && i < TN_UNREAD; i++) {
        char name[200];
        tn_put(&t, "%s%s", i ? ", " : "", tn_note_name(run->plan->note, run->unread[i], name, sizeof name));
    }
    if (run->n_unread > TN_UNREAD) tn_put(&t, ", ..");
    if (run->n_unread) m->v->unread = tn_view_text(m, &t);
}

int tn_view_told(const tn_view *v, tn_told *rest)
{
    int told = 0;
    while (told < v->n_boundary && v->boundary[told].bytes * 100 >= v->total.bytes) told++;
    *rest = (tn_told){.n = 0};
    for (int i = told; i < v->n_boundary; i++) {
        const tn_told *b = &v->boundary[i];
        rest->bytes += b->bytes;
        rest->n += b->n;
        if (b->ms > 0) rest->ms += b->ms;
    }
    return told;
}

static int by_name(const void *a, const void *b)
{
    const tn_told *x = a, *y = b;
    int c = strcmp(x->name, y->name);
    if (!c) c = strcmp(x->how, y->how);
    return c ? c : strcmp(x->reader, y->reader);
}

static int by_bytes(const void *a, const void *b)
{
    const tn_told *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return by_name(a, b);
}

/* Those of the same name, or between the same calls, are one. Returns how many are left, the largest first.
 */
static int sort(tn_told *list, int n)
{
    int left = 0;
    qsort(list, (size_t)n, sizeof *list, by_name);
    TN_EACH(x, list, n) {
        tn_told *to = left ? &list[left - 1] : NULL;
        if (!to || by_name(to, x)) {
            list[left++] = *x;
            continue;
        }
        to->bytes += x->bytes;
        to->ms = to->ms < 0 || x->ms < 0 ? -1 : to->ms + x->ms;
        to->n++;
    }
    qsort(list, (size_t)left, sizeof *list, by_bytes);
    return left;
}

void tn_view_sort(tn_view *v)
{
    v->n_kept = sort(v->kept, v->n_kept);
    v->n_boundary = sort(v->boundary, v->n_boundary);
}
