/* comm.c - finds the plugin and opens it. Start with tn_comm_open. */
#include "comm.h"

#include "../core/settings.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *tn_comm_launcher(void)
{
    /* srun sets the SLURM_ ones for a batch script as well, which is one process: its plugins set these */
    static const char *const size[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"},
                             *const rank[] = {"PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        const char *text = tn_setting(size[i]);
        if (text) return atoi(text) > 1 ? size[i] : NULL;
    }
    for (size_t i = 0; i < sizeof rank / sizeof *rank; i++)
        if (tn_setting(rank[i])) return rank[i];
    return NULL;
}

static void *open_beside(char *why)
{
    static const char name[] = "libtensor_mpi.so";
    const char *said = tn_setting("TENSOR_MPI");
    char path[PATH_MAX] = "";
    Dl_info here;
    union { /* ISO C has no cast from one to the other */
        const char *(*fn)(void);
        void *data;
    } own = {tn_comm_launcher};
    if (said) {
        void *h = dlopen(said, RTLD_NOW | RTLD_GLOBAL);
        if (!h) snprintf(why, TN_COMM_WHY, "TENSOR_MPI: %s", dlerror());
        return h;
    }
    char *self = dladdr(own.data, &here) ? realpath(here.dli_fname, NULL) : NULL;
    const char *end = self ? strrchr(self, '/') : NULL;
    if (end && snprintf(path, sizeof path, "%.*s/%s", (int)(end - self), self, name) >= (int)sizeof path)
        *path = 0;
    free(self);
    void *h = *path ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (!h) h = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (!h)
        snprintf(why, TN_COMM_WHY,
                 "%s is not there (it is built where mpicc is found, and installed beside libtensor; "
                 "TENSOR_MPI names another place): %s",
                 name, dlerror());
    return h;
}

tn_comm *tn_comm_open(double timeout, char *why)
{
    void *h = tn_setting_is_foreign() ? NULL : open_beside(why);
    union {
        void *data;
        tn_comm_open_fn *fn;
    } entry = {h ? dlsym(h, TN_COMM_ENTRY) : NULL};
    if (tn_setting_is_foreign())
        snprintf(why, TN_COMM_WHY, "a program with rights that its caller lacks opens no MPI");
    if (h && !entry.data) snprintf(why, TN_COMM_WHY, "the plugin has no function " TN_COMM_ENTRY);
    return entry.data ? entry.fn(TN_COMM_VERSION, timeout, why) : NULL;
}
