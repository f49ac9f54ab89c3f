/* cifar.c - CIFAR-10's binary files: records of a label and 32 x 32 pixels, all red ones, then green, then
 * blue. */
#include "nn.h"

#include <limits.h>
#include <unistd.h>

enum { SIDE = 32, PLANE = SIDE * SIDE, RECORD = 1 + 3 * PLANE, CLASSES = 10, MOST_FILE = 1 << 30, FILES = 5 };

static const char *const names[CLASSES] = {"airplane", "automobile", "bird",  "cat",  "deer",
                                           "dog",      "frog",       "horse", "ship", "truck"};

static int take(const char *path, const unsigned char *file, int64_t n, unsigned char *x, int32_t *y,
                nn_why *why)
{
    for (int64_t i = 0; i < n; i++, file += RECORD) {
        if (file[0] >= CLASSES)
            return tn_nn_why(why, TN_E_FORMAT, "%s: label %d of item %lld is not below %d", path, file[0],
                             (long long)i, CLASSES);
        y[i] = file[0];
        for (int64_t k = 0; k < 3 * PLANE; k++) *x++ = file[1 + k % 3 * PLANE + k / 3];
    }
    return TN_OK;
}

TN_DEFINE(tn_dataset *, dataset_cifar10_with, s, (s, dir, part, options), tn_session *s, const char *dir,
          tn_part part, const tn_cifar10_options *options)
{
    NN_OPTIONS(tn_cifar10_options, o, options);
    static const char op[] = "dataset_cifar10";
    static const double mean[4] = {0.4914, 0.4822, 0.4465}, std[4] = {0.2470, 0.2435, 0.2616};
    unsigned char *file[FILES] = {NULL};
    char path[FILES][PATH_MAX];
    size_t size[FILES] = {0};
    nn_why why = {0};
    tn_dataset made = {.classes = CLASSES, .class_of = names};
    if (!s) return NULL;
    if (!dir || (part != TN_TRAIN && part != TN_TEST))
        return tn_nn_fail(s, dir ? TN_E_ARG : TN_E_NULL, op,
                          "dir %s, part %d: needs a folder, and TN_TRAIN or TN_TEST", dir ? dir : "NULL",
                          (int)part);
    int files = 0, status = TN_OK;
    for (int i = 0; i < (part == TN_TEST ? 1 : FILES) && !status; i++) {
        if (part == TN_TEST)
            snprintf(path[files], PATH_MAX, "%s/test_batch.bin", dir);
        else
            snprintf(path[files], PATH_MAX, "%s/data_batch_%d.bin", dir, i + 1);
        if (part == TN_TRAIN && access(path[files], F_OK)) continue;
        status = tn_nn_slurp(path[files], MOST_FILE, &file[files], &size[files], &why);
        if (!status && (!size[files] || size[files] % RECORD))
            status = tn_nn_why(&why, TN_E_FORMAT, "%s: %zu bytes are not records of %d", path[files],
                               size[files], RECORD);
        made.n += (int64_t)(size[files++] / RECORD);
    }
    if (!status && !made.n)
        status =
            tn_nn_why(&why, TN_E_IO,
                      "%s: no data_batch_1.bin to data_batch_5.bin there (data/get_data.sh cifar10)", dir);
    if (!status) {
        tn_nn_dataset_array(&made, TN_F32, NN_PIXELS, 3, (int64_t[]){SIDE, SIDE, 3});
        unsigned char *x = tn_nn_dataset_room(&made);
        tn_nn_dataset_array(&made, TN_I32, NN_AS_IS, 0, NULL);
        int32_t *y = tn_nn_dataset_room(&made);
        if (!x || !y) status = tn_nn_why(&why, TN_E_NOMEM, "no memory for %lld items", (long long)made.n);
        if (!tn_nn_dataset_pixels(&made, o->std[0] != 0 ? o->mean : mean, o->std[0] != 0 ? o->std : std))
            status = tn_nn_why(&why, TN_E_ARG, "std must be above 0 and mean a number, of each channel");
        for (int i = 0; i < files && !status; i++) {
            const int64_t n = (int64_t)(size[i] / RECORD);
            status = take(path[i], file[i], n, x, y, &why);
            x += n * 3 * PLANE;
            y += n;
        }
    }
    for (int i = 0; i < files; i++) tn_free_mem(file[i]);
    return tn_nn_dataset_new(s, &made, &why, op);
}
