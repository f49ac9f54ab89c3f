/* table.c - writes what NVRTC makes of our own kernels on tensor cores (make cuda-kernels:
 * build/gpu/KERNELS.md).
 *
 * It compiles for sm_80 and sm_90a, a second or so a kernel, and needs no GPU. Exit status: 0 written, 1 a
 * kernel does not compile, warns or spills, 2 there is no NVRTC. With an argument: only of kernels whose name
 * has it. Read first: write_rows.
 */
#include <stdbool.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/table.h"
#include "tests/gpu/table_attention.h"
#include "tests/gpu/table_conv.h"

static table_family *const families[] = {conv_row, direct_row, few_row, attention_row};

static const char head[] =
    "# Our own kernels on tensor cores\n"
    "\n"
    "Written by `make cuda-kernels`. Registers, spills: of the real NVRTC, for sm_80 and sm_90a. Shared "
    "memory: of a\n"
    "block. Blocks: that a multiprocessor of an H100 holds at once, by registers, shared memory and threads. "
    "flop/B:\n"
    "operations for each byte that a block brings from L2 (its tile's own arithmetic intensity), and for "
    "each that\n"
    "its warps read from shared memory.\n"
    "\n"
    "Share of peak is a **prediction, not a measurement**: the time in which tensor cores are busy over the "
    "whole, by\n"
    "the model that chooses the tile (fuser/loops/conv_tile.c for convolutions, fuser/text/attention_cuda.c "
    "for "
    "attention). It\n"
    "takes the longest of four rates for a multiprocessor's clock, 1024 multiply-adds of 16 bits (512 of "
    "TF32), 4\n"
    "instructions, 128 bytes from shared memory, 28 bytes from L2 (40 for attention, 44 by warpgroups but "
    "for weights), and adds a barrier for "
    "each buffer,\n"
    "the results' way to memory, the last turn of blocks that does not fill the GPU, and a penalty below 8 "
    "warps; what\n"
    "device memory takes for all operands is the least. Bound: which of these is the longest. Instructions "
    "are those of\n"
    "the assembler (`cuobjdump -sass`): a buffer of 128 x 64 x 32 is 490 of a warp with one product of TF32, "
    "64 of which\n"
    "are HMMA, and 906 with three, 192 of them; rounding a number takes 2, splitting it 5. The peak is that "
    "of "
    "`mma.sync`, half\n"
    "of what an H100 does with `wgmma`, and that of `wgmma` (989 TFLOP/s) where a tile says so; three TF32 "
    "products for one\n"
    "of f32 count as three. A turn of `wgmma`, for a warp 16 x 128 scores of head 128, takes a quarter of a "
    "multiprocessor\n"
    "1024 cycles of products, 512 of exponentials, 700 instructions (16 HGMMA; the assembler's text) and, of "
    "a block of 8\n"
    "warps, 819 for its part of 64 KiB from L2: 1024 / (1024 + (512 + 706 + 819) / 4) is 67 %.\n"
    "\n"
    "Convolutions are of 64 images, 56 x 56, 128 channels to 256, 3 x 3; a product that is one kernel with "
    "what follows\n"
    "it is such a kernel, too. Strides, padding, dilation and the window are arguments, so one kernel serves "
    "all of\n"
    "them; a prologue is a batch norm and relu. Sizes of tiles that are missing in a row's family have no "
    "form there:\n"
    "their sums, or places in the image, would not find room. Attention is of 8 x 16 heads of 2048 queries "
    "and keys, or\n"
    "of few blocks where the row says so: then tiles are smaller, and blocks share a query. Every "
    "combination of\n"
    "attention's flags for both GPUs is compiled by `build/tests/test_cuda_attention_tiles full "
    "test_registers`.\n"
    "\n"
    "| kernel | of | tile | threads | shared B | blocks | registers sm_80 | sm_90a | spilled B | flop/B L2 | "
    "flop/B shared "
    "| share of peak | bound |\n"
    "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n";

/* The rows that are number `which` of every `of`, a line each, into `to`: false where a kernel does not
 * compile, warns or spills. */
static bool write_rows(FILE *to, const char *filter, int which, int of)
{
    static const char *const arch[2] = {"sm_80", "sm_90a"};
    nvrtc n;
    table_row row;
    bool good = nvrtc_open(&n);
    int number = 0;
    for (size_t f = 0; f < sizeof families / sizeof *families && good; f++)
        for (int i = 0; families[f](i, &row); i++) {
            if (!row.text || !strstr(row.kernel, filter) || number++ % of != which) {
                free(row.text);
                continue;
            }
            nvrtc_said r[2] = {{0}};
            char older[16] = "-"; /* what is by warpgroups is not for sm_80 */
            for (int a = row.wgmma; a < 2; a++) {
                char *log;
                if (!cuda_fits(&n, row.text, arch[a], &r[a], &log)) {
                    fprintf(stderr, "%s, %s, %s, %s:\n%s\n", row.kernel, row.dtype, row.tile, arch[a], log);
                    good = false;
                }
                free(log);
            }
            if (!row.wgmma) snprintf(older, sizeof older, "%ld", r[0].registers);
            fprintf(to, "| %s | %s | %s | %d | %lld | %ld | %s | %ld | %ld | ", row.kernel, row.dtype,
                    row.tile, row.threads, (long long)row.shared, table_resident(&row, r[1].registers), older,
                    r[1].registers, r[0].spilled_bytes + r[1].spilled_bytes);
            if (row.share > 0)
                fprintf(to, "%.0f | %.0f | %.0f %% | %s |\n", row.per_l2, row.per_shared, 100 * row.share,
                        row.bound);
            else
                fprintf(to, "- | - | no tensor cores | %s |\n", row.bound);
            free(row.text);
        }
    return !fflush(to) && good;
}

/* One process a processor, each of which has every so many rows; their lines in turn, as the rows stand. */
int main(int argc, char **argv)
{
    enum { MOST = 64 };
    const char *filter = argc > 1 ? argv[1] : "";
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    const int of = processors < 1 ? 1 : processors > MOST ? MOST : (int)processors;
    FILE *lines[MOST];
    pid_t worker[MOST];
    nvrtc n;
    bool good = true;
    char line[1024];
    if (!nvrtc_open(&n)) {
        fprintf(stderr, "cuda-kernels: there is no NVRTC here\n");
        return 2;
    }
    fputs(head, stdout);
    fflush(stdout);
    for (int w = 0; w < of; w++) {
        lines[w] = tmpfile();
        worker[w] = lines[w] ? fork() : -1;
        if (worker[w] < 0) {
            perror("cuda-kernels");
            return 1;
        }
        if (!worker[w]) _exit(!write_rows(lines[w], filter, w, of));
    }
    for (int w = 0; w < of; w++) {
        int status = 1;
        good = waitpid(worker[w], &status, 0) == worker[w] && !status && good;
        rewind(lines[w]);
    }
    for (int number = 0; fgets(line, sizeof line, lines[number % of]); number++) fputs(line, stdout);
    return !good;
}
