/* A stand-in for libnvidia-ml.so.1, with simulated GPUs behind it. Their state lies in the file that NVML_STANDIN
 * names, shared by all processes that load this library and by the test: see nvml.py beside it, which has the same
 * structures. Any function can be made to return any error. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SIZE = 7, LOST = 15 };

typedef struct {
    char uuid[64], name[64];
    int32_t present, mig, virtualization, persistence;
    int32_t sm_lock, memory_lock; /* 0: none */
    int32_t limit_mw, default_limit_mw, low_limit_mw, high_limit_mw;
    int32_t free_sm_mhz, free_memory_mhz, temperature_c, instant_power;
    int32_t memory_count, memory_mhz[8], sm_low, sm_high, sm_step;
    int32_t sm_writes, memory_writes, limit_writes, writes;
    uint64_t events;
    int64_t energy_uj, energy_at_ns;
} Gpu;

typedef struct {
    char function[64];
    int32_t code, skip; /* skip: so many calls go well before */
} Fault;

typedef struct {
    int32_t gpus, faults;
    Gpu gpu[4];
    Fault fault[32];
} State;

typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency;
    uint32_t type, result;
    union {
        double d;
        uint32_t ui;
        uint64_t ull;
    } value;
} FieldValue;

static State *state;
static char path[512];

static int faulty(const char *function) {
    for (int i = 0; state && i < state->faults; i++) {
        Fault *fault = &state->fault[i];
        if (strcmp(fault->function, function) == 0) {
            if (fault->skip > 0) {
                fault->skip--;
                return OK;
            }
            return fault->code;
        }
    }
    return OK;
}

#define ENTER                          \
    if (!state) return UNINITIALIZED;  \
    int code = faulty(__func__);       \
    if (code) return code;

#define ENTER_GPU                                                    \
    ENTER                                                            \
    Gpu *gpu = (Gpu *)handle;                                        \
    if (gpu < state->gpu || gpu >= state->gpu + 4) return ARGUMENT;  \
    if (!gpu->present) return LOST;

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    const char *wanted = getenv("NVML_STANDIN");
    if (!wanted) return 9;
    if (!state || strcmp(path, wanted) != 0) {
        int file = open(wanted, O_RDWR);
        if (file < 0) return 9;
        void *at = mmap(NULL, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (at == MAP_FAILED) return 999;
        state = at;
        snprintf(path, sizeof path, "%s", wanted);
    }
    return faulty(__func__);
}

int nvmlShutdown(void) { return state ? OK : UNINITIALIZED; }

const char *nvmlErrorString(int code) {
    (void)code;
    return "an error of the stand-in";
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER
    *count = (unsigned)state->gpus;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    ENTER
    if (index >= (unsigned)state->gpus) return ARGUMENT;
    if (!state->gpu[index].present) return LOST;
    *handle = &state->gpu[index];
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    ENTER
    for (int i = 0; i < state->gpus; i++) {
        if (strcmp(state->gpu[i].uuid, uuid) == 0) {
            if (!state->gpu[i].present) return LOST;
            *handle = &state->gpu[i];
            return OK;
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *handle, char *out, unsigned size) {
    ENTER_GPU
    snprintf(out, size, "%s", gpu->uuid);
    return OK;
}

int nvmlDeviceGetName(void *handle, char *out, unsigned size) {
    ENTER_GPU
    snprintf(out, size, "%s", gpu->name);
    return OK;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    ENTER_GPU
    if (gpu->mig < 0) return NOT_SUPPORTED;
    *current = *pending = (unsigned)gpu->mig;
    return OK;
}

int nvmlDeviceGetVirtualizationMode(void *handle, uint32_t *mode) {
    ENTER_GPU
    *mode = (uint32_t)gpu->virtualization;
    return OK;
}

int nvmlDeviceGetSupportedMemoryClocks(void *handle, unsigned *count, unsigned *clocks) {
    ENTER_GPU
    unsigned room = *count;
    *count = (unsigned)gpu->memory_count;
    if (!clocks || room < *count) return SIZE;
    for (unsigned i = 0; i < *count; i++) clocks[i] = (unsigned)gpu->memory_mhz[i];
    return OK;
}

int nvmlDeviceGetSupportedGraphicsClocks(void *handle, unsigned memory, unsigned *count, unsigned *clocks) {
    ENTER_GPU
    (void)memory;
    unsigned room = *count;
    *count = (unsigned)((gpu->sm_high - gpu->sm_low) / gpu->sm_step + 1);
    if (!clocks || room < *count) return SIZE;
    for (unsigned i = 0; i < *count; i++) clocks[i] = (unsigned)(gpu->sm_high - (int)i * gpu->sm_step);
    return OK;
}

static int sm_mhz(const Gpu *gpu) { return gpu->sm_lock ? gpu->sm_lock : gpu->free_sm_mhz; }

static int memory_mhz(const Gpu *gpu) { return gpu->memory_lock ? gpu->memory_lock : gpu->free_memory_mhz; }

static int power_mw(const Gpu *gpu) {
    int power = 40000 + 150 * sm_mhz(gpu) + 5 * memory_mhz(gpu);
    return power < gpu->limit_mw ? power : gpu->limit_mw;
}

static void count_energy(Gpu *gpu) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t at = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    if (gpu->energy_at_ns) gpu->energy_uj += (at - gpu->energy_at_ns) / 1000 * power_mw(gpu) / 1000;
    gpu->energy_at_ns = at;
}

int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned *clock) {
    ENTER_GPU
    if (kind == 1) *clock = (unsigned)sm_mhz(gpu);
    else if (kind == 2) *clock = (unsigned)memory_mhz(gpu);
    else return ARGUMENT;
    return OK;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *power) {
    ENTER_GPU
    *power = (unsigned)power_mw(gpu);
    return OK;
}

int nvmlDeviceGetFieldValues(void *handle, int count, FieldValue *values) {
    ENTER_GPU
    for (int i = 0; i < count; i++) {
        values[i].result = values[i].field == 186 && gpu->instant_power ? OK : NOT_SUPPORTED;
        values[i].value.ui = (uint32_t)power_mw(gpu);
    }
    return OK;
}

int nvmlDeviceGetTotalEnergyConsumption(void *handle, uint64_t *energy) {
    ENTER_GPU
    count_energy(gpu);
    *energy = (uint64_t)(gpu->energy_uj / 1000);
    return OK;
}

int nvmlDeviceGetPowerManagementLimit(void *handle, unsigned *limit) {
    ENTER_GPU
    *limit = (unsigned)gpu->limit_mw;
    return OK;
}

int nvmlDeviceGetPowerManagementDefaultLimit(void *handle, unsigned *limit) {
    ENTER_GPU
    *limit = (unsigned)gpu->default_limit_mw;
    return OK;
}

int nvmlDeviceGetPowerManagementLimitConstraints(void *handle, unsigned *low, unsigned *high) {
    ENTER_GPU
    *low = (unsigned)gpu->low_limit_mw;
    *high = (unsigned)gpu->high_limit_mw;
    return OK;
}

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *temperature) {
    ENTER_GPU
    (void)sensor;
    *temperature = (unsigned)gpu->temperature_c;
    return OK;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *reasons) {
    ENTER_GPU
    *reasons = gpu->events;
    return OK;
}

int nvmlDeviceSetPowerManagementLimit(void *handle, unsigned limit) {
    ENTER_GPU
    if ((int)limit < gpu->low_limit_mw || (int)limit > gpu->high_limit_mw) return ARGUMENT;
    count_energy(gpu);
    gpu->limit_mw = (int)limit;
    gpu->limit_writes++, gpu->writes++;
    return OK;
}

int nvmlDeviceSetGpuLockedClocks(void *handle, unsigned low, unsigned high) {
    ENTER_GPU
    if (low != high) return ARGUMENT;
    count_energy(gpu);
    gpu->sm_lock = (int)high;
    gpu->sm_writes++, gpu->writes++;
    return OK;
}

int nvmlDeviceResetGpuLockedClocks(void *handle) {
    ENTER_GPU
    count_energy(gpu);
    gpu->sm_lock = 0;
    gpu->writes++;
    return OK;
}

int nvmlDeviceSetMemoryLockedClocks(void *handle, unsigned low, unsigned high) {
    ENTER_GPU
    if (low != high) return ARGUMENT;
    count_energy(gpu);
    gpu->memory_lock = (int)high;
    gpu->memory_writes++, gpu->writes++;
    return OK;
}

int nvmlDeviceResetMemoryLockedClocks(void *handle) {
    ENTER_GPU
    count_energy(gpu);
    gpu->memory_lock = 0;
    gpu->writes++;
    return OK;
}
