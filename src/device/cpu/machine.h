/* machine.h - which processor this is. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Its name and what else tells it from others, printable, such as "cpu NAME, family 25, model 17, with
 * avx512f, 32 MiB". */
void tn_cpu_machine(char *out, size_t n);
int64_t tn_cpu_last_cache(void); /* bytes; 0: not known */
