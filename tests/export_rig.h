/* export_rig.h - what the tests of exported files share: commands in the run's folder, and a file that was
 * written there, model.c, compiled, loaded and called. Read first: load. */
#pragma once

#include <dlfcn.h>

#include <tensor_export.h>
#include <tensor_nn.h>

#include "tests/folder.h"

/* Runs a command in the folder; what it prints goes to `out` there. */
static inline int run(const char *command)
{
    char line[1400];
    snprintf(line, sizeof line, "cd '%s' && { %s ; } >out 2>&1", base, command);
    int status = system(line);
    if (status) {
        snprintf(line, sizeof line, "cat '%s/out' >&2", base);
        if (system(line)) return status;
    }
    return status;
}

static inline bool there_is(const char *command)
{
    char line[200];
    snprintf(line, sizeof line, "command -v %.*s >/dev/null 2>&1", (int)strcspn(command, " "), command);
    return system(line) == 0;
}

/* Ends an exported training step: the loss. */
static inline double learn(tn_tensor *loss, tn_optim *o)
{
    tn_session *s = tn_session_of(loss);
    tn_export_output(loss, "loss");
    tn_backward(loss);
    tn_optim_step(o);
    tn_tensor *kept = tn_keep(loss);
    tn_step_end(s);
    const double v = tn_item(kept);
    tn_free(kept);
    return v;
}

/* Bytes behind the struct, which no function of the file may touch. */
enum { GUARD = 4096 };

typedef struct model {
    void *library, *m;
    size_t bytes;
    float (*step)(void *m, const float *image, const int32_t *label);
    int (*forward)(void *m, const float *image, float *logits);
    int64_t (*get)(const void *m, const char *name, float *to, int64_t room);
    int64_t (*set)(void *m, const char *name, const float *from, int64_t count);
} model;

static inline void *symbol(const model *m, const char *name)
{
    void *s = dlsym(m->library, name);
    if (!s) fprintf(stderr, "no %s\n", name);
    return s;
}
#define FIND(m, member, name) (*(void **)&(m)->member = symbol(m, name))

static const char *compiler =
    "cc -std=c99 -O1 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -fPIC -shared";

/* --tcc 1: with tcc, which takes a tenth of the time. */
static inline void choose_compiler(int argc, char **argv)
{
    int tcc = 0;
    OPTION(tcc, "tcc");
    if (tcc) compiler = "tcc -shared";
}

static inline model load(bool trains)
{
    static int count; /* of libraries: dlopen goes by the name */
    model m = {0};
    char line[200], name[40];
    size_t (*bytes)(void);
    void (*init)(void *);
    snprintf(name, sizeof name, "model%d.so", ++count);
    snprintf(line, sizeof line, "%s model.c -o %s", compiler, name);
    assert_int_equal(run(line), 0);
    m.library = dlopen(in_base(name), RTLD_NOW);
    assert_non_null(m.library);
    *(void **)&bytes = symbol(&m, "model_bytes");
    *(void **)&init = symbol(&m, "model_init");
    FIND(&m, get, "model_get");
    if (trains) {
        FIND(&m, step, "model_step");
        FIND(&m, set, "model_set");
    } else {
        FIND(&m, forward, "model_forward");
    }
    m.bytes = bytes();
    m.m = aligned_alloc(64, (m.bytes + 63) / 64 * 64 + GUARD);
    memset(m.m, 0xff, m.bytes + GUARD);
    init(m.m);
    return m;
}

static inline void unload(model *m)
{
    for (size_t i = 0; i < GUARD; i++)
        if (((const unsigned char *)m->m)[m->bytes + i] != 0xff)
            fail_msg("byte %zu behind the model was written", i);
    free(m->m);
    dlclose(m->library);
}

/* What the file writes for tn_load goes to `name` in the folder. */
static inline void save_checkpoint(const model *m, const char *name)
{
    size_t (*save)(const void *m, void *to, size_t room);
    *(void **)&save = symbol(m, "model_save");
    const size_t bytes = save(m->m, NULL, 0);
    char *file = calloc(bytes + 1, 1);
    assert_int_equal(save(m->m, file, bytes / 2), bytes);
    assert_true(file[bytes / 2] == 0);
    assert_int_equal(save(m->m, file, bytes), bytes);
    FILE *f = fopen(in_base(name), "wb");
    assert_true(f && fwrite(file, 1, bytes, f) == bytes && !fclose(f));
    free(file);
}

/* What compilers and the linker say of model.c. */
static inline void needs_nothing(void)
{
#define STRICT " -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -ffreestanding -c model.c -o model.o"
    assert_int_equal(run("cc -std=c99 -O2" STRICT " && ! nm -u model.o | grep -v -w -E 'U (memcpy|memset)'"),
                     0);
    assert_int_equal(run("! grep '#include <' model.c; [ \"$(grep -c '#include <' model.h)\" = 2 ]"), 0);
    if (there_is("clang"))
        assert_int_equal(
            run("clang -std=c99 -O1" STRICT " && ! nm -u model.o | grep -v -w -E 'U (memcpy|memset)'"), 0);
    static const char *const others[] = {"cc -m32", "aarch64-linux-gnu-gcc", "riscv64-linux-gnu-gcc",
                                         "arm-none-eabi-gcc -mthumb -mcpu=cortex-m0"};
    for (int i = 0; i < 4; i++) {
        char line[300];
        snprintf(line, sizeof line, "%s -std=c99 -O1" STRICT, others[i]);
        if (there_is(others[i])) assert_int_equal(run(line), 0);
    }
    if (there_is("tcc")) assert_int_equal(run("tcc -Wall -Werror -c model.c -o model.o"), 0);
    if (there_is("c++"))
        assert_int_equal(
            run("echo 'extern \"C\" {\n#include \"model.h\"\n}' >h.cc && c++ -Wall -Werror -c h.cc -o h.o"),
            0);
}
