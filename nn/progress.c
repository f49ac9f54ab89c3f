/* progress.c - the line that shows how a pass gets on: a bar that is redrawn on a terminal, a plain line
 * every tenth of the pass elsewhere (a log file must not fill up with carriage returns).
 *
 *   epoch 1 [=========>          ] 412/938  loss 0.1234  acc 0.9688  12.3 ms/step  ETA 6 s */
#include "nn.h"

#include <string.h>
#include <unistd.h>

void tn_nn_progress_begin(nn_progress *p, FILE *out, int64_t steps, int64_t done, int64_t epoch)
{
    memset(p, 0, sizeof(*p));
    p->out = out;
    p->terminal = isatty(fileno(out)) == 1;
    p->steps = steps;
    p->done = p->first = done;
    p->epoch = epoch;
    p->lines = steps > 0 ? done * 10 / steps : 0;
    p->start = tn_nn_seconds();
    for (int i = 0; i < 4; i++) p->watch[i] = -1;
}

void tn_nn_progress_value(nn_progress *p, int k, double value)
{
    p->value[k] = value;
    p->known[k] = true;
}

static size_t add(char *out, size_t size, size_t at, const char *text)
{
    size_t n = strlen(text);
    if (at + n >= size) n = size - at - 1;
    memcpy(out + at, text, n);
    out[at + n] = 0;
    return at + n;
}

void tn_nn_progress_line(const nn_progress *p, double now, char *out, size_t size)
{
    enum { WIDTH = 20 };
    char part[96];
    int64_t steps = p->steps > 0 ? p->steps : 1, run = p->done - p->first;
    int full = (int)(p->done * WIDTH / steps);
    snprintf(part, sizeof(part), "epoch %lld ", (long long)p->epoch + 1);
    size_t at = add(out, size, 0, part);
    if (p->terminal) {
        char bar[WIDTH + 4] = "[                    ]";
        for (int i = 0; i < full && i < WIDTH; i++) bar[1 + i] = '=';
        if (full < WIDTH) bar[1 + full] = '>';
        at = add(out, size, at, bar);
        at = add(out, size, at, " ");
    }
    snprintf(part, sizeof(part), "%lld/%lld", (long long)p->done, (long long)p->steps);
    at = add(out, size, at, part);
    for (int i = 0; i < p->n; i++) {
        if (!p->known[i]) continue;
        tn_snprintf(part, sizeof(part), "  %s %.4f", p->name[i], p->value[i]);
        at = add(out, size, at, part);
    }
    if (p->skipped) {
        snprintf(part, sizeof(part), "  %lld skipped", (long long)p->skipped);
        at = add(out, size, at, part);
    }
    if (run > 0) {
        double each = (now - p->start) / (double)run, left = each * (double)(p->steps - p->done);
        tn_snprintf(part, sizeof(part), each < 1e-3 ? "  %.0f us/step" : "  %.1f ms/step",
                    each < 1e-3 ? 1e6 * each : 1e3 * each);
        at = add(out, size, at, part);
        if (p->done < p->steps)
            if (left < 100)
                tn_snprintf(part, sizeof(part), "  ETA %.0f s", left);
            else
                tn_snprintf(part, sizeof(part), "  ETA %.0f min", left / 60);
        else
            tn_snprintf(part, sizeof(part), "  %.1f s", now - p->start);
        add(out, size, at, part);
    }
}

static void show(nn_progress *p, double now)
{
    char line[512];
    tn_nn_progress_line(p, now, line, sizeof(line));
    /* \033[K clears what a longer line before left behind. */
    fprintf(p->out, p->terminal ? "\r%s\033[K" : "%s\n", line);
    fflush(p->out);
    p->shown = now;
}

void tn_nn_progress_step(nn_progress *p, int64_t done)
{
    if (!p->out || done <= p->done) return;
    double now = tn_nn_seconds();
    p->done = done;
    int64_t lines = done * 10 / (p->steps > 0 ? p->steps : 1);
    bool due = p->terminal ? now - p->shown > 0.1 : lines > p->lines;
    p->lines = lines;
    if (due && done < p->steps) show(p, now);
}

void tn_nn_progress_end(nn_progress *p, bool failed)
{
    if (!p->out) return;
    if (!failed) show(p, tn_nn_seconds());
    if (p->terminal && (!failed || p->shown > 0)) fputc('\n', p->out);
    p->out = NULL;
}
