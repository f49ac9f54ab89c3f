/* plan.c - the driver: a segment becomes a plan. Start with tn_plan_build. */
#include "fuser.h"

#include <string.h>

/* ---- groups in order ---- */

/* A loop group that stands alone because its source overlaps its target: through scratch. */
static int emit_overlapping_assign(fu_ctx *c, const fu_group *g)
{
    int slot = fu_emit_dense(c, fu_value_of(c, c->node[g->member[0]].t->in[1]));
    if (slot < 0) return slot;
    fu_candidate k = fu_candidate_of(c, g);
    k.copied = slot;
    tn_cut_reason why = fu_try_loops(c, &k);
    return why ? fu_fail(c, TN_E_UNSUPPORTED, "assign: %s", tn_cut_text(why)) : fu_emit(c, g, c->prog);
}

static int emit_group(fu_ctx *c, const fu_group *g)
{
    bool empty = true; /* nothing has elements */
    for (int i = 0; i < g->n; i++) empty = empty && tn_node_numel(c->node[g->member[i]].t) == 0;
    if (empty) return 0;
    switch (g->room) {
    case FU_GEMM: return fu_emit_gemm(c, g);
    case FU_CONV: return fu_emit_conv(c, g);
    case FU_TILE: return fu_can(c->target)->then ? fu_emit_product(c, g) : fu_emit_tile(c, g);
    case FU_WINDOW: return fu_emit_window(c, g);
    case FU_SCATTER: return fu_emit_scatter(c, g);
    case FU_SCAN: return fu_emit_scan(c, g);
    case FU_CONCAT: return fu_emit_concat(c, g);
    case FU_ATTENTION: return fu_emit_attention(c, g);
    case FU_RANKS: return fu_emit_ranks(c, g);
    case FU_HOST: return fu_emit_host(c, g);
    case FU_NOTHING: return 0;
    case FU_LOOPS: break;
    }
    const fu_candidate k = fu_candidate_of(c, g);
    tn_cut_reason why = fu_try_loops(c, &k);
    if (!why && !c->prog->n_store && !c->prog->n_after) return 0; /* others compute all of it again */
    if (why == TN_CUT_ALIAS && g->n == 1) return emit_overlapping_assign(c, g);
    if (why) {
        const tn_tensor *t = c->node[g->member[0]].t;
        /* a group of several was found possible when it was made */
        const int status = g->n == 1 ? TN_E_UNSUPPORTED : TN_E_INTERNAL;
        return fu_fail(c, status, "%s: %s", tn_op_get(t->op)->name, tn_cut_text(why));
    }
    return fu_emit(c, g, c->prog);
}

/* Groups that wait for no other are a heap: the one with the oldest last node is on top, so that values stay
 * short-lived; of two with the same one the newer. What assigns, and no mean over ranks needs, goes last:
 * weights move when all means are there. */
typedef struct queue {
    int *left, *waits; /* of each group: how many waits are not over; the first who waits for it, or -1 */
    struct wait {
        int group, next;
    } * wait;
    int n_wait, cap_wait;
    int *heap, n;
} queue;

static bool goes_last(const fu_ctx *c, int g)
{
    const fu_group *a = &c->group[g];
    bool assigns = false;
    if (a->mark == c->mark) return false;
    for (int i = 0; i < a->n; i++) assigns = assigns || tn_node_written(c->node[a->member[i]].t);
    return assigns;
}

/* Returns true where all that the group does is to assign what it makes of the plan's values: one that dies
 * with it, such as a gradient with its update, is in memory no longer than it has to. */
static bool only_frees(const fu_ctx *c, int g)
{
    const fu_group *a = &c->group[g];
    bool reads = false;
    for (int i = 0; i < a->n; i++) {
        const fu_node *n = &c->node[a->member[i]];
        const bool assigns = n->kind == TN_KIND_ASSIGN;
        if (!tn_node_written(n->t) && fu_group_of(c, a->member[i]) == g &&
            (n->root || fu_read_outside(c, NULL, a->member[i])))
            return false;
        for (int k = assigns; k < n->t->n_in; k++) {
            const int p = fu_node_of(c, fu_value_of(c, n->t->in[k]));
            reads = reads || (p >= 0 && !fu_has(a, p) && !tn_node_written(c->node[p].t));
        }
    }
    return reads;
}

/* The newest member, but what is assigned elsewhere of a value may be recorded long after it. */
static int newest(const fu_ctx *c, const fu_group *a)
{
    int i = a->n - 1;
    while (i && c->node[a->member[i]].kind == TN_KIND_ASSIGN) i--;
    return a->member[i];
}

static bool goes_first(const fu_ctx *c, int g, int h)
{
    const fu_group *a = &c->group[g], *b = &c->group[h];
    const int x = newest(c, a), y = newest(c, b);
    if (goes_last(c, g) != goes_last(c, h)) return goes_last(c, h);
    if (a->frees != b->frees) return a->frees;
    return x != y ? x < y : g > h;
}

static void push_ready(const fu_ctx *c, queue *q, int g)
{
    int i = q->n++;
    for (; i && goes_first(c, g, q->heap[(i - 1) / 2]); i = (i - 1) / 2) q->heap[i] = q->heap[(i - 1) / 2];
    q->heap[i] = g;
}

static int pop_ready(const fu_ctx *c, queue *q)
{
    const int top = q->heap[0], last = q->heap[--q->n];
    int i = 0;
    for (int k; (k = 2 * i + 1) < q->n; i = k) {
        if (k + 1 < q->n && goes_first(c, q->heap[k + 1], q->heap[k])) k++;
        if (!goes_first(c, q->heap[k], last)) break;
        q->heap[i] = q->heap[k];
    }
    q->heap[i] = last;
    return top;
}

static bool note_wait(fu_ctx *c, queue *q, int g, int other)
{
    struct wait *list = fu_grow(&c->arena, q->wait, q->n_wait, &q->cap_wait, sizeof *list);
    if (!list) return false;
    q->wait = list;
    list[q->n_wait] = (struct wait){g, q->waits[other]};
    q->waits[other] = q->n_wait++;
    q->left[g]++;
    return true;
}

static bool queue_open(fu_ctx *c, queue *q)
{
    const size_t n = (size_t)c->n_group + 1;
    q->left = tn_arena_alloc(&c->arena, n * sizeof *q->left);
    q->waits = tn_arena_alloc(&c->arena, n * sizeof *q->waits);
    q->heap = tn_arena_alloc(&c->arena, n * sizeof *q->heap);
    if (!q->left || !q->waits || !q->heap) return false;
    for (int g = 0; g < c->n_group; g++) q->waits[g] = -1;
    for (int g = 0; g < c->n_group; g++) {
        const fu_group *a = &c->group[g];
        for (int i = 0; i < a->n && !a->dead; i++)
            for (int k = 0; k < c->node[a->member[i]].n_after; k++) {
                const int d = fu_awaited(c, g, a->member[i], k);
                if (d != g && !note_wait(c, q, g, d)) return false;
            }
        c->group[g].frees = !a->dead && only_frees(c, g);
    }
    for (int g = 0; g < c->n_group; g++) {
        if (!c->group[g].dead && !q->left[g]) push_ready(c, q, g);
    }
    return true;
}

int fu_emit_all(fu_ctx *c)
{
    tn_plan *p = c->plan;
    queue q = {0};
    int listed = 0, left = 0, most = 1; /* a node is listed with each group that computes it */
    for (int g = 0; g < c->n_group; g++) {
        left += !c->group[g].dead;
        most += c->group[g].dead ? 0 : c->group[g].n;
    }
    p->node_of = tn_arena_alloc(&p->arena, (size_t)(most + c->n_lookup) * sizeof *p->node_of);
    int *order = tn_arena_alloc(&c->arena, ((size_t)c->n_group + 1) * sizeof *order);
    if (!p->node_of || !order) return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
    int checks = c->n_lookup ? fu_find_first(c) : 0;
    if (!checks) checks = fu_emit_checks(c);
    if (checks) return checks;
    fu_mark_means(c, order);
    if (!queue_open(c, &q)) return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
    for (int n = 0; n < left; n++) {
        if (!q.n)
            return fu_fail(c, TN_E_UNSUPPORTED, "values before and after an assignment are both needed");
        const int at = order[n] = pop_ready(c, &q);
        for (int w = q.waits[at]; w >= 0; w = q.wait[w].next)
            if (!--q.left[q.wait[w].group]) push_ready(c, &q, q.wait[w].group);
    }
    if (fu_shorten_lives(c, order, left)) return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
    fu_wait_late(c, order, left);
    for (int n = 0; n < left; n++) {
        const fu_group *g = &c->group[order[n]];
        int before = p->n_step;
        int r = emit_group(c, g);
        if (r) return r;
        for (int s = before; s < p->n_step; s++) {
            p->step[s].first_node = listed;
            p->step[s].n_nodes = g->n;
            p->step[s].early = g->early;
        }
        for (int i = 0; i < g->n; i++) p->node_of[listed++] = g->member[i];
    }
    return 0;
}

/* ---- lifetimes ---- */

int fu_list_values(fu_ctx *c)
{
    tn_plan *p = c->plan;
    int n_slot = c->n_node + c->n_leaf + p->n_scratch;
    tn_plan_value *of = tn_arena_alloc(&c->arena, (size_t)(n_slot + 1) * sizeof *of);
    p->value = tn_arena_alloc(&p->arena, (size_t)(n_slot + 1) * sizeof *p->value);
    if (!of || !p->value) return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
    for (int i = 0; i < n_slot; i++) of[i].first = -1;
    for (int s = 0; s < p->n_step; s++)
        for (int b = 0; b < p->step[s].n_buf; b++) {
            int slot = p->step[s].buf[b];
            if (slot < 0) continue;
            if (of[slot].first < 0) of[slot].first = s;
            of[slot].last = s;
        }
    for (int i = 0; i < p->n_begin; i++) { /* is written from then on */
        const tn_begin *b = &p->begin[i];
        tn_plan_value *v = &of[p->step[b->step].buf[1]];
        if (b->after + 1 < v->first) v->first = b->after + 1;
    }
    for (int i = 0; i < n_slot; i++) {
        bool leaf = i >= c->n_node && i < c->n_node + c->n_leaf;
        bool root = i < c->n_node && c->node[i].root;
        if (leaf || (of[i].first < 0 && !root)) continue;
        tn_plan_value *v = &p->value[p->n_value++];
        *v = of[i];
        v->slot = i;
        v->root = root;
        v->keep = i < c->n_node && c->seg->root && c->seg->root[i] & TN_SEG_KEEP;
        v->alias = -1;
        if (v->first < 0) v->first = v->last = 0; /* no elements: nothing computes it */
        if (i < c->n_node) {
            const tn_tensor *t = c->node[i].t;
            v->dtype = t->dtype;
            v->elems = (size_t)tn_node_numel(t);
            if (tn_kind_of(t) == TN_KIND_ASSIGN) {
                int64_t offset;
                if (!fu_place(c, t->in[0], &v->alias, &offset))
                    return fu_fail(c, TN_E_INTERNAL, "the target of an assignment is not among the leaves");
            }
        } else {
            v->dtype = c->scratch[i - c->n_node - c->n_leaf].dtype;
            v->elems = (size_t)c->scratch[i - c->n_node - c->n_leaf].elems;
        }
    }
    return 0;
}

/* ---- the whole ---- */

int fu_begin(fu_ctx *c)
{
    const tn_segment *seg = c->seg;
    c->n_node = seg->n_node;
    c->n_leaf = seg->n_leaf;
    c->node = tn_arena_alloc(&c->arena, (size_t)(c->n_node + 1) * sizeof *c->node);
    c->prog = tn_arena_alloc(&c->arena, sizeof *c->prog);
    c->prog2 = tn_arena_alloc(&c->arena, sizeof *c->prog2);
    c->prog3 = tn_arena_alloc(&c->arena, sizeof *c->prog3);
    c->domain = tn_arena_alloc(&c->arena, sizeof *c->domain);
    if (!c->node || !c->prog || !c->prog2 || !c->prog3 || !c->domain)
        return fu_fail(c, TN_E_NOMEM, "no memory for a plan");
    for (int i = 0; i < c->n_leaf; i++) seg->leaf[i]->slot = c->n_node + i;
    for (int i = 0; i < c->n_node; i++) {
        tn_tensor *t = seg->node[i];
        t->slot = i;
        c->node[i] = (fu_node){.t = t,
                               .kind = tn_kind_of(t),
                               .root = seg->root && seg->root[i] & TN_SEG_ROOT,
                               .into = -1,
                               .lookup = -1,
                               .group = -1};
    }
    return 0;
}

static int build(fu_ctx *c)
{
    int r = fu_begin(c);
    if (!r) r = fu_simplify(c);
    if (!r) r = fu_order_lookups(c);
    if (!r) r = fu_verify_graph(c, "simplify");
    if (!r) {
        fu_tile_mark(c);
        fu_fold(c);
        fu_tile_mark_products(c);
        r = fu_verify_graph(c, "fold");
    }
    if (!r) r = fu_group_all(c);
    if (!r) r = fu_verify_groups(c);
    if (r) return fu_fail(c, r, "no memory for a plan");
    /* an edge refused at first may have ended up inside one group */
    int kept = 0;
    for (int i = 0; i < c->plan->n_cut; i++) {
        tn_cut cut = c->plan->cut[i];
        if (!fu_has(&c->group[fu_group_of(c, cut.to)], cut.from)) c->plan->cut[kept++] = cut;
    }
    c->plan->n_cut = kept;
    if (!(r = fu_emit_all(c))) r = fu_begin_early(c);
    if (r) return r; /* a step may lack its slots */
    fu_share_operands(c->plan);
    r = fu_list_values(c);
    if (!r) r = fu_list_parts(c);
    return r ? r : fu_verify_steps(c);
}

int tn_plan_build(const tn_segment *seg, const tn_target *target, tn_plan **out, tn_errbuf *err)
{
    fu_ctx c = {.seg = seg, .target = target, .err = err};
    *out = NULL;
    if (err) err->text[0] = 0;
    c.plan = tn_calloc(1, sizeof *c.plan);
    if (!c.plan) return fu_fail(&c, TN_E_NOMEM, "no memory for a plan");
    int r = build(&c);
    tn_arena_free(&c.arena);
    if (r) {
        tn_plan_free(c.plan);
        return r;
    }
    *out = c.plan;
    return 0;
}

bool tn_plan_serves(const tn_plan *p, tn_tensor *const *leaf)
{
    for (int i = 0; i < p->n_guard; i++) {
        const tn_number *a = &p->guard[i].number, *b = &leaf[p->guard[i].leaf]->base->attr->number;
        if (a->is_int != b->is_int || a->i != b->i || memcmp(&a->f, &b->f, sizeof a->f)) return false;
    }
    return true;
}

void tn_plan_free(tn_plan *p)
{
    if (!p || p->refs-- > 0) return;
    if (p->run) p->run_free(p->run);
    tn_arena_free(&p->arena);
    tn_free_mem(p);
}
