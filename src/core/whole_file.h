/* whole_file.h - files that appear whole or not at all: written beside their name, synced, renamed.
 *
 * What is being written is called NAME.RANDOM.part (16 hexadecimal digits). It is made anew, never opened
 * where something has that name already, and locked (flock) for as long. A process that is killed leaves it
 * behind unlocked; whoever writes the same NAME next removes such leftovers of its own user. The lock says
 * whether somebody writes, since numbers of processes mean nothing between containers or machines that share
 * a folder. Where a file system has no locks, leftovers stay.
 *
 * What is replaced gives its permissions, and where that is allowed its owner, to what comes in its place; a
 * new file has those that the umask leaves. A symbolic link stays one: the file it leads to is replaced, or
 * made. A link that belongs neither to the user, nor to root, nor to the owner of its folder is refused, as
 * the kernel does in /tmp.
 *
 * Read first: tn_whole_open. */
#pragma once

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

typedef struct tn_whole_file {
    FILE *f;
    int folder;      /* where both names stand, open */
    struct stat old; /* the file that is replaced; st_mode 0: there was none */
    char name[NAME_MAX + 1], temporary[NAME_MAX + 1];
} tn_whole_file;

/* Opens w->f for writing. 0 or an errno: EINVAL where there is something at `path` that is no regular file,
 * such as a folder, a device or a FIFO; EACCES where the file there may not be written to, or is reached by a
 * link of another user. */
int tn_whole_open(tn_whole_file *w, const char *path);
/* Puts what was written in its place; 0 or an errno, and then nothing has changed there. */
int tn_whole_commit(tn_whole_file *w);
void tn_whole_drop(tn_whole_file *w); /* forgets it */
const char *tn_whole_why(int why);    /* what an errno of these two says to a reader */

/* The names in an open folder, which is left as it is; NULL with errno set. closedir it. */
DIR *tn_names_in(int folder);
