/* placed.h - TN_PLACED, which is public: errors of a function that is no operator name the caller's line. */
#include "../../include/tensor_extend.h"
