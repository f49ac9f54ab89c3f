/* sheet.c - cuts a PNG sheet of equal tiles into images. */
#include "nn.h"

#include <string.h>

enum { MOST_FILE = 1 << 28 };

static int cut(const char *path, const nn_picture *sheet, int64_t n, int64_t h, int64_t w, nn_images *out,
               nn_why *why)
{
    const int64_t columns = sheet->w / w, tiles = columns * (sheet->h / h);
    if (sheet->w % w || sheet->h % h)
        return tn_nn_why(why, TN_E_FORMAT, "%s: %lld x %lld pixels are not tiles of %lld x %lld", path,
                         (long long)sheet->w, (long long)sheet->h, (long long)w, (long long)h);
    if (tiles < n)
        return tn_nn_why(why, TN_E_FORMAT, "%s: %lld tiles for %lld labels", path, (long long)tiles,
                         (long long)n);
    *out = (nn_images){.n = n, .h = h, .w = w, .pixels = tn_malloc((size_t)(n * h * w))};
    if (!out->pixels) return tn_nn_why(why, TN_E_NOMEM, "%s: no memory for %lld tiles", path, (long long)n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t y = 0; y < h; y++)
            memcpy(out->pixels + (i * h + y) * w,
                   sheet->pixels + (i / columns * h + y) * sheet->w + i % columns * w, (size_t)w);
    return TN_OK;
}

int tn_nn_sheet(const char *path, int64_t n, int64_t h, int64_t w, nn_images *out, nn_why *why)
{
    unsigned char *file = NULL;
    nn_picture sheet = {.pixels = NULL};
    size_t size = 0;
    int status = tn_nn_slurp(path, MOST_FILE, &file, &size, why);
    if (!status) status = tn_nn_decode(path, file, size, 1, &sheet, why);
    if (!status) status = cut(path, &sheet, n, h, w, out, why);
    tn_free_mem(sheet.pixels);
    tn_free_mem(file);
    return status;
}
