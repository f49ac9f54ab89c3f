/* cuda_row.c - the nest where the vector's atom is reduced: a team of threads for each row. The packs of
 * a row are dealt out to the team's threads in turn, the same in every phase, so that a thread meets its own
 * packs again and what it kept of them stands in its registers.
 *
 *     const int team = (int)threadIdx.x / 32, member = (int)threadIdx.x % 32;          softmax over [n, 768]
 *     for (int64_t item = begin + team; item < end; item += 8) {
 *         const int64_t i0 = item;
 *         float x_i_row[6][4];
 *         float max_lane[4];                                                           phase 0
 *     #pragma unroll
 *         for (int k = 0; k < 6; k++) {
 *             const int64_t v0 = (k * 32 + member) * 4;
 *             ...
 *         }
 *         const float max = tn_team_reduce<tn_max_of, 32>(max_lane);
 *         ...                                                                          phases 1 and 2
 *     }
 *
 * Sums over the rows (cross.c): a team walks the rows of one part and adds up in registers, or in the part's
 * own line of scratch where those would not do; each element of the line is the business of one thread.
 *
 * Start with fu_cuda_row.
 */
#include "cuda.h"

#include <stdio.h>

/* The row in packs. */
typedef struct row {
    bool runtime;   /* its length is known at run time only, */
    char packs[64]; /* whole packs, as text */
    int64_t n;      /* as a number, where it is known */
    int64_t inner;  /* packs along the vector's atom */
    uint32_t outer; /* the other reduced atoms */
    int parts;      /* of a split row: which of args.dim is their number */
} row;

static row measure(const fu_prog *p)
{
    int vec = fu_vec(p);
    row r = {.runtime = p->red >> p->outer & 1, .outer = p->red & ~fu_bit(vec)};
    r.n = fu_count(p, p->red) / p->pack;
    r.inner = p->extent[vec] / p->pack;
    if (!r.runtime)
        snprintf(r.packs, sizeof r.packs, "%lld", (long long)r.n);
    else if (p->outer == vec)
        snprintf(r.packs, sizeof r.packs, p->pack > 1 ? "n%d / %d" : "n%d", vec, p->pack);
    else
        snprintf(r.packs, sizeof r.packs, "n%d * %lld", p->outer,
                 (long long)(fu_count(p, p->red & ~fu_bit(p->outer)) / p->pack));
    return r;
}

/* Returns true where a warp has several rows. All its threads take part in each reduction, whether they have
 * a row (`mine`) or not: to tell the lanes apart would cost more than it spares. */
bool fu_cuda_several(const fu_prog *p)
{
    return p->form == FU_ROW && fu_can(p->c->target)->grid && p->team < 32;
}

/* Coordinates of pack number j of the row. */
static void pack_coordinates(fu_em *e, const row *r)
{
    fu_prog *p = e->p;
    char by[24] = "";
    if (p->pack > 1) snprintf(by, sizeof by, " * %d", p->pack);
    if (!r->outer) {
        fu_line(&e->t, "const int64_t v0 = (int64_t)j%s;", by);
        return;
    }
    fu_line(&e->t, "const int64_t v0 = (int64_t)(j %% %lld)%s;", (long long)(r->inner > 0 ? r->inner : 1),
            by);
    fu_cuda_decode(e, r->outer, "j", r->inner > 0 ? r->inner : 1);
}

/* The same for what is written too: the packs of several turns are read before the first of them is
 * written. */
static void walk_ahead(fu_em *e, fu_pack *k, const row *r)
{
    enum { AHEAD = 2 };
    fu_prog *p = e->p;
    const int by = AHEAD * p->team;
    k->ahead = "u][";
    fu_line(&e->t, "#pragma unroll 1");
    fu_scope_open(e, "for (int j0 = member; j0 < %lld; j0 += %d) {", (long long)r->n, by);
    fu_cuda_packs(e, k->phase, "[2]", NULL);
    for (int pass = 0; pass < 2; pass++) {
        fu_line(&e->t, "#pragma unroll");
        fu_scope_open(e, "for (int u = 0; u < %d; u++) {", AHEAD);
        fu_line(&e->t, "const int j = j0 + u * %d;", p->team);
        if (r->n % by) fu_scope_open(e, "if (j < %lld) {", (long long)r->n);
        pack_coordinates(e, r);
        if (pass)
            fu_cuda_pack(e, k);
        else
            fu_cuda_packs(e, k->phase, NULL, "[u]");
        if (r->n % by) fu_scope_close(e);
        fu_scope_close(e);
    }
    fu_scope_close(e);
}

/* The phase's loop over the packs that this thread has of the row. */
static void walk_row(fu_em *e, int phase, const row *r)
{
    fu_prog *p = e->p;
    fu_pack k = {.phase = phase, .n = p->pack};
    char line_at[48];
    if (p->held) {
        k.stash = "k][l";
        fu_line(&e->t, "#pragma unroll");
        fu_scope_open(e, "for (int k = 0; k < %d; k++) {", p->held);
        fu_line(&e->t, "const int j = k * %d + member;", p->team);
        char when[48] = "";
        if (r->n % p->team)
            snprintf(when, sizeof when, fu_cuda_several(p) ? "mine && j < %lld" : "j < %lld",
                     (long long)r->n);
        else if (fu_cuda_several(p))
            snprintf(when, sizeof when, "mine");
        if (*when) fu_scope_open(e, "if (%s) {", when);
        pack_coordinates(e, r);
        fu_cuda_pack(e, &k);
        if (*when) fu_scope_close(e);
        fu_scope_close(e);
        return;
    }
    if (p->abreast > 1 && fu_cuda_stores(p, phase)) {
        walk_ahead(e, &k, r);
        return;
    }
    snprintf(line_at, sizeof line_at, p->pack > 1 ? "j * %d + l" : "j", p->pack);
    k.stash = line_at;
    /* several packs on their way at once, where nothing that is written stands between them */
    fu_line(&e->t, "#pragma unroll %d", fu_cuda_stores(p, phase) ? 1 : 4);
    if (p->split)
        fu_line(&e->t, "for (int64_t j = r0 + member; j < r1; j += %d) {", p->team);
    else if (p->second) /* few: there are not that many parts */
        fu_line(&e->t, "for (int j = member; j < (int)(%s); j += %d) {", r->packs, p->team);
    else
        fu_line(&e->t, "for (int64_t j = member; j < %s; j += %d) {", r->packs, p->team);
    e->t.indent++;
    e->depth++;
    pack_coordinates(e, r);
    fu_cuda_pack(e, &k);
    fu_scope_close(e);
    if (!r->runtime || p->outer != fu_vec(p) || p->pack == 1) return;
    /* elements that make no whole pack */
    fu_pack one = {.phase = phase, .n = 1, .stash = "v0"};
    if (p->split) fu_scope_open(e, "if (part == %sdim[%d] - 1) {", e->lang->args, r->parts);
    fu_line(&e->t, "#pragma unroll 1");
    fu_scope_open(e, "for (int64_t v0 = %s * %d + member; v0 < n%d; v0 += %d) {", r->packs, p->pack,
                  fu_vec(p), p->team);
    fu_cuda_pack(e, &one);
    fu_scope_close(e);
    if (p->split) fu_scope_close(e);
}

static void write_phase(fu_em *e, int phase, const row *r)
{
    fu_prog *p = e->p;
    bool full = false;
    TN_EACH(v, p->value, p->n_value) {
        if (fu_reduced_in(v, phase)) fu_declare(e, v, "lane", p->pack);
        full = full || fu_reduced_in(v, phase) ||
               (v->cross && v->phase == phase && fu_cross_width(p, v) > 1) || v->stash == phase;
    }
    for (int i = 0; i < p->n_store; i++)
        full = full || (fu_store_full(p, &p->store[i]) && p->store[i].phase == phase);
    if (full) walk_row(e, phase, r);
    char abreast[16] = "";
    if (p->abreast > 1) snprintf(abreast, sizeof abreast, ", %d", p->abreast);
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (!fu_reduced_in(v, phase)) continue;
        const char *type = fu_type(e, v->dtype);
        if (fu_chooses(v))
            fu_line(&e->t, "const %s %s = tn_team_choose<%s, %d>(%s_lane, %s_at);", type, v->name,
                    fu_cuda_reducer(v), p->team, v->name, v->name);
        else
            fu_line(&e->t, "const %s %s = (%s)tn_team_reduce<%s, %d%s>(%s_lane);", type, v->name, type,
                    fu_cuda_reducer(v), p->team, abreast, v->name);
        e->defined[i] = e->depth;
    }
}

/* ---- sums over the rows ---- */

/* Sums over the rows of a part: at their start. */
static void open_sums(fu_em *e, const int *scratch, const row *r)
{
    fu_prog *p = e->p;
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (!v->cross) continue;
        char start[48];
        const char *type = fu_acc_type(e, v);
        long long width = fu_cross_width(p, v);
        fu_name(e, v);
        fu_reduce_start(v, start, sizeof start);
        if (width == 1) {
            fu_line(&e->t, "%s %s_sum[1] = {%s};", type, v->name, start);
        } else if (p->held) {
            fu_line(&e->t, "%s %s_sum[%d][%d];", type, v->name, p->held, p->pack);
            fu_line(&e->t, "#pragma unroll");
            fu_line(&e->t, "for (int k = 0; k < %d; k++)", p->held);
            fu_line(&e->t, "    for (int l = 0; l < %d; l++) %s_sum[k][l] = %s;", p->pack, v->name, start);
        } else {
            fu_line(&e->t, "%s *const %s_sum = %s + part * %lld;", type, v->name, e->pointer[scratch[i]],
                    width);
            fu_scope_open(e, "for (int64_t j = from < to ? member : %lld; j < %lld; j += %d) {",
                          (long long)r->n, (long long)r->n, p->team);
            fu_line(&e->t, "for (int l = 0; l < %d; l++) %s_sum[j * %d + l] = %s;", p->pack, v->name, p->pack,
                    start);
            fu_scope_close(e);
        }
    }
}

static void close_sums(fu_em *e, const int *scratch, const row *r)
{
    fu_prog *p = e->p;
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        if (!v->cross) continue;
        const char *to = e->pointer[scratch[i]];
        long long width = fu_cross_width(p, v);
        if (width == 1) {
            fu_line(&e->t, "if (member == 0 && from < to) %s[part] = %s_sum[0];", to, v->name);
        } else if (p->held) {
            fu_line(&e->t, "#pragma unroll");
            fu_scope_open(e, "for (int k = 0; k < %d; k++) {", p->held);
            fu_line(&e->t, "const int j = k * %d + member;", p->team);
            char store[200];
            if (p->pack > 1)
                snprintf(store, sizeof store, "tn_store(%s + part * %lld + j * %d, %s_sum[k]);", to, width,
                         p->pack, v->name);
            else
                snprintf(store, sizeof store, "%s[part * %lld + j] = %s_sum[k][0];", to, width, v->name);
            fu_line(&e->t, "if (j < %lld && from < to) %s", (long long)r->n, store);
            fu_scope_close(e);
        }
    }
}

/* ---- the item ---- */

/* The rows of this team: opens the loop over them. */
static void open_rows(fu_em *e, const int *scratch, const row *r)
{
    fu_prog *p = e->p;
    tn_growing *t = &e->t;
    int teams = p->threads / p->team;
    if (p->abreast > 1)
        fu_line(t, "const int team = (int)threadIdx.x %% %d, member = (int)threadIdx.x / %d;", teams, teams);
    else if (teams > 1)
        fu_line(t, "const int team = (int)threadIdx.x / %d, member = (int)threadIdx.x %% %d;", p->team,
                p->team);
    else
        fu_line(t, "const int member = (int)threadIdx.x;");
    if (p->cross) {
        int part = fu_dim(e, p->part);
        if (teams > 1)
            fu_line(t, "const int64_t part = (int64_t)blockIdx.x * %d + team;", teams);
        else
            fu_line(t, "const int64_t part = blockIdx.x;");
        fu_line(t, "const int64_t from = part * a.dim[%d];", part);
        fu_line(t, "const int64_t to = from + a.dim[%d] < a.n ? from + a.dim[%d] : a.n;", part, part);
        open_sums(e, scratch, r);
        if (fu_cuda_several(p)) {
            fu_scope_open(e, "for (int64_t k = 0; k < a.dim[%d]; k++) {", part);
            fu_line(t, "const bool mine = from + k < to;");
            fu_line(t, "const int64_t item = mine ? from + k : a.n - 1;");
        } else {
            fu_scope_open(e, "for (int64_t item = from; item < to; item++) {");
        }
    } else if (teams > 1) {
        fu_line(t, "const int64_t row = (int64_t)blockIdx.x * %d + team;", teams);
        if (fu_cuda_several(p)) {
            fu_scope_open(e, "{");
            fu_line(t, "const bool mine = row < a.n;");
            fu_line(t, "const int64_t item = mine ? row : a.n - 1;");
        } else {
            fu_scope_open(e, "if (row < a.n) {");
            fu_line(t, "const int64_t item = row;");
        }
    } else {
        fu_line(t, "const int64_t item = blockIdx.x;");
        fu_scope_open(e, "{");
    }
}

/* Coordinates of the kept atoms, and the range of packs of a split row. */
static void item_coordinates(fu_em *e, row *r)
{
    fu_prog *p = e->p;
    uint32_t keep = ~p->red & fu_all_atoms(p);
    if (!p->split) {
        if (keep) fu_cuda_decode(e, keep, "item", 1);
        return;
    }
    int part = fu_dim(e, p->part), parts = r->parts = fu_dim(e, p->parts);
    if (keep) {
        fu_line(&e->t, "const int64_t line = item / a.dim[%d], part = item %% a.dim[%d];", parts, parts);
        fu_cuda_decode(e, keep, "line", 1);
    } else {
        fu_line(&e->t, "const int64_t part = item;");
    }
    fu_line(&e->t, "const int64_t packs = %s, r0 = part * a.dim[%d];", r->packs, part);
    fu_line(&e->t, "const int64_t r1 = r0 + a.dim[%d] < packs ? r0 + a.dim[%d] : packs;", part, part);
}

static void declare_kept(fu_em *e)
{
    fu_prog *p = e->p;
    TN_EACH(v, p->value, p->n_value) {
        if (v->stash < 0) continue;
        fu_name(e, v);
        fu_line(&e->t, "%s %s_row[%d][%d];", fu_type(e, v->dtype), v->name, p->held, p->pack);
    }
}

/* Nobody may overwrite what another thread of the team has yet to read: a row's result may stand where an
 * operand of the row did. */
static void wait_for_team(fu_em *e)
{
    fu_prog *p = e->p;
    bool reads = false, writes = false;
    for (int i = 0; i < p->n_value; i++) {
        const fu_value *v = &p->value[i];
        reads = reads || ((v->kind == FU_LOAD || v->kind == FU_PICK) && e->hot[i] && !fu_full(p, v));
    }
    for (int i = 0; i < p->n_store; i++) writes = writes || !fu_store_full(p, &p->store[i]);
    if (!reads || !writes || p->team == 1) return;
    if (p->team * p->abreast > 32)
        fu_line(&e->t, "__syncthreads();");
    else
        fu_line(&e->t, "__syncwarp();");
}

void fu_cuda_row(fu_em *e, const int *scratch)
{
    fu_prog *p = e->p;
    row r = measure(p);
    open_rows(e, scratch, &r);
    item_coordinates(e, &r);
    declare_kept(e);
    for (int phase = 0; phase < p->n_phase; phase++) {
        e->phase = phase;
        fu_hoist(e, phase, false);
        write_phase(e, phase, &r);
    }
    e->phase = p->n_phase;
    fu_sum_rows(e, fu_cuda_several(p) ? "if (mine) " : "");
    if (p->split) {
        fu_scope_open(e, "if (member == 0) {");
        fu_put_partials(e, scratch, "");
        fu_scope_close(e);
    } else {
        fu_hoist(e, p->n_phase, false);
        wait_for_team(e);
        fu_write_kept(e, !fu_cuda_several(p) ? "member == 0" : p->team > 1 ? "mine && member == 0" : "mine");
    }
    fu_scope_close(e);
    if (p->cross) close_sums(e, scratch, &r);
}
