#include "explain.h"
bool tn_check_ban(tn_session *s, tn_flush_scratch *f)
{
    (void)s;
    (void)f;
    return false;
}
int tn_check_begin(tn_session *s, tn_flush_scratch *f, tn_plan *p, bool fresh)
{
    (void)s;
    (void)f;
    (void)p;
    (void)fresh;
    return 0;
}
int tn_check_after(tn_session *s, const tn_flush_scratch *f, const tn_plan *p, int step)
{
    (void)s;
    (void)f;
    (void)p;
    (void)step;
    return 0;
}
void tn_check_end(tn_session *s)
{
    (void)s;
}
void tn_check_free(tn_explain_state *x)
{
    (void)x;
}
void tn_check_plant(tn_session *s, int least)
{
    (void)s;
    (void)least;
}
