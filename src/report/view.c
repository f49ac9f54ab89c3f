/* view.c - a log of plans becomes what one wants to be told: launches with what they replace, and
 * rows that pair forward with backward; borders.c adds the ledger, boundaries and what cut the step.
 * Start with tn_view_make. */
#include "making.h"

#include <string.h>

const char *tn_way_name(tn_way w)
{
    static const char *const name[TN_WAYS] = {"forward", "backward", "both", "update"};
    return name[w];
}

/* Marks the nodes that an earlier segment has computed before, those that depend on gradients, and those
 * that gradients depend on. */
static void mark_nodes(tn_making *m, int r)
{
    const tn_note *n = tn_view_note(m, r);
    uint8_t *t = m->trait[r] = tn_arena_alloc(&m->v->arena, (size_t)n->n_value + 1);
    m->failed = m->failed || !t;
    if (!t) return;
    for (int i = 0; i < n->n_node; i++) {
        const tn_note_value *v = &n->value[i];
        bool back = v->call >= 0 && n->call[v->call].backward;
        for (int k = 0; k < v->n_in; k++) {
            const tn_note_value *x = &n->value[v->in[k]];
            bool from = v->in[k] < n->n_node ? t[v->in[k]] & TN_TRAIT_AFTER : x->gradient;
            if (from || (x->call >= 0 && n->call[x->call].backward)) t[i] |= TN_TRAIT_AFTER;
        }
        for (int q = 0, at; !back && v->step >= 0 && !(t[i] & TN_TRAIT_REPEATED); q++) {
            if ((at = tn_same_value(m, r, i, &q, true)) < 0) break;
            if (tn_view_note(m, q)->value[at].step >= 0) t[i] |= TN_TRAIT_REPEATED;
        }
    }
    for (int i = n->n_node; i-- > 0;) {
        const tn_note_value *v = &n->value[i];
        bool leads = t[i] & TN_TRAIT_LEADS || (v->call >= 0 && n->call[v->call].backward);
        for (int k = 0; k < v->n_in && leads; k++) t[v->in[k]] |= TN_TRAIT_LEADS;
    }
}

/* ---- launches ---- */

/* Returns true where the call reads gradients that the launch makes, and makes none. */
static bool updates(const tn_launch *l, const uint8_t *trait, int call)
{
    bool after = false;
    for (int i = 0; i < l->of->n_nodes && call >= 0 && !l->note->call[call].backward; i++) {
        const int at = tn_launch_node(l, i);
        after = after || (l->note->value[at].call == call && trait[at] & TN_TRAIT_AFTER);
    }
    return after;
}

static tn_way way_of(const tn_launch *l, const uint8_t *trait)
{
    int way[2] = {0, 0};
    bool after = false, leads = false;
    for (int i = 0; i < l->of->n_nodes; i++) {
        int at = tn_launch_node(l, i);
        const tn_note_call *c = tn_note_call_of(l->note, at);
        if (!tn_launch_owns(l, at)) continue;
        after = after || trait[at] & TN_TRAIT_AFTER;
        leads = leads || trait[at] & TN_TRAIT_LEADS || (c && c->backward);
    }
    if (after && !leads) return TN_WAY_UPDATE;
    for (int all = 0; all < 2 && !way[0] && !way[1];
         all++) /* one that only computes others' again: by those */
        for (int i = 0; i < l->of->n_nodes; i++) {
            const tn_note_call *c = tn_note_call_of(l->note, tn_launch_node(l, i));
            if (after && !all && updates(l, trait, l->note->value[tn_launch_node(l, i)].call)) continue;
            if (all || tn_launch_owns(l, tn_launch_node(l, i))) way[c && c->backward]++;
        }
    return way[0] && way[1] ? TN_WAY_BOTH : way[1] ? TN_WAY_BACKWARD : TN_WAY_FORWARD;
}

static void put_ops(tn_growing *t, const tn_launch *l)
{
    const tn_note *n = l->note;
    for (int i = 0; i < l->of->n_nodes; i++) {
        const tn_note_call *c = tn_note_call_of(n, tn_launch_node(l, i));
        if (!c) continue;
        const char *name = c->of >= 0 ? n->call[c->of].name : c->name;
        bool told = false;
        int same = 1;
        for (int k = 0; k < l->of->n_nodes; k++) {
            const tn_note_call *o = tn_note_call_of(n, tn_launch_node(l, k));
            if (!o || strcmp(o->of >= 0 ? n->call[o->of].name : o->name, name) ||
                o->backward != c->backward || o->again != c->again)
                continue;
            if (k < i) told = true;
            bool counted = o == c;
            for (int j = 0; j < k && !counted; j++) counted = tn_note_call_of(n, tn_launch_node(l, j)) == o;
            same += !counted;
        }
        if (told) continue;
        tn_put(t, "%s%s%s", t->n ? " + " : "", name, c->of < 0 ? "" : c->again ? " again" : "'");
        if (same > 1) tn_put(t, " x%d", same);
    }
    if (!l->of->n_nodes) tn_put(t, "check");
    if (l->repeated) tn_put(t, " (computed again)");
}

static void put_lines(tn_growing *t, const tn_launch *l)
{
    enum { MOST = 6 };
    const tn_note *n = l->note;
    const char *file = NULL;
    int told = 0;
    for (int i = 0; i < l->of->n_nodes; i++) {
        const tn_note_call *c = tn_note_call_of(n, tn_launch_node(l, i));
        if (c && c->of >= 0) c = &n->call[c->of];
        if (!c || !c->file) continue;
        bool before = false;
        for (int k = 0; k < i && !before; k++) {
            const tn_note_call *o = tn_note_call_of(n, tn_launch_node(l, k));
            if (o && o->of >= 0) o = &n->call[o->of];
            before = o && o->file && o->line == c->line && !strcmp(o->file, c->file);
        }
        if (before) continue;
        if (told++ == MOST) {
            tn_put(t, " ..");
            return;
        }
        if (file && !strcmp(file, c->file))
            tn_put(t, ",%d", c->line);
        else
            tn_put(t, "%s%s:%d", file ? " " : "", tn_short_file(c->file), c->line);
        file = c->file;
    }
}

/* What stands before the last point of a parameter's name is the layer it belongs to. */
static void put_layers(tn_growing *t, const tn_launch *l)
{
    enum { MOST = 3 };
    const tn_note *n = l->note;
    const int inputs = l->of->n_buf - l->of->n_out;
    int told = 0;
    for (int b = 0; b < inputs && l->way != TN_WAY_UPDATE; b++) {
        const int slot = l->of->buf[b];
        const char *name = slot >= n->n_node && slot < n->n_value ? n->value[slot].name : NULL;
        const char *dot = name ? strrchr(name, '.') : NULL;
        const int length = dot ? (int)(dot - name) : 0;
        bool before = !dot;
        for (int k = 0; k < b && !before; k++) {
            const int o = l->of->buf[k];
            const char *other = o >= n->n_node && o < n->n_value ? n->value[o].name : NULL;
            before = other && strrchr(other, '.') == other + length && !strncmp(other, name, (size_t)length);
        }
        if (before) continue;
        if (told++ == MOST) {
            tn_put(t, ", ..");
            return;
        }
        tn_put(t, "%s%.*s", told > 1 ? ", " : "", length, name);
    }
}

static void make_launches(tn_making *m)
{
    const tn_step_log *log = m->v->log;
    for (int r = 0; r < log->n; r++) {
        const tn_run_log *run = &log->run[r];
        const tn_plan *p = run->plan;
        const tn_note *n = p->note;
        tn_eager eager;
        tn_eager_make(m, p, &eager);
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
                all = all && tn_launch_owns(l, tn_launch_node(l, k)) &&
                      m->trait[r][tn_launch_node(l, k)] & TN_TRAIT_REPEATED;
            l->repeated = l->again ? l[-1].repeated : all;
            if (run->kernel) l->ms = (run->kernel[2 * i + 1] - run->kernel[2 * i]) * 1e3;
            if (log->fused)
                tn_eager_count(m, l, &eager);
            else
                l->before = 1, l->bytes_before = l->of->bytes;
            tn_growing ops = {0}, lines = {0}, layers = {0};
            put_ops(&ops, l);
            put_lines(&lines, l);
            put_layers(&layers, l);
            l->ops = tn_view_text(m, &ops);
            l->lines = tn_view_text(m, &lines);
            l->layers = tn_view_text(m, &layers);
        }
    }
}

/* ---- rows ---- */

/* Votes for the launches that compute call c of segment r, or the same call in an earlier one. Those that get
 * their first are listed in `in`. */
static void vote(const tn_making *m, int r, int c, int *votes, int *in, int *n_in)
{
    const tn_note_call *want = &tn_view_note(m, r)->call[c];
    for (int k = tn_part_at(m, want->key, 0, 0, 0); k < m->n_part && m->part[k].key == want->key; k++) {
        const tn_part *p = &m->part[k];
        const tn_note *n = tn_view_note(m, p->run);
        if (p->run > r) break;
        if (p->slot >= n->n_node || n->value[p->slot].step < 0 || !tn_same_call(&n->call[p->call], want))
            continue;
        const int launch = m->first[p->run] + n->value[p->slot].step;
        if (!votes[launch]++) in[(*n_in)++] = launch;
    }
}

/* The launch, none of backward's, that has got most votes, the first of several; -1: none has any. */
static int elected(const tn_view *v, int *votes, const int *in, int n_in)
{
    int best = -1, most = 0;
    for (int k = 0; k < n_in; k++) {
        const int n = votes[in[k]];
        votes[in[k]] = 0;
        if (v->launch[in[k]].way == TN_WAY_BACKWARD || n < most || (n == most && in[k] > best)) continue;
        best = in[k];
        most = n;
    }
    return best;
}

static void make_rows(tn_making *m)
{
    tn_view *v = m->v;
    int *votes = tn_view_take(m, (size_t)v->n_launch, sizeof *votes);
    int *in = tn_view_take(m, (size_t)v->n_launch, sizeof *in);
    v->first_of = tn_view_take(m, (size_t)v->n_launch, sizeof *v->first_of);
    if (m->failed) return;
    TN_EACH(l, v->launch, v->n_launch) {
        l->row = -1;
        if (l->again)
            l->row = l[-1].row;
        else if (l->way != TN_WAY_BACKWARD)
            l->row = v->n_row++;
    }
    TN_EACH(l, v->launch, v->n_launch) {
        if (l->row >= 0) continue;
        int n_in = 0;
        for (int k = 0; k < l->of->n_nodes; k++) {
            const tn_note_call *c = tn_note_call_of(l->note, tn_launch_node(l, k));
            if (c && c->backward && c->of >= 0 && tn_launch_owns(l, tn_launch_node(l, k)))
                vote(m, l->segment, c->of, votes, in, &n_in);
        }
        const int best = elected(v, votes, in, n_in);
        l->row = l->again ? l[-1].row : best >= 0 ? v->launch[best].row : v->n_row++;
    }
    for (int r = 0; r < v->n_row; r++) v->first_of[r] = -1;
    for (int i = v->n_launch; i-- > 0;) {
        v->launch[i].next = v->first_of[v->launch[i].row];
        v->first_of[v->launch[i].row] = i;
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
    for (int i = v->first_of[row]; i >= 0; i = v->launch[i].next)
        if ((v->launch[i].way == TN_WAY_BACKWARD) == (way == TN_WAY_BACKWARD)) add(&s, &v->launch[i]);
    return s;
}

const char *tn_view_way(const tn_view *v, int row, bool backward)
{
    bool update = !backward;
    for (int i = v->first_of[row]; i >= 0; i = v->launch[i].next)
        update = update && v->launch[i].way == TN_WAY_UPDATE;
    return tn_way_name(update ? TN_WAY_UPDATE : backward ? TN_WAY_BACKWARD : TN_WAY_FORWARD);
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

const char *tn_view_mode(const tn_session *s, const tn_view *v)
{
    return (v->log ? v->log->fused : s->mode == TN_FUSED) ? "fused" : "eager";
}

const char *tn_view_which(const tn_view *v)
{
    if (!v->log->backward) return "the last";
    return v->unusual ? "the last that trained as most do" : "the last that trained";
}

int tn_view_make(tn_session *s, tn_view *v)
{
    tn_making m = {.v = v};
    *v = (tn_view){.log = tn_step_log_told(s), .unusual = s->explain->usual.n > 0};
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
        for (int i = 0; i < TN_SPARED; i++) v->gradients[i] += p->note->gradients[i];
        v->naive_bytes = p->naive_bytes > v->naive_bytes ? p->naive_bytes : v->naive_bytes;
        v->least_bytes = p->least_bytes > v->least_bytes ? p->least_bytes : v->least_bytes;
        v->arena_bytes = p->arena_bytes > v->arena_bytes ? p->arena_bytes : v->arena_bytes;
    }
    v->launch = tn_view_take(&m, (size_t)launches, sizeof *v->launch);
    v->kept = tn_view_take(&m, (size_t)values, sizeof *v->kept);
    v->boundary = tn_view_take(&m, (size_t)cuts, sizeof *v->boundary);
    v->breaks = tn_view_take(&m, (size_t)v->log->n, sizeof *v->breaks);
    m.first = tn_view_take(&m, (size_t)v->log->n, sizeof *m.first);
    m.trait = tn_view_take(&m, (size_t)v->log->n, sizeof *m.trait);
    m.how = tn_view_take(&m, (size_t)v->log->n, sizeof *m.how);
    tn_view_parts(&m, (size_t)values);
    if (!m.failed) make_launches(&m);
    if (!m.failed) make_rows(&m);
    for (int r = 0; r < v->log->n && !m.failed; r++) {
        tn_view_ledger(&m, r);
        if (v->log->fused) tn_view_boundaries(&m, r);
    }
    if (!m.failed && v->log->fused) tn_view_breaks(&m);
    if (!m.failed && v->log->fused) tn_view_unread(&m);
    if (m.failed) {
        tn_view_free(v);
        return TN_E_NOMEM;
    }
    tn_view_sort(v);
    tn_view_add_up(v);
    return TN_OK;
}

void tn_view_free(tn_view *v)
{
    tn_arena_free(&v->arena);
    *v = (tn_view){0};
}
