/* print.h - numbers as text and back, with a point in them whatever the host's locale has.
 *
 * What the C library prints and reads goes by the locale that the host has set: in many, 0.5 is 0,5, which is
 * no number in a kernel, a checkpoint or a report. Every number with a fraction that becomes text or comes
 * from text goes through one of these. They set the calling thread's locale to C's while they run, and put
 * back what was there. */
#pragma once

#include "../../include/tensor_extend.h" /* tn_snprintf, tn_vsnprintf, tn_strtod */

/* As the function of <stdio.h> of that name. */
int tn_fprintf(FILE *out, const char *fmt, ...) TN_FORMAT(2, 3);
