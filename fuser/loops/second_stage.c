/* second_stage.c - the program that finishes what parts have left in scratch.
 *
 * The first kernel writes partial results, a line for each part. The second program loops over the parts and
 * over what is kept beside them, reduces the lines in order, and computes and stores what the first could not
 * know. Its atoms: the parts, then the kept ones of the first - of a split reduction all that are not
 * reduced; of cross reductions those of a row, for what has a sum for each of its elements, and none for what
 * is one sum: where there are both, two programs finish. Start with fu_second_stage. */
#include "schedule.h"

#include <string.h>

typedef struct stage {
    const fu_prog *first;
    fu_prog *q;
    const int *scratch;         /* of each value of the first: the slot of its partial results */
    int position[FU_MAX_ATOMS]; /* of the first's atoms: which of the second's; -1: none */
    int map[FU_MAX_VALUES];     /* of the first's values: which of the second's; -1: none so far */
} stage;

static void begin(stage *s, const fu_prog *first, fu_prog *q, uint32_t kept, const int *scratch)
{
    s->first = first;
    s->q = q;
    s->scratch = scratch;
    memset(s->map, -1, sizeof s->map);
    memset(q, 0, offsetof(fu_prog, value));
    q->c = first->c;
    q->threads = first->threads;
    q->last_bytes = first->last_bytes;
    q->second = true;
    q->n_atom = 1;
    q->extent[0] = first->parts;
    for (int a = 0; a < first->n_atom; a++) {
        s->position[a] = kept >> a & 1 ? q->n_atom++ : -1;
        if (s->position[a] >= 0) q->extent[s->position[a]] = first->extent[a];
    }
}

static uint32_t atoms_of(const stage *s, uint32_t of_first)
{
    uint32_t out = 0;
    for (int a = 0; a < s->first->n_atom; a++)
        if (of_first >> a & 1 && s->position[a] >= 0) out |= fu_bit(s->position[a]);
    return out;
}

static void move_strides(const stage *s, const int64_t *of_first, int64_t *out)
{
    memset(out, 0, FU_MAX_ATOMS * sizeof *out);
    for (int a = 0; a < s->first->n_atom; a++)
        if (s->position[a] >= 0) out[s->position[a]] = of_first[a];
}

/* Reduction `id` of the first: its partial results, dense over `vary`, and the reduction of them. */
static void add_partial(stage *s, int id, uint32_t vary)
{
    fu_prog *q = s->q;
    const fu_value *v = &s->first->value[id];
    int at = q->n_value;
    q->n_value += 2;
    fu_value *load = &q->value[at], *sum = load + 1;
    memset(load, 0, sizeof *load);
    load->kind = FU_LOAD;
    load->dtype = load->from = fu_compute_dtype(v->dtype);
    load->slot = s->scratch[id];
    load->node = load->stash = -1;
    fu_hint("partial", load->hint);
    load->vary = vary;
    int64_t dense = 1;
    for (int a = q->n_atom - 1; a >= 0; a--)
        if ((vary | 1) >> a & 1) {
            load->stride[a] = dense;
            dense *= q->extent[a];
        }
    /* the parts stand outermost in scratch */
    *sum = *v;
    sum->cross = false;
    sum->stash = -1;
    sum->need = 0;
    sum->phase = 0;
    sum->from = load->dtype;
    sum->arg[0] = at;
    sum->name[0] = 0;
    memset(sum->stride, 0, sizeof sum->stride);
    sum->reduces = 1;
    sum->space = fu_bit(q->n_atom) - 1;
    sum->vary = vary & ~1u;
    s->map[id] = at + 1;
}

static void add_copy(stage *s, int id, const int *arg)
{
    const fu_value *v = &s->first->value[id];
    int at = s->q->n_value++;
    fu_value *w = &s->q->value[at];
    *w = *v;
    memcpy(w->arg, arg, sizeof w->arg);
    w->need = 0;
    w->used = w->array = w->wide = false;
    w->stash = -1;
    w->name[0] = 0;
    move_strides(s, v->stride, w->stride);
    w->vary = atoms_of(s, v->vary);
    s->map[id] = at;
}

static void add_store(stage *s, const fu_store *of_first, int value)
{
    fu_store *o = &s->q->store[s->q->n_store++];
    *o = *of_first;
    o->value = value;
    move_strides(s, of_first->stride, o->stride);
    o->dom = atoms_of(s, of_first->dom);
}

/* ---- of a split reduction ---- */

void fu_second_stage(const fu_prog *first, fu_prog *q, const int *scratch)
{
    stage s;
    begin(&s, first, q, ~first->red, scratch);
    for (int i = 0; i < first->n_value; i++) {
        const fu_value *v = &first->value[i];
        if (!v->used || fu_full(first, v)) continue;
        int arg[3] = {0};
        for (int k = 0; k < v->n_arg; k++) arg[k] = s.map[v->arg[k]];
        if (v->kind == FU_REDUCE)
            add_partial(&s, i, fu_bit(q->n_atom) - 1);
        else
            add_copy(&s, i, arg);
    }
    for (int i = 0; i < first->n_store; i++)
        if (!(first->store[i].dom & first->red))
            add_store(&s, &first->store[i], s.map[first->store[i].value]);
    fu_schedule(q); /* one reduction over the first atom: always possible */
}

/* ---- of cross reductions ---- */

/* Adds value `id` of the first program, and the values that it depends on, up to the cross reductions. */
static int add_value(stage *s, int id)
{
    const fu_value *v = &s->first->value[id];
    int arg[3] = {0};
    if (s->map[id] >= 0) return s->map[id];
    if (v->cross) {
        add_partial(s, id, fu_cross_width(s->first, v) > 1 ? fu_bit(s->q->n_atom) - 1 : 1);
    } else {
        for (int k = 0; k < v->n_arg; k++) arg[k] = add_value(s, v->arg[k]);
        add_copy(s, id, arg);
    }
    return s->map[id];
}

bool fu_cross_finish(const fu_prog *first, fu_prog *q, const int *scratch, bool wide)
{
    stage s;
    begin(&s, first, q, wide ? first->red : 0, scratch);
    for (int i = 0; i < first->n_after; i++) {
        const fu_store *after = &first->store[first->n_store + i];
        if ((after->dom != 0) != wide) continue;
        int value = add_value(&s, after->value);
        add_store(&s, after, value);
    }
    return q->n_store > 0;
}
