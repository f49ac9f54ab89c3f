/* tensor_data.h - chapters 4 and 5 of <tensor_nn.h>, which includes it and says what holds of each: data sets, loaders
 * that make batches of them, and what is measured over one.
 */
#ifndef TENSOR_NN_H
#include "tensor_nn.h" /* and that, in its place, this */
#elif !defined(TENSOR_DATA_H)
#define TENSOR_DATA_H

/* ---- 4 Data ------------------------------------------------------------------------------------------ */

typedef struct tn_dataset tn_dataset;
typedef struct tn_loader tn_loader;
typedef enum tn_part { TN_TRAIN, TN_TEST } tn_part;

/* Images and labels from a folder with MNIST's file names:
 *   train-images-idx3-ubyte, train-labels-idx1-ubyte   (TN_TRAIN), t10k-... (TN_TEST), each plain or .gz,
 *   or train.png, test.png in place of the images: sheets of 28 x 28 tiles, row by row.
 * Items are f32 [h, w, 1] (pixel / 255 - mean) / std, labels i32. A file that is missing, cut off, corrupt
 * or does not fit the other is an error that names it and says why. */
typedef struct tn_idx_options {
    double mean, std; /* std 0 means MNIST's 0.1307 and 0.3081 */
    int classes;      /* labels must be below; 0 means 10 */
    int64_t limit;    /* the first so many items only; 0 means all */
    size_t size;
} tn_idx_options;
TN_NEW(tn_dataset, dataset_idx_with, tn_session *s, const char *dir, tn_part part,
       const tn_idx_options *options);
/* Photographs: dir/CLASS/.., a folder for each class with .jpg, .jpeg and .png files in it or in folders within it, links
 * followed, what begins with a dot left out. Labels, i32, are the places of the classes' names in their order by bytes.
 * An item is f32 [height, width, channels], (pixel / 255 - mean) / std.
 *
 * Of an image the middle is taken, as large as it can be in the shape of an item, and scaled with an antialiased
 * bilinear filter (PIL's). With .resize that is torchvision's Resize(resize), CenterCrop(height, width); with .stretch all
 * of the image is scaled, whatever that does to its sides. Grey becomes colour and colour grey as channels ask, 16 bits
 * become 8, alpha is left out unless channels is 4 (it is one more channel: colours are not weighed by it), and CMYK
 * becomes RGB. An orientation that a camera noted is not looked at, as in PIL.
 *
 * Files are read and decoded by a loader's .workers ahead of the step. Where all items fit into .cache_bytes they are
 * kept, as bytes, from the first pass on; what a loader's .augment does comes after that. A file that cannot be read or
 * decoded ends the pass with TN_E_IO or TN_E_FORMAT, which names it; with .skip_damaged it is handed over as zeros with the
 * label -100, which tn_cross_entropy and tn_evaluate leave out, a warning for its batch says how many it has and names one,
 * and tn_dataset_damaged counts it. A PNG is damaged where a check sum of its chunks is wrong, too; a JPEG has none. JPEGs
 * are decoded by stb_image, up to 3 levels off libjpeg's, but in the last column but one (of an odd width, the last) of
 * 4:2:2, whose colours it weighs the wrong way round, by more at an edge. */
typedef struct tn_images_options {
    int height, width;      /* of an item; one left out: as the other, both: as the first image */
    int channels;           /* 1, 3 or 4; 0 means 3 */
    int resize;             /* see above; 0: no border is cut off but where shapes differ */
    bool stretch;           /* see above; without .resize */
    double mean[4], std[4]; /* of each channel; std[0] 0 means 0 and 1, values from 0 to 1 */
    tn_dataset *like;       /* takes all these and the classes of another data set: a test set has to fit its training set */
    bool skip_damaged;
    int64_t cache_bytes;    /* 0 means 256 MB; below 0: nothing is kept */
    size_t size;
} tn_images_options;
TN_NEW(tn_dataset, dataset_images_with, tn_session *s, const char *dir, const tn_images_options *options);
/* CIFAR-10's binary files, data_batch_1.bin to data_batch_5.bin (those that are there) or test_batch.bin: images f32
 * [32, 32, 3], labels i32. data/get_data.sh fetches them. */
typedef struct tn_cifar10_options {
    double mean[4], std[4]; /* std[0] 0 means CIFAR-10's own */
    size_t size;
} tn_cifar10_options;
TN_NEW(tn_dataset, dataset_cifar10_with, tn_session *s, const char *dir, tn_part part, const tn_cifar10_options *options);
/* How many classes labels are of, 0 where that is not known, and a class's name, NULL where it has none. */
TN_API int64_t tn_dataset_classes(const tn_dataset *d);
TN_API const char *tn_dataset_class(const tn_dataset *d, int64_t label);
TN_API int64_t tn_dataset_damaged(const tn_dataset *d); /* files found to be so */

/* n items of `shape` from host memory, f32, with i32 labels; both are copied. */
TN_NEW(tn_dataset, dataset_from, tn_session *s, const float *x, const int32_t *labels, int64_t n, int ndim,
       const int64_t *shape);

/* Up to TN_MAX_ARRAYS arrays of n items: inputs, targets, masks, weights, of any dtype and shape. The first is x of a
 * batch, the second its y, all are its of[].
 *
 *     tn_dataset *d = tn_dataset_arrays(s, n, TN_ARRAYS({.data = x, .shape = {8}}, {.data = y, .shape = {2}}));
 *     tn_dataset *e = tn_dataset_arrays(s, 0, TN_ARRAYS({.path = "x.npy"}, {.path = "y.npy"}));
 *
 * n 0 takes as many items as the files have, which then all have to have as many. Data in memory are the caller's, are
 * read as batches are put together, and must stay until tn_close. Files are mapped, may be larger than memory, and must
 * not be written to meanwhile:
 *   *.npy   NumPy's format, versions 1 to 3, little-endian, C order, which says its dtype and shape; of the types that
 *           there is no dtype for, int8, int16 and uint16 become i32, and uint32 i64. Where a .shape is given, too,
 *           items have that, if it has as many elements.
 *   others  elements of .dtype, as they are in memory, without a header.
 * Without arrays (0, NULL) it has n steps, of nothing: for a loop over data of one's own, in which tn_next counts,
 * tn_progress shows and tn_save keeps where it is.
 *
 * TN_E_ARG for an array that cannot be, TN_E_IO, TN_E_FORMAT or TN_E_DTYPE for a file, which is named, TN_E_SHAPE where
 * files do not fit each other or their shapes. */
enum { TN_MAX_ARRAYS = 8 };
typedef struct tn_array {
    const void *data;               /* [n, shape], row-major, or ... */
    const char *path;               /* ... a file of it */
    tn_dtype dtype;                 /* of one element; .npy files say themselves */
    int64_t shape[TN_MAX_DIMS];     /* of one item, up to the first 0; {0}: one element */
    double mean[4], std[4];         /* std[0] not 0: the first array, of u8 [h, w, 1 to 4], is images, which become f32
                                       (pixel / 255 - mean) / std, of each channel */
} tn_array;
#define TN_ARRAYS(...)                                                                                       \
    (int)(sizeof((const tn_array[]){__VA_ARGS__}) / sizeof(tn_array)), (const tn_array[]){__VA_ARGS__}
TN_NEW(tn_dataset, dataset_arrays, tn_session *s, int64_t n, int narrays, const tn_array *arrays);
/* The same of items that a function makes: it writes item `index` of each array that has neither data nor path to
 * out[i], and returns 0, or a status that ends the pass. With .workers it is called on several threads at once. */
typedef int tn_item_fn(int64_t index, void *const *out, void *user);
TN_NEW(tn_dataset, dataset_fn, tn_session *s, int64_t n, tn_item_fn *fn, void *user, int narrays, const tn_array *arrays);

/* A text, for models that predict the next character. The vocabulary is the distinct bytes of the whole file,
 * rising; a token is a byte's place in it. TN_TRAIN is the first 90 % of the bytes, TN_TEST the rest.
 *
 * An item is a window: x [ctx] i32, tokens, and as labels y [ctx] i32, the token that follows each of them.
 * As they stand, windows cover the part without overlapping; where the last is short of tokens, x is 0 and y
 * is -100, which tn_cross_entropy ignores. With .shuffle a loader draws whole windows from anywhere in the
 * part, with replacement; where window i of a pass begins is a function of seed, pass and i. Bytes that
 * stand in the TN_TEST part alone are in the vocabulary too. A file of more than 2^31 - 1 bytes, or
 * so few that a part has less than two or training less than a window and one, is an error. */
typedef struct tn_text_options {
    int64_t ctx; /* 0 means 64 */
    size_t size;
} tn_text_options;
TN_NEW(tn_dataset, dataset_text_with, tn_session *s, const char *path, tn_part part,
       const tn_text_options *options);
/* A file of tokens that something else has made: little-endian numbers without a sign, of 16 or 32 bits, one behind
 * the other. The file is mapped, so that it may be larger than memory; it must not be written to meanwhile. Items
 * are windows, as of a text, and drawn alike. A token that is not below .vocabulary, or above 2^31 - 1, ends the pass
 * that comes across it: TN_E_FORMAT, which names its place. */
typedef struct tn_tokens_options {
    int64_t ctx;        /* 0 means 64 */
    int bits;           /* of a token, 16 or 32; 0 means 16 */
    int64_t vocabulary; /* 0: as many as there may be */
    size_t size;
} tn_tokens_options;
TN_NEW(tn_dataset, dataset_tokens_with, tn_session *s, const char *path, const tn_tokens_options *options);
/* The vocabulary's size, 0 where d is NULL, no text, or tokens of which it was not said; the token of a byte and the
 * byte of a token, -1 where there is none. */
TN_API int tn_text_vocabulary(const tn_dataset *d);
TN_API int tn_text_token(const tn_dataset *d, int byte);
TN_API int tn_text_byte(const tn_dataset *d, int64_t token);
TN_API int64_t tn_dataset_count(const tn_dataset *d); /* items; 0 for NULL */
/* The number (from 0) of the pass the next loader will make, or go on with after tn_load. */
TN_API int64_t tn_dataset_epoch(const tn_dataset *d);

typedef struct tn_batch {
    tn_tensor *x;   /* [n, ...] f32, of a text i32; it and the others live until the next call of tn_next */
    tn_tensor *y;   /* [n] i32, of a text [n, ctx] */
    int64_t n;      /* items in it: the batch size, or what is left */
    int64_t number; /* of the batch in this pass, from 0 */
    tn_tensor *of[TN_MAX_ARRAYS]; /* of each array of the data set, x and y the first of them; NULL: it has no more */
} tn_batch;

/* What a pass does to images, of any data set that has them: x is made of bytes. All of it is drawn anew for each pass,
 * as a function of seed, pass and item, so that a run that goes on from a checkpoint, and any number of .workers, draw
 * the same. tn_evaluate sees images as they are. Arrays behind x whose shape begins with x's [h, w] are maps of its pixels,
 * such as masks: they are flipped and moved alike, with -100 beyond the edge, or 0 where the dtype is neither i32 nor
 * i64. */
typedef struct tn_augment {
    bool flip;      /* left to right, one in two */
    int pad;        /* moved by up to so many pixels each way, with black beyond the edge: torchvision's
                       RandomCrop(padding = pad) */
    double crop[2]; /* {0.08, 1}: a box of such a share of the area, of sides from 3:4 to 4:3, scaled to the size of an item:
                       RandomResizedCrop. Of photographs, which are then decoded in each pass; without pad */
    double brightness, contrast, saturation; /* ColorJitter's, in this order: times factors from 1 - b to 1 + b */
    double mixup;   /* alpha, up to 4: x becomes r x + (1 - r) other, r ~ Beta(alpha, alpha), of another item of the batch,
                       and y [n, classes] f32 shares of classes, as tn_cross_entropy takes them. Of two of which one has
                       the label -100 the other alone is taken, in both places; where both have it, x and y are zeros */
} tn_augment;

typedef struct tn_loader_options {
    int64_t batch; /* 0 means 64, where there are arrays */
    bool shuffle;
    bool drop_last;    /* leave out a last short batch */
    int64_t batches;   /* end as soon as the pass has come to so many, counted from where it began; the next loader goes
                          on with the same pass, and has none, which a warning says, where .batches is no more than
                          what it has come to. May be more than a pass has where windows of a text are drawn. 0: no such end */
    bool progress;     /* a bar on a terminal, a line every tenth of the pass elsewhere */
    uint64_t seed;     /* of the order; 0 means the session's */
    FILE *progress_to; /* NULL means stderr */
    int workers;       /* threads that put batches together beside the step, two batches ahead at most. 0: as many as
                          serve: those of the session, up to 8, for files of images, one for augmented arrays, else
                          none; below 0: none. What a batch holds does not depend on it */
    tn_augment augment;
    size_t size;
} tn_loader_options;
/* One pass over d. With .shuffle, unless d is a text, the order is that of Fisher-Yates (i from n-1 down to 1, swap with
 * below(i + 1)) driven by splitmix64 started at seed + 0x9e3779b97f4a7c15 * (epoch + 1), below() being
 * Lemire's unbiased multiplication: a function of seed and epoch alone. */
TN_NEW(tn_loader, loader_open_with, tn_dataset *d, const tn_loader_options *options);
/* The next batch: 1, or 0 at the end, which closes the loader, as an error in the session does. */
TN_FUNCTION(int, next, tn_loader *l, tn_batch *b);
TN_API void tn_loader_close(tn_loader *l);            /* to stop before the end; NULL is allowed */
TN_API int64_t tn_loader_batches(const tn_loader *l); /* in the whole pass, or as .batches says */

/* tn_progress(l, "loss", loss, "acc", acc): up to four named one-element tensors to show, those of the step
 * that ended last, NaN and infinities too. Never waits: on a GPU, the newest values that have arrived. Nothing happens
 * without .progress. */
typedef struct tn_progress_values {
    const char *name0;
    tn_tensor *value0;
    const char *name1;
    tn_tensor *value1;
    const char *name2;
    tn_tensor *value2;
    const char *name3;
    tn_tensor *value3;
    size_t size;
} tn_progress_values;
TN_API int tn_progress_with(tn_loader *l, const tn_progress_values *values);

/* ---- 5 Evaluation ------------------------------------------------------------------------------------ */

/* Gives the logits [n, classes] of a batch x [n, ...]; of windows of a text x [n, ctx] those of each token,
 * [n, ctx, classes]. */
typedef tn_tensor *tn_classify_fn(tn_session *s, tn_tensor *x, void *user);
/* The share of d's labels at which the largest logit stands, in [0, 1]; NaN on error. Labels of -100 do not
 * count. Runs f in evaluation mode without gradients, in steps of its own (so not between tn_step_begin and
 * tn_step_end), and restores the mode. */
TN_FUNCTION(double, evaluate, tn_session *s, tn_dataset *d, tn_classify_fn *f, void *user);
/* The mean of tn_cross_entropy over d's labels, in nats, likewise. */
TN_FUNCTION(double, evaluate_loss, tn_session *s, tn_dataset *d, tn_classify_fn *f, void *user);
/* The mean over d's items of what f gives for a batch, a tensor of one element that is the mean over its items: for
 * data sets of any arrays, and measures of one's own. Otherwise as tn_evaluate. */
typedef tn_tensor *tn_measure_fn(tn_session *s, const tn_batch *b, void *user);
TN_FUNCTION(double, evaluate_mean, tn_session *s, tn_dataset *d, tn_measure_fn *f, void *user);

#if !defined(__cplusplus) && !defined(TN_NO_MACROS)
#define tn_progress(...) TN_VALUES_(__VA_ARGS__, .size = sizeof(tn_progress_values))
#define TN_VALUES_(l, ...) tn_progress_with(l, &(const tn_progress_values){__VA_ARGS__})
#endif

#endif
