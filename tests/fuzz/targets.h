/* targets.h - the list of fuzz targets. */
#pragma once

#include "calls.h"
#include "notes.h"
#include "readers.h"

/* Memory that is not there is an error here, and no finding; what is freed is kept for a while, but for fewer
 * pages than make most of the time that of page faults. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1:max_allocation_size_mb=2000:abort_on_error=1:quarantine_size_mb=16";
}

static const fuzz_target *const fuzz_targets[] = {
    &fuzz_checkpoint, &fuzz_idx,     &fuzz_sheet,    &fuzz_image,   &fuzz_cifar,       &fuzz_npy,
    &fuzz_text,       &fuzz_profile, &fuzz_settings, &fuzz_formula, &fuzz_calls_target};
enum { FUZZ_TARGETS = sizeof fuzz_targets / sizeof *fuzz_targets };

static const fuzz_target *fuzz_find(const char *name)
{
    for (int i = 0; i < FUZZ_TARGETS; i++)
        if (name && !strcmp(fuzz_targets[i]->name, name)) return fuzz_targets[i];
    return NULL;
}
