/* errors_rig.h - a session to make mistakes in, and what each of them must come to.
 *
 * A mistake must name the operator, the shapes or values at fault and the caller's file and line. Read first:
 * the macro `fails`. */
#pragma once

#include "check.h"
#include "rig.h"

static tn_session *S;
static bool S_fused __attribute__((unused));

static inline int setup_on(tn_device_kind device, tn_mode mode)
{
    S_fused = mode == TN_FUSED;
    S = tn_open(.device = device, .mode = mode, .seed = 1, .log = quiet);
    return S ? tn_step_begin(S) : -1;
}

static inline int setup(void **state)
{
    (void)state;
    return setup_on(TN_REF, TN_EAGER);
}

static inline int setup_cpu(void **state)
{
    (void)state;
    return setup_on(TN_CPU, TN_FUSED);
}

static inline int teardown(void **state)
{
    (void)state;
    tn_clear_error(S);
    tn_step_end(S);
    tn_clear_error(S);
    return tn_close(S);
}

static inline tn_tensor *zeros(int ndim, const int64_t *shape) { return tn_zeros(S, TN_F32, ndim, shape); }
static inline tn_tensor *ints(int ndim, const int64_t *shape) { return tn_zeros(S, TN_I64, ndim, shape); }

/* The error text names op, the test's file and `line`, and contains each of the words, separated by '|'. */
static inline void expect_error(const tn_tensor *got, int status, const char *op, const char *words, int line)
{
    const char *text = tn_error_text(S);
    char copy[256];
    if (got) fail_msg("line %d: %s gave a tensor, expected \"%s\"", line, op, tn_status_text(status));
    if (tn_error(S) != status) {
        fail_msg("line %d: status %d (%s), expected %d (%s): %s", line, tn_error(S),
                 tn_status_text(tn_error(S)), status, tn_status_text(status), text);
    }
    /* A call that spans lines may name any of them. */
    const char *file = strrchr("/" __BASE_FILE__, '/') + 1, *place = strstr(text, file);
    int named = place && place[strlen(file)] == ':' ? atoi(place + strlen(file) + 1) : 0;
    if (abs(named - line) > 2) fail_msg("\"%s\" does not name %s:%d", text, file, line);
    if (!strstr(text, op)) fail_msg("\"%s\" does not name %s", text, op);
    if (!strncmp(text, "tn_", 3)) fail_msg("\"%s\" says %s with its prefix", text, op);
    if (strchr(text, '\n')) fail_msg("\"%s\" is more than one line", text);
    snprintf(copy, sizeof copy, "%s", words);
    for (char *w = strtok(copy, "|"); w; w = strtok(NULL, "|"))
        if (!strstr(text, w)) fail_msg("\"%s\" does not contain \"%s\"", text, w);
    tn_clear_error(S);
    assert_int_equal(tn_error(S), TN_OK);
    assert_string_equal(tn_error_text(S), "");
}

#define fails(status, op, words, call) expect_error(call, status, op, words, __LINE__)
