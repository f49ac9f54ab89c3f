/* safetensors.c - the file format of checkpoints (huggingface.co/docs/safetensors): a little-endian u64, that
 * many bytes of JSON, then the data.
 *
 *   {"__metadata__": {"key": "value"},
 *    "fc.weight": {"dtype": "F32", "shape": [10, 64], "data_offsets": [0, 2560]}}
 *
 * A file is checked whole before anyone sees it: offsets must cover the data part without holes or overlap,
 * sizes must be what dtype and shape say, names must be unique. cJSON does the parsing. Read
 * tn_nn_safetensors_read first. */
#include "nn.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#ifdef TN_HAVE_CJSON
#include <cjson/cJSON.h>
#endif

void tn_nn_text_add(nn_text *t, const char *fmt, ...)
{
    va_list args;
    for (int round = 0; round < 2 && !t->failed; round++) {
        va_start(args, fmt);
        int n = tn_vsnprintf(t->text ? t->text + t->size : NULL, t->room - t->size, fmt, args);
        va_end(args);
        if (n < 0) break;
        if ((size_t)n < t->room - t->size) {
            t->size += (size_t)n;
            return;
        }
        size_t room = (t->size + (size_t)n + 64) * 2;
        char *grown = tn_realloc(t->text, room);
        if (!grown) break;
        t->text = grown;
        t->room = room;
    }
    t->failed = true;
}

void tn_nn_text_quote(nn_text *t, const char *string)
{
    tn_nn_text_add(t, "\"");
    for (const unsigned char *c = (const unsigned char *)string; *c; c++)
        if (*c == '"' || *c == '\\')
            tn_nn_text_add(t, "\\%c", *c);
        else if (*c < 0x20)
            tn_nn_text_add(t, "\\u%04x", *c);
        else
            tn_nn_text_add(t, "%c", *c);
    tn_nn_text_add(t, "\"");
}

void tn_nn_text_begin(nn_text *t)
{
    tn_nn_text_add(t, "        {\"__metadata__\":{"); /* the length goes in front */
}

void tn_nn_text_entry(nn_text *t, const char *name, const char *type, int ndim, const int64_t *shape,
                      size_t begin, size_t bytes)
{
    tn_nn_text_add(t, ",");
    tn_nn_text_quote(t, name);
    tn_nn_text_add(t, ":{\"dtype\":\"%s\",\"shape\":[", type);
    for (int k = 0; k < ndim; k++) tn_nn_text_add(t, "%s%" PRId64, k ? "," : "", shape[k]);
    tn_nn_text_add(t, "],\"data_offsets\":[%zu,%zu]}", begin, begin + bytes);
}

void tn_nn_text_end(nn_text *t)
{
    tn_nn_text_add(t, "}");
    while (!t->failed && t->size % 8) tn_nn_text_add(t, " "); /* the data are aligned */
    for (int i = 0; !t->failed && i < 8; i++) t->text[i] = (char)((uint64_t)(t->size - 8) >> (8 * i));
}

#ifdef TN_HAVE_CJSON

enum { MOST_HEADER = 100 << 20 }; /* the format's own bound */

static bool whole(const cJSON *j, double most, int64_t *out)
{
    if (!cJSON_IsNumber(j) || !(j->valuedouble >= 0 && j->valuedouble <= most)) return false;
    *out = (int64_t)j->valuedouble;
    return (double)*out == j->valuedouble;
}

/* One entry of the header, its bytes inside the data part of `room` bytes at `data`. */
static int parse_entry(const char *path, const cJSON *j, const unsigned char *data, size_t room, nn_saved *e,
                       nn_why *why)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(j, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(j, "shape"), *axis;
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(j, "data_offsets");
    int64_t begin = 0, end = 0;
    e->name = j->string;
    if (!cJSON_IsString(type) || !cJSON_IsArray(shape) || !cJSON_IsArray(offsets) ||
        cJSON_GetArraySize(offsets) != 2 || !whole(cJSON_GetArrayItem(offsets, 0), 0x1p53, &begin) ||
        !whole(cJSON_GetArrayItem(offsets, 1), 0x1p53, &end))
        return tn_nn_why(why, TN_E_FORMAT, "%s: '%s' lacks a proper dtype, shape or data_offsets", path,
                         e->name);
    const nn_type *t = tn_nn_type(type->valuestring);
    if (!t)
        return tn_nn_why(why, TN_E_FORMAT, "%s: '%s' has the unknown dtype '%.16s'", path, e->name,
                         type->valuestring);
    e->type = t->name;
    e->dtype = t->raw == NN_AS_IS ? t->dtype : TN_DTYPE_COUNT;
    e->bytes = t->bytes;
    cJSON_ArrayForEach(axis, shape)
    {
        int64_t extent;
        if (e->ndim == TN_MAX_DIMS)
            return tn_nn_why(why, TN_E_FORMAT, "%s: '%s' has more than %d axes", path, e->name, TN_MAX_DIMS);
        if (!whole(axis, 0x1p53, &extent) || (extent && e->bytes > SIZE_MAX / (size_t)extent))
            return tn_nn_why(why, TN_E_FORMAT, "%s: '%s' has an impossible shape", path, e->name);
        e->shape[e->ndim++] = extent;
        e->bytes *= (size_t)extent;
    }
    if (begin > end || (uint64_t)end > room || (size_t)(end - begin) != e->bytes)
        return tn_nn_why(why, TN_E_FORMAT, "%s: '%s' wants %zu bytes, its data_offsets are %lld..%lld of %zu",
                         path, e->name, e->bytes, (long long)begin, (long long)end, room);
    e->begin = (size_t)begin;
    e->data = data + begin;
    return TN_OK;
}

static int by_place(const void *a, const void *b)
{
    const nn_saved *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* an empty one stands before its neighbour */
}

static int parse(const char *path, nn_safetensors *f, size_t size, nn_why *why)
{
    uint64_t header = 0;
    for (int i = 7; size >= 8 && i >= 0; i--) header = header << 8 | f->file[i];
    if (size > 8 && !memcmp(f->file, "PK\3\4", 4) && f->file[8] != '{')
        return tn_nn_why(
            why, TN_E_FORMAT,
            "%s: a zip archive, as torch.save writes: safetensors' save_file(model.state_dict(), path) "
            "writes what is read here",
            path);
    if (size < 8 || header > size - 8)
        return tn_nn_why(why, TN_E_FORMAT, "%s: cut off, or not a safetensors file (%zu bytes)", path, size);
    if (header > MOST_HEADER || f->file[8] != '{')
        return tn_nn_why(why, TN_E_FORMAT, "%s: not a safetensors file: no header after the first 8 bytes",
                         path);
    const char *end = NULL;
    cJSON *json = cJSON_ParseWithLengthOpts((const char *)f->file + 8, (size_t)header, &end, 0), *j;
    f->json = json;
    if (!cJSON_IsObject(json)) {
        size_t at = end ? (size_t)(end - (const char *)f->file) : 8;
        return tn_nn_why(why, TN_E_FORMAT, "%s: its header is not JSON from byte %zu on", path, at);
    }
    const unsigned char *data = f->file + 8 + header;
    size_t room = size - 8 - (size_t)header, at = 0;
    f->saved = tn_calloc((size_t)cJSON_GetArraySize(json), sizeof(*f->saved));
    if (!f->saved) return tn_nn_why(why, TN_E_NOMEM, "%s: no memory for its list of tensors", path);
    cJSON_ArrayForEach(j, json)
    {
        if (!strcmp(j->string, "__metadata__")) continue;
        int status = parse_entry(path, j, data, room, &f->saved[f->n], why);
        if (status) return status;
        f->n++;
    }
    qsort(f->saved, (size_t)f->n, sizeof(*f->saved), by_place);
    for (int i = 0; i < f->n; i++) {
        if (f->saved[i].begin != at)
            return tn_nn_why(why, TN_E_FORMAT, "%s: the data of '%s' begin at %zu, not at %zu", path,
                             f->saved[i].name, f->saved[i].begin, at);
        at += f->saved[i].bytes;
    }
    if (at != room) return tn_nn_why(why, TN_E_FORMAT, "%s: %zu bytes of data, %zu used", path, room, at);
    return tn_nn_safetensors_sort(path, f, TN_E_FORMAT, why);
}

int tn_nn_safetensors_read(const char *path, nn_safetensors *out, nn_why *why)
{
    size_t size = 0;
    memset(out, 0, sizeof(*out));
    int status = tn_nn_slurp(path, SIZE_MAX / 2, &out->file, &size, why);
    if (!status) status = parse(path, out, size, why);
    if (status) tn_nn_safetensors_free(out);
    return status;
}

void tn_nn_safetensors_free(nn_safetensors *f)
{
    cJSON_Delete(f->json);
    for (struct nn_renamed *n = f->renamed; n; n = f->renamed) {
        f->renamed = n->next;
        tn_free_mem(n);
    }
    tn_free_mem(f->saved);
    tn_free_mem(f->file);
    memset(f, 0, sizeof(*f));
}

const char *tn_nn_safetensors_meta(const nn_safetensors *f, const char *key)
{
    const cJSON *meta = cJSON_GetObjectItemCaseSensitive(f->json, "__metadata__");
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(meta, key));
}

bool tn_nn_safetensors_meta_at(const nn_safetensors *f, int i, const char **key, const char **value)
{
    const cJSON *j = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(f->json, "__metadata__"), i);
    *key = j ? j->string : NULL;
    *value = cJSON_GetStringValue(j);
    if (*key && !*value) *value = "";
    return *key != NULL;
}

#else

int tn_nn_safetensors_read(const char *path, nn_safetensors *out, nn_why *why)
{
    memset(out, 0, sizeof(*out));
    return tn_nn_why(why, TN_E_UNSUPPORTED, "%s: this build cannot read checkpoints (it lacks cJSON)", path);
}

void tn_nn_safetensors_free(nn_safetensors *f) { memset(f, 0, sizeof(*f)); }

const char *tn_nn_safetensors_meta(const nn_safetensors *f, const char *key)
{
    (void)f, (void)key;
    return NULL;
}

bool tn_nn_safetensors_meta_at(const nn_safetensors *f, int i, const char **key, const char **value)
{
    (void)f, (void)i, (void)key, (void)value;
    return false;
}

#endif

static int by_name(const void *a, const void *b)
{
    const nn_saved *x = a, *y = b;
    return strcmp(x->name, y->name);
}

int tn_nn_safetensors_sort(const char *path, nn_safetensors *f, int status, nn_why *why)
{
    if (f->n) qsort(f->saved, (size_t)f->n, sizeof(*f->saved), by_name);
    for (int i = 1; i < f->n; i++)
        if (!strcmp(f->saved[i].name, f->saved[i - 1].name))
            return tn_nn_why(why, status, "%s: '%s' is there twice", path, f->saved[i].name);
    return TN_OK;
}

const nn_saved *tn_nn_safetensors_find(const nn_safetensors *f, const char *name)
{
    int low = 0, high = f->n;
    while (low < high) {
        int middle = low + (high - low) / 2, order = strcmp(name, f->saved[middle].name);
        if (!order) return &f->saved[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}
