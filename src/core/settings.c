/* settings.c - one row for each variable whose values can be listed. Start with tn_settings_read. */
#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/auxv.h>

typedef struct choice {
    const char *text;
    int value;
} choice;

typedef struct variable {
    const char *name, *accepts;
    const choice *choices; /* until one without a text; NULL: a whole number, `least` to `most` */
    int least, most;
    int otherwise;
} variable;

enum {
    DEVICE,
    MODE,
    PRECISION,
    THREADS,
    REPLAY,
    PLANS,
    KERNEL_OPT,
    DEBUG,
    CHECK,
    TUNE,
    COMM_TIMEOUT,
    VARIABLES
};

static const choice devices[] = {
    {"auto", TN_AUTO}, {"cpu", TN_CPU}, {"cuda", TN_CUDA}, {"ref", TN_REF}, {NULL, 0}};
static const choice modes[] = {{"fused", TN_FUSED}, {"eager", TN_EAGER}, {NULL, 0}};
static const choice precisions[] = {{"f32", TN_PRECISION_F32},
                                    {"tf32", TN_PRECISION_TF32},
                                    {"bf16", TN_PRECISION_BF16},
                                    {"f16", TN_PRECISION_F16},
                                    {NULL, 0}};
static const choice switches[] = {{"on", 1}, {"off", 0}, {"1", 1}, {"0", 0}, {NULL, 0}};

static const variable variables[VARIABLES] = {
    [DEVICE] = {"TENSOR_DEVICE", TN_ACCEPTED_DEVICES, devices, 0, 0, TN_AUTO},
    [MODE] = {"TENSOR_MODE", TN_ACCEPTED_MODES, modes, 0, 0, TN_MODE_AUTO},
    [PRECISION] = {"TENSOR_PRECISION", "f32, tf32, bf16 and f16", precisions, 0, 0, TN_PRECISION_F32},
    [THREADS] = {"TENSOR_THREADS", "1 to 256, and 0 for all there are", NULL, 0, TN_THREADS_MAX, 0},
    [REPLAY] = {"TENSOR_REPLAY", "on and off", switches, 0, 0, 1},
    /* eager mode has one for each operator and shape: some hundreds for a model */
    [PLANS] = {"TENSOR_PLANS", "1 to 65536", NULL, 1, TN_PLANS_MAX, 256},
    [KERNEL_OPT] = {"TENSOR_KERNEL_OPT", "0 to 3", NULL, 0, 3, 3},
    [DEBUG] = {"TENSOR_DEBUG", "0 to 5", NULL, 0, TN_DEBUG_MAX, 0},
    [CHECK] = {"TENSOR_CHECK", "1 and 0", switches, 0, 0, 0},
    [TUNE] = {"TENSOR_TUNE", "1 and 0", switches, 0, 0, 0},
    [COMM_TIMEOUT] = {"TENSOR_COMM_TIMEOUT", "1 to 86400", NULL, 1, 86400, 300},
};

/* "cuda:1" -> 1; -1: it is no such text. */
static int number_of_gpu(const char *text)
{
    const size_t digits = !text || strncasecmp(text, "cuda:", 5) ? 0 : strspn(text + 5, "0123456789");
    return digits && digits <= 4 && !text[5 + digits] ? atoi(text + 5) : -1;
}

/* "cuda:h100" -> "h100", and "cuda:./numbers" the path; NULL: it is no such text. */
static const char *planned_gpu(const char *text)
{
    if (!text || strncasecmp(text, "cuda:", 5)) return NULL;
    const bool letter = (text[5] >= 'a' && text[5] <= 'z') || (text[5] >= 'A' && text[5] <= 'Z');
    return letter || strchr(text, '/') ? text + 5 : NULL;
}

static bool parse(const variable *v, const char *text, int *value)
{
    if (v->choices == devices && (number_of_gpu(text) >= 0 || planned_gpu(text))) {
        *value = TN_CUDA;
        return true;
    }
    for (const choice *c = v->choices; c && c->text; c++)
        if (!strcasecmp(c->text, text)) {
            *value = c->value;
            return true;
        }
    size_t digits = strspn(text, "0123456789");
    if (v->choices || !digits || text[digits] || digits > 6) return false;
    if (atoi(text) < v->least || atoi(text) > v->most) return false;
    *value = atoi(text);
    return true;
}

const char *tn_setting(const char *name)
{
    const char *text = secure_getenv(name);
    return text && *text ? text : NULL;
}

bool tn_setting_is_foreign(void) { return getauxval(AT_SECURE) != 0; }

tn_settings tn_settings_read(void (*log)(int level, const char *text, void *user), void *user)
{
    int value[VARIABLES];
    bool bad[VARIABLES] = {false};
    for (int i = 0; i < VARIABLES; i++) {
        const variable *v = &variables[i];
        const char *text = tn_setting(v->name);
        value[i] = v->otherwise;
        bad[i] = text && !parse(v, text, &value[i]);
        if (!bad[i] || !log) continue;
        char line[400];
        snprintf(line, sizeof line, "%s is '%.100s', which means nothing: accepted: %s", v->name, text,
                 v->accepts);
        log(TN_LOG_WARN, line, user);
    }
    const int gpu = number_of_gpu(tn_setting(variables[DEVICE].name));
    return (tn_settings){.device = (tn_device_kind)value[DEVICE],
                         .gpu = gpu < 0 ? 0 : gpu,
                         .planned = planned_gpu(tn_setting(variables[DEVICE].name)),
                         .mode = (tn_mode)value[MODE],
                         .precision = (tn_precision)value[PRECISION],
                         .threads = value[THREADS],
                         .replay = value[REPLAY] != 0,
                         .plans = value[PLANS],
                         .kernel_opt = value[KERNEL_OPT],
                         .debug = value[DEBUG],
                         .check = value[CHECK] != 0,
                         .tune = value[TUNE] != 0,
                         .comm_timeout = value[COMM_TIMEOUT],
                         .cache = tn_setting("TENSOR_CACHE"),
                         .dump = tn_setting("TENSOR_DUMP"),
                         .cc = tn_setting("TENSOR_CC"),
                         .profile = tn_setting("TENSOR_PROFILE"),
                         .report = tn_setting("TENSOR_REPORT"),
                         .bad_device = bad[DEVICE] ? tn_setting(variables[DEVICE].name) : NULL,
                         .bad_mode = bad[MODE] ? tn_setting(variables[MODE].name) : NULL};
}
