/* folder.h - a folder of the kernel cache: made where it is missing, refused where others could write to it
 * or put something else in its place, noticed when it has gone. Read first: tn_folder_open. */
#pragma once

#include <limits.h>
#include <stdbool.h>

#include "device.h"

typedef struct tn_folder {
    int fd;    /* -1: none */
    int flags; /* it is opened with */
    char path[PATH_MAX];
} tn_folder;

/* Makes it and its parents where need be. Those that there are belong to the user or to root, and nobody else
 * may write to them, or they are sticky, as /tmp is. True and *f, or why not. *missing: it is not there and
 * cannot be made. */
bool tn_folder_open(tn_folder *f, const char *path, int flags, bool *missing, tn_errbuf *why);
/* The next folder for temporary files, TMPDIR first, of which the same holds; *i starts at 0. False: no more.
 */
bool tn_folder_next_place(int *i, char path[PATH_MAX]);
/* Returns true where files can be written there; errno says why not. */
bool tn_folder_has_room(const char *path);
/* Returns true where the open folder is no longer the one at its path. */
bool tn_folder_is_gone(const tn_folder *f);
/* Waits for at most so many seconds until no other process, and no other lock of this one, has the folder
 * locked. A descriptor that closing unlocks, or -1. */
int tn_folder_lock(const tn_folder *f, int seconds, bool *waited);
/* Removes the files in the folder that fd has open, but not the folders in it, and closes fd. */
void tn_folder_empty(int fd);
