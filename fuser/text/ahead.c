/* ahead.c - lines of memory that a C kernel asks for before it needs them.
 *
 * A processor brings by itself what is read from end to end, but it stops at the end of a page and looks only
 * so far; a row that is walked several times leaves the memory idle meanwhile. So the phase that computes
 * longest asks for the next row, and a copy of picked rows for the next one picked. Start with
 * fu_prefetch_next. */
#include "nest.h"

static int phase_work(const fu_prog *p, int phase)
{
    int work = 0;
    for (int i = 0; i < p->n_value; i++)
        if (fu_computed_in(p, &p->value[i], phase)) work += fu_op_cost(&p->value[i]);
    return work;
}

/* The phase that computes longest, of those that go block by block. */
static int busiest_phase(const fu_prog *p)
{
    int busiest = 0;
    for (int phase = 1; phase < p->n_phase; phase++)
        if ((fu_phase_reduces(p, phase) || fu_phase_streams(p, phase)) &&
            phase_work(p, phase) >= phase_work(p, busiest))
            busiest = phase;
    return busiest;
}

enum {
    NEAR = 16384,   /* bytes: half of the smallest first-level cache in use */
    LONG_WORK = 20, /* vector instructions, about, that take as long as a line takes to arrive */
};

/* Memory that lies one element behind the other along the vector. */
static bool reads_along(const fu_prog *p, const fu_value *v)
{
    return v->kind == FU_LOAD && !v->n_arg && v->stride[fu_vec(p)] == 1;
}

/* Returns the bytes of a row and the next one, with those that stay from row to row beside them: columns,
 * sums over the rows, values kept between phases, results that are not written past the caches. */
static int64_t row_footprint(const fu_prog *p, int row)
{
    int64_t bytes = 0;
    TN_EACH(v, p->value, p->n_value) {
        int64_t size = (int64_t)tn_dtype_size(v->dtype);
        if (v->used && reads_along(p, v)) bytes += size * (v->stride[row] ? 2 : 1);
        if (v->stash >= 0 || (v->cross && fu_cross_width(p, v) > 1)) bytes += size;
    }
    for (int i = 0; i < p->n_store; i++)
        if (fu_store_full(p, &p->store[i]) && !p->store[i].stream)
            bytes += (int64_t)tn_dtype_size(p->store[i].dtype);
    return bytes * p->extent[fu_vec(p)];
}

/* While a phase computes on a row that is at hand, the memory can bring the next one: `at` is where in the
 * row the present block of `n` elements starts. A row that fills the first-level cache would be pushed out by
 * the next one, which then is brought to the second level (layer_norm, whole step: 1.13 times as fast; silu
 * of rms_norm, forward, which does fit: 1.2 times as slow). What the first phase does not read is brought by
 * the processor while a later phase reads it; only where that one computes long is it asked for, too (silu of
 * rms_norm, whole step: 1.06 times as fast; rms_norm alone: 1.07 times as slow). */
void fu_prefetch_next(fu_em *e, int phase, const char *at, int n)
{
    fu_prog *p = e->p;
    int vec = fu_vec(p), row = vec - 1;
    if (p->form != FU_ROW || p->split || row < 0 || (p->red >> row & 1) || phase != busiest_phase(p)) return;
    const char *level = row_footprint(p, row) > NEAR ? ", 0, 2" : "";
    bool long_phase = phase_work(p, phase) > LONG_WORK;
    TN_EACH(v, p->value, p->n_value) {
        int size = (int)tn_dtype_size(v->dtype);
        bool first = v->need & 1;
        if (!v->used || !reads_along(p, v) || !v->stride[row] || (!first && !long_phase)) continue;
        int64_t bytes = p->extent[vec] * size;
        if (bytes < 1024 || bytes > 65536 || bytes * p->extent[row] < (int64_t)1 << 21) continue;
        char index[256];
        fu_index(e, v->stride, ~fu_bit(vec), index, sizeof index);
        for (int k = 0; k < n * size; k += 64)
            fu_line(&e->t, "%s(%s + %s + %lld + %s%s);", e->lang->prefetch, e->pointer[v->buf], index,
                    (long long)(v->stride[row] + k / size), at, level);
    }
}

/* Lines at computed positions: those of the next item are asked for while this one's are copied. Returns the
 * value that reads them, after a line that says where they are, or NULL where that cannot be told. */
const fu_value *fu_find_picked(fu_em *e)
{
    const fu_prog *p = e->p;
    for (int i = 0; p->form == FU_POINTWISE && p->n_atom == 2 && i < p->n_value; i++) {
        const fu_value *v = &p->value[i];
        if (v->kind != FU_PICK || v->stride[1] != 1 || v->stride[0]) continue;
        const fu_value *index = &p->value[v->arg[0]], *from = &p->value[index->arg[0]];
        if (index->kind != FU_INDEX || from->kind != FU_LOAD || from->n_arg || from->shift || from->stride[1])
            continue;
        int64_t bytes = p->extent[1] * (int64_t)tn_dtype_size(v->dtype);
        if (p->tile < p->extent[1] || bytes < 1024 || index->extent * bytes < (int64_t)1 << 21) continue;
        fu_line(&e->t, "const int64_t next = item + 1 < end ? (int64_t)%s[(item + 1) * %lld] : 0;",
                e->pointer[from->buf], (long long)from->stride[0]);
        fu_line(&e->t, "const %s *next_line = %s + ((uint64_t)next < %lld ? next : 0) * %lld;",
                e->lang->memory[v->dtype], e->pointer[v->buf], (long long)index->extent, (long long)v->pick);
        return v;
    }
    return NULL;
}
