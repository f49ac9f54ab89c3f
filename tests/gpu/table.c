/* table.c - writes tests/gpu/KERNELS.md: what NVRTC makes of our own kernels on tensor cores (make
 * cuda-kernels).
 *
 * It compiles for sm_80 and sm_90, a second or so a kernel, and needs no GPU. Exit status: 0 written, 1 a
 * kernel does not compile, warns or spills, 2 there is no NVRTC. With an argument: only of kernels whose name
 * has it. Read first: main.
 */
#include "tests/gpu/table.h"
#include "tests/gpu/table_attention.h"
#include "tests/gpu/table_conv.h"

static table_family *const families[] = {conv_row, direct_row, attention_row};

static const char head[] = "# Our own kernels on tensor cores\n"
                           "\n"
                           "Written by `make cuda-kernels`. Registers, spills: of the real NVRTC, for sm_80 "
                           "and sm_90. Shared memory: of a\n"
                           "block. Blocks: that a multiprocessor of an H100 holds at once, by registers, "
                           "shared memory and threads. flop/B:\n"
                           "operations for each byte that a block brings from L2 (its tile's own arithmetic "
                           "intensity), and for each that\n"
                           "its warps read from shared memory.\n"
                           "\n"
                           "Share of peak is a **prediction, not a measurement**: the time in which tensor "
                           "cores are busy over the whole, by\n"
                           "the model that chooses the tile (fuser/conv_tile.c for convolutions, "
                           "fuser/attention_cuda.c for attention). It takes "
                           "the longest of three rates for a\n"
                           "multiprocessor's clock, 1024 multiply-adds of 16 bits (512 of TF32), 128 bytes "
                           "from shared memory, 28 bytes from\n"
                           "L2, and adds a barrier for each buffer, the results' way to memory, the last "
                           "turn of blocks that does not fill\n"
                           "the GPU, and a penalty below 8 warps. The peak is that of `mma.sync`, half of "
                           "what an H100 does with `wgmma`;\n"
                           "three TF32 products for one of f32 count as three. Convolutions: of 64 images, "
                           "56 x 56, 128 channels to 256, 3 x 3.\n"
                           "\n"
                           "| kernel | of | tile | threads | shared B | blocks | registers sm_80 | sm_90 | "
                           "spilled B | flop/B L2 | flop/B shared "
                           "| share of peak |\n"
                           "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";

int main(int argc, char **argv)
{
    static const char *const arch[2] = {"sm_80", "sm_90"};
    nvrtc n;
    int bad = 0;
    table_row row;
    if (!nvrtc_open(&n)) {
        fprintf(stderr, "cuda-kernels: there is no NVRTC here\n");
        return 2;
    }
    fputs(head, stdout);
    for (size_t f = 0; f < sizeof families / sizeof *families; f++)
        for (int i = 0; families[f](i, &row); i++) {
            if (row.text && argc > 1 && !strstr(row.kernel, argv[1])) {
                free(row.text);
                continue;
            }
            if (!row.text) continue;
            table_result r[2];
            for (int a = 0; a < 2; a++) {
                r[a] = table_compile(&n, &row, arch[a]);
                if (r[a].status || r[a].warned || r[a].spilled) {
                    fprintf(stderr, "%s, %s, %s, %s:\n%s\n", row.kernel, row.dtype, row.tile, arch[a],
                            r[a].log);
                    bad = 1;
                }
                free(r[a].log);
            }
            printf("| %s | %s | %s | %d | %lld | %d | %d | %d | %d | ", row.kernel, row.dtype, row.tile,
                   row.threads, (long long)row.shared, table_resident(&row, r[1].registers), r[0].registers,
                   r[1].registers, r[0].spilled + r[1].spilled);
            if (row.share > 0)
                printf("%.0f | %.0f | %.0f %% |\n", row.per_l2, row.per_shared, 100 * row.share);
            else
                printf("- | - | no tensor cores |\n");
            free(row.text);
        }
    return bad;
}
