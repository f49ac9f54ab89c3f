/* guard.h - keeps exceptions of C++ from passing through C.
 *
 * oneDNN is written in C++. Its functions report failure by a code, but where there is no memory an exception
 * comes out of them, and ends the process for want of anybody who catches it: C cannot. What can is the
 * routine that each frame of the stack may name for the unwinder to ask (its "personality", of the Itanium
 * C++ ABI, which gcc and clang follow on Linux); guard.c names one of its own.
 */
#ifndef TN_CPU_GUARD_H
#define TN_CPU_GUARD_H

#include <stdbool.h>

/* Calls body(arg). false: an exception came out of it; what body held in its own variables is lost then,
 * frames of C++ have been cleaned up. */
bool tn_guarded(void (*body)(void *arg), void *arg);

#endif
