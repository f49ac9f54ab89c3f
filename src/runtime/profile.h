/* profile.h - the target profile of a session: chosen in profile.c, measured in calibrate.c. */
#pragma once

#include "../../fuser/loops/cost.h"
#include "../device/profile.h"
#include "log.h"

/* Writes the path of the calibrated profile for this machine and number of threads; false: it has no
 * place. */
bool tn_profile_path(const tn_session *s, char *out, size_t n);
/* Reads a profile; false: there is none, and the log says why, unless the file is just missing and not
 * `needed`. */
bool tn_profile_load(const tn_session *s, const char *path, bool needed, tn_target_profile *out);

/* tn_calibrate with footprints up to so many bytes; at least .25e6. */
int tn_calibrate_to(tn_session *s, double largest);
