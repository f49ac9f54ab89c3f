/* guard.c - a frame at which exceptions of C++ end.
 *
 * The unwinder asks the personality of each frame twice: first whether the frame takes the exception, then,
 * when all frames below have been cleaned up, to go on there. Ours says yes and goes on by longjmp, once the
 * C++ library has taken the exception for caught. Read first: catches. */
#include "guard.h"

#ifdef __GCC_HAVE_DWARF2_CFI_ASM

#include <dlfcn.h>
#include <setjmp.h>
#include <unwind.h>

static _Thread_local jmp_buf *innermost; /* guard of this thread */

__attribute__((visibility("hidden"))) _Unwind_Reason_Code tn_guard_catches(int version, _Unwind_Action action,
                                                                           _Unwind_Exception_Class from,
                                                                           struct _Unwind_Exception *thrown,
                                                                           struct _Unwind_Context *frame);

_Unwind_Reason_Code tn_guard_catches(int version, _Unwind_Action action, _Unwind_Exception_Class from,
                                     struct _Unwind_Exception *thrown, struct _Unwind_Context *frame)
{
    (void)version, (void)from, (void)frame;
    void *(*begin)(void *);
    void (*end)(void);
    *(void **)&begin = dlsym(RTLD_DEFAULT, "__cxa_begin_catch"); /* C++ is not linked by us */
    *(void **)&end = dlsym(RTLD_DEFAULT, "__cxa_end_catch");
    /* A thread that is cancelled is unwound as well, and caught by nobody. */
    if (action & _UA_FORCE_UNWIND || !begin || !end) return _URC_CONTINUE_UNWIND;
    if (action & _UA_SEARCH_PHASE) return _URC_HANDLER_FOUND;
    begin(thrown);
    end();
    longjmp(*innermost, 1);
}

__attribute__((noinline)) bool tn_guarded(void (*body)(void *arg), void *arg)
{
    __asm__(".cfi_personality 0x1b, tn_guard_catches"); /* 0x1b: its address from here, in 32 bits */
    jmp_buf here, *const outer = innermost;
    innermost = &here;
    if (!_setjmp(here)) {
        body(arg);
        innermost = outer;
        return true;
    }
    innermost = outer;
    return false;
}

#else

bool tn_guarded(void (*body)(void *arg), void *arg)
{
    body(arg);
    return true;
}

#endif
