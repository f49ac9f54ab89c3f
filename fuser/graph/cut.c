/* cut.c - why two nodes with an edge between them are computed by different kernels, in words (plan.h). */
#include "../plan.h"

static const struct reason {
    bool removable;
    const char *text, *remedy;
} reason[] = {
#define TN_X(name, removable, text, remedy) {removable, text, remedy},
    TN_CUT_REASONS(TN_X)
#undef TN_X
};

static const struct reason *reason_of(tn_cut_reason r)
{
    return &reason[(size_t)r < sizeof reason / sizeof *reason ? r : TN_CUT_NONE];
}

const char *tn_cut_text(tn_cut_reason r) { return reason_of(r)->text; }

const char *tn_cut_remedy(tn_cut_reason r) { return reason_of(r)->remedy; }

bool tn_cut_removable(tn_cut_reason r) { return reason_of(r)->removable; }
