/* pool.h - one session's worker threads.
 *
 * Work is n items cut into fixed chunks [i*chunk, min(n, (i+1)*chunk)). The cut depends on n and chunk only,
 * never on the thread count, so a kernel that is deterministic per chunk gives the same bits on any machine.
 * A pool runs one call at a time: it belongs to one session, and a session to one thread at a time. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct tn_pool tn_pool;

/* `threads` counts the caller: 1 makes no worker. Fewer workers than asked for is not an error (the caller
 * alone can do all the work). Returns 0, TN_E_ARG or TN_E_NOMEM. */
int tn_pool_open(int threads, tn_pool **out);
void tn_pool_close(tn_pool *p); /* NULL is allowed */
int tn_pool_threads(const tn_pool *p);

/* Calls fn(arg, begin, end) exactly once for every chunk and returns when all are done; writes made by fn are
 * visible to the caller then. Called from inside fn, or where one chunk holds everything, it runs inline
 * (still chunk by chunk). chunk < 1 means one chunk of n. */
void tn_pool_run(tn_pool *p, void (*fn)(void *arg, int64_t begin, int64_t end), void *arg, int64_t n,
                 int64_t chunk);

/* Between on and off tn_pool_run does nothing: what is called meanwhile asks for the memory it needs, and
 * computes nothing. */
void tn_pool_rehearse(tn_pool *p, bool on);
bool tn_pool_rehearses(const tn_pool *p);
