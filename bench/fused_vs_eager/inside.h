/* inside.h - the few things a benchmark wants to know that the public headers do not tell: how fast a kernel
 * of the library copies, with either kind of store, and what the last plan of a session consists of. */
#pragma once

#include <tensor.h>

/* The session's kernels write past the caches wherever they can, or nowhere; a GPU's know no difference. */
void inside_stream(tn_session *s, bool stream);

/* The last plan's kernels: name, bytes, and between which of them values had to go through memory, and why.
 */
void inside_print_plan(const tn_session *s, FILE *out);

/* What the last plan's kernels must read and write, its library calls not counted. */
double inside_kernel_bytes(const tn_session *s);

/* How long the last plan is predicted to take, by the session's target profile: milliseconds. */
double inside_predicted_ms(const tn_session *s);

/* Runs the last plan's library calls alone, one after the other, on operands of the same shapes and strides:
 * 0, or -1 on failure. Memory is taken at the first call, before the first call of the library, and kept in
 * *room: free it. */
int inside_library_calls(tn_session *s, void **room);
