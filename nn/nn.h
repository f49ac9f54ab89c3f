/* nn.h - what the files of this room share. Everything else they know stands in the public headers.
 *
 *   nn_state   one per session, found through the session's close hooks: what tn_close has to free (layers)
 *              and what checkpoints have to go through (optimizers, data sets).
 *   nn_why     why a file cannot be used, from readers that know no session, so that they can be tested and
 *              fuzzed without one. */
#pragma once

#include "../include/tensor_extend.h"
#include "../include/tensor_nn.h"

/* ---- state.c: what a session owns ---- */

/* scale.c */
typedef struct nn_scale {
    double factor;           /* of losses; 0: no optimizer yet */
    int interval, good;      /* steps until it grows; of them fine ones so far */
    int in_a_row;            /* that were not */
    int64_t skipped;         /* all of those */
    bool on;                 /* a tn_backward has asked for it, */
    uint64_t step;           /* the last time in this step */
    tn_tensor *fine;         /* a bool: whether the gradients of all updates are finite, */
    bool told;               /* which nobody has looked at yet, */
    uint64_t told_step, run; /* of this step, and in this run, */
    uint64_t first_run;      /* at first in this one */
    struct nn_moved *moved;  /* buffers that the step has assigned to, and their values before */
    int n_moved, room;
    uint64_t moved_step;
    int n_noted,
        n_settled; /* of these, those that an update has looked at, and that runs before have settled */
} nn_scale;

typedef struct nn_state {
    struct nn_block *blocks;              /* all of it, the newest first; tn_close frees it in this order */
    tn_dataset *datasets, **last_dataset; /* in order of creation, which is their number in checkpoints */
    tn_optim *optims, **last_optim;
    struct nn_told *told; /* layout.c */
    nn_scale scale;
    struct {
        uint64_t step;  /* of the last tn_optim_step */
        uint64_t walks; /* steps with a tn_backward when it has ended */
        int running;    /* updates in a row with such steps before them that no optimizer had a step in */
    } used;
} nn_state;

nn_state *tn_nn_state(tn_session *s); /* made on first use; NULL is an error already reported */
/* Zeroed memory that lives as long as the session, or until tn_nn_drop; what hangs on it then goes by
 * `destroy`, which may be NULL. NULL is an error already reported. */
void *tn_nn_own(tn_session *s, size_t bytes, void (*destroy)(void *), const char *op);
void tn_nn_drop(tn_session *s, void *p);
/* scale.c: a buffer is about to be assigned to, in a step that may yet be left out. False: no memory,
 * reported. */
bool tn_nn_scale_moves(tn_session *s, tn_tensor *target);
/* state.c: tn_fail for functions that return a pointer: NULL. */
void *tn_nn_fail(tn_session *s, int status, const char *op, const char *fmt, ...) TN_FORMAT(4, 5);
static inline tn_stats tn_nn_stats(const tn_session *s)
{
    tn_stats v = {.size = sizeof(v)};
    tn_get_stats(s, &v);
    return v;
}
double tn_nn_seconds(void); /* state.c: of a clock that nobody sets */
bool tn_nn_ends_with(const char *text, const char *end);
/* Of a constructor: `o` is what the caller gave, or the options' defaults. */
#define NN_OPTIONS(type, o, given)                                                                           \
    const type o##_none = {.size = sizeof(type)}, *o = (given) ? (given) : &o##_none

/* ---- why.c ---- */

typedef struct nn_why {
    int status;
    char text[512]; /* "train-images-idx3-ubyte.gz: cut off after 12 of 47040016 bytes" */
} nn_why;

/* Notes the first reason and returns its status. */
int tn_nn_why(nn_why *why, int status, const char *fmt, ...) TN_FORMAT(3, 4);

/* ---- readers: slurp.c, idx.c, sheet.c, npy.c ---- */

/* A whole file, tn_free_mem it; refuses more than `most` bytes. TN_E_IO, TN_E_NOMEM or TN_E_FORMAT. */
int tn_nn_slurp(const char *path, size_t most, unsigned char **data, size_t *size, nn_why *why);

/* A file where it lies: pages come as they are read, and must not go meanwhile. */
typedef struct nn_file {
    const unsigned char *data; /* NULL: none */
    size_t size;
} nn_file;
int tn_nn_map(const char *path, nn_file *out, nn_why *why);
void tn_nn_unmap(nn_file *f);

typedef struct nn_images {
    int64_t n, h, w;
    unsigned char *pixels; /* [n, h, w], tn_free_mem it */
} nn_images;

typedef struct nn_picture {
    int64_t h, w;
    unsigned char *pixels; /* [h, w, channels], tn_free_mem it */
} nn_picture;
/* The PNG or JPEG file as pixels of so many channels, 1 to 4. */
int tn_nn_decode(const char *path, const unsigned char *file, size_t size, int channels, nn_picture *out,
                 nn_why *why);
/* The box {y0, x0, y1, x1} of the image, scaled to [out_h, out_w, channels]. TN_OK or TN_E_NOMEM. */
int tn_nn_resize(const nn_picture *in, int64_t channels, const double box[4], unsigned char *out,
                 int64_t out_h, int64_t out_w);

/* IDX files of unsigned bytes, plain or gzip. *axes 0: however many there are, up to 3, which it says then.
 */
int tn_nn_idx(const char *path, int *axes, int64_t *dim, unsigned char **out, nn_why *why);
int tn_nn_idx_images(const char *path, nn_images *out, nn_why *why);
int tn_nn_idx_labels(const char *path, unsigned char **labels, int64_t *n, nn_why *why);
/* The first n tiles of h x w pixels of a PNG sheet. */
int tn_nn_sheet(const char *path, int64_t n, int64_t h, int64_t w, nn_images *out, nn_why *why);

/* How elements lie in memory, where that is not how they are handed over: bytes that become f32, and integers
 * that the library has no dtype for, which become i32 or i64. */
typedef enum nn_raw { NN_AS_IS, NN_PIXELS, NN_I8, NN_I16, NN_U16, NN_U32 } nn_raw;

/* ---- types.c ---- */

typedef struct nn_type {
    char name[8];   /* in safetensors: "F32" */
    char npy[4];    /* in NumPy's format, without the order of bytes: "f4"; "": none */
    size_t bytes;   /* of one element */
    tn_dtype dtype; /* that holds it; TN_DTYPE_COUNT: none does */
    nn_raw raw;     /* what has to be done to it for that */
} nn_type;
enum { NN_TYPES = 15 };
extern const nn_type tn_nn_types[NN_TYPES];
const nn_type *tn_nn_type(const char *name); /* NULL when there is none, as of the next two */
const nn_type *tn_nn_type_npy(const char *npy);
const nn_type *tn_nn_type_of(tn_dtype d, nn_raw raw);

/* An array of n items. */
typedef struct nn_array {
    tn_dtype dtype; /* as it is handed over */
    nn_raw raw;
    int ndim;
    int64_t shape[TN_MAX_DIMS]; /* of one item */
    int64_t item;               /* elements of one */
    const unsigned char *data;  /* of all items, or NULL: they are made one by one */
    void *own;                  /* what tn_free_mem takes ... */
    nn_file file;               /* ... and what is mapped, for data to stay */
} nn_array;

size_t tn_nn_raw_size(const nn_array *a); /* bytes of one element as it lies */
/* NumPy's format: the array, whose data stay in the mapped file, and n, its first axis. After an error
 * nothing is mapped. */
int tn_nn_npy(const char *path, nn_array *out, int64_t *n, nn_why *why);

/* ---- dataset.c, arrays.c, images.c, folder.c, cifar.c, text.c, loader.c, feed.c ---- */

enum { NN_NO_LABEL = -100 }; /* what tn_cross_entropy ignores */

/* Tokens of a text: one byte each, places in a vocabulary of bytes, or 2 or 4 of a file of their own. */
typedef struct nn_corpus {
    int64_t n;
    int64_t size;         /* of the vocabulary; 0: not known */
    int width;            /* bytes of a token */
    bool bytes;           /* tokens stand for bytes */
    uint8_t byte_of[256]; /* [size], rising */
    const char *path;     /* of such a file, for errors */
    const unsigned char *tokens;
    nn_file file;
} nn_corpus;

/* What a pass does to images, each by a key of the pass. */
typedef struct nn_draw {
    tn_augment how;
    uint64_t key;
} nn_draw;

/* Makes item k: writes the elements of each array without data of its own to out[i], pixels as bytes.
 * NN_DAMAGED, with a reason the first time, where there is no such item to be had, which is no error. */
typedef int nn_make(const tn_dataset *d, int64_t k, const nn_draw *draw, void *const *out, nn_why *why);
enum { NN_DAMAGED = 1 };

struct tn_dataset {
    tn_session *s;
    tn_dataset *next;
    tn_loader *pass; /* the newest loader, while it is open: where it has come to is the position */
    int64_t n;
    int arrays; /* the first is a batch's x, the second its y */
    nn_array array[TN_MAX_ARRAYS];
    int64_t classes;             /* labels are below; 0: not known */
    const char *const *class_of; /* their names, or NULL */
    float table[4][256];         /* of pixels: the value of a byte in each channel */
    float plain[4][256];         /* the same in [0, 1], */
    float scale[4];              /* and what the value is of it, beside that of 0 */
    nn_make *make;               /* NULL: all arrays have data */
    bool slow;                   /* it reads images, which is worth threads, and sees to .crop itself */
    int64_t damaged;             /* items found to be so */
    void *of;                    /* what it makes them of, which goes by `drop` */
    void (*drop)(void *of);
    nn_corpus *corpus;           /* of a text, whose items are windows; also in `of` */
    int64_t next_epoch, next_at; /* the next loader's pass, and the items of it to leave out */
};

/* A data set of what `made` says, which is its own from now on; after an error, that of `why` too, which is
 * reported, all of that is freed. */
tn_dataset *tn_nn_dataset_new(tn_session *s, tn_dataset *made, const nn_why *why, const char *op);
/* Sets what follows from dtype, ndim and shape of the next array; false where elements of n items cannot be
 * counted. */
bool tn_nn_dataset_array(tn_dataset *d, tn_dtype dtype, nn_raw raw, int ndim, const int64_t *shape);
/* Room for the elements of the last array; NULL where there is none. */
void *tn_nn_dataset_room(tn_dataset *d);
/* Bytes of the first array become (p / 255 - mean) / std. False: no such numbers. */
bool tn_nn_dataset_pixels(tn_dataset *d, const double *mean, const double *std);
/* Item k of each array into out[i], as it is handed over; k is the first token of a window of a text. */
int tn_nn_item(const tn_dataset *d, int64_t k, const nn_draw *draw, void *const *out, nn_why *why);
/* A tensor of n items of array i whose values stand at x. */
tn_tensor *tn_nn_dataset_tensor(const tn_dataset *d, int i, int64_t n, const void *x);
/* Of a text: the window from token `from` on, and the tokens that follow. Past the end 0 and -100. */
void tn_nn_window(const tn_dataset *d, int64_t from, int32_t *x, int32_t *y);

/* Gets the position in the data set at which a training run that is saved now has to go on. */
void tn_nn_dataset_position(const tn_dataset *d, int64_t *epoch, int64_t *at);

/* What of a data set is handed over, in which order. */
typedef struct nn_pass {
    const uint32_t *order; /* of the items; NULL: as they stand, or, where drawn, anywhere in a text */
    bool drawn;
    uint64_t seed;
    int64_t epoch, at, end, batch; /* items from at to end, in batches */
    int rank, ranks;     /* each batch is the rank-th part of one of ranks * batch items; ranks 0: 1 */
    int threads;         /* that put batches together ahead of who takes them; 0: none */
    const char *op;      /* for errors */
    const nn_draw *draw; /* NULL: images are as they are */
} nn_pass;
typedef struct nn_feed nn_feed;
int tn_nn_feed_threads(const tn_dataset *d, const nn_draw *draw,
                       int wanted);                           /* wanted 0: as many as serve, below 0: none */
nn_feed *tn_nn_feed_open(tn_dataset *d, const nn_pass *pass); /* NULL: no memory */
/* The next batch, whose tensors live until the call after this one: 1, or 0 at the end and after an error,
 * which is reported. */
int tn_nn_feed_take(nn_feed *f, tn_batch *b);
/* Of the batch taken last: the items of all ranks. *counts, where it is asked for: those that are this
 * rank's; 0: its one item is another's. */
int64_t tn_nn_feed_whole(const nn_feed *f, int64_t *counts);
void tn_nn_feed_close(nn_feed *f); /* NULL is allowed */

/* draw.c */
void tn_nn_order(uint32_t *order, int64_t n, uint64_t seed, int64_t epoch);
/* Sets the places at which windows first..first+n of a pass begin, below `end`. */
void tn_nn_places(uint32_t *places, int64_t first, int64_t n, uint32_t end, uint64_t seed, int64_t epoch);

/* ---- safetensors.c ---- */

typedef struct nn_saved {
    const char *name;
    const char *type; /* as in the file: "F32" */
    tn_dtype dtype;   /* TN_DTYPE_COUNT: one the library does not have */
    int ndim;
    int64_t shape[TN_MAX_DIMS];
    const unsigned char *data;
    size_t begin, bytes; /* begin: in the data part of the file */
} nn_saved;

struct nn_renamed {
    struct nn_renamed *next;
    char name[];
};

typedef struct nn_safetensors {
    unsigned char *file;
    void *json; /* names live in it */
    int n;
    nn_saved *saved; /* sorted by name */
    int dropped;     /* behind these: left out by tn_nn_rename */
    struct nn_renamed *renamed;
} nn_safetensors;

int tn_nn_safetensors_read(const char *path, nn_safetensors *out, nn_why *why);
void tn_nn_safetensors_free(nn_safetensors *f);
/* By name; `status` where two have the same. */
int tn_nn_safetensors_sort(const char *path, nn_safetensors *f, int status, nn_why *why);
const nn_saved *tn_nn_safetensors_find(const nn_safetensors *f,
                                       const char *name);                     /* NULL when there is none */
const char *tn_nn_safetensors_meta(const nn_safetensors *f, const char *key); /* NULL when there is none */
bool tn_nn_safetensors_meta_at(const nn_safetensors *f, int i, const char **key, const char **value);

/* rename.c: gives tensors other names, and moves what is left out behind the others. */
int tn_nn_rename(const char *path, nn_safetensors *f, const tn_rename *r, nn_why *why);

/* A growing text, and what a header is made of. After a failed allocation `failed` is set and the rest does
 * nothing. */
typedef struct nn_text {
    char *text;
    size_t size, room;
    bool failed;
} nn_text;
void tn_nn_text_add(nn_text *t, const char *fmt, ...) TN_FORMAT(2, 3);
void tn_nn_text_quote(nn_text *t, const char *string); /* as a JSON string */
/* A header: begin, "key":"value" pairs of metadata, a "}", an entry for each tensor, end. */
void tn_nn_text_begin(nn_text *t);
void tn_nn_text_entry(nn_text *t, const char *name, const char *type, int ndim, const int64_t *shape,
                      size_t begin, size_t bytes);
void tn_nn_text_end(nn_text *t);

/* ---- layout.c ---- */

/* A tensor's elements are rows of columns; either may be an image, [h, w, c] here and [c, h, w] in PyTorch.
 * {1, 1, n} is none. */
typedef struct nn_turn {
    int64_t row[3], column[3];
} nn_turn;
/* Notes it for a layer's tensor; NULL or zeros: no image. Not known: the layer was not told. State: of
 * training, which is in no file of weights. False: no memory, which is reported. */
bool tn_nn_tell(tn_session *s, const tn_tensor *t, bool known, bool state, const int64_t *row,
                const int64_t *column, const char *op);
bool tn_nn_is_state(const nn_state *st, const tn_tensor *t);
bool tn_nn_image_fits(const int64_t *image, int64_t n); /* {h, w, c} of n elements, or zeros */
/* Finds the order that a tensor's elements have in PyTorch; false where it may be another one than here, and
 * nobody has told which. */
bool tn_nn_turn_of(const nn_state *st, const tn_tensor *t, nn_turn *out);
bool tn_nn_turns(const nn_turn *t);                                /* whether the order is another one */
int64_t tn_nn_turn_index(const nn_turn *t, int64_t i);             /* there, of what is element i here */
void tn_nn_turn_shape(const nn_turn *t, int ndim, int64_t *shape); /* from here to there */

/* ---- progress.c ---- */

typedef struct nn_progress {
    FILE *out; /* NULL: nothing is shown */
    bool terminal;
    int64_t steps, done, epoch, lines; /* batches in the pass; of them handed out */
    int64_t skipped;                   /* updates that overflowed (scale.c) */
    int64_t first;                     /* done when the clock started */
    double start, shown;               /* seconds */
    int n;
    char name[4][24];
    double value[4];
    bool known[4]; /* else there is no value yet */
    int watch[4];  /* the call of tn_watch in the step now ending that will know; -1: none */
} nn_progress;

void tn_nn_progress_begin(nn_progress *p, FILE *out, int64_t steps, int64_t done, int64_t epoch);
void tn_nn_progress_step(nn_progress *p, int64_t done);
/* The k-th value, until it is told again. */
void tn_nn_progress_value(nn_progress *p, int k, double value);
/* failed: an error is about to be told, and a line that says how far it came is in the way. */
void tn_nn_progress_end(nn_progress *p, bool failed);
/* One line of it, without the end of line: exposed for the tests. */
void tn_nn_progress_line(const nn_progress *p, double now, char *out, size_t size);
