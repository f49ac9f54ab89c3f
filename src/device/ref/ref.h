/* ref.h - the reference device: a slow, plain interpreter that computes every op in f64, and integers
 * exactly.
 *
 * It is the oracle of the tests. An element is a double, or an int64_t where the dtype is an integer one;
 * integer and bool results are brought to their dtype (wrapping as C's unsigned conversions do), floating
 * ones are never rounded, so that a program run here gives the value it would have without rounding.
 *
 * Nothing is shared with the devices under test but the expressions of ops.def: the functions in them come
 * from libm here, and Philox, convolution, pooling and the index maps are written again, as directly as they
 * can be said.
 *
 * Read first: tn_ref_run in run.c, which hands each op dense operands and a zeroed result. */
#pragma once

#include "../../core/graph.h"
#include "../device.h"

/* Opens the device named "ref": host memory, no compiler, no library calls. */
int tn_ref_open(const tn_device_options *o, tn_device **out, tn_errbuf *err);

/* Computes `node` from its inputs' values into storage of its own (node->buf); an assign writes into the
 * target's. Leaves and strided views already have their value. Inputs must have been run. Returns 0 or a
 * negative tn_status with one line in `err`. */
int tn_ref_run(tn_tensor *node, tn_errbuf *err);

/* From now on every computed element is moved by up to `amplitude` units in the last place of its dtype, and
 * every summand of a sum likewise: what comes out is one of the values that rounding might have led to. The
 * spread of a few such runs around the exact one bounds, element by element, what a device may answer; where
 * rounding decides (a comparison, a floor) the spread is as large as the step. 0 turns it off. The same
 * seed moves the same elements the same way; seed 0 rounds results to their dtype instead. */
void tn_ref_set_noise(tn_device *d, double amplitude, uint64_t seed);
