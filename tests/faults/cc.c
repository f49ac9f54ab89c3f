/* cc.c - a C compiler that remembers: what it is given is compiled once by cc, and copied from then on.
 *
 *   FAULTS_STORE=folder cc [flags] -o object source ...
 *
 * So a cold cache of kernels can be filled thousands of times. Read first: main. */
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t mix(uint64_t h, const char *p, size_t n)
{
    for (; n; p++, n--) h = (h ^ (unsigned char)*p) * 1099511628211u;
    return h;
}

static int copy(const char *from, const char *to)
{
    int in = open(from, O_RDONLY), out = in < 0 ? -1 : open(to, O_WRONLY | O_CREAT | O_TRUNC, 0777);
    if (out < 0) return -1;
    static char buf[1 << 16];
    ssize_t n;
    while ((n = read(in, buf, sizeof buf)) > 0)
        if (write(out, buf, (size_t)n) != n) return -1;
    return n < 0 || close(out) ? -1 : 0;
}

int main(int argc, char **argv)
{
    char kept[PATH_MAX], fresh[PATH_MAX + 32];
    const char *store = getenv("FAULTS_STORE"), *object = NULL, *source = NULL;
    static char text[1 << 22];
    if (argc == 2 && !strcmp(argv[1], "--version")) return puts("cc that remembers (gcc) 1") < 0;
    uint64_t h = 14695981039346656037u;
    for (int i = 1; i < argc; i++) {
        size_t n = strlen(argv[i]);
        if (!strcmp(argv[i], "-o") && i + 1 < argc)
            object = argv[++i];
        else if (n > 2 && !strcmp(argv[i] + n - 2, ".c"))
            source = argv[i];
        else
            h = mix(h, argv[i], n + 1);
    }
    if (!store || !object || !source) return 2;
    FILE *f = fopen(source, "r");
    if (!f) return 2;
    h = mix(h, text, fread(text, 1, sizeof text, f));
    fclose(f);
    snprintf(kept, sizeof kept, "%s/%016llx.so", store, (unsigned long long)h);
    if (!copy(kept, object)) return 0;
    pid_t pid = fork();
    if (!pid) {
        static char cc[] = "cc";
        argv[0] = cc;
        execvp(cc, argv);
        _exit(127);
    }
    int status = 1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status) return 1;
    snprintf(fresh, sizeof fresh, "%s.%ld", kept, (long)getpid());
    if (!copy(object, fresh)) rename(fresh, kept);
    return 0;
}
