/* tensor.c - the program `tensor`: looks at files, compiled kernels, the machine, and at what a program of
 * the library makes of its steps. One row of the table for each command. Start with main. */
#include "tool.h"

#include <string.h>

static const struct {
    const char *name, *arguments, *what;
    tool_command *run;
} commands[] = {
    {"doctor", "", "what was found on this machine and will be used", tool_doctor},
    {"inspect", "FILE..",
     "what is in a file: weights, checkpoint, .npy, IDX, plan dump,\nkernel; or in a folder of such",
     tool_inspect},
    {"convert", "IN.. OUT [--tensor NAME] [--layout pytorch|libtensor]\n[--flatten NAME:HxWxC]..",
     "safetensors to .npy (OUT a file, or a folder/) and back;\n"
     "--tensor takes one, --layout says how images are to lie in OUT,\n"
     "--flatten which weight stands behind the flatten of an image",
     tool_convert},
    {"compare", "A B [--tolerance X]",
     "the largest differences of two files, tensor by tensor; where one\nis above X, 0 unless given, the "
     "exit status is 1",
     tool_compare},
    {"explain", "PROGRAM [ARGUMENT..]", "runs a program and prints tn_explain of its last training step",
     tool_explain},
    {"report", "FILE PROGRAM [ARGUMENT..]", "the same as a .html, .json, .txt or .plan file", tool_report},
    {"plan", "PROGRAM [ARGUMENT..] | DUMP",
     "its kernels, one a line; or those of what TENSOR_DUMP has written", tool_plan},
    {"cache", "list|verify|clear [--dir DIR]", "compiled kernels, of this user unless DIR says where",
     tool_cache},
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
    tool_say("%s", what);
    return TOOL_USAGE;
}

char *tool_option(int *n, char **arg, const char *option)
{
    for (int i = 0; i + 1 < *n; i++) {
        if (strcmp(arg[i], option)) continue;
        char *value = arg[i + 1];
        *n -= 2;
        memmove(arg + i, arg + i + 2, (size_t)(*n - i) * sizeof(*arg));
        return value;
    }
    return NULL;
}

int tool_operands(int n, char **arg, int least, int most, const char *wanted)
{
    for (int i = 0; i < n; i++)
        if (!strncmp(arg[i], "--", 2)) {
            tool_say("%s: no option here, or one without its value", arg[i]);
            return TOOL_USAGE;
        }
    return n < least || n > most ? tool_misused(wanted) : TOOL_OK;
}

/* The text with its further lines so far to the right. */
static void put_lines(FILE *out, const char *text, int indent)
{
    for (const char *c = text; *c; c++)
        fprintf(out, *c == '\n' ? "\n%*s" : "%c", *c == '\n' ? indent : *c, "");
    putc('\n', out);
}

static void usage(FILE *out, int i)
{
    fprintf(out, "usage: tensor %s ", commands[i].name);
    put_lines(out, commands[i].arguments, 15);
}

static bool is_help(const char *arg)
{
    return !strcmp(arg, "--help") || !strcmp(arg, "-h") || !strcmp(arg, "help");
}

static int help(void)
{
    printf("usage: tensor COMMAND [ARGUMENT..]\n\n");
    for (int i = 0; i < COMMANDS; i++) {
        printf("  %-8s ", commands[i].name);
        put_lines(stdout, commands[i].arguments, 11);
        printf("             ");
        put_lines(stdout, commands[i].what, 13);
    }
    printf("\nExit status: 0; 1 where files differ or something is damaged; 2 where a file\n"
           "cannot be used; 64 for wrong arguments. --version says which libtensor this is.\n");
    return TOOL_OK;
}

int main(int n, char **arg)
{
    if (n < 2) return tool_misused("no command (tensor --help lists them)");
    if (is_help(arg[1])) return help();
    if (!strcmp(arg[1], "--version")) return printf("libtensor %s\n", tn_version()) < 0;
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(arg[1], commands[i].name)) continue;
        const bool asked = n == 3 && is_help(arg[2]) && strcmp(arg[2], "help");
        const int status = asked ? TOOL_OK : commands[i].run(n - 2, arg + 2);
        if (asked || status == TOOL_USAGE) usage(asked ? stdout : stderr, i);
        if (asked) put_lines(stdout, commands[i].what, 0);
        if (fflush(stdout) || ferror(stdout)) return tool_say("the output cannot be written");
        return status;
    }
    tool_say("there is no command '%s' (tensor --help lists them)", arg[1]);
    return TOOL_USAGE;
}
