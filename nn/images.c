/* images.c - a folder with MNIST's file names as a data set: which files it takes, and whether they fit each
 * other. idx.c and sheet.c read them. Start with tn_dataset_idx_with. */
#include "nn.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

/* Finds dir/name, or dir/name.gz. */
static bool find(char *path, size_t size, const char *dir, const char *name)
{
    int k = snprintf(path, size, "%s/%s", dir, name);
    if (k < 0 || (size_t)k + 4 > size) return false;
    if (!access(path, F_OK)) return true;
    memcpy(path + k, ".gz", 4);
    return !access(path, F_OK);
}

static int read_folder(const char *dir, tn_part part, nn_images *images, unsigned char **labels, nn_why *why)
{
    const char *prefix = part == TN_TEST ? "t10k" : "train",
               *sheet = part == TN_TEST ? "test.png" : "train.png";
    char name[64], path[PATH_MAX];
    int64_t n = 0;
    snprintf(name, sizeof(name), "%s-labels-idx1-ubyte", prefix);
    if (!find(path, sizeof(path), dir, name))
        return tn_nn_why(why, TN_E_IO, "%s: no %s or %s.gz there (data/get_data.sh gets MNIST)", dir, name,
                         name);
    int status = tn_nn_idx_labels(path, labels, &n, why);
    if (status) return status;
    snprintf(name, sizeof(name), "%s-images-idx3-ubyte", prefix);
    if (find(path, sizeof(path), dir, name)) {
        if ((status = tn_nn_idx_images(path, images, why))) return status;
        if (images->n != n)
            return tn_nn_why(why, TN_E_FORMAT, "%s: %lld images for %lld labels", path, (long long)images->n,
                             (long long)n);
        return TN_OK;
    }
    if (!find(path, sizeof(path), dir, sheet))
        return tn_nn_why(why, TN_E_IO, "%s: no %s, %s.gz or %s there", dir, name, name, sheet);
    return tn_nn_sheet(path, n, 28, 28, images, why);
}

TN_DEFINE(tn_dataset *, dataset_idx_with, s, (s, dir, part, options), tn_session *s, const char *dir,
          tn_part part, const tn_idx_options *options)
{
    NN_OPTIONS(tn_idx_options, o, options);
    static const char op[] = "dataset_idx";
    if (!s) return NULL;
    if (!dir) return tn_nn_fail(s, TN_E_NULL, op, "dir is NULL");
    if (part != TN_TRAIN && part != TN_TEST)
        return tn_nn_fail(s, TN_E_ARG, op, "part %d is neither TN_TRAIN nor TN_TEST", (int)part);
    double std = o->std != 0 ? o->std : 0.3081, mean = o->std != 0 ? o->mean : 0.1307;
    int classes = o->classes ? o->classes : 10;
    if (!(std > 0) || !(mean - mean == 0) || o->limit < 0 || classes < 0)
        return tn_nn_fail(s, TN_E_ARG, op,
                          "std %g, mean %g, classes %d, limit %lld: std must be above 0, the rest not below",
                          std, mean, classes, (long long)o->limit);
    nn_images images = {0};
    unsigned char *labels = NULL;
    nn_why why = {0};
    tn_dataset made = {.classes = classes};
    if (!read_folder(dir, part, &images, &labels, &why)) {
        int64_t n = o->limit && o->limit < images.n ? o->limit : images.n, bad = 0;
        while (bad < n && labels[bad] < classes) bad++;
        if (bad < n)
            tn_nn_why(&why, TN_E_FORMAT, "%s: label %d of item %lld is not below %d", dir, labels[bad],
                      (long long)bad, classes);
        made.n = n;
    }
    if (!why.status) {
        tn_nn_dataset_array(&made, TN_F32, NN_PIXELS, 3, (int64_t[]){images.h, images.w, 1});
        made.array[0].data = made.array[0].own = images.pixels;
        images.pixels = NULL;
        tn_nn_dataset_pixels(&made, &mean, &std);
        tn_nn_dataset_array(&made, TN_I32, NN_AS_IS, 0, NULL);
        int32_t *y = tn_nn_dataset_room(&made);
        for (int64_t i = 0; y && i < made.n; i++) y[i] = labels[i];
        if (!y) tn_nn_why(&why, TN_E_NOMEM, "no memory for %lld items", (long long)made.n);
    }
    tn_dataset *d = tn_nn_dataset_new(s, &made, &why, op);
    tn_free_mem(images.pixels);
    tn_free_mem(labels);
    return d;
}
