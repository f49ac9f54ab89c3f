/* why.c - the first reason why a file cannot be used. It stands alone: readers are fuzzed without a session.
 */
#include "nn.h"

int tn_nn_why(nn_why *why, int status, const char *fmt, ...)
{
    if (!why->status) {
        va_list args;
        va_start(args, fmt);
        tn_vsnprintf(why->text, sizeof(why->text), fmt, args);
        va_end(args);
        why->status = status;
    }
    return status;
}
