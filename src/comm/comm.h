/* comm.h - several processes that run the same program, its ranks, and what they do together.
 *
 * Each kind of network is a plugin, a shared library of its own with one function, TN_COMM_ENTRY, which is
 * opened when a session wants it: libtensor itself links none of them. A plugin has memory of the host sent
 * and received, and knows nothing of tensors.
 *
 * All ranks call the same functions in the same order. A rank that does not, that has died or is silent for
 * longer than `timeout`, is an error of all others, and after one nothing more can be sent. One thread at a
 * time may call.
 *
 * Read first: tn_comm_op. The other side is mpi/mpi.c; who calls is src/runtime/ranks.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TN_COMM_WHY = 400, TN_COMM_NOTE = 512, TN_COMM_VERSION = 3 };

/* What ranks tell each other before and after they work together: rank i's at place i. */
typedef struct tn_comm_note {
    char bytes[TN_COMM_NOTE];
} tn_comm_note;

typedef enum tn_comm_op {
    /* out[] becomes the mean of the ranks' in[], of n floats or doubles; in may be out. Sums are of rank 0,
     * 1, .. in this order. */
    TN_COMM_MEAN,
    /* The same, of which rank i gets the elements from cut[i] to cut[i + 1] alone, which are as many as its
     * out[] has. */
    TN_COMM_SCATTER,
    /* out[], of n bytes, becomes what each rank i has, in[], of cut[i + 1] - cut[i] bytes, as its bytes from
     * cut[i] on; in is no part of out. */
    TN_COMM_GATHER,
    TN_COMM_BROADCAST, /* all get rank 0's out[], of n bytes */
    TN_COMM_MERGE,     /* all get the fault that one has, out (abi.h): where `merges` */
    /* A tn_comm_note `in` goes to each rank, and theirs come into out[]; it is waited for. */
    TN_COMM_EXCHANGE,
    TN_COMM_TELL /* that is sent, and nobody waited for: this rank's part of the exchange to come */
} tn_comm_op;

typedef struct tn_comm_job {
    tn_comm_op kind;
    const void *in;
    void *out;
    size_t n, size;    /* elements, and bytes of each */
    const size_t *cut; /* of ranks and the end, in elements */
} tn_comm_job;

typedef struct tn_comm tn_comm;
struct tn_comm {
    int rank, size;
    bool merges;           /* of a GPU's memory, which has no exchange and tell */
    char name[100];        /* "Open MPI v4.1.4" */
    char why[TN_COMM_WHY]; /* of the call that failed last */

    /* Both return 0, or -1 with the reason in `why`. What was begun ends in the order it began, and its
     * memory may not be touched until wait; the job itself and its `cut` and note may. */
    int (*begin)(tn_comm *c, const tn_comm_job *job);
    int (*wait)(tn_comm *c); /* for all that was begun */
    void (*close)(tn_comm *c);
};

/* NULL, with the reason in why[TN_COMM_WHY], where there is none. timeout: in seconds. version:
 * TN_COMM_VERSION. */
typedef tn_comm *tn_comm_open_fn(int version, double timeout, char *why);
#define TN_COMM_ENTRY "tn_comm_entry"
tn_comm_open_fn tn_comm_entry; /* of a plugin */

/* Returns the variable by which a launcher of several processes (mpirun, srun) shows itself, or NULL: this
 * process stands alone. */
const char *tn_comm_launcher(void);
/* By the MPI plugin: the file TENSOR_MPI names, else libtensor_mpi.so beside this library or program, else
 * where the system's loader looks. NULL as above. */
tn_comm *tn_comm_open(double timeout, char *why);
