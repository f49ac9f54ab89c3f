/* settings.c - one row for each variable whose values can be listed. Start with tn_settings_read. */
#include "settings.h"

#include <stddef.h>
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
    size_t at; /* of an int in tn_settings, or of what is as large */
} variable;

static const choice devices[] = {
    {"auto", TN_AUTO}, {"cpu", TN_CPU}, {"cuda", TN_CUDA}, {"ref", TN_REF}, {NULL, 0}};
static const choice modes[] = {{"fused", TN_FUSED}, {"eager", TN_EAGER}, {NULL, 0}};
static const choice precisions[] = {{"f32", TN_PRECISION_F32},
                                    {"tf32", TN_PRECISION_TF32},
                                    {"bf16", TN_PRECISION_BF16},
                                    {"f16", TN_PRECISION_F16},
                                    {NULL, 0}};
static const choice switches[] = {{"on", 1}, {"off", 0}, {"1", 1}, {"0", 0}, {NULL, 0}};

#define AT(member) offsetof(tn_settings, member)
static const variable variables[] = {
    {"TENSOR_DEVICE", TN_ACCEPTED_DEVICES, devices, 0, 0, TN_AUTO, AT(device)},
    {"TENSOR_MODE", TN_ACCEPTED_MODES, modes, 0, 0, TN_MODE_AUTO, AT(mode)},
    {"TENSOR_PRECISION", "f32, tf32, bf16 and f16", precisions, 0, 0, TN_PRECISION_F32, AT(precision)},
    {"TENSOR_THREADS", "1 to 256, and 0 for all there are", NULL, 0, TN_THREADS_MAX, 0, AT(threads)},
    {"TENSOR_REPLAY", "on and off", switches, 0, 0, 1, AT(replay)},
    /* eager mode has one for each operator and shape: some hundreds for a model */
    {"TENSOR_PLANS", "1 to 65536", NULL, 1, TN_PLANS_MAX, 256, AT(plans)},
    {"TENSOR_KERNEL_OPT", "0 to 3", NULL, 0, 3, 3, AT(kernel_opt)},
    {"TENSOR_DEBUG", "0 to 5", NULL, 0, TN_DEBUG_MAX, 0, AT(debug)},
    {"TENSOR_CHECK", "1 and 0", switches, 0, 0, 0, AT(check)},
    {"TENSOR_TUNE", "1 and 0", switches, 0, 0, 0, AT(tune)},
    {"TENSOR_COMM_TIMEOUT", "1 to 86400", NULL, 1, 86400, 300, AT(comm_timeout)},
};
_Static_assert(sizeof(tn_device_kind) == sizeof(int) && sizeof(tn_mode) == sizeof(int) &&
                   sizeof(tn_precision) == sizeof(int),
               "settings are read as ints");

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
    const char *device = tn_setting("TENSOR_DEVICE");
    const int gpu = number_of_gpu(device);
    tn_settings s = {.gpu = gpu < 0 ? 0 : gpu,
                     .planned = planned_gpu(device),
                     .cache = tn_setting("TENSOR_CACHE"),
                     .dump = tn_setting("TENSOR_DUMP"),
                     .cc = tn_setting("TENSOR_CC"),
                     .profile = tn_setting("TENSOR_PROFILE"),
                     .report = tn_setting("TENSOR_REPORT")};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const variable *v = &variables[i];
        const char *text = tn_setting(v->name);
        int *value = (int *)(void *)((char *)&s + v->at);
        *value = v->otherwise;
        if (!text || parse(v, text, value)) continue;
        if (v->choices == devices) s.bad_device = text;
        if (v->choices == modes) s.bad_mode = text;
        if (!log) continue;
        char line[400];
        snprintf(line, sizeof line, "%s is '%.100s', which means nothing: accepted: %s", v->name, text,
                 v->accepts);
        log(TN_LOG_WARN, line, user);
    }
    return s;
}
