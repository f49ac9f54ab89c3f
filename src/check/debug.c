/* debug.c - TENSOR_DEBUG and TENSOR_DUMP: what is planned and run, as it happens.
 *
 *   TENSOR_DEBUG=1   one line a launch when a plan is made     4   and the kernels' source
 *                2   and one a launch when it runs: time, bytes   5   and the graph after each pass
 *                3   and why kernels end where they do
 *   TENSOR_DUMP=stdout|stderr   where that goes (stderr); alone it means 4
 *               FOLDER          a file for each plan, and one for each kernel
 *
 * Sources are dumped with the lines of the program they come from in front; what is compiled has no such
 * lines, so that moving a call in the program compiles nothing anew. Start with show_plan. */
#include "check.h"
#include "../core/print.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "../core/whole_file.h"

enum { KERNELS = 1, TIMES, REASONS, SOURCES, GRAPHS };

/* ---- text ---- */

static const tn_note_call *call_at(const tn_note *n, int node)
{
    return n->value[node].call < 0 ? NULL : &n->call[n->value[node].call];
}

/* "conv2d at train.c:41", or "gradient of ..". */
static void put_call(tn_growing *t, const tn_note *n, const tn_note_call *c)
{
    if (c->backward && c->of >= 0)
        tn_put(t, "gradient of %s", TN_NOTE_WHERE(&n->call[c->of]));
    else
        tn_put(t, "%s", TN_NOTE_WHERE(c));
}

static void put_calls(tn_growing *t, const tn_plan *p, const tn_step *st, const char *between)
{
    const tn_note *n = p->note;
    bool any = false;
    for (int i = 0; i < st->n_nodes; i++) {
        const tn_note_call *c = call_at(n, p->node_of[st->first_node + i]);
        bool told = !c;
        for (int k = 0; k < i && !told; k++) told = call_at(n, p->node_of[st->first_node + k]) == c;
        if (told) continue;
        if (any) tn_put(t, "%s", between);
        put_call(t, n, c);
        any = true;
    }
}

static void put_kernels(tn_growing *t, const tn_plan *p)
{
    int64_t bytes = 0;
    for (int i = 0; i < p->n_step; i++) bytes += p->step[i].bytes;
    tn_put(t, "plan %d: %d nodes, %d kernels, %.3f MB, arena %.3f MB\n", p->note->number, p->note->n_node,
           p->n_step, (double)bytes * 1e-6, (double)p->arena_bytes * 1e-6);
    for (int i = 0; i < p->n_step; i++) {
        tn_put(t, "  %3d %-32s %10.3f MB  ", i + 1, p->step[i].name, (double)p->step[i].bytes * 1e-6);
        put_calls(t, p, &p->step[i], ", ");
        tn_put(t, "\n");
    }
}

static void put_reasons(tn_growing *t, const tn_plan *p)
{
    for (int i = 0; i < p->n_cut; i++) {
        const tn_note *n = p->note;
        const tn_note_call *a = call_at(n, p->cut[i].from), *b = call_at(n, p->cut[i].to);
        tn_put(t, "  cut %s -> %s", tn_op_get((tn_op)n->value[p->cut[i].from].op)->name,
               tn_op_get((tn_op)n->value[p->cut[i].to].op)->name);
        if (a && b) {
            tn_put(t, " (");
            put_call(t, n, a);
            tn_put(t, " -> ");
            put_call(t, n, b);
            tn_put(t, ")");
        }
        tn_put(t, ": %s\n", tn_cut_text(p->cut[i].reason));
    }
}

static void put_node(tn_growing *t, const tn_note *n, int node)
{
    const tn_note_value *v = &n->value[node];
    tn_put(t, "    %d = %s(", node, tn_op_get(v->op)->name);
    for (int k = 0; k < v->n_in; k++) {
        const tn_note_value *x = &n->value[v->in[k]];
        tn_put(t, "%s%d", k ? ", " : "", v->in[k]);
        if (x->name && v->in[k] >= n->n_node) tn_put(t, ":%s", x->name);
    }
    tn_put(t, ") %s %s", tn_dtype_name(v->dtype), TN_SHAPE_TEXT(v->ndim, v->shape));
    if (v->name) tn_put(t, " %s", v->name);
    if (v->call >= 0) {
        tn_put(t, "  ");
        put_call(t, n, &n->call[v->call]);
    }
    tn_put(t, "\n");
}

static void put_graphs(tn_growing *t, const tn_plan *p)
{
    const tn_note *n = p->note;
    tn_put(t, "  recorded\n");
    for (int i = 0; i < n->n_node; i++) put_node(t, n, i);
    tn_put(t, "  simplified\n");
    for (int i = 0; i < n->n_node; i++)
        if (n->value[i].step >= 0) put_node(t, n, i);
    tn_put(t, "  grouped\n");
    for (int i = 0; i < p->n_step; i++) {
        tn_put(t, "    %s:", p->step[i].name);
        for (int k = 0; k < p->step[i].n_nodes; k++) tn_put(t, " %d", p->node_of[p->step[i].first_node + k]);
        tn_put(t, "\n");
    }
    tn_put(t, "  laid out\n");
    TN_EACH(v, p->value, p->n_value) {
        tn_put(t, "    %d: kernels %d to %d, %zu bytes", v->slot, v->first + 1, v->last + 1,
               v->elems * tn_dtype_size(v->dtype));
        if (v->root || v->keep)
            tn_put(t, ", outlives the plan\n");
        else if (v->offset < p->lent_bytes)
            tn_put(t, " at %zu of the gradients\n", v->offset);
        else
            tn_put(t, " at %zu\n", v->offset - p->lent_bytes);
    }
}

static void put_source(tn_growing *t, const tn_plan *p, const tn_step *st)
{
    tn_put(t, "/* %s\n *\n * ", st->name);
    put_calls(t, p, st, "\n * ");
    if (!st->source.text)
        tn_put(t, "\n *\n * A call of a library: there is no source. */\n");
    else
        tn_put(t, "\n */\n%s", st->source.text);
}

/* ---- where it goes ---- */

static void write_file(tn_session *s, const char *name, const tn_growing *t)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", s->explain->folder, name);
    int why = t->p ? tn_put_file(path, t) : ENOMEM;
    if (why) {
        tn_warn(s, "TENSOR_DUMP: %s cannot be written: %s", path, tn_whole_why(why));
        s->explain->folder = NULL;
    }
}

static void write_folder(tn_session *s, const tn_plan *p)
{
    char name[160];
    tn_growing t = {0};
    put_kernels(&t, p);
    put_reasons(&t, p);
    put_graphs(&t, p);
    snprintf(name, sizeof name, "plan-%03d.txt", p->note->number);
    write_file(s, name, &t);
    tn_growing_free(&t);
    for (int i = 0; i < p->n_step && s->explain->folder; i++) {
        if (!p->step[i].source.text) continue;
        tn_growing k = {0};
        put_source(&k, p, &p->step[i]);
        snprintf(name, sizeof name, "plan-%03d-%03d-%s.c", p->note->number, i + 1, p->step[i].name);
        write_file(s, name, &k);
        tn_growing_free(&k);
    }
}

static void show_plan(tn_session *s, const tn_plan *p)
{
    const tn_explain_state *x = s->explain;
    if (x->folder) write_folder(s, p);
    if (x->level < KERNELS) return;
    tn_growing t = {0};
    put_kernels(&t, p);
    if (x->level >= REASONS) put_reasons(&t, p);
    if (x->level >= GRAPHS) put_graphs(&t, p);
    for (int i = 0; i < p->n_step && x->level >= SOURCES && !x->folder; i++) put_source(&t, p, &p->step[i]);
    if (t.p) fputs(t.p, x->out);
    tn_growing_free(&t);
}

static void show_spills(const tn_session *s, int64_t before, int64_t after)
{
    if (s->explain->level < KERNELS) return;
    fprintf(s->explain->out,
            "kernels spill %lld bytes a thread; planned again with less in registers: %lld\n",
            (long long)before, (long long)after);
}

static void show_launch(const tn_session *s, const tn_plan *p, int step, double seconds)
{
    if (s->explain->level < TIMES) return;
    const tn_step *st = &p->step[step];
    tn_fprintf(s->explain->out, "  run %d.%d %-32s %9.3f ms %10.3f MB %7.1f GB/s\n", p->note->number,
               step + 1, st->name, seconds * 1e3, (double)st->bytes * 1e-6,
               seconds > 0 ? (double)st->bytes * 1e-9 / seconds : 0);
}

void tn_debug_open(tn_explain_state *x, const tn_settings *from)
{
    const char *dump = from->dump;
    x->level = from->debug;
    x->dump = dump != NULL;
    x->out = x->dump && !strcmp(dump, "stdout") ? stdout : stderr;
    if (x->dump && strcmp(dump, "stdout") && strcmp(dump, "stderr")) {
        x->folder = dump;
        mkdir(dump, 0777); /* one that cannot be made is noticed when a file is */
    } else if (x->dump && !x->level)
        x->level = SOURCES;
    x->measure = x->level >= TIMES;
    x->looks.planned = show_plan;
    x->looks.spilled = show_spills;
    x->looks.launched = show_launch;
}

void tn_debug_close(tn_explain_state *x)
{
    if (x->out && x->level) fflush(x->out);
}
