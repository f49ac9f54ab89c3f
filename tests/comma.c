/* comma.c - loaded in front of a program (LD_PRELOAD), makes it one of a country whose decimal point is a
 * comma: what a host does that calls setlocale. tests/test_locale.sh builds the locale. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void comma(void)
{
    if (setlocale(LC_NUMERIC, "comma")) return;
    fputs("comma.c: there is no locale 'comma' in LOCPATH\n", stderr);
    exit(99);
}
