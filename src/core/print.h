/* print.h - numbers as text and back, with a point in them whatever the host's locale has.
 *
 * What the C library prints and reads goes by the locale that the host has set: in many, 0.5 is 0,5, which is
 * no number in a kernel, a checkpoint or a report. Every number with a fraction that becomes text or comes
 * from text goes through one of these. They set the calling thread's locale to C's while they run, and put
 * back what was there.
 */
#ifndef TN_PRINT_H
#define TN_PRINT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

/* As the functions of <stdio.h> and <stdlib.h> of the same names. */
int tn_snprintf(char *out, size_t n, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int tn_vsnprintf(char *out, size_t n, const char *fmt, va_list ap) __attribute__((format(printf, 3, 0)));
int tn_fprintf(FILE *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
double tn_strtod(const char *text, char **end);

/* For a library that prints or reads numbers itself: the thread is in C's locale from begin on, until end is
 * given what begin returned. No function of the host may be called in between. */
void *tn_c_locale_begin(void);
void tn_c_locale_end(void *before);

#endif
