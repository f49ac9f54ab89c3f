/* test_kcache.c - the folder of compiled kernels: hits, misses, and folders not to be trusted. No compiler is
 * run: an object is any file. */
#include "tests/test.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "folder.h"
#include "said.h"
#include "src/core/alloc.h"
#include "src/device/kcache.h"

static tn_kcache *open_with(const char *dir, size_t limit, tn_kcache_hash *hash)
{
    tn_kcache *c = NULL;
    tn_kcache_options o = {.dir = dir, .suffix = ".so", .limit = limit, .hash = hash, .log = hear};
    forget();
    assert_int_equal(tn_kcache_open(&o, &c), 0);
    assert_int_equal(tn_kcache_set_common(c, "/* what all share */\n"), 0);
    return c;
}

static tn_kcache *open_cache(const char *dir) { return open_with(dir, 0, NULL); }

/* Stores n kernels as one object that says `content`. */
static int put_n(tn_kcache *c, int n, const tn_source *const *src, const char *content, char path[PATH_MAX])
{
    char dir[PATH_MAX], file[PATH_MAX + 16];
    if (tn_kcache_scratch(c, dir)) return TN_E_IO;
    snprintf(file, sizeof file, "%s/0.so", dir);
    spill_text(file, content);
    const char *symbol[16];
    for (int i = 0; i < n; i++) symbol[i] = src[i]->entry;
    int status = tn_kcache_put(c, n, src, symbol, file, path);
    tn_kcache_scratch_done(dir);
    return status;
}

static int put(tn_kcache *c, const char *entry, const char *text, const char *content)
{
    char path[PATH_MAX];
    tn_source s = {entry, text};
    return put_n(c, 1, (const tn_source *const[]){&s}, content, path);
}

/* What the object of a hit says; "" for a miss. */
static const char *get(tn_kcache *c, const char *entry, const char *text)
{
    static char content[256];
    tn_kcache_hit hit;
    content[0] = 0;
    if (!tn_kcache_find(c, &(tn_source){entry, text}, &hit)) return content;
    if (strcmp(hit.symbol, entry)) return "wrong symbol";
    FILE *f = fopen(hit.path, "r");
    if (!f) return "no file";
    content[fread(content, 1, sizeof content - 1, f)] = 0;
    fclose(f);
    return content;
}

/* ---- hits and misses -------------------------------------------------------------------------------- */

TEST(found_again)
{
    const char *dir = fresh_dir();
    tn_kcache *c = open_cache(dir);
    assert_string_equal(get(c, "gelu", "text"), "");
    assert_int_equal(put(c, "gelu", "text", "object"), 0);
    assert_string_equal(get(c, "gelu", "text"), "object");
    assert_string_equal(get(c, "gelu", "texT"), "");
    assert_string_equal(get(c, "gelu", "text "), "");
    assert_string_equal(get(c, "relu", "text"), "");
    assert_string_equal(get(c, "gelut", "ext"), "");
    tn_kcache_close(c);
    struct stat st;
    assert_int_equal(stat(dir, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);

    c = open_cache(dir);
    assert_string_equal(get(c, "gelu", "text"), "object");
    tn_kcache_drop(c, &(tn_source){"gelu", "text"});
    assert_string_equal(get(c, "gelu", "text"), "");
    assert_int_equal(put(c, "gelu", "text", "object 2"), 0);
    assert_string_equal(get(c, "gelu", "text"), "object 2");
    assert_int_equal(tn_kcache_set_common(c, "/* another compiler */\n"), 0);
    assert_string_equal(get(c, "gelu", "text"), "");
    tn_kcache_close(c);
    tn_kcache_close(NULL);
    assert_int_equal(n_said, 0);
}

TEST(several_in_one_object)
{
    const char *dir = fresh_dir();
    tn_kcache *c = open_cache(dir);
    tn_source a = {"a", "1"}, b = {"b", "2"}, d = {"d", "3"};
    char path[PATH_MAX];
    assert_int_equal(put_n(c, 3, (const tn_source *const[]){&a, &b, &d}, "all", path), 0);
    assert_int_equal(count_files(dir, ""), 4);
    assert_string_equal(get(c, "b", "2"), "all");
    tn_kcache_hit hit;
    assert_int_equal(tn_kcache_find(c, &d, &hit), 1);
    assert_string_equal(hit.path, path);
    tn_kcache_drop(c, &a);
    assert_string_equal(get(c, "a", "1"), "");
    assert_string_equal(get(c, "d", "3"), "all");
    tn_kcache_close(c);
}

TEST(long_names)
{
    tn_kcache *c = open_cache(fresh_dir());
    char name[201];
    memset(name, 'x', 200);
    name[200] = 0;
    assert_int_equal(put(c, name, "text", "object"), 0);
    assert_string_equal(get(c, name, "text"), "object");
    name[199] = 'y';
    assert_string_equal(get(c, name, "text"), "");
    tn_kcache_close(c);
}

static uint64_t constant_hash(const void *data, size_t bytes, uint64_t seed)
{
    (void)data;
    (void)bytes;
    (void)seed;
    return 7;
}

TEST(a_collision_is_a_miss)
{
    const char *dir = fresh_dir();
    tn_kcache *c = open_with(dir, 0, constant_hash);
    int one, two;
    assert_int_equal(put(c, "k", "first", "1"), 0);
    assert_string_equal(get(c, "k", "other"), "");
    assert_int_equal(put(c, "k", "other", "2"), 0);
    assert_string_equal(get(c, "k", "other"), "2");
    assert_string_equal(get(c, "k", "first"), "");
    assert_int_equal(tn_kcache_set_common(c, "/* another */"), 0);
    assert_string_equal(get(c, "k", "other"), "");
    /* and in the table of loaded ones */
    assert_int_equal(tn_kcache_remember(c, &(tn_source){"k", "first"}, &one), 0);
    assert_int_equal(tn_kcache_remember(c, &(tn_source){"k", "other"}, &two), 0);
    assert_ptr_equal(tn_kcache_loaded(c, &(tn_source){"k", "first"}), &one);
    assert_ptr_equal(tn_kcache_loaded(c, &(tn_source){"k", "other"}), &two);
    assert_null(tn_kcache_loaded(c, &(tn_source){"k", "third"}));
    tn_kcache_close(c);
}

TEST(table_of_loaded)
{
    enum { N = 1000 };
    static int object[N];
    static char text[N][16];
    tn_kcache *c = open_cache(fresh_dir());
    assert_null(tn_kcache_loaded(c, &(tn_source){"k", "0"}));
    for (int i = 0; i < N; i++) {
        char passing[16];
        snprintf(passing, sizeof passing, "%d", i);
        strcpy(text[i], passing);
        assert_int_equal(tn_kcache_remember(c, &(tn_source){"k", passing}, &object[i]), 0);
    }
    for (int i = 0; i < N; i++) assert_ptr_equal(tn_kcache_loaded(c, &(tn_source){"k", text[i]}), &object[i]);
    assert_null(tn_kcache_loaded(c, &(tn_source){"j", "0"}));
    tn_kcache_close(c);
}

/* A later object never takes an earlier one's name. */
TEST(object_names_are_new)
{
    tn_kcache *c = open_cache(fresh_dir());
    tn_source s = {"k", "text"};
    char first[PATH_MAX], second[PATH_MAX];
    assert_int_equal(put_n(c, 1, (const tn_source *const[]){&s}, "1", first), 0);
    assert_int_equal(put_n(c, 1, (const tn_source *const[]){&s}, "2", second), 0);
    assert_string_not_equal(first, second);
    assert_string_equal(get(c, "k", "text"), "2");
    tn_kcache_close(c);
}

/* ---- damage ----------------------------------------------------------------------------------------- */

/* Every truncation of both files, and every byte of them changed. */
TEST(any_damage_is_a_miss)
{
    const char *dir = fresh_dir();
    tn_kcache *c = open_cache(dir);
    assert_int_equal(put(c, "k", "text", "object"), 0);
    DIR *d = opendir(dir);
    int files = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char path[PATH_MAX], bad[1024];
        if (e->d_name[0] == '.') continue;
        files++;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        size_t n;
        char *good = slurp(path, &n);
        for (size_t i = 0; i < n; i++) {
            spill(path, good, i);
            assert_string_equal(get(c, "k", "text"), "");
        }
        for (size_t i = 0; i < n; i++) {
            memcpy(bad, good, n);
            bad[i] ^= 1;
            spill(path, bad, n);
            const char *got = get(c, "k", "text"); /* only the end of a comment may change */
            if (*got) assert_string_equal(got, "object");
        }
        memcpy(bad, good, n);
        bad[n] = 'x';
        spill(path, bad, n + 1);
        assert_string_equal(get(c, "k", "text"), "");
        spill(path, good, n);
        assert_string_equal(get(c, "k", "text"), "object");
        free(good);
    }
    closedir(d);
    assert_int_equal(files, 2);
    tn_kcache_close(c);
}

TEST(an_object_elsewhere_is_not_used)
{
    const char *dir = fresh_dir();
    tn_kcache *c = open_cache(dir);
    assert_int_equal(put(c, "k", "text", "object"), 0);
    tn_kcache_hit hit;
    assert_int_equal(tn_kcache_find(c, &(tn_source){"k", "text"}, &hit), 1);
    assert_int_equal(unlink(hit.path), 0);
    assert_int_equal(mkdir(hit.path, 0700), 0); /* a folder in its place */
    assert_string_equal(get(c, "k", "text"), "");
    tn_kcache_close(c);
}

/* ---- the limit -------------------------------------------------------------------------------------- */

static void age(const char *dir, const char *part, time_t seconds)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));) {
        char path[PATH_MAX];
        if (e->d_name[0] == '.' || !strstr(e->d_name, part)) continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        struct timespec t[2] = {{time(NULL) - seconds, 0}, {time(NULL) - seconds, 0}};
        assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
    }
    closedir(d);
}

TEST(least_recently_used_goes_first)
{
    const char *dir = fresh_dir();
    char big[3001], stranger[PATH_MAX];
    memset(big, 'x', 3000);
    big[3000] = 0;
    tn_kcache *c = open_with(dir, 11000, NULL);
    snprintf(stranger, sizeof stranger, "%s/notes.c", dir);
    spill(stranger, big, 3000);
    assert_int_equal(put(c, "aaa", "text", big), 0);
    assert_int_equal(put(c, "bbb", "text", big), 0);
    age(dir, "aaa", 5000);
    age(dir, "bbb", 9000);
    age(dir, "notes", 99999);
    assert_true(*get(c, "aaa", "text") != 0);
    assert_true(*get(c, "bbb", "text") != 0); /* used just now, though made first */
    age(dir, "aaa", 3000);
    assert_int_equal(put(c, "ccc", "text", big), 0);
    assert_int_equal(put(c, "ddd", "text", big), 0); /* one has to go */
    assert_string_equal(get(c, "aaa", "text"), "");
    assert_true(*get(c, "bbb", "text") != 0);
    assert_true(*get(c, "ccc", "text") != 0);
    assert_true(*get(c, "ddd", "text") != 0);
    assert_int_equal(access(stranger, F_OK), 0); /* not ours, not touched */
    tn_kcache_close(c);
}

TEST(leftovers_of_crashes_go)
{
    const char *dir = fresh_dir();
    char scratch[PATH_MAX], file[PATH_MAX + 16];
    tn_kcache *c = open_cache(dir);
    assert_int_equal(tn_kcache_scratch(c, scratch), 0);
    snprintf(file, sizeof file, "%s/0.c", scratch);
    spill(file, "x", 1);
    age(dir, "tmp-", 9999);
    tn_kcache_close(c);
    c = open_cache(dir);
    assert_int_equal(put(c, "k", "text", "object"), 0);
    assert_int_not_equal(access(scratch, F_OK), 0);
    assert_string_equal(get(c, "k", "text"), "object");
    tn_kcache_close(c);
}

TEST(failed_sources_are_kept)
{
    tn_kcache *c = open_cache(fresh_dir());
    char path[PATH_MAX];
    assert_int_equal(tn_kcache_keep_failed(c, &(tn_source){"k", "wrong"}, path), 0);
    assert_true(holds(path, "/* what all share */\nwrong"));
    tn_kcache_close(c);
}

/* ---- folders ---------------------------------------------------------------------------------------- */

/* The folder is refused or cannot be written: kernels work, once, from elsewhere, and the log says why. */
static int works_elsewhere(const char *dir, const char *why)
{
    char path[PATH_MAX] = "", real[PATH_MAX] = "";
    int before = count_files(dir, "");
    tn_kcache *c = open_cache(dir);
    tn_source s = {"k", "text"};
    int bad = put_n(c, 1, (const tn_source *const[]){&s}, "object", path) != 0;
    bad += !realpath(path, real) || strncmp(real, dir, strlen(dir)) == 0;
    bad += access(real, R_OK) != 0;
    bad += n_said != 1 || !strstr(said, why) || !strstr(said, dir);
    bad += put(c, "j", "text", "object") != 0 || n_said != 1;
    tn_kcache_close(c);
    bad += access(real, F_OK) == 0; /* nothing stays behind */
    bad += count_files(dir, "") != before;
    if (bad) print_message("%s: %s %d\n", dir, said, n_said);
    return bad;
}

TEST(unsafe_folders_are_refused)
{
    const char *dir = fresh_dir();
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(chmod(dir, 0777), 0);
    assert_int_equal(works_elsewhere(dir, "others may write"), 0);
    assert_int_equal(chmod(dir, 0720), 0);
    assert_int_equal(works_elsewhere(dir, "others may write"), 0);
    dir = fresh_dir();
    spill(dir, "x", 1);
    assert_int_equal(works_elsewhere(dir, "Not a directory"), 0);
}

TEST(somebody_elses_folder)
{
    const char *dir = fresh_dir();
    assert_int_equal(mkdir(dir, 0700), 0);
    if (chown(dir, 12345, 12345)) skip(); /* takes root */
    assert_int_equal(works_elsewhere(dir, "another user"), 0);
}

/* Whoever may write to a folder above can put another one in the place of ours. */
TEST(folders_below_others_are_refused)
{
    const char *above = fresh_dir(), *link = fresh_dir();
    char dir[300], shown[300];
    snprintf(dir, sizeof dir, "%s/between/cache", above);
    snprintf(shown, sizeof shown, "others may write to %s", above);
    assert_int_equal(mkdir(above, 0700), 0);
    assert_int_equal(symlink(above, link), 0);
    for (int there = 0; there < 2; there++) { /* it is not made either */
        assert_int_equal(chmod(above, 0777), 0);
        assert_int_equal(works_elsewhere(dir, shown), 0);
        snprintf(dir, sizeof dir, "%s/between/cache", link);
        assert_int_equal(works_elsewhere(dir, shown), 0);
        snprintf(dir, sizeof dir, "%s/between/cache", above);
        assert_int_equal(chmod(above, 0702), 0);
        assert_int_equal(works_elsewhere(dir, shown), 0);
        struct stat st;
        assert_int_equal(stat(dir, &st), there - 1);
        assert_int_equal(chmod(above, 01777), 0); /* as /tmp is */
        tn_kcache *c = open_cache(dir);
        assert_int_equal(put(c, "k", "text", "object"), 0);
        tn_kcache_close(c);
        assert_int_equal(n_said, 0);
    }
    if (chown(above, 12345, 12345)) skip(); /* takes root */
    assert_int_equal(works_elsewhere(dir, shown), 0);
    assert_int_equal(chmod(above, 0700), 0);
    assert_int_equal(works_elsewhere(dir, shown), 0);
    assert_int_equal(chown(above, geteuid(), 12345), 0);
    assert_int_equal(chmod(above, 0770), 0);
    assert_int_equal(works_elsewhere(dir, shown), 0);
    assert_int_equal(chown(above, geteuid(), 0), 0); /* root's own group */
    tn_kcache *c = open_cache(dir);
    assert_string_equal(get(c, "k", "text"), "object");
    tn_kcache_close(c);
}

enum { LET_GROUP_WRITE, LET_ALL_WRITE, MAKE_A_LINK, MAKE_A_FIFO, GIVE_AWAY, N_HOW };

static void spoil(int how, const char *path)
{
    char other[PATH_MAX];
    snprintf(other, sizeof other, "%s.moved", path);
    if (how == LET_GROUP_WRITE) assert_int_equal(chmod(path, 0620), 0);
    if (how == LET_ALL_WRITE) assert_int_equal(chmod(path, 0602), 0);
    if (how == MAKE_A_LINK) assert_true(!rename(path, other) && !symlink(other, path));
    if (how == MAKE_A_FIFO) assert_true(!unlink(path) && !mkfifo(path, 0600));
    if (how == GIVE_AWAY) assert_int_equal(chown(path, 12345, 12345), 0);
}

TEST(entries_of_others_are_misses)
{
    static const char *const ending[] = {".c", ".so"};
    bool root = geteuid() == 0;
    for (int how = 0; how < N_HOW - !root; how++)
        for (int e = 0; e < 2; e++) {
            const char *dir = fresh_dir();
            char path[PATH_MAX] = "";
            tn_kcache *c = open_cache(dir);
            assert_int_equal(put(c, "k", "text", "object"), 0);
            assert_string_equal(get(c, "k", "text"), "object");
            DIR *d = opendir(dir);
            for (struct dirent *f; (f = readdir(d));)
                if (strstr(f->d_name, ending[e])) snprintf(path, sizeof path, "%s/%s", dir, f->d_name);
            closedir(d);
            spoil(how, path);
            assert_string_equal(get(c, "k", "text"), "");
            assert_int_equal(put(c, "k", "text", "made anew"), 0);
            assert_string_equal(get(c, "k", "text"), "made anew");
            tn_kcache_close(c);
        }
    if (!root) skip(); /* whose files only root can give away */
}

/* What was looked at is what is loaded, whatever comes into its folder's place meanwhile. */
TEST(a_folder_exchanged_behind_its_back)
{
    const char *dir = fresh_dir(), *away = fresh_dir();
    char path[PATH_MAX];
    tn_kcache *c = open_cache(dir);
    assert_int_equal(put(c, "k", "text", "object"), 0);
    tn_kcache_hit hit;
    assert_int_equal(tn_kcache_find(c, &(tn_source){"k", "text"}, &hit), 1);
    assert_int_equal(rename(dir, away), 0);
    assert_int_equal(mkdir(dir, 0700), 0);
    DIR *d = opendir(away);
    for (struct dirent *f; (f = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", dir, f->d_name);
        if (f->d_name[0] != '.') spill(path, "trap", 4);
    }
    closedir(d);
    assert_true(holds(hit.path, "object"));
    assert_string_equal(get(c, "k", "text"), "object");
    tn_kcache_close(c);
}

TEST(read_only_folder)
{
    const char *dir = fresh_dir();
    pid_t pid = fork();
    if (pid == 0) { /* as an ordinary user: root may write anywhere */
        chmod(base, 0755);
        if (geteuid() == 0 && (mkdir(dir, 0700) || chown(dir, 65534, 65534) || setuid(65534))) _exit(77);
        tn_kcache *c = open_cache(dir);
        int bad = put(c, "old", "text", "object") != 0;
        tn_kcache_close(c);
        bad += chmod(dir, 0500) != 0;
        bad += works_elsewhere(dir, "cannot write to");
        c = open_cache(dir);
        bad += strcmp(get(c, "old", "text"), "object") != 0; /* what is there still serves */
        tn_kcache_close(c);
        chmod(dir, 0700);
        _exit(bad);
    }
    int status = 1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) skip();
    assert_int_equal(status, 0);
}

TEST(environment_chooses_the_folder)
{
    const char *root = fresh_dir();
    char path[PATH_MAX];
    const char *const name[] = {"TENSOR_CACHE", "XDG_CACHE_HOME", "HOME"};
    const char *const below[] = {"", "/libtensor", "/.cache/libtensor"};
    char *saved[3];
    for (int i = 0; i < 3; i++) {
        saved[i] = getenv(name[i]) ? strdup(getenv(name[i])) : NULL;
        snprintf(path, sizeof path, "%s/%d", root, i);
        setenv(name[i], path, 1);
    }
    for (int i = 0; i < 3; i++) {
        tn_kcache *c = open_cache(NULL);
        assert_int_equal(put(c, "k", "text", "object"), 0);
        tn_kcache_close(c);
        snprintf(path, sizeof path, "%s/%d%s", root, i, below[i]);
        assert_int_equal(count_files(path, ""), 2);
        unsetenv(name[i]);
    }
    setenv("XDG_CACHE_HOME", "relative", 1); /* to be ignored, says its specification */
    setenv("HOME", "/proc/nowhere", 1);      /* cannot be made */
    tn_kcache *c = open_cache(NULL);
    tn_source s = {"k", "environment_chooses_the_folder"};
    assert_int_equal(put_n(c, 1, (const tn_source *const[]){&s}, "object", path), 0);
    assert_int_equal(strncmp(tn_kcache_folder(c), "/tmp/libtensor-", 15), 0);
    tn_kcache_drop(c, &s);
    unlink(path);
    tn_kcache_close(c);
    for (int i = 0; i < 3; i++) {
        unsetenv(name[i]);
        if (saved[i]) setenv(name[i], saved[i], 1);
        free(saved[i]);
    }
}

TEST(a_relative_folder_outlives_chdir)
{
    char here[PATH_MAX];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(base), 0);
    tn_kcache *c = open_cache("relative/cache");
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(put(c, "k", "text", "object"), 0);
    assert_string_equal(get(c, "k", "text"), "object");
    tn_kcache_close(c);
    assert_int_equal(chdir(here), 0);
}

/* ---- company ---------------------------------------------------------------------------------------- */

/* Two processes that store, find and evict the same few kernels: each find is right or a miss. */
TEST(two_processes)
{
    enum { ROUNDS = 150 };
    const char *dir = fresh_dir();
    pid_t pid[2];
    for (int p = 0; p < 2; p++) {
        pid[p] = fork();
        if (pid[p]) continue;
        int bad = 0;
        tn_kcache *c = open_with(dir, 0, constant_hash); /* every name is fought over */
        for (int i = 0; i < ROUNDS; i++) {
            char text[16];
            snprintf(text, sizeof text, "%d", (i + p) % 3);
            const char *got = get(c, "k", text);
            bad += *got && strcmp(got, text);
            bad += put(c, "k", text, text) != 0;
            if (i % 20 == 19) tn_kcache_drop(c, &(tn_source){"k", text});
        }
        tn_kcache_close(c);
        _exit(bad ? 1 : 0);
    }
    for (int p = 0; p < 2; p++) {
        int status = 1;
        assert_int_equal(waitpid(pid[p], &status, 0), pid[p]);
        assert_int_equal(status, 0);
    }
}

TEST(a_child_leaves_the_private_folder)
{
    const char *dir = fresh_dir();
    mkdir(dir, 0700);
    chmod(dir, 0777);
    tn_kcache *c = open_cache(dir);
    tn_source s = {"k", "text"};
    char path[PATH_MAX];
    assert_int_equal(put_n(c, 1, (const tn_source *const[]){&s}, "object", path), 0);
    pid_t pid = fork();
    if (pid == 0) {
        tn_kcache_close(c);
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    assert_int_equal(access(path, R_OK), 0);
    tn_kcache_close(c);
    assert_int_not_equal(access(path, F_OK), 0);
}

TEST(failing_allocations)
{
    const char *dir = fresh_dir();
    int failures = 0, object;
    for (long n = 0;; n++) {
        tn_kcache *c = NULL;
        tn_kcache_options o = {.dir = dir, .suffix = ".so"};
        tn_alloc_fail_after(n);
        int bad = tn_kcache_open(&o, &c) != 0;
        bad = bad || tn_kcache_set_common(c, "common");
        bad = bad || put(c, "k", "text", "object");
        const char *got = bad ? "" : get(c, "k", "text");
        bad = bad || !*got;
        bad = bad || tn_kcache_remember(c, &(tn_source){"k", "text"}, &object);
        tn_alloc_fail_after(-1);
        if (*got) assert_string_equal(got, "object");
        tn_kcache_close(c);
        failures += bad;
        if (!bad) break;
    }
    assert_true(failures >= 6);
}

RUN_TESTS(make_base, drop_base)
