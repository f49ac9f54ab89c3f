/* profile.c - which target profile a session goes by, and where calibrated ones are kept.
 *
 *   TENSOR_PROFILE=reference    the one that is part of the library
 *   TENSOR_PROFILE=PATH         that file
 *   not set                     the file that tn_calibrate has left beside the compiled kernels for this
 *                               machine and number of threads; where there is none, the reference
 *
 * A file that cannot be read or understood is refused with a line in the log, and the reference serves. Start
 * with tn_profile_choose. */
#include "profile.h"

#include <errno.h>
#include <string.h>

#include "../core/hash.h"
#include "../core/settings.h"
#include "tune.h"

enum { LONGEST = 1 << 14 };

bool tn_profile_path(const tn_session *s, char *out, size_t n)
{
    const tn_device *d = s->device;
    if (!d->folder || !d->machine[0]) return false;
    int k = snprintf(out, n, "%s/profile-%s-%d-%016llx.txt", d->folder, d->name, d->threads,
                     (unsigned long long)tn_hash_bytes(d->machine, strlen(d->machine)));
    return k > 0 && (size_t)k < n;
}

/* 0, or an errno; a file that is too long is EFBIG. */
static int read_text(const char *path, char *text)
{
    FILE *f = fopen(path, "re");
    if (!f) return errno;
    size_t n = fread(text, 1, LONGEST, f);
    int why = ferror(f) ? EIO : n == LONGEST ? EFBIG : 0;
    fclose(f);
    text[n < LONGEST ? n : LONGEST - 1] = 0;
    return why ? why : strlen(text) == n ? 0 : EILSEQ;
}

bool tn_profile_load(const tn_session *s, const char *path, bool needed, tn_target_profile *out)
{
    char *text = tn_malloc(LONGEST);
    if (!text) return false;
    int line = 0, why = read_text(path, text);
    bool ok = !why && tn_profile_parse(text, out, &line);
    if (!ok && line)
        tn_warn(s, "profile %s: line %d is not understood; the reference profile serves", path, line);
    else if (!ok && (needed || (why != ENOENT && why != EACCES)))
        tn_warn(s, "profile %s: %s; the reference profile serves", path, strerror(why));
    tn_free_mem(text);
    return ok;
}

static void choose(tn_session *s)
{
    char path[4096];
    const char *set = tn_settings_read(NULL, NULL).profile;
    bool named = set != NULL;
    if (s->device->is_reference || (named && !strcmp(set, "reference"))) return;
    if (!named && !tn_profile_path(s, path, sizeof path)) return;
    tn_target_profile *p = tn_malloc(sizeof *p);
    if (p && tn_profile_load(s, named ? set : path, named, p))
        s->profile = p;
    else
        tn_free_mem(p);
}

void tn_profile_choose(tn_session *s)
{
    choose(s);
    s->target.profile = s->profile;
    const tn_target_profile *p = tn_target_rates(&s->target);
    if (!s->profile && s->target.last_bytes) return; /* the device knows better than the reference */
    s->target.last_bytes = p->stream_bytes > 0 ? (int64_t)p->stream_bytes : INT64_MAX;
}

const char *tn_profile_name(tn_session *s)
{
    if (!s) return "none";
    char *name = s->explain->profile;
    const size_t room = sizeof s->explain->profile;
    const uint32_t tuned = tn_tune_digest(s);
    if (!name[0] || s->tune) tn_profile_digest(tn_target_rates(&s->target), name, room);
    if (tuned) snprintf(name + strlen(name), room - strlen(name), ", tuned %08x", (unsigned)tuned);
    return name;
}
