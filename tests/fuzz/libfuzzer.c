/* libfuzzer.c - the targets under clang's libFuzzer (make fuzz): FUZZ_TARGET names one. */
#include "targets.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

static const fuzz_target *target;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    target = fuzz_find(getenv("FUZZ_TARGET"));
    if (!target) fprintf(stderr, "FUZZ_TARGET names none of the targets\n");
    return target ? 0 : 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    target->one(data, size);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    uint64_t r = seed;
    if (fuzz_below(&r, 64) == 0) size = 0; /* from a good input */
    if (size && fuzz_below(&r, 2))
        return LLVMFuzzerMutate(data, size, most < target->most ? most : target->most);
    return fuzz_mutate(target, data, size, most, &r);
}
