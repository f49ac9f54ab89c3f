/* lists.c - the lists of a flush, which grow and are kept from flush to flush. */
#include "flush.h"

#include "../core/alloc.h"

#include <string.h>

bool tn_reserve(void *array, int *cap, int n, size_t size)
{
    if (n <= *cap) return true;
    void *p;
    memcpy(&p, array, sizeof p);
    p = tn_realloc(p, (size_t)n * 2 * size);
    if (!p) return false;
    memcpy(array, &p, sizeof p);
    *cap = n * 2;
    return true;
}

bool tn_list_push(tn_list *l, tn_tensor *n)
{
    if (l->n == l->cap) {
        int cap = l->cap ? 2 * l->cap : 64;
        tn_tensor **p = tn_realloc(l->at, (size_t)cap * sizeof *p);
        if (!p) return false;
        l->at = p;
        l->cap = cap;
    }
    l->at[l->n++] = n;
    return true;
}

int tn_fail_memory(tn_session *s)
{
    tn_error_set(&s->graph, TN_E_NOMEM, "no host memory to run the step");
    return s->graph.error.status;
}

void tn_flush_scratch_free(tn_flush_scratch *f)
{
    void *all[] = {f->seed.at, f->node.at, f->leaf.at, f->stack.at, f->marked.at, f->root,
                   f->key,     f->address, f->size,    f->placed,   f->hold,      f->buf,
                   f->word,    f->last,    f->twin,    f->seen,     f->writes};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) tn_free_mem(all[i]);
}
