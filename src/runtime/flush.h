/* flush.h - what the files of a flush share: the segment being run and its scratch memory.
 *
 *   flush.c      what has to run: the roots; by which road: plan, interpreter, built-in loops
 *   segment.c    roots -> nodes without a value, the leaves they read, and the record that names their plan
 *   lend.c       which memory of gradients a plan may use before it writes these
 *   memory.c     a plan's values -> offsets in that, and in one arena
 *   execute.c    a plan and a segment -> addresses, launches
 *   node_by_node.c   a segment -> its values, where no plan is made
 *   refuse.c     what a run that failed leaves behind
 *
 * Read first: tn_run in flush.c.
 */
#pragma once

#include "session.h"

typedef struct tn_list {
    tn_tensor **at;
    int n, cap;
} tn_list;

struct tn_flush_scratch {
    tn_list seed; /* whose values are asked for */
    tn_list node, leaf, stack;
    tn_list marked; /* nodes and leaves as they were met */
    uint8_t *root;  /* of each node: TN_SEG_ bits */
    int cap_root;
    int *twin, *seen; /* of each leaf: the first that is the same (tn_segment.twin); a table of leaves */
    int cap_twin, cap_seen;
    int *writes, cap_writes; /* of holders of the graph: how many before each are still to write */
    unsigned char *key;      /* the record */
    size_t n_key, cap_key;
    void **address;    /* of each slot */
    size_t *size;      /* of one element there */
    int *placed;       /* the plan's values that are not in the arena, */
    tn_storage **hold; /* and the storage of each that outlives the plan */
    int n_placed, cap_address, cap_size, cap_placed, cap_hold;
    bool fixed;  /* nodes, leaves and plan stay as they are */
    bool bound;  /* and all these tables, and buf, are of a run before */
    void *arena; /* as it was then */
    void **buf;  /* of all launches, in the order of the steps */
    tn_word *word;
    int cap_buf, cap_word;
    int *last; /* built-in loops: last reader of each node */
    int cap_last;
};
typedef struct tn_flush_scratch tn_flush_scratch;

/* A flush as it stands on the tape of a step (replay.h): its lists and its plan; NULL: nothing had to run. */
typedef struct tn_flush_record {
    tn_flush_scratch f;
    tn_plan *plan;
} tn_flush_record;

void tn_flush_scratch_free(tn_flush_scratch *f);

int tn_fail_memory(tn_session *s);
bool tn_list_push(tn_list *l, tn_tensor *n);

static inline bool tn_has_value(const tn_tensor *b) { return (b->flags & TN_F_DONE) != 0; }

/* ---- lost.c ---- */
/* Returns the node that has overwritten v's memory as the node of id `reader` reads it: an assignment, or the
 * gradients of a later backward; NULL: none has. */
const tn_tensor *tn_lost_to(const tn_tensor *v, uint32_t reader);

/* ---- segment.c ---- */
/* From f->seed: f->node, f->leaf, f->root; slots are set. */
int tn_segment_collect(tn_session *s, tn_flush_scratch *f);
/* f->key: all that a plan depends on. */
bool tn_segment_record(tn_session *s, tn_flush_scratch *f);

/* ---- lend.c ---- */
/* Sets what gradients' memory the plan may use. 0 or TN_E_NOMEM. */
int tn_plan_lend(const tn_session *s, const tn_flush_scratch *f, tn_plan *p);

/* ---- memory.c ---- */
/* Sets the offsets of the values that die with the plan, its lent_bytes and arena_bytes. */
int tn_plan_memory(tn_plan *p);

/* ---- fault.c ---- */
/* The index of a node that gathers or scatters: what the user calls it, and how many lines there are to
 * choose from. */
typedef struct tn_index_site {
    const char *name;
    int64_t extent; /* -1: not known */
} tn_index_site;

bool tn_node_indexes(const tn_tensor *n);
tn_index_site tn_index_site_of(const tn_tensor *n);
/* TN_E_INDEX in the name of n's call, with the place, if n's index is wrong: by *value or, NULL, by the first
 * value that is. False: it is not, or no place can be said. */
bool tn_index_error(tn_session *s, const tn_tensor *n, const int64_t *value);
/* The same without a place, in the name of the call that is open. */
void tn_index_error_at(tn_session *s, const tn_index_site *site, int64_t value);

/* ---- refuse.c ---- */
/* A run that was to do what waits, the nodes from `first` on, has failed. */
void tn_refuse_waiting(tn_session *s, uint32_t first);
/* The same where operators do not wait. */
void tn_refuse_nodes(tn_session *s, const tn_flush_scratch *f);
/* Of a device that tells late: nothing that has run in this graph can be relied on. */
void tn_refuse_all(tn_session *s);
/* The error of asking for what a refused b was to have made. Returns its status. */
int tn_refused(tn_session *s, const tn_tensor *b);

/* ---- node_by_node.c ---- */
/* Copies of the memory that nodes have overwritten, which belongs to other tensors. */
typedef struct tn_saved {
    struct tn_saved_region {
        void *at, *copy;
        size_t bytes;
    } * region;
    int n, cap;
} tn_saved;
bool tn_keep_old(tn_saved *v, const tn_tensor *n); /* before n runs. False: no memory */
void tn_put_back(tn_saved *v, bool back);          /* back: as if none had run */
/* Runs a segment without a plan. */
int tn_run_nodes(tn_session *s, tn_flush_scratch *f);

/* ---- execute.c ---- */
/* Where a value lies that dies with the plan. */
static inline void *tn_plan_room(const tn_session *s, const tn_plan *p, const tn_plan_value *v)
{
    return v->offset < p->lent_bytes ? s->slab[TN_F32].gradient_base + v->offset
                                     : (char *)s->arena + (v->offset - p->lent_bytes);
}
/* From now on f is of this plan alone. False: no memory. */
bool tn_flush_fix(tn_flush_scratch *f, const tn_plan *p);
int tn_execute(tn_session *s, tn_flush_scratch *f, tn_plan *p);
static inline tn_tensor *tn_node_at(const tn_flush_scratch *f, int slot)
{
    return slot < f->node.n ? f->node.at[slot] : f->leaf.at[slot - f->node.n];
}
