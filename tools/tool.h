/* tool.h - what the files of the program `tensor` share. Its commands are a table in tensor.c; arrays.c opens
 * files of numbers and inspect.c, compare.c and convert.c work on them, cache.c looks at compiled kernels,
 * program.c at what a program of the library does, doctor.c at the machine. It takes the library's own
 * readers (nn/nn.h) and kernel cache, so that each format is known in one place. Read first: tensor.c. */
#pragma once

#include "../nn/nn.h"

/* Exit statuses. */
enum { TOOL_OK, TOOL_DIFFERS, TOOL_TROUBLE, TOOL_USAGE = 64 };

/* A command: gets the arguments behind its name, ending with NULL; returns an exit status. */
typedef int tool_command(int n, char **arg);
tool_command tool_inspect, tool_convert, tool_compare, tool_explain, tool_report, tool_plan, tool_cache,
    tool_doctor;

/* A line to stderr, "tensor: ..", in which nothing moves the cursor, whatever a file has put into a name.
 * Returns TOOL_TROUBLE. */
int tool_say(const char *format, ...) TN_FORMAT(1, 2);
/* What is wrong with the arguments; returns TOOL_USAGE, for which main says how the command is called. */
int tool_misused(const char *what);
/* Takes an option and its value out of the arguments, wherever among them they stand. The value; NULL: it is
 * not there. */
char *tool_option(int *n, char **arg, const char *option);
/* TOOL_OK where what is left is `least` to `most` files or words and no option; else says so, or what is
 * wanted. */
int tool_operands(int n, char **arg, int least, int most, const char *wanted);
/* The text with ? for what is no character to print, in one of a few places that serve in turn. */
const char *tool_clean(const char *text);

/* ---- arrays.c: files of named arrays ---- */

typedef struct tool_array {
    char *name;
    const nn_type *type;
    int ndim;
    int64_t shape[TN_MAX_DIMS], n;
    const unsigned char *data;
} tool_array;

typedef struct tool_file {
    const char *path, *kind; /* kind: "safetensors" */
    int n;
    tool_array *array;
    nn_safetensors weights; /* what holds the data, one of these three */
    nn_array npy;
    unsigned char *idx;
} tool_file;

/* What kind of file it is by its first bytes: "safetensors", "npy", "idx" (also packed), "text", "kernel",
 * "folder" or "unknown"; NULL where it cannot be read, which is said. */
const char *tool_kind(const char *path);
/* TOOL_OK, or TOOL_TROUBLE, which is said. Close it in either case. */
int tool_open(const char *path, tool_file *f);
void tool_close(tool_file *f);
const tool_array *tool_find(const tool_file *f, const char *name);
/* Element i; false: of a type that cannot be told as a number here. */
bool tool_number(const tool_array *a, int64_t i, long double *out);
void tool_shape(const tool_array *a, char out[160]); /* "[64, 3, 3, 1]" */

int tool_cache_list(const char *dir); /* cache.c */
