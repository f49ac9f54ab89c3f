/* convert.h - arrays of elements from one dtype to another, on the host. */
#pragma once

#include "dtype.h"

double tn_load_f64(const void *p, tn_dtype d, size_t i);
int64_t tn_load_i64(const void *p, tn_dtype d, size_t i); /* floats truncate; out of range saturates */
/* n dense elements. Integers to integers go through i64, all else through f64. The arrays do not overlap. */
void tn_convert(void *dst, tn_dtype to, const void *src, tn_dtype from, size_t n);
