/* whole_file.h - files that appear whole or not at all: written beside their name, synced, renamed.
 *
 * What is being written is called NAME.PID.part and locked (flock) for as long. A process that is killed
 * leaves it behind unlocked; whoever writes the same NAME next removes such leftovers. The lock, not the
 * number of the process, says whether somebody writes: numbers mean nothing between containers or machines
 * that share a folder. Where a file system has no locks, leftovers stay.
 *
 * Read first: tn_whole_open.
 */
#ifndef TN_WHOLE_FILE_H
#define TN_WHOLE_FILE_H

#include <limits.h>
#include <stdio.h>

typedef struct tn_whole_file {
    FILE *f;
    char temporary[PATH_MAX];
} tn_whole_file;

/* Opens w->f for writing. 0 or an errno: ENAMETOOLONG; EINVAL where there is something at `path` that is no
 * regular file, such as a device, which a rename would replace. */
int tn_whole_open(tn_whole_file *w, const char *path);
/* Puts what was written in the place of `path`; 0 or an errno, and then nothing has changed there. */
int tn_whole_commit(tn_whole_file *w, const char *path);
void tn_whole_drop(tn_whole_file *w); /* forgets it */

#endif
