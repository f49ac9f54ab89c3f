/* join.c - which ranks a session joins: those of a launcher (mpirun, srun), by the plugin of their MPI, and
 * between GPUs NCCL. Start with tn_join. */
#include "join.h"

#include "../comm/nccl.h"
#include "../runtime/ranks.h"

int tn_join(const tn_options *o, double timeout, struct tn_ranks **out)
{
    char why[TN_COMM_WHY] = "";
    const char *launcher = tn_comm_launcher();
    *out = NULL;
    if (o->comm == TN_COMM_NONE || (o->comm == TN_COMM_AUTO && !launcher)) return TN_OK;
    tn_comm *c = tn_comm_open(timeout, why);
    if (!c) {
        tn_say(o, TN_LOG_ERROR, "no session: %s%s%s", o->comm == TN_COMM_AUTO ? launcher : "",
               o->comm == TN_COMM_AUTO
                   ? " says that this is one of several processes, and MPI cannot be used: "
                   : "",
               why);
        return TN_E_COMM;
    }
    const bool alone = c->size == 1;
    if (!alone) *out = tn_ranks_new(c);
    if (*out) return TN_OK;
    c->close(c);
    if (alone) return TN_OK;
    tn_say(o, TN_LOG_ERROR, "no memory for a session");
    return TN_E_NOMEM;
}

int tn_join_device(tn_session *s)
{
    tn_device *d = s->device;
    char why[TN_COMM_WHY] = "";
    if (!s->ranks || d->shares_host_memory || d->is_reference) return TN_OK;
    tn_comm *c = d->beside ? tn_nccl_open(tn_ranks_host(s), d, why) : NULL;
    if (c)
        tn_ranks_compute(s, c);
    else
        tn_say(&s->options, TN_LOG_ERROR, "no session: ranks on '%s': %s; TN_CPU or TN_COMM_NONE do without",
               d->name, *why ? why : "the device has no second queue");
    return c ? TN_OK : TN_E_COMM;
}
