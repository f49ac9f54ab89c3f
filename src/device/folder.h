/* folder.h - a folder of the kernel cache: made where it is missing, refused where others could write to it,
 * noticed when it has gone. Read first: tn_folder_open. */
#ifndef TN_FOLDER_H
#define TN_FOLDER_H

#include <limits.h>
#include <stdbool.h>

typedef struct tn_folder {
    int fd;    /* -1: none */
    int flags; /* it is opened with */
    char path[PATH_MAX];
} tn_folder;

/* Makes it and its parents where need be. NULL and *f, or why not. *missing: it is not there and cannot be
 * made. */
const char *tn_folder_open(tn_folder *f, const char *path, int flags, bool *missing);
/* Whether files can be written there; errno says why not. */
bool tn_folder_has_room(const char *path);
/* Whether what is open is no longer what stands at its path. */
bool tn_folder_is_gone(const tn_folder *f);
/* Removes what is in it, not the folders in it, and closes fd. */
void tn_folder_empty(int fd);

#endif
