/* needs.h - tests of what a library does for us are skipped where the build has not taken it. After cmocka.h.
 */
#pragma once

/* What reads .safetensors files. */
static inline void needs_cjson(void)
{
#ifndef TN_HAVE_CJSON
    print_message("built without cJSON\n");
    skip();
#endif
}
