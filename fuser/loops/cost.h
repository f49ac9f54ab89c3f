/* cost.h - what kernels cost: arithmetic from their loops, time from the target profile. */
#pragma once

#include "../../src/device/profile.h"
#include "loops.h"

/* Of the shorter of memory and arithmetic, the part that does not hide behind the longer. */
#define FU_OVERLAP .25

/* Instructions for one element, counted for all elements of the program's loops. */
double fu_prog_work(const fu_prog *p, const tn_target *t);
/* Nanoseconds of a program by itself, whose operands lie so many bytes back; and how many of them its arithmetic takes
 * because loops are short or jump in memory. */
typedef struct fu_time {
    double ns, odd;
} fu_time;
fu_time fu_prog_time(const fu_prog *p, const tn_target *t, double footprint);

/* Nanoseconds to read so many bytes that were touched when `distance` bytes have been touched since, and to write them,
 * `past` the caches or not: what a copy takes beyond reading. */
double fu_read_ns(const tn_target_profile *r, double bytes, double distance);
double fu_write_ns(const tn_target_profile *r, double bytes, double distance, bool past);
/* Nanoseconds to write so many bytes so that they are read later, and to read them; `footprint` is what is
 * touched in between. */
double fu_store_ns(const tn_target *t, double bytes, double footprint);
double fu_load_ns(const tn_target *t, double bytes, double footprint);
/* Nanoseconds for so many instructions for one element. */
double fu_work_ns(const tn_target *t, double instructions);
