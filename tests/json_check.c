/* json_check.c - for the shell tests: exit status 0 if each FILE is one JSON value and nothing else. */
#include "tests/test.h"
#include <cjson/cJSON.h>

static int is_json(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) return 0;
    char *text = NULL;
    size_t n = 0, got;
    char block[4096];
    while ((got = fread(block, 1, sizeof block, f)) > 0) {
        char *more = realloc(text, n + got + 1);
        if (!more) break;
        text = more;
        for (size_t i = 0; i < got; i++) text[n++] = block[i];
        text[n] = 0;
    }
    int whole = !ferror(f) && feof(f);
    fclose(f);
    cJSON *value = text && whole ? cJSON_ParseWithOpts(text, NULL, 1) : NULL;
    cJSON_Delete(value);
    free(text);
    return value != NULL;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!is_json(argv[i])) {
            fprintf(stderr, "%s: not JSON\n", argv[i]);
            return 1;
        }
    return argc < 2;
}
