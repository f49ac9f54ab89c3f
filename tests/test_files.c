/* test_files.c - files that appear whole or not at all: what is there before them, what is beside them, and
 * kills.
 *
 *     test_files [--kills N] [--seed S]
 *
 * Read first: test_kills. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

#include "folder.h"
#include "needs.h"
#include "small_net.h"
#include "src/core/whole_file.h"

static int kills = 12;
static unsigned seed = 1;

static bool is_there(const char *path) { return access(path, F_OK) == 0; }

static int whole(const char *path, const char *text)
{
    tn_whole_file w;
    int why = tn_whole_open(&w, path);
    if (why) return why;
    fputs(text, w.f);
    return tn_whole_commit(&w);
}

static mode_t mode_of(const char *path)
{
    struct stat st;
    return lstat(path, &st) ? 0 : st.st_mode;
}

/* ---- what stands at the name ---- */

TEST(test_permissions)
{
    static const mode_t old[] = {0600, 0640, 0664, 0644, 0666, 0700, 0755, 0604, 0622};
    static const mode_t mask[] = {022, 027, 077, 0, 002};
    for (size_t k = 0; k < sizeof mask / sizeof *mask; k++) {
        mode_t before = umask(mask[k]);
        unlink(in_base("new"));
        assert_int_equal(whole(in_base("new"), "new"), 0);
        assert_int_equal(mode_of(in_base("new")) & 07777, 0666 & ~mask[k]);
        for (size_t i = 0; i < sizeof old / sizeof *old; i++) {
            spill_text(in_base("old"), "old");
            assert_int_equal(chmod(in_base("old"), old[i]), 0);
            assert_int_equal(whole(in_base("old"), "new"), 0);
            assert_int_equal(mode_of(in_base("old")) & 07777, old[i]);
            assert_true(holds(in_base("old"), "new"));
        }
        umask(before);
    }
    if (geteuid()) { /* root may write to it */
        assert_int_equal(chmod(in_base("old"), 0400), 0);
        assert_int_equal(whole(in_base("old"), "newer"), EACCES);
        assert_true(holds(in_base("old"), "new"));
    }
}

/* The file that is being written has the rights of the one that it will replace, or fewer, at all times. */
TEST(test_nothing_shows_meanwhile)
{
    tn_whole_file w;
    spill_text(in_base("secret"), "old");
    assert_int_equal(chmod(in_base("secret"), 0600), 0);
    mode_t before = umask(0);
    assert_int_equal(tn_whole_open(&w, in_base("secret")), 0);
    assert_int_equal(mode_of(in_base(w.temporary)) & 07777, 0600);
    tn_whole_drop(&w);
    umask(before);
    assert_false(is_there(in_base(w.temporary)));
    assert_true(holds(in_base("secret"), "old"));
}

TEST(test_links)
{
    assert_int_equal(mkdir(in_base("far"), 0700), 0);
    spill_text(in_base("far/file"), "old");
    assert_int_equal(chmod(in_base("far/file"), 0640), 0);
    assert_int_equal(symlink("far/file", in_base("link")), 0);
    assert_int_equal(symlink("../link", in_base("far/back")), 0);
    assert_int_equal(symlink(in_base("far/back"), in_base("absolute")), 0);
    assert_int_equal(symlink("far/none", in_base("dangling")), 0);
    assert_int_equal(symlink("far", in_base("side")), 0);
    assert_int_equal(symlink("loop", in_base("loop")), 0);
    assert_int_equal(symlink("nowhere/file", in_base("lost")), 0);
    static const char *const to_file[] = {"link", "far/back", "absolute", "side/file", "side/back"};
    for (size_t i = 0; i < sizeof to_file / sizeof *to_file; i++) {
        mode_t kind = mode_of(in_base(to_file[i])) & S_IFMT;
        assert_int_equal(whole(in_base(to_file[i]), to_file[i]), 0);
        assert_int_equal(mode_of(in_base(to_file[i])) & S_IFMT, kind);
        assert_true(holds(in_base("far/file"), to_file[i]));
        assert_int_equal(mode_of(in_base("far/file")), S_IFREG | 0640);
    }
    assert_int_equal(whole(in_base("dangling"), "made"), 0);
    assert_true(S_ISLNK(mode_of(in_base("dangling"))) && holds(in_base("far/none"), "made"));
    assert_int_equal(whole(in_base("loop"), ""), ELOOP);
    assert_int_equal(whole(in_base("lost"), ""), ENOENT);
    assert_int_equal(whole(in_base("side"), ""), EINVAL);
    assert_int_equal(count_files(in_base("far"), ".part"), 0);
}

/* Another user's link in a folder such as /tmp leads nowhere; a file keeps its owner. */
TEST(test_other_users)
{
    if (geteuid()) skip();
    assert_int_equal(mkdir(in_base("tmp"), 0700), 0);
    assert_int_equal(chmod(in_base("tmp"), 01777), 0);
    spill_text(in_base("victim"), "old");
    assert_int_equal(symlink("../victim", in_base("tmp/model")), 0);
    assert_int_equal(lchown(in_base("tmp/model"), 12345, 12345), 0);
    assert_int_equal(whole(in_base("tmp/model"), "new"), EACCES);
    assert_true(holds(in_base("victim"), "old"));
    assert_int_equal(chown(in_base("tmp"), 12345, 12345), 0); /* the folder's owner may do as he likes */
    assert_int_equal(whole(in_base("tmp/model"), "new"), 0);
    assert_true(holds(in_base("victim"), "new"));
    assert_int_equal(chown(in_base("victim"), 12345, 23456), 0);
    assert_int_equal(whole(in_base("victim"), "newer"), 0);
    struct stat st;
    assert_int_equal(stat(in_base("victim"), &st), 0);
    assert_int_equal(st.st_uid, 12345);
    assert_int_equal(st.st_gid, 23456);
}

static int save(tn_session *s, const char *path) { return tn_save(s, path); }

/* Whoever writes files says so alike: the link stays, the permissions stay, and what is no file is refused at
 * once. */
TEST(test_every_writer)
{
    tn_session *s = tn_open(.device = TN_CPU, .seed = 3, .threads = 1, .log = quiet);
    struct net n;
    make_net(s, &n);
    int (*const writer[])(tn_session *, const char *) = {save, (tn_report), (tn_report), (tn_trace)};
    static const char *const name[] = {"w.safetensors", "w.html", "w.json", "w.trace.json"};
    for (int i = 0; i < 4; i++) {
        char target[64], link[64], fifo[64], sock[64];
        snprintf(target, sizeof target, "target-%s", name[i]);
        snprintf(link, sizeof link, "link-%s", name[i]);
        snprintf(fifo, sizeof fifo, "fifo-%s", name[i]);
        snprintf(sock, sizeof sock, "sock-%s", name[i]);
        spill_text(in_base(target), "old");
        assert_int_equal(chmod(in_base(target), 0604), 0);
        assert_int_equal(symlink(target, in_base(link)), 0);
        assert_int_equal(writer[i](s, in_base(link)), TN_OK);
        assert_true(S_ISLNK(mode_of(in_base(link))));
        assert_int_equal(mode_of(in_base(target)), S_IFREG | 0604);
        assert_false(holds(in_base(target), "old"));

        assert_int_equal(mkfifo(in_base(fifo), 0666), 0);
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        struct sockaddr_un where = {.sun_family = AF_UNIX};
        snprintf(where.sun_path, sizeof where.sun_path, "%s", in_base(sock));
        assert_int_equal(bind(fd, (const struct sockaddr *)&where, sizeof where), 0);
        close(fd);
        char null[64], folder[64];
        snprintf(null, sizeof null, "null-%s", name[i]);
        snprintf(folder, sizeof folder, "folder-%s", name[i]);
        assert_int_equal(symlink("/dev/null", in_base(null)), 0);
        assert_int_equal(mkdir(in_base(folder), 0700), 0);
        const char *const no_file[] = {fifo, sock, null, folder};
        alarm(60);
        for (int k = 0; k < 4; k++) {
            mode_t before = mode_of(in_base(no_file[k]));
            assert_int_equal(writer[i](s, in_base(no_file[k])), TN_E_IO);
            assert_non_null(strstr(tn_error_text(s), "not a regular file"));
            assert_non_null(strstr(tn_error_text(s), no_file[k]));
            tn_clear_error(s);
            assert_int_equal(mode_of(in_base(no_file[k])), before);
        }
        alarm(0);
    }
    assert_true(S_ISCHR(mode_of("/dev/null")));
    assert_int_equal(tn_close(s), TN_OK);
    assert_int_equal(count_files(base, ".part"), 0);
}

/* ---- what stands beside it ---- */

/* What another has put where the file will be written, by a guess, is neither followed nor waited for. */
TEST(test_what_is_planted)
{
    char guess[96];
    spill_text(in_base("victim2"), "old");
    snprintf(guess, sizeof guess, "model.%ld.part", (long)getpid());
    assert_int_equal(symlink("victim2", in_base(guess)), 0);
    alarm(60);
    assert_int_equal(whole(in_base("model"), "new"), 0);
    assert_true(holds(in_base("victim2"), "old"));
    assert_true(S_ISREG(mode_of(in_base("model"))));
    unlink(in_base(guess));
    assert_int_equal(mkfifo(in_base(guess), 0666), 0);
    assert_int_equal(mkfifo(in_base("model.0123456789abcdef.part"), 0666), 0);
    assert_int_equal(symlink("victim2", in_base("model.0123456789abcde0.part")), 0);
    assert_int_equal(whole(in_base("model"), "newer"), 0);
    alarm(0);
    assert_true(holds(in_base("victim2"), "old") && holds(in_base("model"), "newer"));
    assert_true(is_there(in_base("model.0123456789abcdef.part"))); /* none of ours */
    unlink(in_base(guess));
    unlink(in_base("model.0123456789abcdef.part"));
    unlink(in_base("model.0123456789abcde0.part"));
    tn_whole_file a, b;
    assert_int_equal(tn_whole_open(&a, in_base("model")), 0);
    assert_int_equal(tn_whole_open(&b, in_base("model")), 0);
    assert_string_not_equal(a.temporary, b.temporary);
    tn_whole_drop(&a);
    tn_whole_drop(&b);
}

/* What a killed process has left beside a checkpoint goes with the next save; what somebody is still writing,
 * or what only looks alike, stays. */
TEST(test_leftovers_of_a_killed_save_go)
{
    needs_cjson();
    char path[128], name[4][160];
    snprintf(path, sizeof path, "%s/run.safetensors", base);
    snprintf(name[0], sizeof name[0], "%s.0123456789abcdef.part", path);
    snprintf(name[1], sizeof name[1], "%s.0123456789abcde0.part", path);
    snprintf(name[2], sizeof name[2], "%s.notes.part", path);
    snprintf(name[3], sizeof name[3], "%s/other.safetensors.0123456789abcdef.part", base);
    int fd[4];
    for (int i = 0; i < 4; i++)
        assert_true((fd[i] = open(name[i], O_WRONLY | O_CREAT | O_CLOEXEC, 0600)) >= 0);
    assert_int_equal(flock(fd[1], LOCK_EX), 0);
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (!child) { /* in the middle of a save */
        tn_whole_file w;
        if (!tn_whole_open(&w, path) &&
            write(ready[1], w.temporary, sizeof w.temporary) == sizeof w.temporary)
            pause();
        _exit(1);
    }
    char temporary[NAME_MAX + 1], killed[NAME_MAX + 128];
    assert_int_equal(read(ready[0], temporary, sizeof temporary), sizeof temporary);
    snprintf(killed, sizeof killed, "%s/%s", base, temporary);
    assert_true(is_there(killed));

    tn_session *s = tn_open(.device = TN_CPU, .seed = 3, .log = quiet);
    struct net n;
    make_net(s, &n);
    assert_int_equal(tn_save(s, path), TN_OK);
    assert_true(is_there(killed)); /* it still runs */
    assert_false(is_there(name[0]));
    for (int i = 1; i < 4; i++) assert_true(is_there(name[i]));
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(fd[1]);
    assert_int_equal(tn_save(s, path), TN_OK);
    assert_false(is_there(killed));
    assert_false(is_there(name[1]));
    assert_true(is_there(name[2]) && is_there(name[3]));
    assert_int_equal(tn_load(s, path), TN_OK);
    assert_int_equal(tn_close(s), TN_OK);
    for (int i = 0; i < 4; i++)
        if (i != 1) close(fd[i]);
    close(ready[0]);
    close(ready[1]);
}

static void *save_often(void *arg)
{
    tn_session *s = tn_open(.device = TN_CPU, .seed = 3, .threads = 1, .log = quiet);
    struct net n;
    make_net(s, &n);
    int status = tn_error(s);
    for (int i = 0; i < 20 && !status; i++) status = tn_save(s, arg);
    tn_close(s);
    return status ? arg : NULL;
}

/* Sessions that save under one name at once: each save is whole. */
TEST(test_saves_under_one_name)
{
    needs_cjson();
    char path[128];
    snprintf(path, sizeof path, "%s/shared.safetensors", base);
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&thread[i], NULL, save_often, path), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(thread[i], &failed);
        assert_null(failed);
    }
    tn_session *s = tn_open(.device = TN_CPU, .seed = 5, .log = quiet);
    struct net n;
    make_net(s, &n);
    assert_int_equal(tn_load(s, path), TN_OK);
    assert_int_equal(tn_close(s), TN_OK);
    assert_int_equal(count_files(base, ".part"), 2); /* those of the test before */
}

/* ---- kills ---- */

enum { NUMBERS = 1 << 16 };

/* Saves 1, 2, 3 ..., each in NUMBERS places of a parameter, and says so when it is done. */
static void save_until_killed(const char *path, int done)
{
    tn_session *s = tn_open(.device = TN_REF, .seed = 3, .threads = 1, .log = quiet);
    float x = 0;
    tn_tensor *p = tn_param(s, "p", tn_zeros(s, TN_F32, TN_SHAPE(NUMBERS)));
    for (int status = p ? TN_OK : TN_E_NULL; !status;) {
        x++;
        tn_tensor *v = tn_full(s, x, TN_F32, TN_SHAPE(NUMBERS));
        status = tn_assign(p, v);
        if (!status) status = tn_save(s, path);
        tn_free(v);
        if (!status && write(done, &x, sizeof x) != sizeof x) status = TN_E_IO;
    }
    _exit(1);
}

/* A process that saves is killed at any time: what is there is the last save that was done, or the one that
 * it was about, whole; and leftovers do not pile up. */
TEST(test_kills)
{
    needs_cjson();
    char path[128];
    snprintf(path, sizeof path, "%s/run.safetensors", in_base("kills"));
    assert_int_equal(mkdir(in_base("kills"), 0700), 0);
    float *p = malloc(NUMBERS * sizeof *p);
    assert_non_null(p);
    int lost = 0, meanwhile = 0, left = 0, most = 0;
    for (int k = 0; k < kills; k++) {
        int done[2];
        float x = 0, last = 0;
        assert_int_equal(pipe(done), 0);
        pid_t child = fork();
        if (!child) {
            close(done[0]);
            save_until_killed(path, done[1]);
        }
        close(done[1]);
        assert_int_equal(read(done[0], &last, sizeof last), sizeof last); /* it is at work */
        seed = seed * 1664525u + 1013904223u;
        nanosleep(&(struct timespec){.tv_nsec = (long)(seed >> 8) % 40000000}, NULL);
        assert_int_equal(kill(child, SIGKILL), 0);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        while (read(done[0], &x, sizeof x) == sizeof x) last = x;
        close(done[0]);
        int parts = count_files(in_base("kills"), ".part");
        left += parts > 0;
        if (parts > most) most = parts;

        tn_session *s = tn_open(.device = TN_REF, .seed = 3, .threads = 1, .log = quiet);
        tn_tensor *t = tn_param(s, "p", tn_zeros(s, TN_F32, TN_SHAPE(NUMBERS)));
        bool good = !tn_load(s, path) && !tn_read(t, TN_F32, p, NUMBERS * sizeof *p) &&
                    (p[0] == last || p[0] == last + 1);
        for (int i = 1; i < NUMBERS && good; i++) good = p[i] == p[0];
        if (!good) printf("  kill %d after save %g: %g, %s\n", k, last, p[0], tn_error_text(s));
        lost += !good;
        meanwhile += good && p[0] == last + 1;
        assert_int_equal(tn_close(s), TN_OK);
    }
    free(p);
    printf("  %d kills, %d lost; %d after the new file was in place, %d left something beside it\n", kills,
           lost, meanwhile, left);
    assert_int_equal(lost, 0);
    assert_true(most <= 1);
}

int main(int argc, char **argv)
{
    OPTION(kills, "kills");
    OPTION(seed, "seed");
    return run_all_tests(make_base, drop_base);
}
