/* sheet.c - cuts a PNG sheet of equal tiles into images. The decoder is stb_image, kept to PNG in memory. */
#include "nn.h"

#include <string.h>

#ifdef TN_HAVE_STB
#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_ONLY_PNG
#define STBI_NO_STDIO
#define STBI_MALLOC(size)     tn_malloc(size)
#define STBI_REALLOC(p, size) tn_realloc(p, size)
#define STBI_FREE(p)          tn_free_mem(p)
/* Not popped: gcc reports unused static functions at the end of the file. */
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wconversion"
#include <stb/stb_image.h>

enum { MOST_FILE = 1 << 28, MOST_SIDE = 1 << 16 };
/* Pixels of one bit, packed as well as deflate can: a header that wants more of a byte is lying. */
enum { MOST_PIXELS = 8 * 1032 };

int tn_nn_sheet(const char *path, int64_t n, int64_t h, int64_t w, nn_images *out, nn_why *why)
{
    unsigned char *file = NULL, *sheet = NULL, *pixels = NULL;
    size_t size = 0;
    int width = 0, height = 0, channels = 0;
    int status = tn_nn_slurp(path, MOST_FILE, &file, &size, why);
    if (status) return status;
    if (!stbi_info_from_memory(file, (int)size, &width, &height, &channels)) {
        status = tn_nn_why(why, TN_E_FORMAT, "%s: not a PNG image (%s)", path, stbi_failure_reason());
    } else if ((uint64_t)width * (uint64_t)height / MOST_PIXELS > size) {
        status = tn_nn_why(why, TN_E_FORMAT, "%s: %d x %d pixels are more than a file of this size holds",
                           path, width, height);
    } else if (width > MOST_SIDE || height > MOST_SIDE || width % w || height % h) {
        status = tn_nn_why(why, TN_E_FORMAT, "%s: %d x %d pixels are not tiles of %d x %d", path, width,
                           height, (int)w, (int)h);
    } else if ((width / w) * (height / h) < n) {
        status = tn_nn_why(why, TN_E_FORMAT, "%s: %lld tiles for %lld labels", path,
                           (long long)((width / w) * (height / h)), (long long)n);
    } else if (!(sheet = stbi_load_from_memory(file, (int)size, &width, &height, &channels, 1))) {
        const char *reason = stbi_failure_reason();
        status = !strcmp(reason, "outofmem")
                     ? tn_nn_why(why, TN_E_NOMEM, "%s: no memory to unpack it", path)
                     : tn_nn_why(why, TN_E_FORMAT, "%s: corrupt or cut off (%s)", path, reason);
    } else if (!(pixels = tn_malloc((size_t)(n * h * w)))) {
        status = tn_nn_why(why, TN_E_NOMEM, "%s: no memory for %lld tiles", path, (long long)n);
    }
    if (!status) {
        int64_t columns = width / w;
        for (int64_t i = 0; i < n; i++)
            for (int64_t y = 0; y < h; y++)
                memcpy(pixels + (i * h + y) * w, sheet + (i / columns * h + y) * width + i % columns * w,
                       (size_t)w);
        *out = (nn_images){.n = n, .h = h, .w = w, .pixels = pixels};
    }
    tn_free_mem(sheet);
    tn_free_mem(file);
    return status;
}

#else

int tn_nn_sheet(const char *path, int64_t n, int64_t h, int64_t w, nn_images *out, nn_why *why)
{
    (void)n, (void)h, (void)w, (void)out;
    return tn_nn_why(why, TN_E_UNSUPPORTED, "%s: this build has no PNG reader (stb_image); use IDX files",
                     path);
}

#endif
