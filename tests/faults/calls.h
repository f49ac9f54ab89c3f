/* calls.h - calls of the C library that fail when they are told to.
 *
 * calls.c defines malloc, open, fsync and the like in the program itself, which then stand for those of libc
 * in every library it has loaded. While a kind of call is armed, the n-th call of it fails as the system
 * would fail it, and, where it is for good, every one after it too. Blocks of memory are counted, so that
 * those that nobody frees are seen. glibc only. Read first: calls_arm, then kinds.def. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef enum call_kind {
#define KIND(name) CALL_##name,
#include "kinds.def"
#undef KIND
    CALL_KINDS
} call_kind;
extern const char *const call_name[CALL_KINDS];

/* The n-th call of the kind from now on fails (from 1), `for_good` also those after it. n = 0: none does, and
 * those of all kinds are counted. Calls of all threads count. */
void calls_arm(call_kind kind, long n, bool for_good);
void calls_pause(bool pause); /* nothing fails and nothing is counted meanwhile */
void calls_disarm(void);
long calls_made(call_kind kind);
long calls_failed(void);

/* Counts the blocks that malloc gives from now on. trace: also by whom they were asked for, which is slow. */
void blocks_watch(bool trace);
/* Those that nobody has freed; `each` (or NULL) gets the return addresses of them all, the innermost first,
 * NULL at the end. */
long blocks_live(void (*each)(void *const from[], int n, void *user), void *user);
