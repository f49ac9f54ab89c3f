/* race.h - what is remembered about every four bytes of memory that kernels touch.
 *
 * Two accesses of one launch race when at least one writes, they are not both atomic, and nothing orders
 * them:
 *
 *   in a block         a block barrier, or between lanes of a warp a warp operation, lies between them
 *   between blocks     the earlier is followed by __threadfence() and an atomic, by its thread or behind a
 *                      barrier, and the later block has done an atomic on the same word since
 *
 * Each cell keeps the last write and the last read. Reads of several threads are kept as one record with
 * flags that say who else read, which can only make a report say less.
 *
 * Read first: sim_race_access. */
#pragma once

#include "exec.h"

enum {
    SIM_ATOMIC = 1,      /* an atomic, or volatile */
    SIM_WARP_READS = 2,  /* several lanes of the warp of `thread` */
    SIM_BLOCK_READS = 4, /* threads of several warps */
    SIM_GRID_READS = 8   /* several blocks */
};

typedef struct sim_access {
    uint32_t launch; /* 0: none. In shared memory, which each block has anew, a number of the block */
    uint32_t block, time;
    uint16_t thread;
    uint8_t bytes; /* of the four, one bit each */
    uint8_t flags;
} sim_access;

struct sim_cell {
    sim_access write, read;
};

typedef enum sim_access_kind { SIM_READ, SIM_WRITE, SIM_UPDATE } sim_access_kind; /* the last: atomic */

/* One access; `cells` belong to `base`, `launch` is what such memory lives for. */
void sim_race_access(sim_cell *cells, uint32_t launch, uint64_t base, uint64_t at, unsigned bytes,
                     sim_access_kind kind, bool relaxed);
/* An atomic on the word at `at` by the thread that runs: it publishes, and sees what others published there.
 */
void sim_race_atomic(uint64_t at);
sim_cell *sim_race_cells(sim_region *r); /* made when first needed; NULL: no memory */
