/* settings.h - what the environment says: the variables TENSOR_*, parsed in this one place, and the others.
 *
 * A value that is not among those accepted counts as not set, but that no session opens where TENSOR_DEVICE
 * or TENSOR_MODE would have to decide and means nothing. tn_open reads them with its log and says so there,
 * naming variable, value and what is accepted; a device, which may be opened without a session, reads them
 * again without a word. What a program says itself comes first, which is for the caller to see to. */
#pragma once

#include <stdbool.h>

#include "../../include/tensor_extend.h" /* tn_setting */

#define TN_ACCEPTED_DEVICES "auto, cpu, cuda, cuda:N, cuda:NAME and ref"
#define TN_ACCEPTED_MODES   "fused and eager"

enum { TN_THREADS_MAX = 256, TN_DEBUG_MAX = 5, TN_PLANS_MAX = 65536 };

typedef struct tn_settings {
    tn_device_kind device;  /* TENSOR_DEVICE; TN_AUTO */
    int gpu;                /* of TENSOR_DEVICE=cuda:1; 0 */
    const char *planned;    /* of TENSOR_DEVICE=cuda:h100, a GPU that is not there: "h100"; NULL */
    tn_mode mode;           /* TENSOR_MODE; TN_MODE_AUTO */
    tn_precision precision; /* TENSOR_PRECISION; TN_PRECISION_F32 */
    int threads;            /* TENSOR_THREADS; 0: not said */
    int replay;             /* TENSOR_REPLAY; 1 */
    int plans;              /* TENSOR_PLANS; 256: how many a session remembers */
    int kernel_opt;         /* TENSOR_KERNEL_OPT; 3 */
    int debug;              /* TENSOR_DEBUG; 0 */
    int check;              /* TENSOR_CHECK; 0 */
    int tune;               /* TENSOR_TUNE; 0 */
    int comm_timeout;       /* TENSOR_COMM_TIMEOUT; 300: seconds that a rank may be silent */
    const char *cache, *dump, *cc, *profile,
        *report; /* TENSOR_CACHE, DUMP, CC, PROFILE, REPORT: as they stand; NULL when not set */
    const char *bad_device, *bad_mode; /* what they are set to, where that is not accepted; else NULL */
} tn_settings;

/* log may be NULL. The texts belong to the environment. */
tn_settings tn_settings_read(void (*log)(int level, const char *text, void *user), void *user);

/* Returns true for a program with rights that its caller lacks, set-user-id or with capabilities of its own
 * (AT_SECURE), to which tn_setting (<tensor_extend.h>) says nothing: its environment is its caller's, and may
 * name no compiler, library, cache or file. A compiler and the libraries of CUDA look into the
 * environment themselves, so none of them is used: the library's own loops compute. */
bool tn_setting_is_foreign(void);
