/* rig.h - sessions as tests open them, what a mistake must come to, and what a session says of itself.
 *
 *   ON_EACH_WAY(s) { .. }    the block on the reference device and on the cpu, eager and fused; closed
 *                            without an error
 *   failed(s, status, ..)    an error stands, names the words and is cleared
 *
 * Read first: the table Ways. */
#pragma once

#include "include/tensor_nn.h"
#include "tests/subject.h"
#include "tests/test.h"

/* ---- ways to run ---- */

enum { REF_EAGER, REF_FUSED, CPU_EAGER, CPU_FUSED, N_WAYS };
static const struct {
    const char *name;
    tn_device_kind device; /* TN_CPU: the device under test */
    tn_mode mode;
} Ways[N_WAYS] = {{"ref eager", TN_REF, TN_EAGER},
                  {"ref fused", TN_REF, TN_FUSED},
                  {"cpu eager", TN_CPU, TN_EAGER},
                  {"cpu fused", TN_CPU, TN_FUSED}};

static inline tn_session *open_way(int k)
{
    tn_session *s = tn_open(.device = Ways[k].device == TN_CPU ? subject_device() : Ways[k].device,
                            .mode = Ways[k].mode, .seed = 3, .threads = 2, .log = quiet);
    if (!s) fail_msg("no session: %s", Ways[k].name);
    return s;
}

static inline void close_clean(tn_session *s)
{
    assert_string_equal(tn_error_text(s), "");
    assert_int_equal(tn_close(s), TN_OK);
}

#define ON_EACH_WAY(s)                                                                                       \
    for (int way_ = 0; way_ < N_WAYS; way_++)                                                                \
        for (tn_session *s = open_way(way_); s; s = (close_clean(s), NULL))
#define is_fused(k) (Ways[k].mode == TN_FUSED)

/* ---- mistakes ---- */

/* What is said contains each of the words, which '|' separates. */
static inline void says(const char *text, const char *words, const char *file, int line)
{
    char copy[512];
    snprintf(copy, sizeof copy, "%s", words);
    for (char *w = strtok(copy, "|"); w; w = strtok(NULL, "|"))
        if (!strstr(text, w)) fail_msg("%s:%d: \"%s\" does not say \"%s\"", file, line, text, w);
}

static inline void failed_at(tn_session *s, int status, const char *words, const char *file, int line)
{
    tn_synchronize(s); /* a GPU tells of an index when it is waited for */
    if (tn_error(s) != status)
        fail_msg("%s:%d: status %d, expected %d: \"%s\"", file, line, tn_error(s), status, tn_error_text(s));
    says(tn_error_text(s), words, file, line);
    tn_clear_error(s);
}
#define failed(s, status, words) failed_at(s, status, words, __FILE__, __LINE__)

/* The call returns the status, which stands in the session too, with these words; then it is cleared. */
#define fails_with(s, status, words, call)                                                                   \
    do {                                                                                                     \
        assert_int_equal(call, status);                                                                      \
        failed(s, status, words);                                                                            \
    } while (0)

/* The call makes nothing and fails like that. */
#define null_with(s, status, words, call)                                                                    \
    do {                                                                                                     \
        assert_null(call);                                                                                   \
        failed(s, status, words);                                                                            \
    } while (0)

/* ---- what a session says of itself ---- */

static inline tn_stats stats_of(const tn_session *s)
{
    tn_stats v = {.size = sizeof v};
    assert_int_equal(tn_get_stats(s, &v), TN_OK);
    return v;
}
