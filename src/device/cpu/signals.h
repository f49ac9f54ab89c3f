/* signals.h - keeps the host's signal handlers off a thread for a while.
 *
 * The f32 products of oneDNN (2.x and 3.x, also inside of its convolutions and matmul primitives) point the
 * stack pointer into a block of the heap while they compute: a handler that runs then writes its frame over
 * what lies below that block. So no handler may run on a thread while it is in there. What arrives meanwhile
 * stays pending and is delivered as the call ends, some microseconds later. Signals that an instruction
 * raises stay open: blocked, they would end the process without asking anybody. Read first: tn_signals_hold.
 */
#ifndef TN_CPU_SIGNALS_H
#define TN_CPU_SIGNALS_H

#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline void tn_signals_open_faults(sigset_t *set)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(set, faults[i]);
}

/* The system call itself: those of the C library leave out the two signals by which it cancels a thread and
 * hands a setuid on to all of them, and their handlers would run on that stack as well. */
static inline void tn_signals_hold(sigset_t *before)
{
    sigset_t all;
    memset(&all, 0xff, sizeof all);
    tn_signals_open_faults(&all);
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, before, _NSIG / 8);
}

static inline void tn_signals_release(const sigset_t *before)
{
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, before, NULL, _NSIG / 8);
}

#endif
