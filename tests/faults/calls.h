/* calls.h - calls of the C library that fail when they are told to.
 *
 * calls.c defines malloc, open, fsync and the like in the program itself, which then stand for those of libc
 * in every library it has loaded. While a kind of call is armed, the n-th call of it fails as the system
 * would fail it, and, where it is for good, every one after it too. Blocks of memory are counted, so that
 * those that nobody frees are seen. glibc only. Read first: calls_arm, then kinds.def. */
#ifndef FAULTS_CALLS_H
#define FAULTS_CALLS_H

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

/* Whose calls they are: not oneDNN's, or oneDNN's and the first that comes this way through it (the return
 * addresses in it) or a later one. map[n]: of the n-th malloc while none fails, up to `calls`; NULL or shared
 * with whoever looks after this process has ended. */
enum { CALL_OURS, CALL_NEW_WAY, CALL_KNOWN_WAY };
void calls_whose(unsigned char *map, long calls);

/* Whether the first call that failed in this thread was made by oneDNN. */
bool calls_library_failed(void);

/* Of a stack as backtrace gives it to a signal handler: the place in oneDNN's file where it goes over into
 * what has raised the signal; 0: that was not oneDNN, nor what it calls of the C and C++ libraries, or not
 * calls_library_failed. */
unsigned long calls_where_library_ends(void *const frame[], int n);

/* Counts the blocks that malloc gives from now on. trace: also by whom they were asked for, which is slow. */
void blocks_watch(bool trace);
/* Those that nobody has freed, and those among oneDNN's; `each` (or NULL) gets the return addresses of them
 * all, the innermost first, NULL at the end. */
long blocks_live(long *of_library, void (*each)(void *const from[], int n, void *user), void *user);

#endif
