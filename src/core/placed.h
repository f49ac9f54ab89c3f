/* placed.h - tn_NAME_at for a public function that is no operator: tn_NAME, where errors name the caller's
 * line (tn_place_begin).
 *
 *     TN_PLACED(int, save, s, (s, path), tn_session *s, const char *path)
 */
#ifndef TN_PLACED_H
#define TN_PLACED_H

#include "../../include/tensor.h"

#define TN_PLACED(type, name, session, args, ...)                                                            \
    type tn_##name##_at(__VA_ARGS__, const char *file, int line)                                             \
    {                                                                                                        \
        tn_session *placed = (session);                                                                      \
        tn_place_begin(placed, file, line);                                                                  \
        type result = tn_##name args;                                                                        \
        tn_place_end(placed);                                                                                \
        return result;                                                                                       \
    }

#endif
