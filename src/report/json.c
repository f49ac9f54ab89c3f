/* json.c - the report for programs. Written by hand: it needs no library, and the order of the members
 * is the same each time. Bytes are whole numbers, times milliseconds, null where nothing was measured.
 * Start with tn_report_json.
 */
#include "view.h"

static void put_string(tn_growing *t, const char *s)
{
    tn_put(t, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            tn_put(t, "\\%c", c);
        else if (c < 0x20)
            tn_put(t, "\\u%04x", c);
        else
            tn_put(t, "%c", c);
    }
    tn_put(t, "\"");
}

static void put_member(tn_growing *t, const char *name, const char *value)
{
    tn_put(t, "\"%s\":", name);
    put_string(t, value);
    tn_put(t, ",");
}

static void put_sums(tn_growing *t, const char *name, const tn_sums *s)
{
    tn_put(t,
           "\"%s\":{\"kernels_before\":%d,\"kernels\":%d,\"bytes_before\":%lld,\"bytes\":%lld,\"flops\":%.0f,"
           "\"predicted_ms\":%.6f,",
           name, s->before, s->kernels, (long long)s->bytes_before, (long long)s->bytes, s->flops,
           s->predicted_ms);
    if (s->ms >= 0)
        tn_put(t, "\"ms\":%.6f,", s->ms);
    else
        tn_put(t, "\"ms\":null,");
    if (tn_sums_share(s) > 0)
        tn_put(t, "\"share\":%.4f}", tn_sums_share(s));
    else
        tn_put(t, "\"share\":null}");
}

static void put_launch(const tn_session *s, const tn_launch *l, tn_growing *t)
{
    tn_put(t, "{");
    put_member(t, "name", l->of->name);
    put_member(t, "way", tn_way_name(l->way));
    put_member(t, "ops", l->ops);
    if (l->of->does) put_member(t, "does", l->of->does);
    put_member(t, "lines", l->lines);
    put_member(t, "layers", l->layers);
    tn_put(t, "\"segment\":%d,\"kernels_before\":%d,\"bytes_before\":%lld,\"bytes\":%lld,\"flops\":%.0f,",
           l->segment + 1, l->before, (long long)l->bytes_before, (long long)l->of->bytes, l->of->flops);
    tn_put(t, "\"predicted_ms\":%.6f,", l->of->predicted_ms);
    tn_kernel_info info;
    if (tn_launch_info(s, l, &info))
        tn_put(t, "\"registers\":%d,\"shared_bytes\":%lld,\"spilled_bytes\":%lld,", info.registers,
               (long long)info.shared_bytes, (long long)info.local_bytes);
    if (l->ms >= 0)
        tn_put(t, "\"ms\":%.6f}", l->ms);
    else
        tn_put(t, "\"ms\":null}");
}

static void put_rows(const tn_session *s, const tn_view *v, tn_growing *t)
{
    tn_put(t, "\"groups\":[");
    for (int r = 0; r < v->n_row; r++) {
        tn_sums f = tn_view_row(v, r, TN_WAY_FORWARD), b = tn_view_row(v, r, TN_WAY_BACKWARD);
        tn_put(t, "%s\n{", r ? "," : "");
        put_sums(t, "forward", &f);
        tn_put(t, ",");
        put_sums(t, "backward", &b);
        tn_put(t, ",\"launches\":[");
        for (int i = v->first_of[r]; i >= 0; i = v->launch[i].next) {
            tn_put(t, "%s", i == v->first_of[r] ? "" : ",");
            put_launch(s, &v->launch[i], t);
        }
        tn_put(t, "]}");
    }
    tn_put(t, "]");
}

static void put_ledger(const tn_view *v, tn_growing *t)
{
    tn_put(t,
           "\"ledger\":{\"kept_bytes\":%lld,\"computed_again_bytes\":%lld,\"never_stored_bytes\":%lld,"
           "\"values\":[",
           (long long)v->kept_bytes, (long long)v->again_bytes, (long long)v->never_bytes);
    for (int i = 0; i < v->n_kept; i++) {
        tn_put(t, "%s\n{", i ? "," : "");
        put_member(t, "name", v->kept[i].name);
        put_member(t, "how", v->kept[i].how);
        put_member(t, "reader", v->kept[i].reader);
        tn_put(t, "\"bytes\":%lld,\"values\":%d,\"predicted_ms\":%.6f}", (long long)v->kept[i].bytes,
               v->kept[i].n, v->kept[i].ms);
    }
    tn_put(t, "]}");
}

static void put_boundaries(const tn_view *v, tn_growing *t)
{
    tn_put(t, "\"boundaries\":[");
    for (int i = 0; i < v->n_boundary; i++) {
        const tn_boundary *b = &v->boundary[i];
        tn_put(t, "%s\n{", i ? "," : "");
        put_member(t, "from", b->from);
        put_member(t, "to", b->to);
        put_member(t, "reason", b->reason);
        put_member(t, "remedy", b->remedy);
        if (b->saves_ms >= 0)
            tn_put(t, "\"saves_ms\":%.6f,", b->saves_ms);
        else
            tn_put(t, "\"saves_ms\":null,");
        tn_put(t, "\"bytes\":%lld,\"values\":%d}", (long long)b->bytes, b->n);
    }
    tn_put(t, "]");
}

void tn_report_json(tn_session *s, const tn_view *v, tn_growing *t)
{
    tn_put(t, "{");
    put_member(t, "version", tn_version());
    put_member(t, "device", s->device->name);
    put_member(t, "mode", tn_view_mode(s, v));
    put_member(t, "profile", tn_profile_name(s));
    tn_put(t, "\"threads\":%d", s->device->threads);
    if (v->log) {
        tn_put(t, ",\"step\":%llu,\"trained\":%s,\"copy_gbs\":", (unsigned long long)v->log->number,
               v->log->backward ? "true" : "false");
        tn_put(t, v->gbs > 0 ? "%.2f" : "null", v->gbs);
        tn_put(t, ",\"arena_bytes\":%zu,\"naive_bytes\":%zu,\"least_bytes\":%zu,\n", v->arena_bytes,
               v->naive_bytes, v->least_bytes);
        put_sums(t, "total", &v->total);
        tn_put(t, ",\n\"segments\":[");
        for (int i = 0; i < v->n_break; i++) {
            tn_put(t, "%s", i ? "," : "");
            put_string(t, v->breaks[i]);
        }
        tn_put(t, "],\n\"unread\":");
        put_string(t, v->unread ? v->unread : "");
        tn_put(t, ",\n");
        put_rows(s, v, t);
        tn_put(t, ",\n");
        put_ledger(v, t);
        tn_put(t, ",\n");
        put_boundaries(v, t);
        tn_ranks_json(s, v, t);
    }
    tn_curves_json(s, t, put_string);
    tn_put(t, "}\n");
}
