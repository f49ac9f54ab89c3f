/* schedule.c - learning rates as functions of the step number. */
#include "nn.h"

#include <math.h>

/* Returns how far a run of `total` steps is after its warm-up, in [0, 1]. */
static double progress(int64_t step, int64_t warmup, int64_t total)
{
    if (step >= total) return 1;
    return total > warmup ? (double)(step - warmup) / (double)(total - warmup) : 1;
}

static double rising(int64_t step, int64_t warmup, double base)
{
    return base * (double)(step + 1) / (double)warmup;
}

double tn_lr_cosine(int64_t step, int64_t warmup, int64_t total, double base, double final_lr)
{
    if (step < warmup) return rising(step, warmup, base);
    return final_lr +
           (base - final_lr) * (1 + cos(3.14159265358979323846 * progress(step, warmup, total))) / 2;
}

double tn_lr_linear(int64_t step, int64_t warmup, int64_t total, double base, double final_lr)
{
    if (step < warmup) return rising(step, warmup, base);
    return base + (final_lr - base) * progress(step, warmup, total);
}

double tn_lr_steps(int64_t step, int64_t warmup, int64_t every, double factor, double base)
{
    if (step < warmup) return rising(step, warmup, base);
    return base * pow(factor, every > 0 ? (double)((step - warmup) / every) : 0);
}
