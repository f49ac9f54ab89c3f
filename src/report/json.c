/* json.c - the report for programs. Written by hand: it needs no library, and the order of the members
 * is the same each time. Bytes are whole numbers, times milliseconds, null where nothing was measured.
 * Start with tn_report_json. */
#include "view.h"

static void put_sums(tn_growing *t, const char *name, const tn_sums *s)
{
    tn_put(t,
           "\"%s\":{\"kernels_before\":%d,\"kernels\":%d,\"bytes_before\":%lld,\"bytes\":%lld,\"flops\":%.0f,"
           "\"predicted_ms\":%.6f,",
           name, s->before, s->kernels, (long long)s->bytes_before, (long long)s->bytes, s->flops,
           s->predicted_ms);
    tn_put(t, s->ms >= 0 ? "\"ms\":%.6f," : "\"ms\":null,", s->ms);
    tn_put(t, tn_sums_share(s) > 0 ? "\"share\":%.4f}" : "\"share\":null}", tn_sums_share(s));
}

static void put_launch(const tn_session *s, const tn_launch *l, tn_growing *t)
{
    tn_put(t, "{");
    TN_PUT_JSON(t, "name", l->of->name, "way", tn_way_name(l->way), "ops", l->ops);
    if (l->of->does) TN_PUT_JSON(t, "does", l->of->does);
    TN_PUT_JSON(t, "lines", l->lines, "layers", l->layers);
    tn_put(t, "\"segment\":%d,\"kernels_before\":%d,\"bytes_before\":%lld,\"bytes\":%lld,\"flops\":%.0f,",
           l->segment + 1, l->before, (long long)l->bytes_before, (long long)l->of->bytes, l->of->flops);
    tn_put(t, "\"predicted_ms\":%.6f,", l->of->predicted_ms);
    tn_kernel_info info;
    if (tn_launch_info(s, l, &info))
        tn_put(t, "\"registers\":%d,\"shared_bytes\":%lld,\"spilled_bytes\":%lld,", info.registers,
               (long long)info.shared_bytes, (long long)info.local_bytes);
    tn_put(t, l->ms >= 0 ? "\"ms\":%.6f}" : "\"ms\":null}", l->ms);
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
    TN_EACH(k, v->kept, v->n_kept) {
        tn_put(t, "%s\n{", k > v->kept ? "," : "");
        TN_PUT_JSON(t, "name", k->name, "how", k->how, "reader", k->reader);
        tn_put(t, "\"bytes\":%lld,\"values\":%d,\"predicted_ms\":%.6f}", (long long)k->bytes, k->n, k->ms);
    }
    tn_put(t, "]}");
}

static void put_boundaries(const tn_view *v, tn_growing *t)
{
    tn_put(t, "\"boundaries\":[");
    TN_EACH(b, v->boundary, v->n_boundary) {
        tn_put(t, "%s\n{", b > v->boundary ? "," : "");
        TN_PUT_JSON(t, "from", b->from, "to", b->to, "reason", b->reason, "remedy", b->remedy);
        tn_put(t, b->ms >= 0 ? "\"saves_ms\":%.6f," : "\"saves_ms\":null,", b->ms);
        tn_put(t, "\"bytes\":%lld,\"values\":%d}", (long long)b->bytes, b->n);
    }
    tn_put(t, "]");
}

void tn_report_json(tn_session *s, const tn_view *v, tn_growing *t)
{
    tn_put(t, "{");
    TN_PUT_JSON(t, "version", tn_version(), "device", s->device->name, "mode", tn_view_mode(s, v), "profile",
                tn_profile_name(s));
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
            tn_put_string(t, v->breaks[i]);
        }
        tn_put(t, "],\n");
        TN_PUT_JSON(t, "unread", v->unread ? v->unread : "");
        tn_put(t, "\n");
        put_rows(s, v, t);
        tn_put(t, ",\n");
        put_ledger(v, t);
        tn_put(t, ",\n");
        put_boundaries(v, t);
        tn_ranks_json(s, v, t);
    }
    tn_curves_json(s, t);
    tn_put(t, "}\n");
}
