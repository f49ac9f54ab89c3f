/* formula.h - a formula of one's own, checked when it is defined and spelled out in rows of ops.def when it
 * is applied (formula.c). Read first: tn_formula_read. */
#pragma once

#include "../core/build.h"
#include "../core/fail.h"

enum { TN_FORMULA_NAMES = 2 * TN_MAX_ARGS + 2, TN_FORMULA_MOST = 256, TN_FORMULA_TEXT = 4096 };

/* What a formula computes, as a stack machine would: each one takes its operands off the stack. */
typedef struct tn_formula {
    int n;
    struct tn_formula_item {
        enum { TN_ITEM_NAME, TN_ITEM_NUMBER, TN_ITEM_ROW } kind;
        int name;     /* NAME: which of those the formula was read with */
        double value; /* NUMBER */
        tn_op op;     /* ROW */
    } item[TN_FORMULA_MOST];
    uint32_t uses; /* bit i: name i stands in it */
} tn_formula;

/* Reads `text`, whose names are the n given. false: `why` says what was wanted, at which position. */
bool tn_formula_read(const char *text, int n, const char *const *name, tn_formula *out, tn_errbuf *why);
/* Its rows over value[i], which stand for the names; numbers are of dtype d. */
tn_tensor *tn_formula_make(const tn_formula *f, tn_graph *g, tn_dtype d, tn_tensor *const *value);
