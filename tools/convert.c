/* convert.c - safetensors to NumPy's .npy and back, and from PyTorch's layout of images to the library's and
 * back. bf16, which NumPy has no name for, becomes f32 there. Files appear whole or not at all. Start with
 * tool_convert. */
#include "tool.h"

#include "../src/core/convert.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

enum { FLATS = 8 };

typedef struct job {
    tool_file *file;
    int files;
    const char *only; /* --tensor */
    const char *mark; /* --layout: "pt" or "libtensor", of OUT; NULL: as IN's */
    struct {          /* --flatten: a layer's weight, whose columns are an image [h, w, c] */
        const char *name;
        int64_t image[3];
        bool found;
    } flat[FLATS];
    int flats;
    const tool_array *taken; /* the one that a .npy file gets */
} job;

static bool wanted(const job *j, const tool_array *a) { return !j->only || !strcmp(j->only, a->name); }

static int put(FILE *f, const void *data, size_t bytes)
{
    return fwrite(data, 1, bytes, f) == bytes ? TN_OK : TN_E_IO;
}

/* ---- .npy ---- */

static int write_npy(FILE *f, void *user)
{
    const tool_array *a = ((const job *)user)->taken;
    const bool widen = a->type->dtype == TN_BF16;
    char head[512], shape[256] = "";
    size_t at = 0;
    for (int k = 0; k < a->ndim; k++)
        at += (size_t)snprintf(shape + at, sizeof(shape) - at, "%s%" PRId64 "%s", k ? " " : "", a->shape[k],
                               k + 1 < a->ndim || !k ? "," : "");
    const char *code = widen ? "f4" : a->type->npy;
    int n = snprintf(head, sizeof(head), "{'descr': '%s%s', 'fortran_order': False, 'shape': (%s), }",
                     code[1] == '1' ? "|" : "<", code, shape);
    while ((10 + n + 1) % 64) head[n++] = ' ';
    head[n++] = '\n';
    const unsigned char start[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(n & 255), (unsigned char)(n >> 8)};
    int status = put(f, start, sizeof(start));
    if (!status) status = put(f, head, (size_t)n);
    if (!widen) return status ? status : put(f, a->data, (size_t)a->n * a->type->bytes);
    for (int64_t i = 0; i < a->n && !status; i++) {
        float x;
        tn_convert(&x, TN_F32, a->data + 2 * i, TN_BF16, 1);
        status = put(f, &x, sizeof(x));
    }
    return status;
}

static int to_npy(job *j, const tool_array *a, const char *path)
{
    const char *why = "";
    if (!*a->type->npy && a->type->dtype != TN_BF16)
        return tool_say("%s: '%s' is %s, which NumPy has no name for", path, a->name, a->type->name);
    j->taken = a;
    return tn_write_whole(path, write_npy, j, &why) ? tool_say("%s: %s", path, why) : TOOL_OK;
}

static int to_folder(job *j, const char *dir)
{
    char path[PATH_MAX];
    int status = TOOL_OK, n = 0;
    for (int k = 0; k < j->files; k++)
        for (int i = 0; i < j->file[k].n && !status; i++) {
            const tool_array *a = &j->file[k].array[i];
            if (!wanted(j, a)) continue;
            if (!*a->name || strchr(a->name, '/') || !strcmp(a->name, "..") ||
                snprintf(path, sizeof(path), "%s/%s.npy", dir, a->name) >= (int)sizeof(path))
                return tool_say("%s: '%s' is no name of a file", j->file[k].path, a->name);
            status = to_npy(j, a, path);
            n += !status;
        }
    if (!status) printf("%d file%s in %s\n", n, n == 1 ? "" : "s", tool_clean(dir));
    return status;
}

static int to_one(job *j, const char *path)
{
    const tool_array *found = NULL;
    int n = 0;
    for (int k = 0; k < j->files; k++)
        for (int i = 0; i < j->file[k].n; i++)
            if (wanted(j, &j->file[k].array[i]) && ++n) found = &j->file[k].array[i];
    if (n != 1)
        return tool_say(
            "%s: a .npy file holds one array, and there are %d: name one with --tensor, or give a folder/",
            path, n);
    return to_npy(j, found, path);
}

/* ---- safetensors ---- */

/* Which --flatten is of this array: of a weight, or of what an optimizer has for it,
 * "optimizer.0.exp_avg.fc.weight"; -1: none. */
static int flat_of(const job *j, const tool_array *a)
{
    static const char state[] = "optimizer.";
    const char *of = a->name;
    if (!strncmp(of, state, sizeof state - 1)) {
        for (int dot = 0; dot < 2 && of; dot++)
            if ((of = strchr(dot ? of : of + sizeof state - 1, '.'))) of++;
        if (!of) of = a->name;
    }
    for (int i = 0; i < j->flats; i++)
        if (a->ndim == 2 && (!strcmp(a->name, j->flat[i].name) || !strcmp(of, j->flat[i].name))) return i;
    return -1;
}

/* Whether the layout is about the array, and if so the order of its elements and its shape in the other one.
 * What has four axes is taken for a convolution's weight, as tn_load does. */
static bool turned(const job *j, const tool_file *f, const tool_array *a, nn_turn *t, int64_t *shape)
{
    const char *mark = tn_nn_safetensors_meta(&f->weights, "format");
    const int flat = flat_of(j, a);
    const bool out = j->mark && *j->mark == 'p';
    memcpy(shape, a->shape, sizeof(a->shape));
    if (!j->mark || (mark && !strcmp(mark, j->mark)) || (a->ndim != 4 && flat < 0)) return false;
    *t = (nn_turn){.row = {1, 1, a->shape[0]}};
    for (int k = 0; k < 3; k++)
        t->column[k] = flat >= 0 ? j->flat[flat].image[k] : a->shape[out ? k + 1 : k < 2 ? k + 2 : 1];
    for (int k = 0; k < 3 && flat < 0 && !out; k++) shape[k + 1] = t->column[k];
    if (out) tn_nn_turn_shape(t, a->ndim, shape);
    return true;
}

static int write_array(FILE *f, const job *j, const tool_file *of, const tool_array *a)
{
    nn_turn t;
    int64_t shape[TN_MAX_DIMS];
    const size_t size = a->type->bytes;
    if (!turned(j, of, a, &t, shape)) return put(f, a->data, (size_t)a->n * size);
    unsigned char *there = tn_calloc((size_t)a->n + 1, size);
    if (!there) return TN_E_NOMEM;
    for (int64_t i = 0; i < a->n; i++) { /* i counts as here */
        const int64_t k = tn_nn_turn_index(&t, i), to = *j->mark == 'p' ? k : i,
                      from = *j->mark == 'p' ? i : k;
        memcpy(there + (size_t)to * size, a->data + (size_t)from * size, size);
    }
    const int status = put(f, there, (size_t)a->n * size);
    tn_free_mem(there);
    return status;
}

static int write_weights(FILE *f, void *user)
{
    const job *j = user;
    const char *key, *value;
    nn_text t = {0};
    nn_turn turn;
    int64_t shape[TN_MAX_DIMS];
    size_t at = 0;
    tn_nn_text_begin(&t);
    if (j->mark) tn_nn_text_add(&t, "\"format\":\"%s\"", j->mark);
    for (int i = 0, n = j->mark != NULL; tn_nn_safetensors_meta_at(&j->file[0].weights, i, &key, &value);
         i++) {
        if (j->mark && !strcmp(key, "format")) continue;
        if (n++) tn_nn_text_add(&t, ",");
        tn_nn_text_quote(&t, key);
        tn_nn_text_add(&t, ":");
        tn_nn_text_quote(&t, value);
    }
    tn_nn_text_add(&t, "}");
    for (int k = 0; k < j->files; k++)
        for (int i = 0; i < j->file[k].n; i++) {
            const tool_array *a = &j->file[k].array[i];
            const size_t bytes = (size_t)a->n * a->type->bytes;
            if (!wanted(j, a)) continue;
            turned(j, &j->file[k], a, &turn, shape);
            tn_nn_text_entry(&t, a->name, a->type->name, a->ndim, shape, at, bytes);
            at += bytes;
        }
    tn_nn_text_end(&t);
    int status = t.failed ? TN_E_NOMEM : put(f, t.text, t.size);
    for (int k = 0; k < j->files; k++)
        for (int i = 0; i < j->file[k].n && !status; i++) {
            const tool_array *a = &j->file[k].array[i];
            if (wanted(j, a)) status = write_array(f, j, &j->file[k], a);
        }
    tn_free_mem(t.text);
    return status;
}

static int to_weights(job *j, const char *path)
{
    const char *why = "out of memory";
    int n = 0, turns = 0, matrices = 0;
    nn_turn t;
    int64_t shape[TN_MAX_DIMS];
    for (int k = 0; k < j->files; k++)
        for (int i = 0; i < j->file[k].n; i++) {
            const tool_array *a = &j->file[k].array[i];
            if (!wanted(j, a)) continue;
            n++;
            const int flat = flat_of(j, a);
            if (flat >= 0 && !tn_nn_image_fits(j->flat[flat].image, a->shape[1]))
                return tool_say("--flatten: '%s' has %" PRId64 " columns", a->name, a->shape[1]);
            if (flat >= 0) j->flat[flat].found = true;
            matrices += a->ndim == 2 && flat < 0;
            turns += turned(j, &j->file[k], a, &t, shape);
            for (int q = 0; q < k; q++)
                if (tool_find(&j->file[q], a->name))
                    return tool_say("%s and %s both have '%s'", j->file[q].path, j->file[k].path, a->name);
        }
    if (!n) return tool_say("%s: there is no tensor '%s'", j->file[0].path, j->only ? j->only : "");
    for (int i = 0; i < j->flats; i++)
        if (!j->flat[i].found) return tool_say("--flatten: there is no '%s' of two axes", j->flat[i].name);
    if (tn_write_whole(path, write_weights, j, &why)) return tool_say("%s: %s", path, why);
    if (j->mark) printf("%d tensors turned", turns);
    if (j->mark && turns && matrices)
        printf(
            "; left as they are: %d of two axes, of which one behind a flatten has to be named by --flatten",
            matrices);
    if (j->mark) printf("\n");
    return TOOL_OK;
}

static bool ends(const char *path, const char *with)
{
    const size_t n = strlen(path), e = strlen(with);
    return n > e && !strcmp(path + n - e, with);
}

static int write_to(job *j, const char *out)
{
    struct stat st;
    if (ends(out, ".safetensors")) return to_weights(j, out);
    if (j->mark) return tool_say("%s: only a .safetensors file says which layout it has", out);
    if (ends(out, ".npy")) return to_one(j, out);
    const bool folder = !stat(out, &st) && S_ISDIR(st.st_mode);
    if (!folder && !ends(out, "/"))
        return tool_say("%s: ends in none of .safetensors, .npy and / (a folder)", out);
    if (!folder && mkdir(out, 0777)) return tool_say("%s: cannot be made", out);
    return to_folder(j, out);
}

/* "fc.weight:7x7x64" */
static bool take_flatten(job *j, char *value)
{
    char *colon = strrchr(value, ':'), more;
    if (!colon || j->flats == FLATS) return false;
    int64_t *d = j->flat[j->flats].image;
    if (sscanf(colon, ":%" SCNd64 "x%" SCNd64 "x%" SCNd64 "%c", &d[0], &d[1], &d[2], &more) != 3)
        return false;
    *colon = 0;
    j->flat[j->flats++].name = value;
    return d[0] > 0 && d[1] > 0 && d[2] > 0;
}

int tool_convert(int n, char **arg)
{
    job j = {.files = 0};
    int status = TOOL_OK;
    char *value;
    j.only = tool_option(&n, arg, "--tensor");
    if ((value = tool_option(&n, arg, "--layout"))) {
        j.mark = !strcmp(value, "pytorch") ? "pt" : !strcmp(value, "libtensor") ? "libtensor" : NULL;
        if (!j.mark) return tool_misused("convert: --layout is pytorch or libtensor");
    }
    while ((value = tool_option(&n, arg, "--flatten")))
        if (!take_flatten(&j, value) || !j.mark)
            return tool_misused("convert: --flatten is NAME:HxWxC, beside --layout");
    if ((status = tool_operands(n, arg, 2, INT_MAX, "convert: which files IN, and which OUT?")))
        return status;
    if (!(j.file = tn_calloc((size_t)n, sizeof(*j.file)))) return tool_say("out of memory");
    while (j.files < n - 1 && !status) status = tool_open(arg[j.files], &j.file[j.files]), j.files++;
    if (!status) status = write_to(&j, arg[n - 1]);
    for (int k = 0; k < j.files; k++) tool_close(&j.file[k]);
    tn_free_mem(j.file);
    return status;
}
