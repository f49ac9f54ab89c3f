/* failure.c - runs that have failed: which they were, and what a kernel found while nobody waited for it.
 * Start with tn_check_fault. */
#include "device_run.h"

/* The runs from number `first` on have failed. */
void tn_note_failure(tn_session *s, uint64_t first)
{
    enum { MOST = sizeof s->failures / sizeof *s->failures };
    const uint64_t run = s->stats.runs;
    struct tn_failures *newest = s->n_failures ? &s->failures[(s->n_failures - 1) % MOST] : NULL;
    s->stats.failed++;
    if (newest && newest->last + 1 >= first) {
        newest->last = run;
        if (newest->first > first) newest->first = first;
    } else
        s->failures[s->n_failures++ % MOST] = (struct tn_failures){first, run};
}

bool tn_run_failed(const tn_session *s, uint64_t run)
{
    enum { MOST = sizeof s->failures / sizeof *s->failures };
    for (int i = 0; s && i < s->n_failures && i < MOST; i++)
        if (run >= s->failures[i].first && run <= s->failures[i].last) return true;
    return false;
}

int tn_check_fault(tn_session *s)
{
    tn_call *open = s->graph.call, call;
    tn_index_site site = {"index", -1};
    tn_fault fault = {0};
    if (!s->device->take_fault || !s->device->take_fault(s->device, &fault)) return TN_OK;
    if (tn_device_fault_site(s, &fault, &site, &call)) s->graph.call = &call;
    /* Else any of the step's; nor may ranks differ, of which one has met it and the others are told. */
    const bool known = fault.in.run > 0 && tn_ranks(s) == 1;
    s->drawn = known ? (uint64_t)fault.in.draw : s->step_draw;
    if (!s->in_step) s->graph.draw = s->drawn;
    tn_note_failure(s, known ? (uint64_t)fault.in.run : s->step_runs + 1);
    tn_index_error_at(s, &site, fault.value);
    tn_device_forget_runs(s);
    tn_refuse_all(s);
    s->graph.call = open;
    return TN_E_INDEX;
}
