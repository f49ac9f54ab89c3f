/* arrays.c - a file of numbers as a list of named arrays, by the library's own readers. Start with tool_open.
 */
#include "tool.h"

#include "../src/core/alloc.h"
#include "../src/core/convert.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

const char *tool_kind(const char *path)
{
    struct stat st;
    nn_file f;
    nn_why why = {0};
    if (!stat(path, &st) && S_ISDIR(st.st_mode)) return "folder";
    if (tn_nn_map(path, &f, &why)) {
        tool_say("%s", why.text);
        return NULL;
    }
    const unsigned char *p = f.data;
    const char *kind = "unknown";
    size_t text = 0;
    while (text < f.size && text < 64 && (p[text] >= 0x20 || p[text] == '\n' || p[text] == '\t')) text++;
    if (f.size >= 9 &&
        ((p[8] == '{' && !p[7] && !p[6]) || !memcmp(p, "PK\3\4", 4))) /* whose reader says of a zip */
        kind = "safetensors";
    else if (f.size >= 6 && !memcmp(p, "\x93NUMPY", 6))
        kind = "npy";
    else if (f.size >= 4 && ((!p[0] && !p[1] && p[2] >= 8 && p[2] <= 14) || (p[0] == 0x1f && p[1] == 0x8b)))
        kind = "idx";
    else if (f.size > 26 && !memcmp(p, "/* libtensor kernel cache ", 26))
        kind = "kernel";
    else if (text && (text == f.size || text == 64))
        kind = "text";
    tn_nn_unmap(&f);
    return kind;
}

/* "data/x.npy" -> "x" */
static char *name_of(const char *path, const char *ending)
{
    const char *slash = strrchr(path, '/');
    char *name = tn_strdup(slash ? slash + 1 : path);
    const size_t n = name ? strlen(name) : 0, e = strlen(ending);
    if (n > e && !strcmp(name + n - e, ending)) name[n - e] = 0;
    return name;
}

static void count(tool_array *a)
{
    a->n = 1;
    for (int k = 0; k < a->ndim; k++)
        a->n *= a->shape[k]; /* the readers know it to be the size of the data */
}

static int take_weights(tool_file *f, nn_why *why)
{
    int status = tn_nn_safetensors_read(f->path, &f->weights, why);
    if (status) return status;
    if (!(f->array = tn_calloc((size_t)f->weights.n, sizeof(*f->array)))) return TN_E_NOMEM;
    for (; f->n < f->weights.n; f->n++) {
        const nn_saved *from = &f->weights.saved[f->n];
        tool_array *a = &f->array[f->n];
        *a = (tool_array){.name = tn_strdup(from->name),
                          .type = tn_nn_type(from->type),
                          .ndim = from->ndim,
                          .data = from->data};
        if (!a->name) return TN_E_NOMEM;
        memcpy(a->shape, from->shape, sizeof(a->shape));
        count(a);
    }
    return TN_OK;
}

static int take_one(tool_file *f, const nn_type *type, int ndim, const int64_t *shape,
                    const unsigned char *data, const char *ending)
{
    if (!(f->array = tn_calloc(1, sizeof(*f->array)))) return TN_E_NOMEM;
    f->n = 1;
    *f->array = (tool_array){.name = name_of(f->path, ending), .type = type, .ndim = ndim, .data = data};
    memcpy(f->array->shape, shape, (size_t)ndim * sizeof(*shape));
    count(f->array);
    return f->array->name ? TN_OK : TN_E_NOMEM;
}

static int take_npy(tool_file *f, nn_why *why)
{
    int64_t shape[TN_MAX_DIMS];
    int status = tn_nn_npy(f->path, &f->npy, &shape[0], why);
    if (status) return status;
    memcpy(&shape[1], f->npy.shape, (size_t)f->npy.ndim * sizeof(*shape));
    return take_one(f, tn_nn_type_of(f->npy.dtype, f->npy.raw), f->npy.ndim + 1, shape, f->npy.data, ".npy");
}

static int take_idx(tool_file *f, nn_why *why)
{
    int64_t shape[3];
    int ndim = 0, status = tn_nn_idx(f->path, &ndim, shape, &f->idx, why);
    if (status) return status;
    return take_one(f, tn_nn_type("U8"), ndim, shape, f->idx, ".gz");
}

int tool_open(const char *path, tool_file *f)
{
    nn_why why = {0};
    int status = TN_OK;
    *f = (tool_file){.path = path, .kind = tool_kind(path)};
    if (!f->kind) return TOOL_TROUBLE;
    if (!strcmp(f->kind, "safetensors"))
        status = take_weights(f, &why);
    else if (!strcmp(f->kind, "npy"))
        status = take_npy(f, &why);
    else if (!strcmp(f->kind, "idx"))
        status = take_idx(f, &why);
    else
        return tool_say("%s: none of the formats safetensors, NumPy's .npy and IDX", path);
    if (status) tool_say("%s%s", why.status ? "" : path, why.status ? why.text : ": out of memory");
    return status ? TOOL_TROUBLE : TOOL_OK;
}

void tool_close(tool_file *f)
{
    for (int i = 0; i < f->n; i++) tn_free_mem(f->array[i].name);
    tn_free_mem(f->array);
    tn_nn_safetensors_free(&f->weights);
    tn_nn_unmap(&f->npy.file);
    tn_free_mem(f->idx);
    *f = (tool_file){.n = 0};
}

const tool_array *tool_find(const tool_file *f, const char *name)
{
    for (int i = 0; i < f->n; i++)
        if (!strcmp(f->array[i].name, name)) return &f->array[i];
    return NULL;
}

static uint64_t little_endian(const unsigned char *p, size_t bytes)
{
    uint64_t x = 0;
    for (size_t k = bytes; k-- > 0;) x = x << 8 | p[k];
    return x;
}

bool tool_number(const tool_array *a, int64_t i, long double *out)
{
    const unsigned char *p = a->data + (size_t)i * a->type->bytes;
    const uint64_t x = little_endian(p, a->type->bytes);
    switch (a->type->raw) {
    case NN_I8: *out = (int8_t)x; return true;
    case NN_I16: *out = (int16_t)x; return true;
    case NN_U16:
    case NN_U32: *out = x; return true;
    case NN_AS_IS:
    case NN_PIXELS: break;
    }
    if (a->type->dtype == TN_DTYPE_COUNT) {
        *out = x;
        return a->type->bytes == 8; /* U64; no numbers of 8 bits with a fraction */
    }
    *out =
        a->type->dtype == TN_I64 ? (long double)(int64_t)x : (long double)tn_load_f64(p, a->type->dtype, 0);
    return true;
}

void tool_shape(const tool_array *a, char out[160])
{
    size_t at = 0;
    out[at++] = '[';
    for (int k = 0; k < a->ndim && at < 130; k++)
        at += (size_t)snprintf(out + at, 160 - at, "%s%" PRId64, k ? ", " : "", a->shape[k]);
    snprintf(out + at, 160 - at, "]");
}
