/*
 * Stands in for libnvidia-ml.so.1, and so for hardware that nobody has here.
 *
 * The real nvidia-ml-py bindings load it and call it; it answers as the scenario in the environment variable
 * ANYGPU_FAKE_NVML says. It has exactly the functions that anygpu calls through the bindings, with the struct layouts
 * of nvml.h, and it refuses calls before initialisation, as NVML does.
 *
 * With ANYGPU_FAKE_NVML_LOG set to a file, the names of the functions that begin, count and end are appended to it.
 *
 *   two_cards                an RTX 4090 and a T4, both well
 *   old_driver               the same cards with driver 440.33.01, which serves CUDA 10.2
 *   no_cards                 the driver is well and there is no card
 *   no_memory_info           memory is NOT_SUPPORTED, as where the card shares the processor's
 *   no_libcuda               the CUDA version cannot be told: libcuda is missing, NVML is not
 *   odd_identity             the UUID and the PCI address are not what anybody expects
 *   driver_not_loaded, mismatch, no_permission, no_supported_card, unknown_error
 *                            initialisation fails
 *   no_permission_card       the second card may not be opened
 *   lost_card                the second card is GPU_IS_LOST from everything after its handle
 *   lost_card_with_address   the same, but the driver remembers its PCI address and its name
 *   hang                     counting the cards blocks for ever
 *   throttling               the first card is hot, and slowed down for it and for its power
 *   nonsense                 the first card reports numbers that cannot be
 *   vanishing                the second card is lost after its temperature was read
 *   hang_power               reading the power of the first card blocks for ever
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    LIBRARY_NOT_FOUND = 12,
    GPU_IS_LOST = 15,
    LIB_RM_VERSION_MISMATCH = 18,
    GPU_NOT_FOUND = 28,
    UNKNOWN = 999,
};

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;
_Static_assert(sizeof(PciInfo) == 68, "nvmlPciInfo_t has 68 bytes");

typedef struct {
    unsigned long long total, free, used;
} Memory;

typedef struct {
    unsigned int gpu, memory;
} Utilization;

typedef struct {
    unsigned int index;
    const char *name, *uuid, *bus_id;
    unsigned int bus, pci_device_id;
    unsigned long long total_mib, free_mib;
    int major, minor;
    unsigned int busy_percent;
} FakeCard;

static FakeCard cards[] = {
    {0, "NVIDIA GeForce RTX 4090", "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9", "00000000:01:00.0", 0x01, 0x268410DE,
     24564, 20000, 8, 9, 37},
    {1, "Tesla T4", "GPU-ffeeddcc-bbaa-9988-7766-554433221100", "00000000:65:00.0", 0x65, 0x1EB810DE,
     15360, 15101, 7, 5, 0},
};

static const char *known_scenarios[] = {
    "two_cards", "old_driver", "no_cards", "no_memory_info", "no_libcuda", "odd_identity", "driver_not_loaded",
    "mismatch", "no_permission", "no_supported_card", "unknown_error", "no_permission_card", "lost_card",
    "lost_card_with_address", "hang", "throttling", "nonsense", "vanishing", "hang_power",
};

static int initialised = 0;
static int vanished = 0;

static int scenario_is(const char *name)
{
    const char *scenario = getenv("ANYGPU_FAKE_NVML");
    return scenario != NULL && strcmp(scenario, name) == 0;
}

/* A misspelt scenario must not pass for a healthy machine. */
static void require_known_scenario(void)
{
    for (size_t i = 0; i < sizeof known_scenarios / sizeof *known_scenarios; i++)
        if (scenario_is(known_scenarios[i]))
            return;
    fprintf(stderr, "stand-in for NVML: ANYGPU_FAKE_NVML names no known scenario\n");
    abort();
}

static void note(const char *function)
{
    const char *path = getenv("ANYGPU_FAKE_NVML_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%s\n", function);
        fclose(file);
    }
}

static int copy_text(char *into, unsigned int length, const char *text)
{
    if (strlen(text) + 1 > length)
        return INSUFFICIENT_SIZE;
    strcpy(into, text);
    return SUCCESS;
}

/* What every question about a card answers before it looks at the card. */
static int refusal(const FakeCard *card)
{
    if (!initialised)
        return UNINITIALIZED;
    if (card->index == 1 && (scenario_is("lost_card") || scenario_is("lost_card_with_address")))
        return GPU_IS_LOST;
    if (card->index == 1 && vanished)
        return GPU_IS_LOST;
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    require_known_scenario();
    note("nvmlInitWithFlags");
    if (scenario_is("driver_not_loaded"))
        return DRIVER_NOT_LOADED;
    if (scenario_is("mismatch"))
        return LIB_RM_VERSION_MISMATCH;
    if (scenario_is("no_permission"))
        return NO_PERMISSION;
    if (scenario_is("no_supported_card"))
        return GPU_NOT_FOUND;
    if (scenario_is("unknown_error"))
        return UNKNOWN;
    initialised++;
    return SUCCESS;
}

/* The bindings do not call this one; other programs that load the library do. */
int nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

int nvmlShutdown(void)
{
    note("nvmlShutdown");
    if (!initialised)
        return UNINITIALIZED;
    initialised--;
    return SUCCESS;
}

const char *nvmlErrorString(int code)
{
    return code == GPU_NOT_FOUND ? "No supported GPUs were found" : "an error of the stand-in";
}

/* NVML tells this even where it cannot be initialised. */
int nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    return copy_text(version, length, scenario_is("old_driver") ? "10.440.33.01" : "12.550.54.14");
}

int nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    if (!initialised)
        return UNINITIALIZED;
    return copy_text(version, length, scenario_is("old_driver") ? "440.33.01" : "550.54.14");
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    if (scenario_is("no_libcuda"))
        return LIBRARY_NOT_FOUND;
    *version = scenario_is("old_driver") ? 10020 : 12040;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    if (!initialised)
        return UNINITIALIZED;
    note("nvmlDeviceGetCount_v2");
    while (scenario_is("hang"))
        pause();
    *count = scenario_is("no_cards") ? 0 : 2;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, FakeCard **handle)
{
    if (!initialised)
        return UNINITIALIZED;
    if (index >= 2)
        return INVALID_ARGUMENT;
    if (index == 1 && scenario_is("no_permission_card"))
        return NO_PERMISSION;
    *handle = &cards[index];
    return SUCCESS;
}

int nvmlDeviceGetName(FakeCard *card, char *name, unsigned int length)
{
    int refused = refusal(card);
    if (refused && !scenario_is("lost_card_with_address"))
        return refused;
    return copy_text(name, length, card->name);
}

int nvmlDeviceGetUUID(FakeCard *card, char *uuid, unsigned int length)
{
    int refused = refusal(card);
    return refused ? refused : copy_text(uuid, length, scenario_is("odd_identity") ? "GPU-42" : card->uuid);
}

int nvmlDeviceGetPciInfo_v3(FakeCard *card, PciInfo *info)
{
    int refused = refusal(card);
    if (refused && !scenario_is("lost_card_with_address"))
        return refused;
    memset(info, 0, sizeof *info);
    /* The old field has a domain of four digits, the new one of eight. */
    strcpy(info->busIdLegacy, card->bus_id + 4);
    strcpy(info->busId, scenario_is("odd_identity") ? "somewhere" : card->bus_id);
    info->bus = card->bus;
    info->pciDeviceId = card->pci_device_id;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(FakeCard *card, Memory *memory)
{
    int refused = refusal(card);
    if (refused)
        return refused;
    if (scenario_is("no_memory_info"))
        return NOT_SUPPORTED;
    memory->total = card->total_mib << 20;
    memory->free = card->free_mib << 20;
    memory->used = scenario_is("nonsense") && card->index == 0 ? memory->total * 3 : memory->total - memory->free;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(FakeCard *card, int *major, int *minor)
{
    int refused = refusal(card);
    if (refused)
        return refused;
    *major = card->major;
    *minor = card->minor;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(FakeCard *card, Utilization *utilization)
{
    int refused = refusal(card);
    if (refused)
        return refused;
    utilization->gpu = scenario_is("nonsense") && card->index == 0 ? 65535 : card->busy_percent;
    utilization->memory = 0;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(FakeCard *card, int sensor, unsigned int *degrees)
{
    int refused = refusal(card);
    if (refused)
        return refused;
    if (sensor != 0)
        return INVALID_ARGUMENT;
    *degrees = card->index == 1 ? 45 : scenario_is("nonsense") ? 511 : scenario_is("throttling") ? 91 : 62;
    vanished = card->index == 1 && scenario_is("vanishing");
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(FakeCard *card, unsigned int *milliwatts)
{
    int refused = refusal(card);
    if (refused)
        return refused;
    while (scenario_is("hang_power") && card->index == 0)
        pause();
    *milliwatts = card->index == 1 ? 9500 : scenario_is("nonsense") ? 4294967295u : 450250;
    return SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(FakeCard *card, unsigned int *milliwatts)
{
    int refused = refusal(card);
    if (refused)
        return refused;
    *milliwatts = card->index == 1 ? 70000 : 450000;
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(FakeCard *card, int type, unsigned int *megahertz)
{
    int refused = refusal(card);
    if (refused)
        return refused;
    if (type != 1)
        return INVALID_ARGUMENT;
    *megahertz = card->index == 1 ? 300 : scenario_is("throttling") ? 1200 : 2520;
    return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(FakeCard *card, int type, unsigned int *megahertz)
{
    int refused = refusal(card);
    if (refused)
        return refused;
    if (type != 1)
        return INVALID_ARGUMENT;
    *megahertz = card->index == 1 ? 1590 : 3105;
    return SUCCESS;
}

/* An idle card, power, hardware and its temperature, as the bits of nvml.h. */
int nvmlDeviceGetCurrentClocksThrottleReasons(FakeCard *card, unsigned long long *reasons)
{
    int refused = refusal(card);
    if (refused)
        return refused;
    *reasons = card->index == 1 ? 0x1 : scenario_is("throttling") ? 0x4 | 0x8 | 0x40 : 0;
    return SUCCESS;
}

typedef struct {
    unsigned int pid;
    unsigned long long memory;
    unsigned int gpu_instance, compute_instance;
} Process;
_Static_assert(sizeof(Process) == 24, "nvmlProcessInfo_t has 24 bytes");

static int list_processes(FakeCard *card, const Process *known, unsigned int have, unsigned int *count, Process *into)
{
    int refused = refusal(card);
    if (refused)
        return refused;
    unsigned int room = *count;
    *count = card->index == 0 ? have : 0;
    if (*count > room)
        return INSUFFICIENT_SIZE;
    memcpy(into, known, *count * sizeof *known);
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(FakeCard *card, unsigned int *count, Process *into)
{
    /* What is not available is the largest number. */
    const Process known[] = {{1, 4ull << 30, 0, 0}, {4000001, 0xFFFFFFFFFFFFFFFFull, 0, 0}};
    return list_processes(card, known, 2, count, into);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(FakeCard *card, unsigned int *count, Process *into)
{
    const Process known[] = {{1, 4ull << 30, 0, 0}};
    return list_processes(card, known, 1, count, into);
}

typedef struct {
    unsigned int pid;
    unsigned long long time;
    unsigned int sm, memory, encoder, decoder;
} Sample;
_Static_assert(sizeof(Sample) == 32, "nvmlProcessUtilizationSample_t has 32 bytes");

int nvmlDeviceGetProcessUtilization(FakeCard *card, Sample *into, unsigned int *count, unsigned long long since)
{
    (void)since;
    int refused = refusal(card);
    if (refused)
        return refused;
    if (card->index == 1)
        return NOT_SUPPORTED;
    unsigned int room = *count;
    *count = 1;
    if (into == NULL || room < 1)
        return INSUFFICIENT_SIZE;
    into[0] = (Sample){1, 1000, 35, 0, 0, 0};
    return SUCCESS;
}
