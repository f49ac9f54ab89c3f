/* launch.c - kernels are started, those that plans bring and the library's own. Start with tn_cuda_start. */
#include "internal.h"

#include "../../core/alloc.h"
#include "../embed.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

int tn_cuda_workspace(tn_cuda *c, size_t bytes, tn_errbuf *err)
{
    int status = TN_OK;
    if (c->told && bytes > c->told_bytes) c->told_bytes = bytes;
    if (c->told || bytes <= c->workspace_bytes) return TN_OK;
    if (!c->workspace && !(c->workspace = tn_cuda_reserve(c, TN_CUDA_WORKSPACE_RANGE, err)))
        return TN_E_NOMEM;
    status = tn_cuda_commit(c, c->workspace, bytes, err);
    if (!status) c->workspace_bytes = bytes;
    return status;
}

int tn_cuda_start(tn_cuda *c, const char *name, tn_cu_function f, tn_cuda_args *a, int threads,
                  int64_t shared, tn_errbuf *err)
{
    int64_t blocks = a->n > 0 ? (a->n - 1) / a->chunk + 1 : 0;
    if (!blocks) return TN_OK;
    if (blocks > INT32_MAX)
        return tn_err(err, TN_E_SHAPE, "%s: %lld blocks, more than a launch can have", name,
                      (long long)blocks);
    a->fault = (tn_fault *)(uintptr_t)c->words;
    a->ticket = (uint32_t *)(uintptr_t)(c->words + TN_CUDA_FAULT_BYTES);
    void *parameters[] = {a};
    tn_cu_result e = c->api->cuLaunchKernel(f, (unsigned)blocks, 1, 1, (unsigned)threads, 1, 1,
                                            (unsigned)shared, c->stream, parameters, NULL);
    if (e) return tn_cuda_check(c, e, err, name);
    tn_cuda_note(c, name);
    return c->sync_each && !c->recording ? tn_cuda_wait(c, err) : TN_OK;
}

char *tn_cuda_own_text(tn_cuda_own which, int variant, char name[64])
{
    static const char *const entry[TN_OWN_COUNT] = {"IM2COL", "COL2IM", "EPILOGUE", "PRODUCT"};
    const char *body = tn_embed_text(TN_EMBED_OWN_CU);
    size_t room = strlen(body) + 256;
    char *text = tn_malloc(room);
    if (!text) return NULL;
    snprintf(name, 64, "tn_%s_%d", entry[which], variant);
    for (char *p = name; *p; p++) *p = (char)tolower((unsigned char)*p);
    snprintf(text, room, "#define OWN_%s\n#define VARIANT %d\n#define ENTRY %s\n%s", entry[which], variant,
             name, body);
    return text;
}

static int tell(tn_cuda *c, tn_cuda_own which, int variant, const tn_cuda_args *a, int threads,
                tn_errbuf *err)
{
    char name[64], *text = tn_cuda_own_text(which, variant, name);
    if (!text) return tn_err(err, TN_E_NOMEM, "out of memory");
    const int status = c->told(c->told_user, &(tn_source){name, text}, a, threads);
    tn_free_mem(text);
    return status;
}

/* Each is compiled when it is first needed. */
int tn_cuda_start_own(tn_cuda *c, tn_cuda_own which, int variant, tn_cuda_args *a, int threads,
                      tn_errbuf *err)
{
    tn_kernel **k = &c->own[which][variant];
    a->scalar = NULL;
    if (c->told) return tell(c, which, variant, a, threads, err);
    if (!*k) {
        char name[64], *text = tn_cuda_own_text(which, variant, name);
        if (!text) return tn_err(err, TN_E_NOMEM, "out of memory");
        int status = tn_cuda_compile(c, &(tn_source){name, text}, 1, k, err);
        tn_free_mem(text);
        if (status) return status;
    }
    return tn_cuda_start(c, (*k)->name, (*k)->fn, a, threads, 0, err);
}
