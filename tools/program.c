/* program.c - what a program of the library makes of its steps: it is run with TENSOR_REPORT set, which has
 * the library write a report as the program closes its session. `plan` also reads what TENSOR_DUMP has
 * written. Start with run. */
#include "tool.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Its exit status, or TOOL_TROUBLE where it cannot be started. */
static int run(char **program, const char *report)
{
    int status = 0;
    fflush(stdout);
    const pid_t pid = fork();
    if (!pid) {
        setenv("TENSOR_REPORT", report, 1);
        execvp(program[0], program);
        const char *why = strerror(errno);
        if (!strchr(program[0], '/') && !access(program[0], X_OK)) /* here, where execvp does not look */
            tool_say("%s cannot be started: %s (./%s can)", program[0], why, program[0]);
        else
            tool_say("%s cannot be started: %s", program[0], why);
        _exit(127);
    }
    if (pid < 0) return tool_say("no process for %s: %s", program[0], strerror(errno));
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    if (WIFSIGNALED(status)) return tool_say("%s was ended by signal %d", program[0], WTERMSIG(status));
    return WEXITSTATUS(status) == 127 ? TOOL_TROUBLE : WEXITSTATUS(status);
}

/* Whether mpirun or srun has started this as one of several processes, of which the first tells for all. */
static bool is_other_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (getenv(names[i])) return strcmp(getenv(names[i]), "0") != 0;
    return false;
}

static int nothing(const char *program)
{
    if (is_other_rank()) return TOOL_OK;
    return tool_say("%s has told of no step: it ran none, or ended without tn_close", program);
}

/* Runs it and prints the report of that ending. */
static int run_and_print(char **program, const char *ending)
{
    const char *place = getenv("TMPDIR");
    char folder[PATH_MAX], path[PATH_MAX + 16], line[4096];
    snprintf(folder, sizeof(folder), "%s/tensor-XXXXXX", place && *place ? place : "/tmp");
    if (!mkdtemp(folder)) return tool_say("%s: %s", folder, strerror(errno));
    snprintf(path, sizeof(path), "%s/step%s", folder, ending);
    int status = run(program, path);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof(line), f)) fputs(line, stdout);
    if (!f && !status) status = nothing(program[0]);
    if (f) fclose(f);
    unlink(path);
    rmdir(folder);
    return status;
}

int tool_explain(int n, char **arg)
{
    return n ? run_and_print(arg, ".txt") : tool_misused("explain: which program?");
}

int tool_report(int n, char **arg)
{
    static const char *const endings[] = {".html", ".json", ".txt", ".plan"};
    char path[PATH_MAX];
    bool known = false;
    if (n < 2) return tool_misused("report: FILE PROGRAM ARGUMENT..");
    const char *dot = strrchr(arg[0], '.');
    for (int i = 0; i < 4 && dot; i++) known = known || !strcmp(dot, endings[i]);
    if (!known) return tool_misused("report: the file ends in .html, .json, .txt or .plan");
    if (*arg[0] != '/' && getcwd(path, sizeof(path) - strlen(arg[0]) - 1))
        strcat(strcat(path, "/"), arg[0]); /* the program may go elsewhere */
    else
        snprintf(path, sizeof(path), "%s", arg[0]);
    struct stat before, after;
    const bool there = !stat(path, &before);
    const int status = run(arg + 1, path);
    if (status) return status;
    if (stat(path, &after) || (there && before.st_ino == after.st_ino)) return nothing(arg[1]);
    printf("%s\n", tool_clean(arg[0]));
    return TOOL_OK;
}

/* ---- what TENSOR_DUMP has written ---- */

/* The head of a plan's file: what comes before the graph. */
static int put_plan(const char *path)
{
    FILE *f = fopen(path, "r");
    char line[2000];
    int lines = 0;
    if (!f) return tool_say("%s: %s", path, strerror(errno));
    while (fgets(line, sizeof(line), f) && strcmp(line, "  recorded\n")) {
        if (!lines++ && strncmp(line, "plan ", 5)) {
            fclose(f);
            return tool_say("%s: no plan that TENSOR_DUMP has written", path);
        }
        line[strcspn(line, "\n")] = 0;
        printf("%s\n", tool_clean(line));
    }
    fclose(f);
    return lines ? TOOL_OK : tool_say("%s: empty", path);
}

static int is_plan(const struct dirent *e)
{
    const size_t n = strlen(e->d_name);
    return n > 9 && !strncmp(e->d_name, "plan-", 5) && !strcmp(e->d_name + n - 4, ".txt");
}

static int put_plans(const char *dir)
{
    struct dirent **entry = NULL;
    char path[PATH_MAX];
    const int n = scandir(dir, &entry, is_plan, alphasort);
    int status = n > 0 ? TOOL_OK : tool_say("%s: no plans (plan-001.txt ..) are in it", dir);
    for (int i = 0; i < n; i++) {
        if (!status && snprintf(path, sizeof(path), "%s/%s", dir, entry[i]->d_name) < (int)sizeof(path))
            status = put_plan(path);
        free(entry[i]);
    }
    free(entry);
    return status;
}

int tool_plan(int n, char **arg)
{
    struct stat st;
    if (!n) return tool_misused("plan: which program, or which dump?");
    if (n > 1 || stat(arg[0], &st)) return run_and_print(arg, ".plan");
    if (S_ISDIR(st.st_mode)) return put_plans(arg[0]);
    if (S_ISREG(st.st_mode) && access(arg[0], X_OK)) return put_plan(arg[0]);
    return run_and_print(arg, ".plan");
}
