/* warp.c - what the lanes of a warp do together.
 *
 * Lanes that call the same operation with the same mask in the same line form a group; it goes on when every
 * lane of the mask that has not left the kernel has come. A lane whose mask leaves itself out, and a value
 * taken from a lane that is not in the group, are faults of the kernel: on hardware both are undefined.
 *
 * Read first: cusim_collective. */
#include "exec.h"

static sim_thread *lane_of(const sim_thread *t, int lane)
{
    unsigned index = t->index / 32 * 32 + (unsigned)lane;
    return index < block.n_threads ? &block.thread[index] : NULL;
}

static bool same_group(const sim_thread *a, const sim_thread *b)
{
    return b->state == SIM_AT_WARP && a->kind == b->kind && a->lanes == b->lanes && a->line == b->line;
}

/* The lanes that have come, or 0 while one is missing. */
static unsigned group_of(const sim_thread *t)
{
    unsigned come = 0;
    for (int l = 0; l < 32; l++) {
        if (!(t->lanes >> l & 1)) continue;
        const sim_thread *u = lane_of(t, l);
        if (!u || u->state == SIM_ENDED) continue;
        if (!same_group(t, u)) return 0;
        come |= 1u << l;
    }
    return come;
}

/* The lane that t takes its value from; its own where the one it names lies outside of its part of the warp.
 */
static int source(const sim_thread *t)
{
    const int lane = (int)(t->index % 32), width = t->width, base = lane / width * width;
    if (t->kind == SIM_SHUFFLE) return base + (int)((unsigned)t->lane % (unsigned)width);
    const int wanted = t->kind == SIM_SHUFFLE_UP     ? lane - t->lane
                       : t->kind == SIM_SHUFFLE_DOWN ? lane + t->lane
                                                     : lane ^ t->lane; /* may go down into another part */
    const bool below = wanted < base && t->kind != SIM_SHUFFLE_XOR;
    return below || wanted >= base + width ? lane : wanted;
}

static void finish(sim_thread *t, unsigned come)
{
    unsigned votes = 0;
    if (t->kind >= SIM_MMA_TF32) {
        if (come != 0xffffffffu)
            sim_kernel_fault(TN_CU_LAUNCH_FAILED,
                             "the matrix operation in line %d is for all lanes of a warp, here only 0x%08x",
                             t->line, come);
        sim_warp_matrix(t->kind, lane_of(t, 0));
    }
    for (int l = 0; l < 32; l++)
        if (come >> l & 1 && lane_of(t, l)->value) votes |= 1u << l;
    for (int l = 0; l < 32; l++) {
        if (!(come >> l & 1)) continue;
        sim_thread *u = lane_of(t, l);
        if (u->kind == SIM_BALLOT) u->result = votes;
        if (u->kind == SIM_ANY) u->result = votes != 0;
        if (u->kind == SIM_ALL) u->result = votes == come;
        if (u->kind < SIM_SHUFFLE || u->kind > SIM_SHUFFLE_XOR) continue;
        const int from = source(u);
        if (!(come >> from & 1)) {
            block.now = u;
            sim_kernel_fault(TN_CU_LAUNCH_FAILED,
                             "the shuffle in line %d takes the value of lane %d, which does not take part "
                             "(lanes 0x%08x of mask 0x%08x)",
                             u->line, from, come, u->lanes);
        }
        u->result = lane_of(t, from)->value;
    }
    sim_order_share(lane_of(t, 0), come);
    block.clock++;
    for (int l = 0; l < 32; l++)
        if (come >> l & 1) {
            sim_thread *u = lane_of(t, l);
            block.at_warp--;
            u->time = u->warp_time = block.clock;
            sim_make_ready(u);
        }
}

void sim_warp_lane_ended(const sim_thread *t)
{
    for (int l = 0; l < 32; l++) {
        sim_thread *u = lane_of(t, l);
        unsigned come = u && u->state == SIM_AT_WARP ? group_of(u) : 0;
        if (come) finish(u, come);
    }
}

SIM_API uint64_t cusim_collective(int kind, int line, unsigned lanes, uint64_t value, int lane, int width);

uint64_t cusim_collective(int kind, int line, unsigned lanes, uint64_t value, int lane, int width)
{
    sim_thread *self = block.now;
    self->kind = (sim_collective)kind;
    self->line = line;
    self->lanes = lanes;
    self->value = value;
    self->lane = lane;
    self->width = width;
    if (!(lanes >> self->index % 32 & 1))
        sim_kernel_fault(TN_CU_LAUNCH_FAILED,
                         "the warp operation in line %d has a mask (0x%08x) without the "
                         "lane that calls it",
                         line, lanes);
    if (width < 1 || width > 32 || (width & (width - 1)))
        sim_kernel_fault(TN_CU_LAUNCH_FAILED, "the shuffle in line %d has a width of %d", line, width);
    self->state = SIM_AT_WARP;
    block.at_warp++;
    unsigned come = group_of(self);
    if (come) finish(self, come);
    sim_wait(SIM_AT_WARP, line);
    return self->result;
}
