/* rename.c - weights of another model: names in a file become names here.
 *
 * A rule {"backbone.*.conv.weight", "trunk.*.weight"} holds for a whole name. Each '*' of `from` catches some
 * of it, which stands in the place of the '*' of the same number in `to`. Read tn_nn_rename first. */
#include "nn.h"

#include <string.h>

enum { STARS = 8 };

typedef struct caught {
    const char *begin;
    size_t n;
} caught;

/* Shortest catches first, the first of them before the second. */
static bool fits(const char *from, const char *name, caught *c)
{
    for (; *from && *from != '*'; from++, name++)
        if (*from != *name) return false;
    if (!*from) return !*name;
    for (size_t n = 0;; n++) {
        *c = (caught){name, n};
        if (fits(from + 1, name + n, c + 1)) return true;
        if (!name[n]) return false;
    }
}

/* Writes the name that `to` makes of what was caught, unless out is NULL; its length. */
static size_t write_name(const char *to, const caught *c, char *out)
{
    size_t n = 0;
    for (; *to; to++) {
        const caught part = *to == '*' ? *c++ : (caught){to, 1};
        if (out) memcpy(out + n, part.begin, part.n);
        n += part.n;
    }
    if (out) out[n] = '\0';
    return n;
}

static int stars(const char *text)
{
    int n = 0;
    for (; *text; text++) n += *text == '*';
    return n;
}

static int check_rules(const tn_rename *r, nn_why *why)
{
    for (int i = 0; i < TN_RENAMES && r[i].from; i++) {
        if (!r[i].to) return tn_nn_why(why, TN_E_NULL, ".rename of '%s': `to` is NULL", r[i].from);
        if (stars(r[i].from) > STARS || stars(r[i].to) > stars(r[i].from))
            return tn_nn_why(why, TN_E_ARG,
                             ".rename of '%s' to '%s': a '*' in `to` needs one in `from`, which may have %d",
                             r[i].from, r[i].to, (int)STARS);
    }
    return TN_OK;
}

int tn_nn_rename(const char *path, nn_safetensors *f, const tn_rename *r, nn_why *why)
{
    int status = check_rules(r, why);
    for (int i = 0; i < f->n && !status; i++) {
        nn_saved *e = &f->saved[i];
        caught c[STARS];
        int k = 0;
        while (k < TN_RENAMES && r[k].from && !fits(r[k].from, e->name, c)) k++;
        if (k == TN_RENAMES || !r[k].from) continue;
        const size_t length = write_name(r[k].to, c, NULL);
        if (!length) { /* behind the others */
            const nn_saved dropped = *e;
            *e = f->saved[--f->n];
            f->saved[f->n] = dropped;
            f->dropped++;
            i--;
            continue;
        }
        struct nn_renamed *made = tn_malloc(sizeof(*made) + length + 1);
        if (!made) return tn_nn_why(why, TN_E_NOMEM, "%s: no memory for its names", path);
        write_name(r[k].to, c, made->name);
        made->next = f->renamed;
        f->renamed = made;
        e->name = made->name;
    }
    return status ? status : tn_nn_safetensors_sort(path, f, TN_E_SHAPE, why);
}
