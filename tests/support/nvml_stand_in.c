/* An NVML that fails on order: the software GPU's (the libcuda.so.1 that this is linked to), with events and figures of
 * its own. A test gives orders by files in the folder that NVML_STAND_IN names: `xids` is a FIFO of 64-bit XID numbers,
 * every other file holds one number, and what has no file is not supported. No vendor header is used: the types are those
 * that NVML's reference documents. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *device_t;
enum { SUCCESS = 0, NOT_SUPPORTED = 3, TIMEOUT = 10, GPU_IS_LOST = 15, UNKNOWN = 999 };
enum { XID_CRITICAL = 8, RECOVERY_ACTION = 230, TEMPERATURE_GPU = 0 };

struct event { device_t device; unsigned long long type, data; unsigned gpu_instance, compute_instance; };
struct field { unsigned id, scope; long long timestamp, latency; unsigned type; int result; unsigned long long value; };
struct rates { unsigned gpu, memory; };
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

extern int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device);

static void path_of(const char *name, char path[4096]) { snprintf(path, 4096, "%s/%s", getenv("NVML_STAND_IN"), name); }

/* The number in a file; whether there is one. */
static int read_number(const char *name, unsigned long long *number) {
    char path[4096];
    path_of(name, path);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    int found = fscanf(file, "%llu", number) == 1;
    fclose(file);
    return found;
}

static int answer(const char *name, unsigned *value) {
    unsigned long long number;
    if (!read_number(name, &number)) return NOT_SUPPORTED;
    *value = (unsigned)number;
    return SUCCESS;
}

static int orders = -1;

int nvmlEventSetCreate(void **set) {
    char path[4096];
    path_of("xids", path);
    /* For writing, too: a FIFO without a writer is at its end. */
    orders = open(path, O_RDWR | O_CLOEXEC);
    *set = &orders;
    return orders < 0 ? UNKNOWN : SUCCESS;
}

int nvmlEventSetFree(void *set) { (void)set; return close(orders) ? UNKNOWN : SUCCESS; }

int nvmlDeviceGetSupportedEventTypes(device_t device, unsigned long long *types) {
    (void)device;
    *types = XID_CRITICAL;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(device_t device, unsigned long long types, void *set) {
    (void)device;
    unsigned long long refused;
    if (read_number("unwatched", &refused)) return NOT_SUPPORTED;
    return types == XID_CRITICAL && set == &orders ? SUCCESS : NOT_SUPPORTED;
}

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned milliseconds) {
    struct pollfd ready = {*(int *)set, POLLIN, 0};
    if (poll(&ready, 1, (int)milliseconds) != 1) return TIMEOUT;
    memset(event, 0, sizeof *event);
    if (read(ready.fd, &event->data, sizeof event->data) != sizeof event->data) return UNKNOWN;
    event->type = XID_CRITICAL;
    event->gpu_instance = event->compute_instance = 0xFFFFFFFF;
    return nvmlDeviceGetHandleByIndex_v2(0, &event->device);
}

int nvmlDeviceGetTotalEccErrors(device_t device, int error, int counter, unsigned long long *count) {
    (void)device, (void)error, (void)counter;
    return read_number("ecc", count) ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetFieldValues(device_t device, int count, struct field *fields) {
    (void)device;
    for (int i = 0; i < count; i++) {
        fields[i].result = NOT_SUPPORTED;
        fields[i].type = 3; /* an unsigned 64-bit number */
        if (fields[i].id == RECOVERY_ACTION && read_number("recovery", &fields[i].value)) fields[i].result = SUCCESS;
    }
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(device_t device, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                              unsigned *failed) {
    (void)device;
    *correctable = *uncorrectable = *pending = 0;
    return answer("remap_failed", failed);
}

int nvmlDeviceGetMemoryInfo(device_t device, struct memory *memory) {
    unsigned long long lost;
    if (read_number("lost", &lost)) return GPU_IS_LOST;
    int (*next)(device_t, struct memory *) = dlsym(RTLD_NEXT, "nvmlDeviceGetMemoryInfo");
    return next(device, memory);
}

int nvmlDeviceGetMemoryInfo_v2(device_t device, struct memory_v2 *memory) {
    int (*next)(device_t, struct memory_v2 *) = dlsym(RTLD_NEXT, "nvmlDeviceGetMemoryInfo_v2");
    int result = next(device, memory);
    read_number("memory_used", &memory->used);
    return result;
}

int nvmlDeviceGetUtilizationRates(device_t device, struct rates *rates) {
    (void)device;
    int result = answer("utilization", &rates->gpu);
    return result ? result : answer("memory_utilization", &rates->memory);
}

int nvmlDeviceGetTemperature(device_t device, int sensor, unsigned *celsius) {
    (void)device;
    return sensor == TEMPERATURE_GPU ? answer("temperature", celsius) : NOT_SUPPORTED;
}

int nvmlDeviceGetPowerUsage(device_t device, unsigned *milliwatt) {
    (void)device;
    return answer("power", milliwatt);
}
