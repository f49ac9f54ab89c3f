/* data.c - what a file holds: the members of its struct, and its arrays, constants and first values. Start
 * with ex_put_members, then ex_put_arrays. */
#include "export.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

size_t ex_elems(const ex_region *r) { return r->bytes / tn_dtype_size(r->dtype); }

bool ex_begins_as_zero(const ex_region *r)
{
    const char *c = r->data;
    if (r->zero) return true;
    for (size_t i = 0; i < r->bytes; i++)
        if (c[i]) return false;
    return true;
}

size_t ex_scratch_bytes(const tn_export *x) { return x->arena_bytes + x->shared_bytes + x->room_bytes; }

void ex_add_up(const tn_export *x, double *constants, double *state)
{
    *constants = 0;
    *state = (double)ex_scratch_bytes(x);
    TN_EACH(r, x->region, x->n_region) {
        if (!(r->written || r->read)) continue;
        *(ex_is_member(x, r) ? state : constants) += (double)ex_region_bytes(r);
    }
}

/* ---- members and parameters ---- */

void ex_put_members(const tn_export *x, tn_growing *t)
{
    TN_EACH(r, x->region, x->n_region) {
        if (r->written || (r->read && ex_is_member(x, r)))
            tn_put(t, "    %s%s %s[%zu];\n", x->cuda ? "__align__(256) " : "", ex_region_type(x, r), r->name,
                   ex_elems(r));
    }
    if (x->draws)
        tn_put(t, "    uint64_t seed, draw; /* random numbers: each step draws %llu */\n",
               (unsigned long long)x->draws);
    for (int i = 0; i < x->n_power; i++)
        tn_put(t, "    double power%d; /* %.17g to the count of updates */\n", i, x->base[i]);
    if (x->save.n) ex_put(x, t, "    int64_t steps; /* since @_init */\n");
    if (x->trains)
        tn_put(t, "    double rate; /* factor of the learning rate that the session had; 1 at first */\n");
}

void ex_put_first_numbers(const tn_export *x, tn_growing *t)
{
    if (x->draws)
        tn_put(t, "    m->seed = %lluu;\n    m->draw = %lluu;\n", (unsigned long long)x->s->graph.seed,
               (unsigned long long)x->s->graph.draw);
    for (int i = 0; i < x->n_power; i++) tn_put(t, "    m->power%d = %.17g;\n", i, x->power[i]);
    if (x->save.n) tn_put(t, "    m->steps = 0;\n");
    if (x->trains) tn_put(t, "    m->rate = 1;\n");
}

void ex_put_parameters(const tn_export *x, tn_growing *t)
{
    ex_put(x, t, "@ *m");
    for (int out = 0; out < 2; out++)
        for (int i = 0; i < x->n_mark; i++)
            if (x->mark[i].out == (bool)out && i != x->returned)
                tn_put(t, ", %s%s *%s", out ? "" : "const ", ex_type(x, x->mark[i].dtype), x->mark[i].name);
    tn_put(t, "%s", ex_stream(x));
}

const char *ex_action(const tn_export *x) { return x->trains ? "step" : "forward"; }

/* ---- values ---- */

enum { VALUE = 48 };

static void f32_text(float v, char s[VALUE])
{
    if (!isfinite(v)) {
        snprintf(s, VALUE, "%s", isnan(v) ? "0.0f / 0.0f" : v < 0 ? "-1e39f * 1e39f" : "1e39f * 1e39f");
        return;
    }
    tn_snprintf(s, VALUE, "%.9g", (double)v);
    if (!strpbrk(s, ".e")) strcat(s, ".0");
    strcat(s, "f");
}

static void value_text(const ex_region *r, size_t i, char s[VALUE])
{
    if (r->weights) {
        ex_put_codes(r, (int64_t)i, s, VALUE);
        return;
    }
    switch (r->dtype) {
    case TN_F32: f32_text(((const float *)r->data)[i], s); break;
    case TN_F64: tn_snprintf(s, VALUE, "%.17g", ((const double *)r->data)[i]); break;
    case TN_I32: snprintf(s, VALUE, "%ld", (long)((const int32_t *)r->data)[i]); break;
    case TN_I64: snprintf(s, VALUE, "%lldLL", (long long)((const int64_t *)r->data)[i]); break;
    case TN_F16:
    case TN_BF16: snprintf(s, VALUE, "%u", ((const uint16_t *)r->data)[i]); break;
    default: snprintf(s, VALUE, "%d", ((const uint8_t *)r->data)[i]); break;
    }
}

static void put_values(tn_growing *t, const ex_region *r, size_t n, bool scales)
{
    size_t line = 0;
    for (size_t i = 0; i < n; i++) {
        char s[VALUE];
        if (scales)
            f32_text(r->scale[i], s);
        else
            value_text(r, i, s);
        const size_t k = strlen(s) + 2;
        if (line + k > 118) {
            tn_put_bytes(t, "\n", 1);
            line = 0;
        }
        tn_put_bytes(t, line ? " " : "    ", line ? 1 : 4);
        tn_put_bytes(t, s, k - 2);
        tn_put_bytes(t, ",", 1);
        line += line ? k : k + 3;
    }
    tn_put(t, "\n");
}

void ex_put_arrays(const tn_export *x, tn_growing *t)
{
    TN_EACH(r, x->region, x->n_region) {
        const bool member = ex_is_member(x, r);
        if (!(r->written || r->read) || (member && ex_begins_as_zero(r))) continue;
        tn_put(t, "static const %s %s%s[%zu] = {\n", ex_region_type(x, r), r->name,
               member ? "_at_first" : "_data", ex_elems(r));
        put_values(t, r, ex_elems(r), false);
        tn_put(t, "};\n\n");
        if (r->weights != TN_EXPORT_INT8) continue;
        tn_put(t, "static const float %s_scale[%lld] = {\n", r->name, (long long)r->outputs);
        put_values(t, r, (size_t)r->outputs, true);
        tn_put(t, "};\n\n");
    }
}
