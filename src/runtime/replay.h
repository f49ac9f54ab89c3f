/* replay.h - a step that is the same as the one before costs neither nodes nor plans.
 *
 * In fused mode the calls of a step are noted on a tape: each operator with its operands, attributes, the
 * nodes it made and what it changed. At the step's end the graph is *parked*: the nodes stay, values and
 * handles go. While the next step's calls match the tape one by one, each answers with the node it made then;
 * tn_backward is one entry, and so is a flush with its plan. What runs between the steps has a graph of its
 * own meanwhile. The first call that differs cuts the tape: the nodes from there on go, flags that later
 * calls had set are worked out anew, and recording goes on from there.
 *
 * An operator takes part by handing tn_enter_as what distinguishes two calls of it (tn_op_key). One that does
 * not ends the tape.
 *
 * Read first: tn_tape_match, then tn_tape_cut, in replay.c. */
#pragma once

#include "../core/graph.h"

/* The part of a call that distinguishes it from another one of the same operator, besides its tensors:
 * compared byte by byte, except the number, which becomes the value of the scalar nodes the call makes. */
typedef struct tn_op_key {
    const void *part[2];
    size_t bytes[2];
    const tn_number *number;
} tn_op_key;

#define TN_NO_ATTR (&(const tn_op_key){.number = NULL})
#define TN_ATTR(...)                                                                                         \
    (&(const tn_op_key){.part = {(const int64_t[]){__VA_ARGS__}},                                            \
                        .bytes = {sizeof((const int64_t[]){__VA_ARGS__})}})
/* Some integers and a list of n elements; one that is too long is an error, and is not looked at here. */
#define TN_ATTR_LIST(list, n, ...)                                                                           \
    (&(const tn_op_key){                                                                                     \
        .part = {(const int64_t[]){__VA_ARGS__}, (list)},                                                    \
        .bytes = {sizeof((const int64_t[]){__VA_ARGS__}),                                                    \
                  (list) && (n) > 0 && (n) <= TN_MAX_DIMS ? (size_t)(n) * sizeof *(list) : 0}})
/* An option struct, or NULL, and some integers. */
#define TN_ATTR_STRUCT(options, ...)                                                                         \
    (&(const tn_op_key){                                                                                     \
        .part = {(const int64_t[]){__VA_ARGS__}, (options)},                                                 \
        .bytes = {sizeof((const int64_t[]){__VA_ARGS__}), (options) ? sizeof *(options) : 0}})
#define TN_ATTR_NUMBER(v) (&(const tn_op_key){.number = (v)})

static inline int64_t tn_bits(double v)
{
    union {
        double f;
        int64_t i;
    } u = {v};
    return u.i;
}

typedef enum tn_entry_kind {
    TN_ENTRY_OP,    /* an operator, a read, an assignment, a backward */
    TN_ENTRY_OPEN,  /* tn_op_begin */
    TN_ENTRY_CLOSE, /* tn_op_end */
    TN_ENTRY_WATCH,
    TN_ENTRY_FLUSH
} tn_entry_kind;

typedef struct tn_entry {
    tn_entry_kind kind;
    const char *name;
    uint32_t first, end;       /* ids of the nodes it made */
    uint32_t holder0, holder1; /* of them, in graph->holder */
    uint32_t graded0, graded1; /* leaves that got a gradient, in graph->graded */
    uint32_t ref; /* in tape->ref: for each operand what was given and what stood for it; results */
    uint32_t attr, attr_bytes; /* in tape->attr */
    uint32_t region;           /* graph->region */
    uint32_t seen, written;    /* graph->gradients_seen, gradients_written, afterwards */
    uint16_t n_arg, n_result;
    uint8_t products;
    bool training, no_grad, number, is_int, random, uploads;
    struct tn_flush_record *flush;
    tn_call *call;
} tn_entry;

typedef struct tn_tape {
    bool off;       /* this session does not replay */
    bool recording; /* entries are noted: in a step, until one cannot be */
    bool broken;    /* something happened that cannot be taken back: the step is not replayed */
    bool active;    /* matching, at entry[cursor] */
    int region;     /* tn_op_begin that are open */
    int cuts; /* since a step was recorded as a whole: what is cut off leaves its calls and attributes */
    int cursor, n, cap;
    tn_entry *entry;
    tn_tensor **ref;
    uint32_t n_ref, n_attr;
    unsigned char *attr;
    int cap_ref, cap_attr;
    uint64_t hits; /* steps replayed to their end */
} tn_tape;

/* The entry that the call now beginning matches, after its effects have been made; NULL: it is to be recorded
 * (the tape has been cut if it was active). given[i]: resolved handles, NULL where an optional one is
 * missing. */
tn_entry *tn_tape_match(tn_session *s, tn_entry_kind kind, const char *name, const tn_op_key *key, int n,
                        tn_tensor *const *given);
/* Begins an entry, whose nodes begin at `first`; -1 where none is noted. */
int tn_tape_note(tn_session *s, tn_entry_kind kind, const char *name, const tn_op_key *key, int n,
                 tn_tensor *const *given, tn_tensor *const *as, uint32_t first);
void tn_tape_done(tn_session *s, int entry, int n, tn_tensor *const *results);
static inline tn_tensor **tn_entry_results(const tn_tape *t, const tn_entry *e)
{
    return t->ref + e->ref + 2 * e->n_arg;
}

/* A call that cannot be replayed begins: the tape ends before it. */
void tn_tape_end(tn_session *s);
void tn_tape_cut(tn_session *s);
/* The step has ended well: keeps its graph if all of it is on the tape. False: it is to be reset. */
bool tn_tape_park(tn_session *s);
void tn_tape_begin(tn_session *s); /* a step begins */
void tn_tape_free(tn_session *s);
