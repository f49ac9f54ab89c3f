/* lists.c - the lists of a flush, which grow and are kept from flush to flush. */
#include "flush.h"

#include "../core/alloc.h"

bool tn_list_push(tn_list *l, tn_tensor *n)
{
    if (!tn_reserve(&l->at, &l->cap, l->n + 1, sizeof *l->at)) return false;
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
