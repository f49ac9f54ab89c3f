/* cuda_pack.c - one pack of elements: what a thread reads, computes and writes together. And the
 * pointwise nest, in which that is all there is:
 *
 *     const int64_t item = (int64_t)blockIdx.x * 256 + threadIdx.x;          x [n, 300] + b [300]
 *     if (item < a.n) {
 *         const int64_t i0 = (int64_t)((uint32_t)item / 75u);
 *         const int64_t v0 = (int64_t)((uint32_t)item % 75u) * 4;
 *         float x_i_pack[4];
 *         tn_load(x_i_pack, x + (i0 * 300 + v0));
 *         float b_i_pack[4];
 *         tn_load(b_i_pack, b + (v0));
 *         float add_piece[4];
 *     #pragma unroll
 *         for (int l = 0; l < 4; l++) {
 *             const int64_t i1 = v0 + l;
 *             const float x_i = x_i_pack[l];
 *             const float b_i = b_i_pack[l];
 *             const float add = x_i + b_i;
 *             add_piece[l] = add;
 *         }
 *         tn_store(add + (i0 * 300 + v0), add_piece);
 *     }
 *
 * Start with fu_cuda_pack.
 */
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Address of a pack: the vector's coordinate is v0. */
static void pack_address(const fu_em *e, const int64_t *stride, int64_t shift, char *out, size_t n)
{
    fu_index(e, stride, ~fu_bit(fu_vec(e->p)), out, n);
    size_t k = strcmp(out, "0") ? strlen(out) : 0;
    k += (size_t)snprintf(out + k, n - k, k ? " + v0" : "v0");
    if (shift) snprintf(out + k, n - k, " %c %lld", shift < 0 ? '-' : '+', llabs((long long)shift));
}

static void load(fu_em *e, int id, const char *array)
{
    fu_value *v = &e->p->value[id];
    char at[300], line[120] = "";
    if (v->kind == FU_PICK) {
        const char *index = fu_ask(e, v->arg[0]);
        if (v->pick == 1)
            snprintf(line, sizeof line, "%s + ", index);
        else
            snprintf(line, sizeof line, "%s * %lld + ", index, (long long)v->pick);
    }
    pack_address(e, v->stride, v->shift, at, sizeof at);
    fu_line(&e->t, "tn_load(%s, %s + (%s%s));", array, e->pointer[v->buf], line, at);
}

static bool stored_in(const fu_prog *p, const fu_store *s, int phase)
{
    return fu_store_full(p, s) && s->phase == phase;
}

bool fu_cuda_stores(const fu_prog *p, int phase)
{
    for (int i = 0; i < p->n_store; i++)
        if (stored_in(p, &p->store[i], phase)) return true;
    return false;
}

/* Returns true where the phase computes value id for each element of a pack. */
static bool computed(const fu_em *e, int id, int phase)
{
    const fu_prog *p = e->p;
    const fu_value *v = &p->value[id];
    return e->hot[id] && v->vary >> fu_vec(p) & 1 && fu_computed_in(p, v, phase);
}

bool fu_cuda_packs(fu_em *e, int phase, const char *turns, const char *at)
{
    fu_prog *p = e->p;
    bool any = false;
    for (int i = 0; i < p->n_value; i++) {
        fu_value *v = &p->value[i];
        char name[64];
        if (!v->packed || !(phase < 0 ? e->hot[i] && !fu_full(p, v) : computed(e, i, phase))) continue;
        any = true;
        fu_name(e, v);
        snprintf(name, sizeof name, "%s_pack%s", v->name, at ? at : "");
        if (turns) fu_line(&e->t, "%s %s_pack%s[%d];", e->lang->memory[v->dtype], v->name, turns, p->pack);
        if (at) load(e, i, name);
    }
    return any;
}

/* Random words of the pack's n elements. */
void fu_cuda_random(fu_em *e, fu_value *v, int n)
{
    fu_prog *p = e->p;
    int vec = fu_vec(p);
    char at[256];
    fu_name(e, v);
    int seed = fu_scalar(e, v->slot, TN_WORD_SEED), draw = fu_scalar(e, v->slot, TN_WORD_DRAW);
    fu_put_bound(e, v);
    bool normal = v->op == TN_OP_normal, aligned = v->stride[vec] == 1;
    for (int a = 0; a < vec; a++) aligned = aligned && v->stride[a] % n == 0;
    fu_line(&e->t, "%s %s_bits[%d];", normal ? "float" : "uint32_t", v->name, n);
    fu_index(e, v->stride, ~fu_bit(vec), at, sizeof at);
    if (aligned) {
        fu_line(&e->t, "tn_random_pack(a.scalar[%d].u, a.scalar[%d].u, (uint64_t)(%s + v0), %s_bits);", seed,
                draw, at, v->name);
        return;
    }
    fu_line(&e->t, "for (int l = 0; l < %d; l++)", n);
    fu_line(&e->t, "    %s_bits[l] = %s(a.scalar[%d].u, a.scalar[%d].u, (uint64_t)(%s + (v0 + l) * %lld));",
            v->name, normal ? "tn_philox_normal" : "tn_philox_u32", seed, draw, at,
            (long long)v->stride[vec]);
}

static void write_element(fu_em *e, const fu_pack *k, const char *pack_at)
{
    int vec = fu_vec(e->p);
    fu_lane lane = {.at = k->lane ? k->lane : "l", .bits = "l"};
    if (k->n > 1) {
        lane.pack = pack_at;
        lane.piece = "l";
    }
    snprintf(lane.stash, sizeof lane.stash, "%s", k->stash ? k->stash : "l");
    if (k->n > 1) {
        fu_line(&e->t, "#pragma unroll");
        fu_scope_open(e, "for (int l = 0; l < %d; l++) {", k->n);
        fu_line(&e->t, "const int64_t i%d = v0 + l;", vec);
    } else {
        fu_line(&e->t, "const int l = 0;");
        fu_line(&e->t, "const int64_t i%d = v0;", vec);
        fu_line(&e->t, "(void)l, (void)i%d;", vec);
    }
    fu_write_body(e, k->phase, &lane, "l");
    e->lane = &lane;
    if (k->leave) { /* as it is stored */
        const fu_value *v = &e->p->value[k->leave - 1];
        char stored[128], value[192];
        snprintf(stored, sizeof stored, e->lang->store[v->dtype], fu_ask(e, k->leave - 1));
        snprintf(value, sizeof value, e->lang->load[v->dtype], stored);
        fu_line(&e->t, "v[l] = %s;", value);
    }
    if (k->n > 1) fu_scope_close(e);
    e->lane = NULL;
}

void fu_cuda_pack(fu_em *e, const fu_pack *k)
{
    fu_prog *p = e->p;
    char pack_at[24], at[300];
    snprintf(pack_at, sizeof pack_at, "%sl", k->ahead ? k->ahead : "");
    if (p->form != FU_POINTWISE) fu_hoist(e, k->phase, true);
    if (k->n > 1 && !k->ahead) fu_cuda_packs(e, k->phase, "", "");
    for (int i = 0; i < p->n_value; i++)
        if (p->value[i].kind == FU_RANDOM && computed(e, i, k->phase)) fu_cuda_random(e, &p->value[i], k->n);
    for (int i = 0; i < p->n_store && k->n > 1; i++) {
        const fu_store *s = &p->store[i];
        if (s->packed && stored_in(p, s, k->phase))
            fu_line(&e->t, "%s %s_piece[%d];", e->lang->memory[s->dtype], e->pointer[s->buf], k->n);
    }
    write_element(e, k, pack_at);
    for (int i = 0; i < p->n_store && k->n > 1; i++) {
        const fu_store *s = &p->store[i];
        if (!s->packed || !stored_in(p, s, k->phase)) continue;
        pack_address(e, s->stride, s->shift, at, sizeof at);
        fu_line(&e->t, "tn_store(%s + (%s), %s_piece);", e->pointer[s->buf], at, e->pointer[s->buf]);
    }
}

/* ---- pointwise ---- */

static void item_number(fu_em *e)
{
    const fu_prog *p = e->p;
    if (p->ahead > 1)
        fu_line(&e->t, "const int64_t item = (int64_t)blockIdx.x * %d + u * %d + threadIdx.x;",
                p->ahead * p->threads, p->threads);
    else
        fu_line(&e->t, "const int64_t item = (int64_t)blockIdx.x * %d + threadIdx.x;", p->threads);
}

static void item_coordinates(fu_em *e)
{
    fu_prog *p = e->p;
    int vec = fu_vec(p);
    if (p->n_atom == 1) {
        fu_line(&e->t, "const int64_t v0 = item * %d;", p->pack);
        return;
    }
    int64_t width = p->extent[vec] / p->pack;
    bool small = p->items < INT64_C(0x7fffffff);
    if (width < 1) width = 1;
    fu_line(&e->t,
            small ? "const int64_t v0 = (int64_t)((uint32_t)item %% %lldu) * %d;"
                  : "const int64_t v0 = item %% %lld * %d;",
            (long long)width, p->pack);
    fu_cuda_decode(e, fu_all_atoms(p) & ~fu_bit(vec), "item", width);
}

/* Reads the packs of several items before any of them is written. */
static void read_ahead(fu_em *e)
{
    fu_prog *p = e->p;
    char turns[16];
    snprintf(turns, sizeof turns, "[%d]", p->ahead);
    fu_cuda_packs(e, 0, turns, NULL);
    fu_line(&e->t, "#pragma unroll");
    fu_scope_open(e, "for (int u = 0; u < %d; u++) {", p->ahead);
    item_number(e);
    fu_scope_open(e, p->n_atom == 1 ? "if (item * %d + %d <= n0) {" : "if (item < a.n) {", p->pack, p->pack);
    item_coordinates(e);
    fu_cuda_packs(e, 0, NULL, "[u]");
    fu_scope_close(e);
    fu_scope_close(e);
}

void fu_cuda_pointwise(fu_em *e)
{
    fu_prog *p = e->p;
    bool tail = p->n_atom == 1 && p->pack > 1, ahead = p->ahead > 1;
    fu_pack k = {.phase = 0, .n = p->pack, .ahead = ahead ? "u][" : NULL};
    if (ahead) {
        read_ahead(e);
        fu_line(&e->t, "#pragma unroll");
        fu_scope_open(e, "for (int u = 0; u < %d; u++) {", p->ahead);
    }
    item_number(e);
    fu_scope_open(e, "if (item < a.n) {");
    item_coordinates(e);
    fu_hoist(e, 0, false);
    if (tail) fu_scope_open(e, "if (v0 + %d <= n0) {", p->pack);
    if (!tail) fu_scope_open(e, "{");
    fu_cuda_pack(e, &k);
    fu_scope_close(e);
    if (tail) { /* what is left over */
        fu_pack one = {.phase = 0, .n = 1};
        fu_scope_open(e, "else {");
        fu_line(&e->t, "const int64_t stop = n0;");
        fu_line(&e->t, "#pragma unroll 1");
        fu_scope_open(e, "for (int64_t start = v0; start < stop; start++) {");
        fu_line(&e->t, "const int64_t v0 = start;");
        fu_cuda_pack(e, &one);
        fu_scope_close(e);
        fu_scope_close(e);
    }
    e->phase = 1;
    fu_write_kept(e, "");
    e->phase = 0;
    fu_scope_close(e);
    if (ahead) fu_scope_close(e);
}

/* ---- for all nests ---- */

/* Coordinates of `atoms`, innermost last, from the row-major number `from`, of which `below` lie inside the
 * last of them. The first one's extent may be an argument: it takes what is left. Divisions are of 32 bits
 * where the numbers are. */
void fu_cuda_decode(fu_em *e, uint32_t atoms, const char *from, int64_t below)
{
    fu_prog *p = e->p;
    int first = 0;
    if (!atoms) return;
    while (!(atoms >> first & 1)) first++;
    int64_t all = below;
    for (int i = 0; i < p->n_atom; i++)
        if (atoms >> i & 1) all *= p->extent[i] ? p->extent[i] : 1;
    bool small = all < INT64_C(0x7fffffff);
    for (int i = p->n_atom - 1; i >= 0; i--) {
        if (!(atoms >> i & 1)) continue;
        char text[120];
        int k = snprintf(text, sizeof text, small ? "(uint32_t)%s" : "%s", from);
        if (below != 1)
            k +=
                snprintf(text + k, sizeof text - (size_t)k, small ? " / %lldu" : " / %lld", (long long)below);
        if (i != first)
            snprintf(text + k, sizeof text - (size_t)k, small ? " %% %lldu" : " %% %lld",
                     (long long)p->extent[i]);
        fu_line(&e->t,
                small && (below != 1 || i != first) ? "const int64_t i%d = (int64_t)(%s);"
                                                    : "const int64_t i%d = (int64_t)%s;",
                i, text);
        below *= p->extent[i] ? p->extent[i] : 1;
    }
}

const char *fu_cuda_reducer(const fu_value *v)
{
    if (v->op == TN_OP_reduce_sum) return "tn_sum_of";
    if (v->op == TN_OP_reduce_prod) return "tn_prod_of";
    return v->op == TN_OP_reduce_max || v->op == TN_OP_reduce_argmax ? "tn_max_of" : "tn_min_of";
}
