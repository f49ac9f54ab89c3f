/* export.c - the door of tensor_export.h: between tn_export_begin and tn_export_end the segment that a step
 * runs is looked at before it does. It is planned once more, for C99 and with nothing left to run but what an
 * output or an assignment needs, and written down at once (step.c); the memory it lies in is sorted into
 * regions, whose contents are read at the end.
 *
 * Start with tn_export_begin, then catch_segment. */
#include "export.h"

#include "../../include/tensor_extend.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void drop(tn_export *x)
{
    if (!x) return;
    for (int i = 0; i < x->n_region; i++) {
        tn_free_mem(x->region[i].data);
        tn_free_mem(x->region[i].code);
        tn_free_mem(x->region[i].scale);
    }
    tn_free_mem(x->region);
    tn_free_mem(x->path);
    tn_growing_free(&x->kernels);
    tn_growing_free(&x->step);
    tn_growing_free(&x->table);
    tn_growing_free(&x->save);
    tn_growing_free(&x->numbers);
    for (int i = 0; i < x->n_kernel; i++) tn_free_mem(x->kernel[i].text);
    tn_free_mem(x->kernel);
    tn_free_mem(x);
}

static void close_export(void *arg)
{
    tn_session *s = arg;
    drop(s->export);
    s->export = NULL;
    s->caught = NULL;
}

static bool is_identifier(const char *name)
{
    if (!name || !(isalpha((unsigned char)*name) || *name == '_') || strlen(name) >= EXPORT_NAME - 8)
        return false;
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c >= 128 || !(isalnum((unsigned char)*c) || *c == '_')) return false;
    return true;
}

/* ---- where slots lie ---- */

/* What running n writes to that the next step reads: an assignment's target, or the gradients. What the
 * program keeps for itself (tn_keep) is none of it. */
static const tn_tensor *written_by(const tn_tensor *n)
{
    const tn_tensor *to = tn_node_written(n);
    if (!to || tn_kind_of(n) == TN_KIND_ASSIGN) return to;
    const tn_slab *b = &n->graph->session->slab[n->dtype];
    tn_storage *holder = NULL;
    const char *at = tn_node_home(to, &holder);
    const size_t bytes = (size_t)b->count * tn_dtype_size(n->dtype);
    return b->values && at >= b->gradient_base && at < b->gradient_base + bytes ? to : NULL;
}

static int mark_of(const tn_export *x, const tn_tensor *node, bool out)
{
    for (int i = 0; i < x->n_mark; i++)
        if (x->mark[i].out == out && x->mark[i].node == node) return i;
    return -1;
}

static int input_of(const tn_export *x, const tn_tensor *t)
{
    for (int i = 0; i < x->n_mark; i++)
        if (!x->mark[i].out && x->mark[i].node->buf && t->base->buf &&
            x->mark[i].node->buf->data == t->base->buf->data)
            return i;
    return -1;
}

static int place_in_region(tn_export *x, const tn_tensor *t, bool written, ex_place *p)
{
    const char *at;
    const int r = ex_region_of(x, t, &at);
    if (!at) return ex_fail(x, TN_E_INTERNAL, "a value of %s lies nowhere", tn_op_get(t->op)->name);
    if (r < 0) return ex_fail(x, TN_E_NOMEM, "no memory for a list of tensors");
    x->region[r].written = x->region[r].written || written;
    x->trains = x->trains || (written && !x->region[r].zero);
    *p = (ex_place){EX_REGION, r, (size_t)(at - x->region[r].low),
                    (size_t)tn_node_numel(t) * tn_dtype_size(t->dtype), t->dtype};
    if (!tn_node_is_dense(t)) p->bytes = x->region[r].bytes - p->offset;
    return TN_OK;
}

static int place_leaf(tn_export *x, const tn_tensor *t, ex_place *p)
{
    if (tn_is_number(t) || !tn_node_numel(t)) return TN_OK;
    const int mark = input_of(x, t);
    if (mark < 0) return place_in_region(x, t, false, p);
    const size_t size = tn_dtype_size(t->dtype);
    *p = (ex_place){EX_MARK, mark, (size_t)(t->offset - x->mark[mark].node->offset) * size,
                    (size_t)x->mark[mark].count * size, t->dtype};
    return TN_OK;
}

static bool assigns_to_a_slab(const tn_export *x)
{
    for (int i = 0; i < x->f->node.n; i++) {
        const tn_tensor *n = x->f->node.at[i], *to = written_by(n);
        const tn_slab *b = &x->s->slab[n->dtype];
        tn_storage *holder = NULL;
        const char *at = to ? tn_node_home(to, &holder) : NULL;
        if (at && b->values && at >= b->value_base &&
            at < b->value_base + (size_t)b->count * tn_dtype_size(n->dtype))
            return true;
    }
    return false;
}

static int place_all(tn_export *x)
{
    int status = TN_OK;
    x->slabs = assigns_to_a_slab(x);
    for (int i = 0; i < x->f->leaf.n && !status; i++)
        status = place_leaf(x, x->f->leaf.at[i], &x->place[x->f->node.n + i]);
    for (int i = 0; i < x->plan->n_value && !status; i++) {
        const tn_plan_value *v = &x->plan->value[i];
        tn_tensor *n = v->slot < x->f->node.n ? x->f->node.at[v->slot] : NULL;
        const size_t bytes = v->elems * tn_dtype_size(v->dtype);
        const int mark = n ? mark_of(x, n, true) : -1;
        if (n && written_by(n)) {
            status = place_in_region(x, written_by(n), true, &x->place[v->slot]);
            x->place[v->slot].bytes = bytes;
        } else if (mark >= 0) {
            x->place[v->slot] = (ex_place){EX_MARK, mark, 0, bytes, v->dtype};
        } else {
            x->place[v->slot] = (ex_place){EX_ARENA, 0, v->offset, bytes, v->dtype};
        }
    }
    return status;
}

/* ---- the segment ---- */

static int make_plan(tn_export *x, const tn_flush_scratch *f)
{
    const tn_target c99 = {.dialect = TN_DIALECT_C99,
                           .vector_bytes = 32,
                           .l1_bytes = 32 << 10,
                           .l2_bytes = 1 << 20,
                           .last_bytes = INT64_MAX / 4, /* no stores past the caches */
                           .cache_bytes = INT64_MAX / 4};
    const tn_target target = x->cuda ? x->s->target : c99;
    tn_errbuf err = {""};
    uint8_t *root = tn_calloc((size_t)f->node.n + 1, 1);
    if (!root) return ex_fail(x, TN_E_NOMEM, "no memory for a plan");
    for (int i = 0; i < f->node.n; i++)
        if (written_by(f->node.at[i]) || mark_of(x, f->node.at[i], true) >= 0) root[i] = TN_SEG_ROOT;
    tn_segment seg = {&x->s->graph, f->node.at, f->node.n, f->leaf.at, f->leaf.n, root, f->twin, true};
    int status = tn_plan_build(&seg, &target, &x->plan, &err);
    tn_free_mem(root);
    if (!status) status = tn_plan_memory(x->plan);
    if (!status) status = tn_plan_verify_memory(x->plan, &err);
    return status ? ex_fail(x, status, "%s", err.text[0] ? err.text : "no plan could be made") : TN_OK;
}

static int check_marks(tn_export *x, const tn_flush_scratch *f)
{
    bool any = false;
    for (int i = 0; i < x->n_mark; i++) any = any || x->mark[i].out;
    for (int k = 0; k < f->node.n && !any; k++) any = tn_kind_of(f->node.at[k]) == TN_KIND_ASSIGN;
    if (!any && !x->s->ending)
        return ex_fail(x, TN_E_STATE, "%s asked for a value before the end of the step", x->asked);
    if (!any)
        return ex_fail(x, TN_E_STATE, "the step assigns to nothing, and tn_export_output names nothing");
    for (int i = 0; i < x->n_mark; i++) {
        bool found = !x->mark[i].out;
        for (int k = 0; k < f->node.n && !found; k++) found = f->node.at[k] == x->mark[i].node;
        if (!found && !x->s->ending)
            return ex_fail(x, TN_E_STATE, "%s asked for a value before '%s' was computed", x->asked,
                           x->mark[i].name);
        if (!found)
            return ex_fail(x, TN_E_STATE, "the output '%s' is not computed in this step", x->mark[i].name);
    }
    return TN_OK;
}

/* Called with what a step is about to run. */
static int catch_segment(tn_session *s, tn_flush_scratch *f)
{
    tn_export *x = s->export;
    if (x->status || !tn_deferred(s)) return TN_OK;
    if (x->caught && s->graph.generation != x->of_step)
        return ex_fail(x, TN_E_STATE, "a second step runs: tn_export_end belongs behind the first");
    if (x->caught)
        return ex_fail(x, TN_E_STATE, "the step ran in two parts, as %s asked for a value before its end",
                       x->asked);
    x->caught = true;
    x->of_step = s->graph.generation;
    snprintf(x->asked, sizeof x->asked, "%s at %s:%d",
             s->explain->asked.name ? s->explain->asked.name : "a call",
             tn_short_file(s->explain->asked.file), s->explain->asked.line);
    if (!tn_segment_record(s, f)) return tn_fail_memory(s);
    int status = check_marks(x, f);
    x->f = f;
    if (!status) status = make_plan(x, f);
    x->n_slot = f->node.n + f->leaf.n + (status ? 0 : x->plan->n_scratch);
    x->place = tn_calloc((size_t)x->n_slot + 1, sizeof *x->place);
    x->var = tn_calloc((size_t)x->n_slot + 1, sizeof *x->var);
    if (!status && (!x->place || !x->var)) status = ex_fail(x, TN_E_NOMEM, "no memory for a plan");
    if (!status) status = place_all(x);
    if (!status) status = ex_copy_constants(x);
    if (!status) status = ex_round_weights(x);
    x->draws = s->graph.draw - s->step_draw;
    if (!status) status = ex_write_step(x);
    if (x->plan) tn_plan_free(x->plan);
    tn_free_mem(x->place);
    tn_free_mem(x->var);
    x->plan = NULL;
    x->place = NULL;
    x->var = NULL;
    x->f = NULL;
    return status;
}

/* ---- the door ---- */

TN_DEFINE(int, export_begin_with, s, (s, path, options), tn_session *s, const char *path,
          const tn_export_options *options)
{
    tn_export_options o = {.size = sizeof o};
    if (!s) return TN_E_NULL;
    if (options) memcpy(&o, options, options->size && options->size < sizeof o ? options->size : sizeof o);
    if ((unsigned)o.weights > TN_EXPORT_INT8)
        return tn_fail(s, TN_E_ARG, "export_begin", ".weights is %d, which is none of TN_EXPORT_F32 ..",
                       (int)o.weights);
    if (!path) return tn_fail(s, TN_E_NULL, "export_begin", "path is NULL");
    if (s->in_step || s->mode != TN_FUSED || s->device->is_reference)
        return tn_fail(s, TN_E_STATE, "export_begin",
                       s->in_step ? "a step has begun; export begins before it"
                       : s->mode != TN_FUSED
                           ? "the session is in eager mode, where there are no steps to plan"
                           : "the reference device makes no plans");
    if (s->export) return tn_fail(s, TN_E_STATE, "export_begin", "an export was begun and not ended");
    const char *file = tn_short_file(path);
    tn_export *x = tn_calloc(1, sizeof *x);
    if (!x || !(x->path = tn_strdup(path))) {
        drop(x);
        return tn_fail(s, TN_E_NOMEM, "export_begin", "no memory");
    }
    const char *dot = strrchr(file, '.');
    x->cuda = dot && !strcmp(dot, ".cu");
    if (x->cuda || (dot && !strcmp(dot, ".c")))
        snprintf(x->name, sizeof x->name, "%.*s", (int)(dot - file), file);
    if (!is_identifier(x->name) || file + strlen(x->name) != dot || ex_is_reserved(x->name)) {
        drop(x);
        return tn_fail(
            s, TN_E_ARG, "export_begin",
            "'%s': the file is to be NAME.c or NAME.cu, where NAME can name a type and functions of C "
            "and is no word that such files have themselves",
            path);
    }
    if (x->cuda && o.threads) {
        drop(x);
        return tn_fail(s, TN_E_ARG, "export_begin", "'%s' is for a GPU, and .threads for a NAME.c", path);
    }
    if (x->cuda && s->device->target.dialect != TN_DIALECT_CUDA) {
        drop(x);
        return tn_fail(
            s, TN_E_STATE, "export_begin",
            "'%s' is for a GPU, and the session on '%s': TENSOR_DEVICE=cuda, or cuda:h100 and the like, "
            "which needs none",
            path, s->device->name);
    }
    if (!tn_on_close_arg(s, close_export) && tn_on_close(s, close_export, s)) {
        drop(x);
        return s->graph.error.status;
    }
    x->s = s;
    x->options = o;
    x->blank = x->cuda && s->device->runs_nothing;
    x->returned = -1;
    s->export = x;
    s->caught = catch_segment;
    return TN_OK;
}

static int mark(tn_tensor *t, const char *name, bool out)
{
    const char *op = out ? "export_output" : "export_input";
    tn_session *s = tn_slot_session(t);
    tn_tensor *n = tn_resolve_or_fail(t, op);
    if (!n) return s ? s->graph.error.status : TN_E_NULL;
    tn_export *x = s->export;
    if (!x || x->status || x->caught) return TN_OK;
    if (!is_identifier(name))
        return x->status = tn_fail(s, TN_E_ARG, op, "'%s' is no identifier of C", name ? name : "(null)");
    if (ex_is_reserved(name) || !strcmp(name, x->name))
        return x->status =
                   tn_fail(s, TN_E_ARG, op, "'%s' is a word of C, or one that the file has itself", name);
    for (int i = 0; i < x->n_mark; i++)
        if (!strcmp(x->mark[i].name, name))
            return x->status = tn_fail(s, TN_E_ARG, op, "there are two that are called '%s'", name);
    if (x->n_mark == EXPORT_MARKS)
        return x->status = tn_fail(s, TN_E_UNSUPPORTED, op, "more than %d of them", EXPORT_MARKS);
    n = tn_use(n);
    const bool whole = tn_node_is_dense(n) && tn_node_numel(n) == tn_node_numel(n->base);
    char where[200];
    if (!whole)
        return x->status =
                   tn_fail(s, TN_E_ARG, op, "'%s', the result of %s, is a view: pass tn_contiguous of it",
                           name, tn_node_where(n, where, sizeof where));
    if (!out && (!n->base->buf || !(n->base->flags & TN_F_DONE)))
        return x->status = tn_fail(s, TN_E_ARG, op, "'%s' is computed in this step, by %s", name,
                                   tn_node_where(n->base, where, sizeof where));
    if (!ex_type(x, n->dtype))
        return x->status = tn_fail(s, TN_E_UNSUPPORTED, op, "'%s' is of %s", name, tn_dtype_name(n->dtype));
    ex_mark *m = &x->mark[x->n_mark++];
    *m = (ex_mark){.node = n->base, .out = out, .dtype = n->dtype, .count = tn_node_numel(n)};
    snprintf(m->name, sizeof m->name, "%s", name);
    return TN_OK;
}

int tn_export_input(tn_tensor *x, const char *name) { return mark(x, name, false); }

int tn_export_output(tn_tensor *x, const char *name) { return mark(x, name, true); }

void tn_export_number(tn_tensor *t, bool rate, double base, double exponent, double count)
{
    tn_session *s = tn_slot_session(t);
    tn_tensor *n = s && s->export ? tn_resolve(t) : NULL;
    tn_export *x = s ? s->export : NULL;
    if (!n || x->caught) return;
    for (int i = 0; i < n->n_in; i++) {
        if (!tn_is_number(n->in[i])) continue;
        if (x->n_number == EXPORT_NUMBERS) {
            tn_export_refuse(s, "optimizers", "they have more numbers than can be told");
            return;
        }
        x->number[x->n_number++] = (ex_number){n->in[i]->base, rate, base, exponent, count};
    }
}

void tn_export_refuse(tn_session *s, const char *who, const char *why)
{
    tn_export *x = s ? s->export : NULL;
    if (x && !x->caught && !x->status) ex_fail(x, TN_E_UNSUPPORTED, "%s: %s", who, why);
}

int tn_export_end(tn_session *s)
{
    if (!s) return TN_E_NULL;
    tn_export *x = s->export;
    if (!x) return tn_fail(s, TN_E_STATE, "export_end", "no export was begun");
    int status = s->graph.error.status ? s->graph.error.status : x->status;
    if (!status && s->in_step) status = tn_fail(s, TN_E_STATE, "export_end", "the step has not ended");
    if (!status && !x->caught)
        status = tn_fail(s, TN_E_STATE, "export_end", "no step has computed anything since tn_export_begin");
    s->caught = NULL;
    if (!status && x->trains && x->tell) status = ex_ask_what_is_saved(x);
    if (!status) status = ex_copy_constants(x);
    for (int i = 0; i < x->n_region && !status; i++) {
        ex_region *r = &x->region[i];
        if (!r->mine && !r->zero && !x->blank && s->device->download(s->device, r->data, r->low, r->bytes))
            status = tn_fail(s, TN_E_DEVICE, "export_end", "%s cannot be read", r->name);
    }
    if (!status) status = ex_write_files(x);
    if (!status && x->options.round) status = ex_set_params(x);
    s->export = NULL;
    drop(x);
    return status;
}
