/* cuda.c - a CUDA kernel from a scheduled program.
 *
 *     extern "C" __global__ void __launch_bounds__(256) add_300(const tn_cuda_args a)
 *     {
 *         const float *const x = (const float *)a.buf[0];
 *         float *const out = (float *)a.buf[1];
 *         {
 *             const int64_t item = (int64_t)blockIdx.x * 256 + threadIdx.x;
 *             if (item < a.n) {...}
 *         }
 *     }
 *
 * A kernel with a finish is two such functions, which are launched one after the other.
 *
 * Start with fu_cuda_kernel.
 */
#include "cuda.h"

/* ---- the function ---- */

/* Names that the text uses for itself. */
static void reserve_names(fu_em *e)
{
    static const char *const own[] = {"team", "member", "mine", "tile", "lines", "packs", "stop", "start"};
    char name[40];
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) fu_unique(e, own[i], name, sizeof name);
}

/* Around what a thread without an item must not do: it would read what no loop changes, which with one
 * element the result may be written over, while the thread that has the item writes. */
static void open_scope(fu_em *e)
{
    const fu_prog *p = e->p;
    if (p->form == FU_POINTWISE && p->block < 0)
        fu_scope_open(e, "if ((int64_t)blockIdx.x * %d + threadIdx.x < a.n) {",
                      (p->ahead > 1 ? p->ahead : 1) * p->threads);
    else
        fu_scope_open(e, "{");
}

static void write_program(fu_em *e, const int *scratch)
{
    fu_prog *p = e->p;
    reserve_names(e);
    e->depth = 1;
    open_scope(e);
    fu_put_constants(e, false);
    switch (p->form) {
    case FU_POINTWISE:
        if (p->block >= 0)
            fu_cuda_block(e);
        else
            fu_cuda_pointwise(e);
        break;
    case FU_ROW: fu_cuda_row(e, scratch); break;
    case FU_COLUMN: fu_cuda_column(e, scratch); break;
    }
    fu_scope_close(e);
    fu_count_traffic(e);
}

static void describe_threads(fu_em *e)
{
    const fu_prog *p = e->p;
    tn_growing *t = &e->head;
    if (p->pack > 1)
        tn_put(t, "/* %d elements at a time", p->pack);
    else
        tn_put(t, "/* element by element");
    switch (p->form) {
    case FU_POINTWISE:
        if (p->ahead > 1) tn_put(t, ", %d reads ahead", p->ahead);
        if (p->block >= 0) tn_put(t, ", crosswise reads through tiles of %d by %d", FU_BLOCK, FU_BLOCK);
        break;
    case FU_ROW:
        tn_put(t, ", %d thread%s to a row", p->team, p->team > 1 ? "s" : "");
        if (p->abreast > 1) tn_put(t, ", %d rows abreast", p->abreast);
        if (p->held) tn_put(t, ", %d pack%s each", p->held, p->held > 1 ? "s" : "");
        break;
    case FU_COLUMN:
        tn_put(t,
               p->apart ? ", %lld columns of %d items to a block"
                        : ", %lld columns by %d rows of threads to a block",
               (long long)p->tile * p->abreast, p->threads / (p->team * p->abreast));
        break;
    }
    tn_put(t, " */\n");
}

/* Returns the line with which a kernel that writes to a tensor of the user's begins: once an index was found
 * out of range, the kernel does nothing. A kernel that may itself find such an index cannot begin so, as its
 * blocks would not agree; where it assigns, its indices have been looked through before (lookups.c). */
const char *fu_cuda_guard(const fu_ctx *c, int n, const int *member, bool faults)
{
    bool assigns = false, writes = false;
    for (int i = 0; i < n; i++) {
        assigns = assigns || fu_lasts(c, member[i]);
        writes = writes || tn_node_written(c->seg->node[member[i]]) != NULL;
    }
    return assigns || (writes && !faults) ? "    if (a.fault->code) return;\n" : "";
}

static void write_function(fu_em *e, const fu_group *g, fu_prog *p, int n_in, const int *scratch)
{
    fu_turn_to(e, p);
    e->helpers = 0;
    e->t.indent = 1;
    fu_put_operands(e, n_in, scratch);
    write_program(e, scratch);
    fu_describe(e, g);
    describe_threads(e);
    /* Left to itself the assembler spills a little to fit one more block into a processor; told how many will
       do, it takes the registers it needs, up to 128 or, for long computations and where those were found too
       few, whatever there is. */
    int work = 0;
    for (int i = 0; i < p->n_value; i++) work += fu_op_cost(&p->value[i]);
    fu_put_function(
        e, "extern \"C\" __global__ void __launch_bounds__(%d, %d) %s%s(const tn_cuda_args a)\n{\n%s",
        p->threads, p->threads < 512 && work <= 40 && !fu_lean(p) ? 512 / p->threads : 1, e->s->name,
        p->second ? TN_FINISH : "", fu_cuda_guard(e->c, g->n, g->member, e->helpers & FU_HELP_FAULT));
}

void fu_cuda_kernel(fu_em *e, const fu_group *g, fu_prog *p, fu_prog *second, int n_in, const int *scratch)
{
    write_function(e, g, p, n_in, scratch);
    if (second) write_function(e, g, second, n_in, NULL);
    e->s->grid.threads = p->threads;
    e->s->grid.finish_threads = second ? second->threads : 0;
}
