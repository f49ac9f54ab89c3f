/* said.h - what the library says in its log, kept for a test to look at, and what it prints, as a text.
 *
 * Read first: hear. */
#pragma once

#include <tensor.h>

#include "tests/test.h"

static char said[4096]; /* each message on a line, since the last forget */
static int n_said, last_level;

static inline void hear(int level, const char *text, void *user)
{
    (void)user;
    size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%s\n", text);
    n_said++;
    last_level = level;
}

static inline void hear_warnings(int level, const char *text, void *user)
{
    if (level <= TN_LOG_WARN) hear(level, text, user);
}

static inline void forget(void)
{
    said[0] = 0;
    n_said = 0;
}

/* The block prints into f; what has come is `text` after it, the caller's to free. */
#define PRINTED(text, f)                                                                                     \
    char *text = NULL;                                                                                       \
    size_t text##_bytes = 0;                                                                                 \
    for (FILE *f = open_memstream(&text, &text##_bytes); f; f = (fclose(f), NULL))
