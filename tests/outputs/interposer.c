/* Fills what a call is to answer, passes the call on, and notes which fields of a call that worked kept the filling.
 *
 * table.h says what each function answers; interposer.py makes it from the rows of parameters.yaml, and a stub for each
 * exported function. The report is a mapping that all processes of a program share, forked ones too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { PLAIN, LIST, FIRST, BYTES, TEXT, DATA, RANGES, EACH };
enum { NONE = -1, AREAS = 64, CALLS = 1024, STACK = 16 };

/* One word of an answer, or a text in it. `of` and what follows: it counts only where the field there has such a value. */
struct field {
    uint16_t offset, size;
    uint8_t text, out;
    int16_t of;
    uint8_t of_out, values;
    uint8_t value[4];
};
/* A factor of a length: a constant, or a parameter by the place of its word. */
struct factor {
    int8_t word;
    uint8_t size, pointer;
    uint32_t constant;
};
struct output {
    int8_t word;
    uint8_t kind, read;
    uint32_t element;
    struct factor factors[2];
    /* Only where the parameter at `guard` (for EACH: an element of that list) has this value. */
    int8_t guard;
    uint32_t guarded;
    /* Only where what lies behind this parameter after the call has this value. */
    int8_t when;
    uint32_t wanted;
    /* What is read as well is a plain answer where all of these are null. */
    int8_t lists[4];
    uint16_t field, fields, slot;
};
struct function {
    const char *symbol;
    uint8_t no_status;
    uint16_t row, output, outputs;
};
/* Of a function: how often it worked. Of a field: how often it was written, how often not, and in which calls. */
struct row { uint64_t worked; };
struct slot { uint64_t written, unwritten; uint8_t calls[CALLS / 8]; };

#include "table.h"

struct frame { uint64_t integers[6]; double real; const uint64_t *stack; };
struct area {
    const struct output *output;
    uint64_t at, elements, bytes;
    uint8_t *before;
    int read;
};
struct call { uint64_t words[6 + STACK]; struct area areas[AREAS]; int filled; };

static struct { struct row rows[ROWS]; struct slot slots[SLOTS]; } *report;
static uint8_t filling;
static void *targets[FUNCTIONS];
extern char *const stubs[FUNCTIONS];

__attribute__((noreturn)) static void stop(const char *sentence)
{
    fprintf(stderr, "interposer: %s\n", sentence);
    abort();
}

__attribute__((constructor)) static void start(void)
{
    const char *driver = getenv("OUTPUTS_DRIVER"), *file = getenv("OUTPUTS_REPORT"), *fill = getenv("OUTPUTS_FILL");
    if (!driver || !file || !fill) stop("OUTPUTS_DRIVER, OUTPUTS_REPORT and OUTPUTS_FILL have to be set");
    filling = strtoul(fill, NULL, 16);
    int opened = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (opened < 0 || ftruncate(opened, sizeof *report)) stop("the report cannot be written");
    report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
    if (report == MAP_FAILED) stop("the report cannot be mapped");
    close(opened);
    void *below = dlopen(driver, RTLD_NOW | RTLD_LOCAL);
    if (!below) stop(dlerror());
    for (int i = 0; i < FUNCTIONS; i++) targets[i] = dlsym(below, functions[i].symbol);
}

/* The kernel refuses what is not the program's memory: the call below decides on it. */
static int get(uint64_t at, void *to, size_t bytes)
{
    struct iovec ours = {to, bytes}, theirs = {(void *)at, bytes};
    return process_vm_readv(getpid(), &ours, 1, &theirs, 1, 0) == (ssize_t)bytes;
}

static int put(uint64_t at, const void *from, size_t bytes)
{
    struct iovec ours = {(void *)from, bytes}, theirs = {(void *)at, bytes};
    return process_vm_writev(getpid(), &ours, 1, &theirs, 1, 0) == (ssize_t)bytes;
}

static uint64_t number(const uint64_t *words, const struct factor *factor)
{
    if (factor->word == NONE) return factor->constant;
    uint64_t value = words[factor->word], mask = factor->size == 8 ? ~0ul : (1ul << 8 * factor->size) - 1;
    if (factor->pointer) {
        uint64_t at = value;
        value = 0;
        if (!at || !get(at, &value, factor->size)) return 0;
    }
    value &= mask;
    return value > 1ul << 36 ? 0 : value;
}

static uint64_t length(const uint64_t *words, const struct output *output)
{
    return number(words, &output->factors[0]) * number(words, &output->factors[1]);
}

static int counts(const struct field *field, const uint8_t *element)
{
    uint32_t value;
    if (field->of == NONE) return 1;
    memcpy(&value, element + field->of, 4);
    for (int i = 0; i < field->values; i++)
        if (field->value[i] == value) return 1;
    return 0;
}

/* One area that the call is to write. */
static void fill(struct call *call, const struct output *output, uint64_t at, uint64_t elements, uint64_t element)
{
    uint64_t bytes = elements * element;
    int read = output->read;
    for (int i = 0; read && i < 4 && output->lists[0] != NONE; i++)
        if (i == 3 || output->lists[i] == NONE) read = 0;
        else if (call->words[output->lists[i]]) break;
    if (!at || !bytes || bytes > 1ul << 30 || call->filled == AREAS || (read && !output->fields)) return;
    uint8_t *before = malloc(bytes), *filled = malloc(bytes);
    if (!get(at, before, bytes)) goto not;
    memcpy(filled, before, bytes);
    if (!read) memset(filled, filling, bytes);
    for (uint64_t i = 0; read && i < elements; i++)
        for (int f = 0; f < output->fields; f++) {
            const struct field *field = &fields[output->field + f];
            if (field->out && (field->of_out || counts(field, before + i * element)))
                memset(filled + i * element + field->offset, filling, field->size);
        }
    if (!put(at, filled, bytes)) goto not;
    free(filled);
    call->areas[call->filled++] = (struct area){output, at, elements, bytes, before, read};
    return;
not:
    free(before);
    free(filled);
}

static void prepare(struct call *call, const struct output *output)
{
    uint64_t at = call->words[output->word], elements = length(call->words, output);
    if (output->kind == EACH || output->kind == RANGES) {
        for (uint64_t i = 0; i < elements && at; i++) {
            uint64_t place = 0, size = output->element;
            uint32_t attribute = 0;
            if (!get(at + 8 * i, &place, 8)) return;
            if (output->kind == EACH && !get(call->words[output->guard] + 4 * i, &attribute, 4)) return;
            if (output->kind == RANGES && !get(call->words[output->guard] + 8 * i, &size, 8)) return;
            if (output->kind == RANGES || attribute == output->guarded) fill(call, output, place, 1, size);
        }
    } else if (output->guard == NONE || (uint32_t)call->words[output->guard] == output->guarded) {
        fill(call, output, at, output->kind == PLAIN ? 1 : elements, output->element);
    }
}

/* More than half of a word that nobody wrote: what was written for a narrower one does not pass for it. */
static int kept(const uint8_t *at, size_t size)
{
    size_t first = size / 2;
    for (size_t i = first; i < size; i++)
        if (at[i] != filling) return 0;
    return 1;
}

static void note(const struct output *output, int field, int unwritten, uint64_t call)
{
    struct slot *slot = &report->slots[output->slot + field];
    __atomic_fetch_add(unwritten ? &slot->unwritten : &slot->written, 1, __ATOMIC_RELAXED);
    if (unwritten && call < CALLS) __atomic_fetch_or(&slot->calls[call / 8], 1 << call % 8, __ATOMIC_RELAXED);
}

static void check(struct call *call, const struct area *area, uint64_t nth)
{
    const struct output *output = area->output;
    uint32_t condition = 0;
    if (output->when != NONE
        && (!get(call->words[output->when], &condition, 4) || condition != output->wanted)) return;
    uint8_t *now = malloc(area->bytes);
    if (!get(area->at, now, area->bytes)) {
        free(now);
        return;
    }
    uint64_t elements = area->elements, element = area->bytes / area->elements;
    if (output->kind == FIRST) {
        uint64_t answered = length(call->words, output);
        elements = answered < elements ? answered : elements;
    }
    int unwritten = 0;
    switch (output->kind) {
    case TEXT: note(output, 0, !memchr(now, 0, area->bytes), nth); break;
    case DATA:
        unwritten = 1;
        for (uint64_t i = 0; i < area->bytes && unwritten; i++) unwritten = now[i] == filling;
        note(output, 0, unwritten, nth);
        break;
    case BYTES: case RANGES:
        for (uint64_t i = 0; i < area->bytes; i += 8)
            unwritten |= kept(now + i, area->bytes - i < 8 ? area->bytes - i : 8);
        note(output, 0, unwritten, nth);
        break;
    default:
        for (uint64_t i = 0; i < elements; i++)
            for (int f = 0; f < output->fields; f++) {
                const struct field *field = &fields[output->field + f];
                const uint8_t *at = now + i * element;
                if ((area->read && !field->out) || !counts(field, at)) continue;
                at += field->offset;
                note(output, f, field->text ? !memchr(at, 0, field->size) : kept(at, field->size), nth);
            }
    }
    free(now);
}

/* After an error there is what was there before, where the call has not said more. */
static void restore(const struct area *area)
{
    uint8_t *now = malloc(area->bytes);
    if (get(area->at, now, area->bytes)) {
        for (uint64_t i = 0; i < area->bytes; i++)
            if (now[i] == filling) now[i] = area->before[i];
        put(area->at, now, area->bytes);
    }
    free(now);
}

static uint64_t forward(void *target, const uint64_t *w, double real)
{
    typedef uint64_t any(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
        uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
        uint64_t, uint64_t, double);
    return ((any *)target)(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13],
        w[14], w[15], w[16], w[17], w[18], w[19], w[20], w[21], real);
}

/* What was asked for by name is one of ours too. */
static void replace_entry(uint64_t at)
{
    uint64_t entry;
    if (!at || !get(at, &entry, 8) || !entry) return;
    for (int i = 0; i < FUNCTIONS; i++)
        if ((uint64_t)targets[i] == entry) {
            entry = (uint64_t)stubs[i];
            put(at, &entry, 8);
            return;
        }
}

__attribute__((visibility("hidden"))) uint64_t enter(uint32_t index, const struct frame *frame)
{
    const struct function *function = &functions[index];
    struct call call;
    call.filled = 0;
    memcpy(call.words, frame->integers, sizeof frame->integers);
    memcpy(call.words + 6, frame->stack, STACK * sizeof(uint64_t));
    for (int i = 0; i < function->outputs; i++) prepare(&call, &outputs[function->output + i]);
    uint64_t result = forward(targets[index], call.words, frame->real);
    int worked = function->no_status ? result != 0 : (uint32_t)result == 0;
    if (worked) {
        uint64_t nth = __atomic_fetch_add(&report->rows[function->row].worked, 1, __ATOMIC_RELAXED);
        for (int i = 0; i < call.filled; i++) check(&call, &call.areas[i], nth);
    }
    for (int i = call.filled; i--;) {
        if (!worked) restore(&call.areas[i]);
        free(call.areas[i].before);
    }
    if (worked && !strncmp(function->symbol, "cuGetProcAddress", 16)) replace_entry(call.words[1]);
    return result;
}
