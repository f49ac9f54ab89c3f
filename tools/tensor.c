/* tensor.c - the program `tensor`: looks at files, compiled kernels, the machine, and at what a program of
 * the library makes of its steps. One row of the table for each command. Start with main. */
#include "tool.h"

#include <ctype.h>
#include <string.h>

static const struct {
    const char *name, *arguments, *what;
    tool_command *run;
} commands[] = {
    {"doctor", "", "what was found on this machine and will be used", tool_doctor},
    {"inspect", "FILE..",
     "what is in a file: weights, checkpoint, .npy, IDX, plan dump, kernel; or in a folder of such",
     tool_inspect},
    {"convert", "IN.. OUT",
     "safetensors to .npy (OUT a file, or a folder/) and back; --tensor NAME takes one; --layout to and from "
     "PyTorch's",
     tool_convert},
    {"compare", "A B", "the largest differences of two files, tensor by tensor; --tolerance X (0)",
     tool_compare},
    {"explain", "PROGRAM ARGUMENT..", "runs a program and prints tn_explain of its last training step",
     tool_explain},
    {"report", "FILE PROGRAM ARGUMENT..", "the same as a .html, .json, .txt or .plan file", tool_report},
    {"plan", "PROGRAM ARGUMENT.. | DUMP", "its kernels, one a line; or those of what TENSOR_DUMP has written",
     tool_plan},
    {"cache", "list|verify|clear", "compiled kernels; --dir DIR in place of this user's cache", tool_cache},
};
enum { COMMANDS = sizeof(commands) / sizeof(*commands) };

const char *tool_clean(const char *text)
{
    static char place[4][1200];
    static unsigned next;
    char *out = place[next++ % 4];
    size_t n = 0;
    for (; *text && n + 1 < sizeof(place[0]); text++)
        out[n++] = (unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text;
    out[n] = 0;
    return out;
}

int tool_say(const char *format, ...)
{
    char line[1100];
    va_list args;
    va_start(args, format);
    tn_vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    fprintf(stderr, "tensor: %s\n", tool_clean(line));
    return TOOL_TROUBLE;
}

int tool_misused(const char *what)
{
    tool_say("%s (tensor --help lists the commands)", what);
    return TOOL_USAGE;
}

static int help(void)
{
    printf("usage: tensor COMMAND [ARGUMENT..]\n\n");
    for (int i = 0; i < COMMANDS; i++)
        printf("  %-8s %-26s\n             %s\n", commands[i].name, commands[i].arguments, commands[i].what);
    printf("\nExit status: 0; 1 where files differ or something is damaged; 2 where a file cannot be used; "
           "64 for wrong\n"
           "arguments. --version says which libtensor this is.\n");
    return TOOL_OK;
}

int main(int n, char **arg)
{
    if (n < 2) return tool_misused("no command");
    if (!strcmp(arg[1], "--help") || !strcmp(arg[1], "help")) return help();
    if (!strcmp(arg[1], "--version")) return printf("libtensor %s\n", tn_version()) < 0;
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(arg[1], commands[i].name)) continue;
        const int status = commands[i].run(n - 2, arg + 2);
        if (fflush(stdout) || ferror(stdout)) return tool_say("the output cannot be written");
        return status;
    }
    tool_say("there is no command '%s'", arg[1]);
    return tool_misused("see there");
}
