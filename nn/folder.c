/* folder.c - folders of JPEG and PNG files as a data set: dir/CLASS/.., a class for each folder, in the order
 * of their names.
 *
 * Names are read when the data set is made, files when their items are asked for, by feed.c's threads. An
 * image is decoded, the box that is wanted of it scaled to the size of all items, and, where all items fit
 * into .cache_bytes, kept so as bytes for the passes to come. Read tn_dataset_images_with first, then make.
 */
#include "augment.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <stdlib.h>

enum { MOST_FILE = 1 << 28, MOST_DEEP = 8, MOST_SIDE = 1 << 14, USUAL_CACHE = 1 << 28 };
enum { UNKNOWN, BEING_KEPT, KEPT, DAMAGED };

typedef struct folder {
    tn_images_options o; /* with what was left out filled in */
    const char *dir;
    nn_text names, classes; /* of files and classes, each ended by a 0 */
    size_t *file;           /* [n], where its name begins, from dir on */
    int32_t *label;
    int64_t n, room;
    unsigned char *cache;   /* [n, height, width, channels], or NULL */
    _Atomic uint8_t *what;  /* [n] of them is in the cache, or of the file */
    const char *class_of[]; /* [classes] */
} folder;

/* ---- names ---- */

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int visible(const struct dirent *e) { return e->d_name[0] != '.'; }

static bool is_image(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && (!strcasecmp(dot, ".jpg") || !strcasecmp(dot, ".jpeg") || !strcasecmp(dot, ".png"));
}

static bool is_folder(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

/* The visible names in a folder, in order; the caller frees each, and the list. */
static int list(const char *path, struct dirent ***out, int *n, nn_why *why)
{
    *n = scandir(path, out, visible, by_bytes);
    if (*n >= 0) return TN_OK;
    *out = NULL;
    return tn_nn_why(why, errno == ENOMEM ? TN_E_NOMEM : TN_E_IO, "%s: %s", path, strerror(errno));
}

static void free_list(struct dirent **names, int n)
{
    for (int i = 0; i < n; i++) free(names[i]);
    free(names);
}

static int add_file(folder *f, const char *name, int32_t label, nn_why *why)
{
    if (f->n == UINT32_MAX) return tn_nn_why(why, TN_E_ARG, "%s: too many images", f->dir);
    if (f->n == f->room) {
        const int64_t room = f->room ? 2 * f->room : 256;
        size_t *file = tn_realloc(f->file, (size_t)room * sizeof(*file));
        if (file) f->file = file;
        int32_t *labels = file ? tn_realloc(f->label, (size_t)room * sizeof(*labels)) : NULL;
        if (!labels)
            return tn_nn_why(why, TN_E_NOMEM, "%s: no memory for %lld names", f->dir, (long long)room);
        f->label = labels;
        f->room = room;
    }
    f->file[f->n] = f->names.size;
    f->label[f->n++] = label;
    tn_nn_text_add(&f->names, "%s%c", name, 0);
    return f->names.failed ? tn_nn_why(why, TN_E_NOMEM, "%s: no memory for names", f->dir) : TN_OK;
}

/* The images in `name`, a folder within dir, and in those within it. */
static int walk(folder *f, const char *name, int32_t label, int deep, nn_why *why)
{
    char path[PATH_MAX];
    struct dirent **names = NULL;
    int n = 0, status = TN_OK;
    snprintf(path, sizeof(path), "%s/%s", f->dir, name);
    if (deep > MOST_DEEP)
        return tn_nn_why(why, TN_E_IO, "%s: more than %d folders deep; does a link lead back?", path,
                         MOST_DEEP);
    status = list(path, &names, &n, why);
    for (int i = 0; i < n && !status; i++) {
        char inner[PATH_MAX];
        if (snprintf(inner, sizeof(inner), "%s/%s", name, names[i]->d_name) >= (int)sizeof(inner) ||
            snprintf(path, sizeof(path), "%s/%s", f->dir, inner) >= (int)sizeof(path))
            status = tn_nn_why(why, TN_E_IO, "%s: a name in it is too long", name);
        else if (names[i]->d_type != DT_REG && is_folder(path))
            status = walk(f, inner, label, deep + 1, why);
        else if (is_image(inner))
            status = add_file(f, inner, label, why);
    }
    free_list(names, n);
    return status;
}

static int32_t class_named(const tn_dataset *d, const char *name)
{
    for (int64_t i = 0; i < d->classes; i++)
        if (!strcmp(d->class_of[i], name)) return (int32_t)i;
    return -1;
}

static void drop(void *of)
{
    folder *f = of;
    if (!f) return;
    tn_free_mem(f->names.text);
    tn_free_mem(f->classes.text);
    tn_free_mem(f->file);
    tn_free_mem(f->label);
    tn_free_mem(f->cache);
    tn_free_mem((void *)f->what);
    tn_free_mem(f);
}

/* All classes and files. */
static int read_names(const char *dir, const tn_dataset *like, folder **out, int64_t *classes, nn_why *why)
{
    struct dirent **names = NULL;
    char path[PATH_MAX];
    int n = 0, status = list(dir, &names, &n, why);
    folder *f = status ? NULL : tn_calloc(1, sizeof(*f) + (size_t)n * sizeof(char *) + strlen(dir) + 1);
    if (!status && !f) status = tn_nn_why(why, TN_E_NOMEM, "%s: no memory for %d names", dir, n);
    if (f) f->dir = strcpy((char *)&f->class_of[n], dir);
    for (int i = 0; i < n && !status; i++) {
        const char *name = names[i]->d_name;
        snprintf(path, sizeof(path), "%s/%s", dir, name);
        if (!is_folder(path)) continue;
        const int32_t label = like ? class_named(like, name) : (int32_t)*classes;
        const int64_t before = f->n;
        ++*classes;
        tn_nn_text_add(&f->classes, "%s%c", name, 0);
        if (label < 0)
            status = tn_nn_why(why, TN_E_FORMAT,
                               "%s: a class that the data set it is to be like does not have", path);
        if (!status) status = walk(f, name, label, 1, why);
        if (!status && f->n == before)
            status = tn_nn_why(why, TN_E_FORMAT, "%s: no .jpg, .jpeg or .png in it", path);
    }
    free_list(names, n);
    if (!status && !*classes)
        status =
            tn_nn_why(why, TN_E_FORMAT, "%s: no folders in it; images stand in a folder for each class", dir);
    if (!status && f->classes.failed) status = tn_nn_why(why, TN_E_NOMEM, "%s: no memory for names", dir);
    for (int64_t i = 0; i < *classes && !status; i++)
        f->class_of[i] = i ? strchr(f->class_of[i - 1], 0) + 1 : f->classes.text;
    *out = f;
    return status;
}

/* ---- items ---- */

/* What of an image h x w high and wide becomes an item: all of it, or its middle, as large as can be in the shape of an
 * item. With .resize it is the middle, in whole pixels, of what the image is scaled to: torchvision cuts the longer side to
 * whole pixels and rounds half a pixel of border to the even one. */
static void middle(const folder *f, int64_t h, int64_t w, double box[4])
{
    const tn_images_options *o = &f->o;
    const int64_t out[2] = {o->height, o->width}, in[2] = {h, w}, least = h < w ? h : w;
    const double fit = fmin((double)h / o->height, (double)w / o->width);
    for (int i = 0; i < 2; i++) {
        const double n = (double)in[i], m = (double)out[i];
        const double all = o->stretch ? m : o->resize ? (double)(o->resize * in[i] / least) : n / fit;
        box[i] = n / all * (o->resize ? rint((all - m) / 2) : (all - m) / 2);
        box[2 + i] = box[i] + n / all * m;
    }
}

static int read_image(const folder *f, int64_t k, nn_picture *out, nn_why *why)
{
    char path[PATH_MAX];
    unsigned char *bytes = NULL;
    size_t size = 0;
    snprintf(path, sizeof(path), "%s/%s", f->dir, f->names.text + f->file[k]);
    int status = tn_nn_slurp(path, MOST_FILE, &bytes, &size, why);
    if (!status) status = tn_nn_decode(path, bytes, size, f->o.channels, out, why);
    tn_free_mem(bytes);
    return status;
}

static int make(const tn_dataset *d, int64_t k, const nn_draw *draw, void *const *out, nn_why *why)
{
    folder *f = d->of;
    const tn_images_options *o = &f->o;
    const size_t bytes = (size_t)d->array[0].item;
    const bool crops = draw && draw->how.crop[1] > 0;
    uint8_t what = atomic_load_explicit(&f->what[k], memory_order_acquire);
    if (what == KEPT && !crops) {
        memcpy(out[0], f->cache + (size_t)k * bytes, bytes);
        return TN_OK;
    }
    nn_picture image = {.pixels = NULL};
    double box[4];
    int status = read_image(f, k, &image, why);
    if (!status && crops)
        tn_nn_crop_box(draw, k, image.h, image.w, box);
    else if (!status)
        middle(f, image.h, image.w, box);
    if (!status && tn_nn_resize(&image, o->channels, box, out[0], o->height, o->width))
        status = tn_nn_why(why, TN_E_NOMEM, "%s: no memory to resize an image", f->dir);
    tn_free_mem(image.pixels);
    if ((status == TN_E_FORMAT || status == TN_E_IO) && o->skip_damaged) {
        if (atomic_exchange(&f->what[k], DAMAGED) == DAMAGED) *why->text = 0; /* is counted already */
        return NN_DAMAGED;
    }
    what = UNKNOWN;
    if (!status && !crops && f->cache && atomic_compare_exchange_strong(&f->what[k], &what, BEING_KEPT)) {
        memcpy(f->cache + (size_t)k * bytes, out[0], bytes);
        atomic_store_explicit(&f->what[k], KEPT, memory_order_release);
    }
    return status;
}

/* ---- the data set ---- */

/* Fills in what was left out; a size that is not known is that of the first image. */
static int settle(folder *f, const tn_images_options *given, nn_why *why)
{
    tn_images_options *o = &f->o;
    *o = *given;
    if (given->like && given->like->slow) {
        *o = ((const folder *)given->like->of)->o;
        o->skip_damaged = given->skip_damaged;
        o->cache_bytes = given->cache_bytes;
    }
    if (!o->channels) o->channels = 3;
    for (int c = 0; c < 4 && o->std[0] == 0; c++) o->mean[c] = 0;
    for (int c = 3; c >= 0 && o->std[0] == 0; c--) o->std[c] = 1;
    if (o->channels < 1 || o->channels == 2 || o->channels > 4 || o->height < 0 || o->height > MOST_SIDE ||
        o->width < 0 || o->width > MOST_SIDE || o->resize < 0)
        return tn_nn_why(why, TN_E_ARG,
                         "channels %d must be 1, 3 or 4, height %d, width %d and resize %d from 0 to %d",
                         o->channels, o->height, o->width, o->resize, MOST_SIDE);
    if (o->resize && o->stretch)
        return tn_nn_why(why, TN_E_ARG,
                         "resize %d and stretch: of an image that is stretched nothing is cut off",
                         o->resize);
    if (!o->height && !o->width) {
        nn_picture first = {.pixels = NULL};
        const int status = read_image(f, 0, &first, why);
        tn_free_mem(first.pixels);
        if (status) return status;
        o->height = (int)(first.h < MOST_SIDE ? first.h : MOST_SIDE);
        o->width = (int)(first.w < MOST_SIDE ? first.w : MOST_SIDE);
    }
    if (!o->height) o->height = o->width;
    if (!o->width) o->width = o->height;
    const int side = o->height > o->width ? o->height : o->width;
    if (o->resize && o->resize < side)
        return tn_nn_why(why, TN_E_ARG, "resize %d is less than the %d x %d that are cut out", o->resize,
                         o->height, o->width);
    return TN_OK;
}

TN_DEFINE(tn_dataset *, dataset_images_with, s, (s, dir, options), tn_session *s, const char *dir,
          const tn_images_options *options)
{
    NN_OPTIONS(tn_images_options, o, options);
    static const char op[] = "dataset_images";
    nn_why why = {0};
    folder *f = NULL;
    int64_t classes = 0;
    if (!s) return NULL;
    if (!dir) return tn_nn_fail(s, TN_E_NULL, op, "dir is NULL");
    if (o->like && o->like->s != s)
        return tn_nn_fail(s, TN_E_SESSION, op, "the data set it is to be like belongs to another session");
    int status = read_names(dir, o->like, &f, &classes, &why);
    if (!status) status = settle(f, o, &why);
    tn_dataset made = {
        .n = f ? f->n : 0, .classes = classes, .make = make, .slow = true, .of = f, .drop = drop};
    if (!status) {
        const int64_t limit = f->o.cache_bytes ? f->o.cache_bytes : USUAL_CACHE;
        made.class_of = o->like ? o->like->class_of : f->class_of;
        if (o->like) made.classes = o->like->classes;
        tn_nn_dataset_array(&made, TN_F32, NN_PIXELS, 3, (int64_t[]){f->o.height, f->o.width, f->o.channels});
        if (!tn_nn_dataset_pixels(&made, f->o.mean, f->o.std))
            status =
                tn_nn_why(&why, TN_E_ARG, "std must be above 0 and mean a number, of each of %d channels",
                          f->o.channels);
        f->what = tn_calloc((size_t)f->n, 1);
        if (made.array[0].item <= limit / f->n) f->cache = tn_malloc((size_t)(f->n * made.array[0].item));
        tn_nn_dataset_array(&made, TN_I32, NN_AS_IS, 0, NULL);
        made.array[1].data = (const unsigned char *)f->label;
        if (!f->what)
            status = tn_nn_why(&why, TN_E_NOMEM, "%s: no memory for %lld images", dir, (long long)f->n);
    }
    return tn_nn_dataset_new(s, &made, &why, op);
}
