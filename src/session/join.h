/* join.h - a session becomes one of several ranks, where a launcher started several. */
#pragma once

#include "../runtime/session.h"

/* Returns 0 and *out: the ranks that the program and its launcher want; NULL where this process stands alone.
 * Else a status, and why has been said. timeout: in seconds. */
int tn_join(const tn_options *o, double timeout, struct tn_ranks **out);
/* Once the session's device is open, which may bring a network of its own: 0, or a status as above. */
int tn_join_device(tn_session *s);
