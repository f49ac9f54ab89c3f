/* op_rows.h - each elementwise row as a case_fn, row_NAME. */
#pragma once

#include "tests/op_cases.h"

#define TN_UNARY(name, ...)                                                                                  \
    static tn_tensor *row_##name(tn_session *s, tn_tensor **x)                                               \
    {                                                                                                        \
        (void)s;                                                                                             \
        return tn_##name(x[0]);                                                                              \
    }
#define TN_BINARY(name, ...)                                                                                 \
    static tn_tensor *row_##name(tn_session *s, tn_tensor **x)                                               \
    {                                                                                                        \
        (void)s;                                                                                             \
        return tn_##name(x[0], x[1]);                                                                        \
    }
#define TN_TERNARY(name, ...)                                                                                \
    static tn_tensor *row_##name(tn_session *s, tn_tensor **x)                                               \
    {                                                                                                        \
        (void)s;                                                                                             \
        return tn_##name(x[0], x[1], x[2]);                                                                  \
    }
#include "src/core/ops.def"
