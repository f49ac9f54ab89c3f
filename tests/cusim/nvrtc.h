/* nvrtc.h - what module.c and the files of NVRTC share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { SIM_SHIM_ABI = 2 }; /* what shim.h writes into a module; raised when the two would not fit */

/* ---- files.c ---- */

bool sim_cache_folder(char path[]); /* PATH_MAX bytes; made where it is missing, for the user alone */
char *sim_read_file(const char *path, size_t *bytes); /* NUL behind it; NULL if it cannot be read */
bool sim_write_file(const char *path, const void *data, size_t bytes);
void sim_hash_begin(unsigned long long hash[2]);
void sim_hash_add(unsigned long long hash[2], const void *data, size_t bytes);

typedef struct sim_text { /* a string that grows */
    char *s;
    size_t n, room;
    bool failed;
} sim_text;
void sim_text_add(sim_text *t, const char *s, size_t n);
void sim_text_put(sim_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- scan.c ---- */

/* Appends to `out` what makes a module of the kernels that `text` defines, static ones too or not: the table
 * of them. */
void sim_scan_kernels(const char *text, bool static_too, sim_text *out);
bool sim_scan_macro_kernels(const char *text); /* a macro of the text defines kernels */
const char *sim_scan_refuse(const char *text); /* why NVRTC would not take it, or NULL */

/* ---- real.c ---- */

bool sim_real_takes(const char *text, sim_text *log); /* true also where there is no real NVRTC */
