/* curve.c - the curves of a training, such as its loss: points that the program tells, as the report and a
 * terminal draw them. However many there are, a curve holds a bounded number of means of as many neighbours.
 * Start with tn_curve_point. */
#include "view.h"

#include "../../include/tensor_extend.h"

#include <math.h>
#include <string.h>

enum { POINTS = 256, NAME = 32, WIDTH = 600, HEIGHT = 160, COLUMNS = 64, ROWS = 7 };

typedef struct curve {
    struct curve *next;
    char name[NAME];
    int n;               /* means that are complete */
    uint64_t every, had; /* points of one mean; of the one that is not complete yet */
    uint64_t left_out;   /* that were not finite */
    double sum, step[POINTS], value[POINTS];
    double first, last, lowest, lowest_at;
} curve;

typedef struct curves {
    curve *first;
} curves;

static void free_all(void *arg)
{
    curves *all = arg;
    while (all->first) {
        curve *next = all->first->next;
        tn_free_mem(all->first);
        all->first = next;
    }
    tn_free_mem(all);
}

/* The session's curve of this name; a new one behind the others. NULL: no memory. Of UTF-8 whole characters
 * are kept, and nothing that would steer a terminal. */
static curve *named(tn_session *s, const char *name)
{
    char kept[NAME];
    size_t n = strlen(name);
    if (n >= NAME)
        for (n = NAME - 1; n && ((unsigned char)name[n] & 0xc0) == 0x80;) n--;
    for (size_t i = 0; i < n; i++) kept[i] = (unsigned char)name[i] < ' ' || name[i] == 0x7f ? '?' : name[i];
    kept[n] = 0;
    curves *all = tn_on_close_arg(s, free_all);
    if (!all) {
        all = tn_calloc(1, sizeof *all);
        if (!all || tn_on_close(s, free_all, all)) {
            tn_free_mem(all);
            return NULL;
        }
    }
    curve **at = &all->first;
    while (*at && strcmp((*at)->name, kept) != 0) at = &(*at)->next;
    if (*at || !(*at = tn_calloc(1, sizeof **at))) return *at;
    memcpy((*at)->name, kept, n + 1);
    (*at)->every = 1;
    return *at;
}

static void halve(curve *c)
{
    c->n /= 2;
    c->every *= 2;
    for (int i = 0; i < c->n; i++) {
        c->value[i] = (c->value[2 * i] + c->value[2 * i + 1]) / 2;
        c->step[i] = c->step[2 * i + 1];
    }
}

TN_DEFINE(int, curve_point, s, (s, name, value), tn_session *s, const char *name, double value)
{
    if (!s || !name) return TN_E_NULL;
    curve *c = named(s, name);
    if (!c) return tn_fail(s, TN_E_NOMEM, "curve_point", "no memory");
    const double step = (double)s->stats.steps + s->in_step;
    if (!isfinite(value)) {
        c->left_out++;
        return TN_OK;
    }
    if (!c->n && !c->had) c->first = c->lowest = value, c->lowest_at = step;
    if (value < c->lowest) c->lowest = value, c->lowest_at = step;
    c->last = value;
    c->sum += value;
    if (++c->had < c->every) return TN_OK;
    if (c->n == POINTS) {
        halve(c); /* the point begins a mean of twice as many */
        return TN_OK;
    }
    c->value[c->n] = c->sum / (double)c->had;
    c->step[c->n++] = step;
    c->sum = 0;
    c->had = 0;
    return TN_OK;
}

/* ---- telling ---- */

static const curve *first_of(tn_session *s)
{
    const curves *all = tn_on_close_arg(s, free_all);
    return all ? all->first : NULL;
}

static void put_words(const curve *c, tn_growing *t)
{
    const bool any = c->n || c->had;
    if (any) tn_put(t, "%.5g > %.5g", c->first, c->last);
    if (c->n) tn_put(t, " by step %.0f", c->step[c->n - 1]);
    if (any) tn_put(t, ", lowest %.5g at step %.0f", c->lowest, c->lowest_at);
    if (c->left_out) tn_put(t, "%s%llu not finite", any ? ", " : "", (unsigned long long)c->left_out);
}

/* How high v lies between the curve's least mean, 0, and its largest, 1. */
static double height_of(const curve *c, double v)
{
    double low = c->value[0], high = low;
    for (int i = 1; i < c->n; i++) {
        low = fmin(low, c->value[i]);
        high = fmax(high, c->value[i]);
    }
    return high > low ? (v - low) / (high - low) : .5;
}

/* In characters that every terminal has: a column is the mean of the points that fall into it. */
static void put_plot(const curve *c, tn_growing *t)
{
    char line[ROWS][COLUMNS + 1];
    const int columns = c->n < COLUMNS ? c->n : COLUMNS;
    memset(line, ' ', sizeof line);
    for (int i = 0; i < columns; i++) {
        const int from = i * c->n / columns, to = (i + 1) * c->n / columns;
        double sum = 0;
        for (int k = from; k < to; k++) sum += c->value[k];
        line[(int)lrint((1 - height_of(c, sum / (to - from))) * (ROWS - 1))][i] = '*';
    }
    for (int r = 0; r < ROWS; r++) {
        int length = columns;
        while (length && line[r][length - 1] == ' ') length--;
        tn_put(t, "  |%.*s\n", length, line[r]);
    }
}

void tn_curves_text(tn_session *s, tn_growing *t)
{
    for (const curve *c = first_of(s); c; c = c->next) {
        tn_put(t, "curve %s: ", c->name);
        put_words(c, t);
        tn_put(t, "\n");
        if (c->n > 2) put_plot(c, t);
    }
}

TN_DEFINE(int, curves, s, (s, out), tn_session *s, FILE *out)
{
    if (!s) return TN_E_NULL;
    if (!out) return tn_fail(s, TN_E_NULL, "curves", "out is NULL");
    tn_growing t = {0};
    tn_curves_text(s, &t);
    return tn_put_out(&t, TN_OK, out);
}

void tn_curves_json(tn_session *s, tn_growing *t)
{
    tn_put(t, ",\n\"curves\":[");
    for (const curve *c = first_of(s); c; c = c->next) {
        tn_put(t, "%s{\"name\":", c == first_of(s) ? "" : ",");
        tn_put_string(t, c->name);
        for (int k = 0; k < 2; k++) {
            tn_put(t, k ? "],\"value\":[" : ",\"step\":[");
            for (int i = 0; i < c->n; i++) tn_put(t, "%s%.9g", i ? "," : "", k ? c->value[i] : c->step[i]);
        }
        tn_put(t, "]}");
    }
    tn_put(t, "]");
}

static void put_line(const curve *c, tn_growing *t)
{
    const double from = c->step[0], over = c->step[c->n - 1] - from;
    tn_put(t, "<svg viewBox='0 0 %d %d' width='100%%' style='max-width:%dpx'>", WIDTH, HEIGHT + 20, WIDTH);
    tn_put(t, "<polyline fill=none stroke='#4878a8' stroke-width=2 points='");
    for (int i = 0; i < c->n; i++)
        tn_put(t, "%.1f,%.1f ", over > 0 ? (c->step[i] - from) / over * WIDTH : 0,
               4 + (1 - height_of(c, c->value[i])) * (HEIGHT - 8));
    tn_put(t, "'/><text x=0 y=%d>step %.0f</text><text x=%d y=%d text-anchor=end>step %.0f</text></svg>\n",
           HEIGHT + 16, from, WIDTH, HEIGHT + 16, c->step[c->n - 1]);
}

void tn_curves_html(tn_session *s, tn_growing *t)
{
    if (first_of(s)) tn_put(t, "<h2>Training</h2>\n");
    for (const curve *c = first_of(s); c; c = c->next) {
        TN_PUT_HTML(t, "<p><b>", c->name, "</b> ");
        put_words(c, t);
        tn_put(t, "</p>\n");
        if (c->n > 1) put_line(c, t);
    }
}
