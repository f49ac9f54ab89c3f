/* range_max.h - the largest of the numbers that ranges of places 0 .. n - 1 have been raised to. Both
 * operations take time by the logarithm of n. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct tn_range_max {
    int n;
    struct tn_range_max_node {
        uint64_t over, within; /* what all of the node's places are raised to; the most that any of them is */
        int over_by, within_by;
    } * node;
} tn_range_max;

bool tn_range_max_open(tn_range_max *r, int n); /* all 0, by -1. False: no memory */
void tn_range_max_close(tn_range_max *r);
/* No place of [first, last] is less than value from now on; those that were are so `by`. */
void tn_range_raise(tn_range_max *r, int first, int last, uint64_t value, int by);
/* The most in [first, last], and by whom, unless by is NULL. 0 where there are no such places. */
uint64_t tn_range_most(const tn_range_max *r, int first, int last, int *by);
