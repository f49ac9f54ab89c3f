/* serve.c - answers requests on several threads: a session each, a step for each request, memory that stays
 * as it is.
 *
 *   build/serve                                      100,000 requests of 1 to 8 images, on two threads
 *   build/serve --weights w.safetensors              what build/mnist_cnn --save has written
 *
 * A session is used by one thread at a time. What a request makes goes with its step, and a request of
 * another size costs no planning once a few sizes have been seen. It ends with a line like
 *
 *   100000 requests (450210 images) on 2 threads: 21034 a second, memory grew by 0.1 MB
 *
 * and exit status 1 where resident memory has grown by more than 1 MB since the first tenth. Read serve
 * first. */
#include "args.h"
#include "mnist_net.h"

#include <pthread.h>
#include <unistd.h>

enum { SIDE = 28, PIXELS = SIDE * SIDE, MOST = 8, CLASSES = 10, THREADS = 16 };

struct server {
    pthread_t thread;
    tn_device_kind device;
    const char *weights;
    long requests, width, images, number;
    pthread_barrier_t *warm;
    bool failed;
};

static double resident_mb(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%*s %ld", &pages) != 1) pages = 0;
    if (f) fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1e6;
}

/* One request: n images in, the most likely digit of each out. */
static int answer(tn_session *s, const struct net *net, const float *image, int64_t n, int32_t *digit)
{
    tn_step_begin(s);
    tn_tensor *x = tn_from(s, image, TN_F32, TN_SHAPE(n, SIDE, SIDE, 1));
    int status = tn_read(tn_argmax(net_forward(net, x), -1, false), TN_I32, digit, (size_t)n * sizeof *digit);
    int ended = tn_step_end(s);
    return status ? status : ended;
}

static void *serve(void *arg)
{
    struct server *me = arg;
    static const float none[MOST * PIXELS];
    float image[MOST * PIXELS];
    int32_t digit[MOST];
    uint32_t random = 12345u + (uint32_t)me->number;
    struct net net;
    tn_session *s = tn_open(.device = me->device, .threads = 1, .seed = 1);
    if (s) {
        make_net(s, &net, SIDE, me->width);
        if (me->weights) tn_load(s, me->weights);
        tn_train(s, false);
        tn_no_grad_begin(s);
        me->failed = tn_error(s) != TN_OK;
    }
    memcpy(image, none, sizeof image);
    for (long i = 0; i < me->requests; i++) {
        if (i == me->requests / 10) { /* what there is from now on has to serve */
            pthread_barrier_wait(me->warm);
            pthread_barrier_wait(me->warm);
        }
        if (!s || me->failed) continue;
        random = random * 1664525u + 1013904223u;
        const int64_t n = 1 + (random >> 16) % MOST;
        for (int k = 0; k < 8; k++) image[(random >> k) % (uint32_t)(n * PIXELS)] = (float)k / 8;
        me->failed = answer(s, &net, image, n, digit) != TN_OK;
        me->images += n;
    }
    me->failed |= !s || tn_close(s) != TN_OK;
    return NULL;
}

int main(int argc, char **argv)
{
    long requests = 100000, threads = 2, width = 4;
    const char *weights = NULL;
    const struct args_more more[] = {
        {"--requests", "how many are answered", .whole = &requests, .least = 100, .most = 1L << 40},
        {"--servers", "threads that answer them", .whole = &threads, .least = 1, .most = THREADS},
        {"--width", "channels of the first convolution", .whole = &width, .least = 1, .most = 1024},
        {"--weights", "a file of weights, of build/mnist_cnn with --width 32", .text = &weights,
         .label = "FILE"},
        {.name = NULL}};
    struct args a = {.program = "serve",
                     .purpose = "Answers requests of varying size on several threads.",
                     .data = "",
                     .epochs = 1,
                     .batch = 1,
                     .lr = 1,
                     .more = more};
    args_parse(&a, argc, argv);
    struct server server[THREADS];
    pthread_barrier_t warm;
    pthread_barrier_init(&warm, NULL, (unsigned)threads + 1);
    for (long i = 0; i < threads; i++) {
        server[i] = (struct server){
            .device = (tn_device_kind)args_choice(&a, "--device", a.device, args_devices)->value,
            .weights = weights,
            .width = width,
            .number = i,
            .warm = &warm};
        server[i].requests = requests / threads + (i < requests % threads);
        if (pthread_create(&server[i].thread, NULL, serve, &server[i])) {
            perror("serve: a thread");
            exit(1);
        }
    }
    pthread_barrier_wait(&warm);
    const double before = resident_mb(), start = args_clock();
    pthread_barrier_wait(&warm);
    long images = 0;
    bool failed = false;
    for (long i = 0; i < threads; i++) {
        pthread_join(server[i].thread, NULL);
        images += server[i].images;
        failed |= server[i].failed;
    }
    const double grown = resident_mb() - before, each = 0.9e3 * (double)requests / (args_clock() - start);
    pthread_barrier_destroy(&warm);
    printf("%ld requests (%ld images) on %ld threads: %.0f a second, memory grew by %.1f MB\n", requests,
           images, threads, each, grown > 0 ? grown : 0);
    if (grown > 1) fprintf(stderr, "serve: resident memory has grown by %.1f MB\n", grown);
    return failed || grown > 1;
}
