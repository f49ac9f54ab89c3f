/* cost.c - what a kernel costs, before there is a plan: instructions for an element, counted from its loops, and
 * nanoseconds, by the target profile. group/ decides by it; what a whole plan takes is ../predict.c. Start with
 * fu_prog_time. */
#include "cost.h"

#include <stdlib.h>

/* ---- arithmetic ---- */

static double value_work(const fu_value *v)
{
    double wide = v->dtype == TN_F64 || v->dtype == TN_I64 || v->from == TN_F64 || v->from == TN_I64 ? 2 : 1;
    switch (v->kind) {
    case FU_NUMBER:
    case FU_SCALAR: return 0;
    case FU_GIVEN:
    case FU_IOTA:
    case FU_LOAD:
    case FU_REDUCE:
    case FU_INDEX: return wide;
    case FU_INSIDE: /* a coordinate and a comparison */ return 2;
    case FU_RANDOM: return v->op == TN_OP_normal ? 120 : 40;
    case FU_PICK: return 4 * wide;
    case FU_OP:
        if (v->op == TN_OP_contiguous) return 0;
        return wide * (v->op == TN_OP_cast ? 1 : tn_op_get(v->op)->work);
    }
    return 0;
}

/* Returns how many values a phase keeps in registers at once, at most, where they are computed in their
 * order. */
static int alive_in(const fu_prog *p, int phase)
{
    int last[FU_MAX_VALUES], now = 0, most = 0;
    for (int i = 0; i < p->n_value; i++) {
        last[i] = -1;
        if (!(p->value[i].need >> phase & 1)) continue;
        for (int k = 0; k < p->value[i].n_arg; k++) last[p->value[i].arg[k]] = i;
    }
    for (int i = 0; i < p->n_value; i++) {
        if (!(p->value[i].need >> phase & 1)) continue;
        now++;
        most = now > most ? now : most;
        for (int k = 0; k < p->value[i].n_arg; k++) {
            int a = p->value[i].arg[k];
            bool again = k && a == p->value[i].arg[0];
            now -= last[a] == i && !again && p->value[a].need >> phase & 1;
        }
        now -= last[i] < 0;
    }
    return most;
}

/* Compilers leave a loop in single steps where a load that jumps is not made for all elements. */
static bool in_steps(const fu_prog *p)
{
    const int vec = fu_vec(p);
    TN_EACH(v, p->value, p->n_value)
        if (v->kind == FU_LOAD && v->used && v->n_arg && fu_full(p, v) && llabs(v->stride[vec]) > 1)
            return true;
    return false;
}

/* `even`: as if each loop were as long as whole vectors, and took nothing besides. */
static double prog_work(const fu_prog *p, const tn_target *t, bool even)
{
    enum { REGISTERS = 28, A_ROW = 32 };
    int vec = fu_vec(p);
    const double vector = fu_can(t)->grid ? 1 : t->vector_bytes / 4.0, lanes = even ? 1 : vector;
    double width = (double)p->extent[vec], all = (double)fu_count(p, fu_bit(p->n_atom) - 1);
    double items = (double)fu_count(p, ~p->red & (fu_bit(p->n_atom) - 1));
    if (p->form == FU_POINTWISE && width > 0) items /= width;
    double padded = width > 0 && width < 8 * lanes && !even
                        ? lanes * (double)(int64_t)((width + lanes - 1) / lanes) / width
                        : 1;
    double work = 0;
    if (!(all > 0)) return 0;
    TN_EACH(v, p->value, p->n_value) {
        bool along = v->vary >> vec & 1, full = fu_full(p, v);
        double n;
        if (!v->used) continue;
        if (v->kind == FU_REDUCE) {
            double space = (double)fu_count(p, v->space);
            work += space * padded * (v->cross || p->form == FU_COLUMN ? 2 : 1) * (v->wide ? 3 : 1);
            if (p->form == FU_ROW && !v->cross && !even) work += items * A_ROW * lanes;
            continue;
        }
        if (full)
            n = (along ? all * padded : all / width * lanes) * __builtin_popcount(v->need);
        else
            n = p->form == FU_COLUMN ? items : items * lanes;
        work += n * value_work(v);
    }
    for (int i = 0; i < p->n_store; i++)
        work += (double)fu_count(p, p->store[i].dom) * (fu_store_full(p, &p->store[i]) ? padded : lanes);
    for (int k = 0; k < p->n_phase; k++) {
        int spilt = alive_in(p, k) - REGISTERS;
        if (spilt > 0) work += 2 * spilt * all * padded;
    }
    if (!even && in_steps(p)) work *= lanes;
    if (p->form == FU_ROW && !even) work += items * p->n_phase * A_ROW * lanes;
    return work;
}

double fu_prog_work(const fu_prog *p, const tn_target *t) { return prog_work(p, t, false); }

/* ---- short loops, and jumps ---- */

/* What an element takes whose line of memory was met before, `lines` others ago, of which `rivals` have one place in
 * the nearest cache: in instructions. */
static double price(double lines, double rivals, bool writes)
{
    enum { NEAR = 10, FAR = 40, FURTHER = 160, WRITING = 4 };
    if (lines <= 256 && rivals <= 8) return lines > 1 ? NEAR : 0;
    return (lines <= 8192 && rivals < 64 ? FAR : FURTHER) * (writes ? WRITING : 1);
}

/* What an element takes because memory is walked in strides, from the inner loops to the outer ones: `left` is how many
 * elements of a line are not taken while it is at hand. */
static double jumps(const fu_prog *p, const int64_t *stride, int64_t size, bool writes)
{
    enum { LINE = 64, PAGE = 4096, STEP = 10 };
    const int64_t along = llabs(stride[fu_vec(p)]);
    double cost = along > 1 ? STEP : 0, left = 1, used = 1, lines = 1, rivals = 1;
    for (int a = fu_vec(p); a >= 0 && used * (double)size < LINE; a--) {
        const int64_t step = llabs(stride[a]) * size;
        const double n = (double)p->extent[a], room = LINE / (double)size / used;
        if (!step || n <= 1) continue;
        if (step < LINE) {
            const double taken = n < room ? n : room;
            cost += left * (1 - 1 / taken) * price(lines, rivals, writes);
            left /= taken;
            used *= taken;
            continue;
        }
        int64_t apart = PAGE;
        while (step % apart) apart /= 2;
        lines *= n;
        rivals *= n * (double)apart > PAGE ? n * (double)apart / PAGE : 1;
    }
    return lines > 1 && used * (double)size < LINE ? cost + left * price(lines, rivals, writes) : cost;
}

static double jump_work(const fu_prog *p, const tn_target *t)
{
    enum { STAGED = 2 };
    double work = 0;
    if (fu_can(t)->grid) return 0;
    TN_EACH(v, p->value, p->n_value) {
        if (v->kind != FU_LOAD || !v->used || !fu_full(p, v)) continue;
        const double each = v->staged ? STAGED : jumps(p, v->stride, (int64_t)tn_dtype_size(v->dtype), false);
        work += (double)fu_count(p, v->vary) * (v->staged ? 1 : __builtin_popcount(v->need)) * each;
    }
    TN_EACH(s, p->store, p->n_store) {
        if (!fu_store_full(p, s)) continue;
        const double each = s->staged ? STAGED : jumps(p, s->stride, (int64_t)tn_dtype_size(s->dtype), true);
        work += (double)fu_count(p, s->dom) * each;
    }
    return work;
}

/* ---- time ---- */

double fu_read_ns(const tn_target_profile *r, double bytes, double distance)
{
    return bytes / tn_profile_at(r, distance).read;
}

double fu_write_ns(const tn_target_profile *r, double bytes, double distance, bool past)
{
    tn_profile_band b = tn_profile_at(r, distance);
    double each = 2 / (past ? b.stream : b.copy) - 1 / b.read;
    return bytes * (each > .25 / b.read ? each : .25 / b.read);
}

double fu_store_ns(const tn_target *t, double bytes, double footprint)
{
    return fu_write_ns(tn_target_rates(t), bytes, footprint, false);
}

double fu_load_ns(const tn_target *t, double bytes, double footprint)
{
    return fu_read_ns(tn_target_rates(t), bytes, footprint);
}

/* Of a program by itself. */
fu_time fu_prog_time(const fu_prog *p, const tn_target *t, double footprint)
{
    const tn_target_profile *r = tn_target_rates(t);
    const double each = r->instruction_ps * 1e-3, jumps = jump_work(p, t),
                 all = prog_work(p, t, false) + jumps;
    double memory = 0, work = all * each;
    TN_EACH(v, p->value, p->n_value)
        if (v->kind == FU_LOAD && v->used)
            memory +=
                fu_load_ns(t, (double)(fu_elements(p, v->stride, v->vary) * (int64_t)tn_dtype_size(v->dtype)),
                           footprint);
    TN_EACH(s, p->store, p->n_store)
        memory +=
            fu_write_ns(r, (double)(fu_elements(p, s->stride, s->dom) * (int64_t)tn_dtype_size(s->dtype)),
                        footprint, s->stream);
    return (fu_time){r->launch_us * 1e3 +
                         (memory > work ? memory + FU_OVERLAP * work : work + FU_OVERLAP * memory),
                     (all - prog_work(p, t, true)) * each};
}

double fu_work_ns(const tn_target *t, double instructions)
{
    return instructions * tn_target_rates(t)->instruction_ps * 1e-3;
}
