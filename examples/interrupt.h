/* interrupt.h - Ctrl-C: the first ends a run after the step it is in, as if it had been that long, or before
 * the first one, the second at once. A program that was started with the signal ignored, as nohup does, goes
 * on ignoring it. */
#pragma once

#include <signal.h>
#include <stdbool.h>

static volatile sig_atomic_t interrupt_seen;

static inline void interrupt_note(int sig)
{
    (void)sig;
    interrupt_seen = 1;
}

static inline void interrupt_watch(void)
{
    struct sigaction was, now = {.sa_handler = interrupt_note, .sa_flags = SA_RESTART | SA_RESETHAND};
    sigemptyset(&now.sa_mask);
    if (!sigaction(SIGINT, NULL, &was) && was.sa_handler != SIG_IGN) sigaction(SIGINT, &now, NULL);
}

static inline bool interrupted(void) { return interrupt_seen != 0; }
