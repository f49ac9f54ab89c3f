/* dtype.h - element types: names, sizes, categories, promotion. The list itself stands in <tensor.h>. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "../../include/tensor.h"

bool tn_dtype_is_half(tn_dtype d); /* f16 bf16 */
bool tn_dtype_is_int(tn_dtype d);  /* i32 i64 u8, not bool */
/* Returns true where v is a value of d. For an integer dtype v is truncated towards 0 first, and u8 counts -1
 * to -255 back from 256, as PyTorch does. */
bool tn_dtype_holds(tn_dtype d, double v);
int64_t tn_dtype_nearest(tn_dtype d, int64_t v); /* of what an integer dtype d holds; v itself for the rest */
int64_t tn_f64_to_i64(double v); /* cut off towards 0; NaN is 0, what lies beyond is the last that there is */
tn_dtype tn_dtype_promote(tn_dtype a, tn_dtype b); /* PyTorch's torch.promote_types */
tn_dtype tn_dtype_widest(tn_dtype d);      /* i64 of the integers, f64 of the rest: holds every value of d */
tn_dtype tn_dtype_accumulator(tn_dtype d); /* what a sum over d is carried in inside a kernel */

uint16_t tn_f32_to_f16(float x); /* round to nearest even, NaN stays NaN */
float tn_f16_to_f32(uint16_t h);
uint16_t tn_f32_to_bf16(float x);
float tn_bf16_to_f32(uint16_t h);
