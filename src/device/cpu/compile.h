/* compile.h - the machine's C compiler, and loading what it made. */
#ifndef TN_CPU_COMPILE_H
#define TN_CPU_COMPILE_H

#include <stdbool.h>
#include <stddef.h>

#include "../device.h"

typedef struct tn_cc tn_cc;

int tn_cc_open(tn_cc **out); /* runs nothing yet. 0 or TN_E_NOMEM */
void tn_cc_close(tn_cc *cc); /* NULL is allowed */

/* Finds the compiler at the first call: TENSOR_CC (binding when set; "none": none is), else the first that
 * answers of CC, the one that built the library, cc, gcc, clang. 0, TN_E_NOMEM, or TN_E_COMPILE when there is
 * none, then and at every later call. */
int tn_cc_probe(tn_cc *cc, tn_errbuf *err);

bool tn_cc_missing(const tn_cc *cc); /* a probe has found none */

/* After a successful probe: what stands before every kernel's text. A comment with command, compiler version
 * and processor, which together decide what machine code comes out, and the prelude. */
const char *tn_cc_common(const tn_cc *cc);
/* Before what it says when it fails: the setting that named it, and how; "" where it was found. */
const char *tn_cc_chosen(const tn_cc *cc);
const char *tn_cc_command(const tn_cc *cc); /* "gcc -O3 ..." without file names */

/* Compiles dir/I.c to dir/I.so with messages in dir/I.log, for I in [0, n), at most `jobs` at once. ok[I]
 * says whether dir/I.so is there. 0, or TN_E_COMPILE when no process could be started. */
int tn_cc_build(tn_cc *cc, const char *dir, int n, int jobs, bool *ok, tn_errbuf *err);

/* A loaded object. Where the folder forbids execution it is loaded from a memory file, or from another
 * folder. `refuse_folder` is a test's hook: behave as if the folder did. */
typedef struct tn_object {
    void *handle;
    int fd; /* memory file, kept open because its name in /proc must stay taken; or -1 */
} tn_object;
int tn_object_load(const char *path, bool refuse_folder, tn_object *out, char *why, size_t why_bytes);
void tn_object_unload(tn_object *o);

#endif
