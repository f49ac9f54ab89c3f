/* events.c - scalars over steps for TensorBoard, in files of its own format.
 *
 * A file is a row of TFRecords: the length of the data in 8 bytes, a masked CRC-32C of these, the data, a
 * masked CRC-32C of the data, all little-endian. The data are a message Event of protobuf: wall_time (1),
 * step (2), and in the first record file_version (3), in others summary (5), whose value (1) has a tag (1)
 * and a float (2). Start with tn_events_scalar. */
#include "nn.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TAG_MOST = 200, RECORD_MOST = TAG_MOST + 100 };

struct tn_events {
    tn_session *s;
    FILE *f;
    char path[4096];
};

typedef struct record {
    size_t n;
    uint8_t at[RECORD_MOST];
} record;

static uint32_t masked_crc32c(const uint8_t *p, size_t n)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void put_fixed(record *r, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) r->at[r->n++] = (uint8_t)(value >> 8 * i);
}

static void put_varint(record *r, uint64_t value)
{
    for (; value >= 128; value >>= 7) r->at[r->n++] = (uint8_t)(value | 128);
    r->at[r->n++] = (uint8_t)value;
}

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* protobuf's wire types */

static void put_key(record *r, int field, int type) { r->at[r->n++] = (uint8_t)(field << 3 | type); }

static void put_bytes(record *r, int field, const void *p, size_t n)
{
    put_key(r, field, BYTES);
    put_varint(r, n);
    memcpy(r->at + r->n, p, n);
    r->n += n;
}

static record event_now(void)
{
    record r = {.n = 0};
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    const double seconds = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    uint64_t bits;
    memcpy(&bits, &seconds, sizeof(bits));
    put_key(&r, 1, FIXED64);
    put_fixed(&r, bits, 8);
    return r;
}

static int put_record(tn_events *e, const char *op, const record *data)
{
    record head = {.n = 0}, tail = {.n = 0};
    put_fixed(&head, data->n, 8);
    put_fixed(&head, masked_crc32c(head.at, 8), 4);
    put_fixed(&tail, masked_crc32c(data->at, data->n), 4);
    const bool written = fwrite(head.at, 1, head.n, e->f) == head.n &&
                         fwrite(data->at, 1, data->n, e->f) == data->n &&
                         fwrite(tail.at, 1, tail.n, e->f) == tail.n && !fflush(e->f);
    return written ? TN_OK : tn_fail(e->s, TN_E_IO, op, "%s cannot be written: %s", e->path, strerror(errno));
}

static void close_file(void *events)
{
    tn_events *e = events;
    if (e->f && fclose(e->f)) tn_warn(e->s, "%s cannot be written: %s", e->path, strerror(errno));
}

/* Readers go by the names' order: time first. Two of one second differ in the last number. */
static FILE *new_file(tn_events *e, const char *folder)
{
    char host[64] = "host";
    FILE *f = NULL;
    gethostname(host, sizeof(host) - 1);
    for (int i = 0; i < 1000 && !f && (!i || errno == EEXIST); i++) {
        const int n = snprintf(e->path, sizeof(e->path), "%s/events.out.tfevents.%010lld.%s.%ld.%d", folder,
                               (long long)time(NULL), host, (long)getpid(), i);
        errno = ENAMETOOLONG;
        if (n < (int)sizeof(e->path)) f = fopen(e->path, "wbx");
    }
    return f;
}

TN_DEFINE(tn_events *, events_open, s, (s, folder), tn_session *s, const char *folder)
{
    static const char op[] = "events_open", version[] = "brain.Event:2";
    if (!s || tn_error(s)) return NULL;
    if (!folder) return tn_nn_fail(s, TN_E_NULL, op, "folder is NULL");
    tn_events *e = tn_nn_own(s, sizeof(*e), close_file, op);
    if (!e) return NULL;
    e->s = s;
    mkdir(folder, 0777); /* what goes wrong here is said of the file */
    if (!(e->f = new_file(e, folder)))
        return tn_nn_fail(s, TN_E_IO, op, "no file can be made in %s: %s", folder, strerror(errno));
    record r = event_now();
    put_bytes(&r, 3, version, sizeof(version) - 1);
    return put_record(e, op, &r) ? NULL : e;
}

TN_DEFINE(int, events_scalar, e ? e->s : NULL, (e, tag, step, value), tn_events *e, const char *tag,
          int64_t step, double value)
{
    static const char op[] = "events_scalar";
    if (!e) return TN_E_NULL;
    if (tn_error(e->s)) return tn_error(e->s);
    if (!tag) return tn_fail(e->s, TN_E_NULL, op, "tag is NULL");
    const size_t n = strlen(tag);
    if (!n || n > TAG_MOST)
        return tn_fail(e->s, TN_E_ARG, op, "a tag of %zu bytes, 1 to %d needed", n, TAG_MOST);
    const float number = (float)value;
    uint32_t bits;
    memcpy(&bits, &number, sizeof(bits));
    record scalar = {.n = 0}, summary = {.n = 0}, event = event_now();
    put_bytes(&scalar, 1, tag, n);
    put_key(&scalar, 2, FIXED32);
    put_fixed(&scalar, bits, 4);
    put_bytes(&summary, 1, scalar.at, scalar.n);
    put_key(&event, 2, VARINT);
    put_varint(&event, (uint64_t)step);
    put_bytes(&event, 5, summary.at, summary.n);
    return put_record(e, op, &event);
}
