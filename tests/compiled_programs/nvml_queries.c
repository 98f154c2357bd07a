/* What NVML tells of a device fits together, fits what CUDA tells, and is the same in all the forms that functions had. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "driver.h"
#include <nvml.h>
#include <strings.h>
#include <unistd.h>

static nvmlDevice_t device;

/* The software GPU has no sensors; what has them reads within these bounds. */
#define SENSOR(low, high, call, value)                                                       \
    do {                                                                                     \
        int code_ = (int)(call);                                                             \
        if (code_ != NVML_ERROR_NOT_SUPPORTED) {                                             \
            EXPECT(NVML_SUCCESS, code_);                                                     \
            REQUIRE((long long)(value) >= (low) && (long long)(value) <= (high));            \
        }                                                                                    \
    } while (0)

enum { GARBAGE = 0x7fffffff };

static void starting(void)
{
    unsigned count;
    EXPECT(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetCount(&count));
    OK(nvmlInit());
    OK(nvmlInit_v2());
    OK(nvmlInitWithFlags(NVML_INIT_FLAG_NO_ATTACH));
    for (int i = 0; i < 3; i++) OK(nvmlShutdown());
    EXPECT(NVML_ERROR_UNINITIALIZED, nvmlShutdown());
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetCount_v2(&count));
    OK(nvmlShutdown());
    EXPECT(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetCount_v2(&count));
    OK(nvmlInit());
    OK(nvmlDeviceGetCount(&count));
    OK(nvmlShutdown());
    OK(nvmlInitWithFlags(0));
    REQUIRE(strcmp(nvmlErrorString(NVML_ERROR_NOT_FOUND), nvmlErrorString(NVML_SUCCESS)) != 0);
}

static void versions(void)
{
    char driver[80] = "", nvml[80] = "";
    int from_cuda, cuda = 0, cuda_v2 = 0;
    OK(nvmlSystemGetDriverVersion(driver, sizeof driver));
    OK(nvmlSystemGetNVMLVersion(nvml, sizeof nvml));
    REQUIRE(strchr(driver, '.') && strstr(nvml, driver));
    OK(cuDriverGetVersion(&from_cuda));
    OK(nvmlSystemGetCudaDriverVersion(&cuda));
    OK(nvmlSystemGetCudaDriverVersion_v2(&cuda_v2));
    REQUIRE(cuda == from_cuda && cuda_v2 == from_cuda);
}

static void identity(void)
{
    unsigned count = 0, old_count = 0, index = GARBAGE, minor = GARBAGE;
    int devices;
    nvmlDevice_t found = NULL;
    char name[96] = "", uuid[96] = "", of_cuda[96] = "", serial[30] = "no serial";
    nvmlPciInfo_t oldest = {.bus = GARBAGE}, older = {.bus = GARBAGE}, pci = {.bus = GARBAGE};
    OK(cuDeviceGetCount(&devices));
    OK(nvmlDeviceGetCount_v2(&count));
    OK(nvmlDeviceGetCount(&old_count));
    REQUIRE(count == (unsigned)devices && old_count == count);
    EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByIndex_v2(count, &found));
    OK(nvmlDeviceGetHandleByIndex_v2(0, &device));
    OK(nvmlDeviceGetHandleByIndex(0, &found));
    REQUIRE(found == device);
    OK(nvmlDeviceGetIndex(device, &index));
    REQUIRE(index == 0);
    OK(nvmlDeviceGetMinorNumber(device, &minor));
    REQUIRE(minor < 1024);
    OK(nvmlDeviceGetName(device, name, sizeof name));
    OK(cuDeviceGetName(of_cuda, sizeof of_cuda, 0));
    REQUIRE(strcmp(name, of_cuda) == 0);

    found = NULL;
    OK(nvmlDeviceGetUUID(device, uuid, sizeof uuid));
    REQUIRE(strncmp(uuid, "GPU-", 4) == 0 && strlen(uuid) == 40);
    OK(nvmlDeviceGetHandleByUUID(uuid, &found));
    REQUIRE(found == device);
    OK(nvmlDeviceGetPciInfo_v3(device, &pci));
    OK(nvmlDeviceGetPciInfo_v2(device, &older));
    OK(nvmlDeviceGetPciInfo(device, &oldest));
    REQUIRE(pci.bus == (unsigned)attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) && older.bus == pci.bus && oldest.bus == pci.bus);
    REQUIRE(strcmp(older.busIdLegacy, pci.busIdLegacy) == 0);
    char bus[32];
    snprintf(bus, sizeof bus, "%08X:%02X:%02X.0", pci.domain, pci.bus, pci.device);
    REQUIRE(strcasecmp(bus, pci.busId) == 0);
    found = NULL;
    OK(nvmlDeviceGetHandleByPciBusId_v2(pci.busId, &found));
    REQUIRE(found == device);
    found = NULL;
    OK(nvmlDeviceGetHandleByPciBusId(pci.busId, &found));
    REQUIRE(found == device);
    FAILS(nvmlDeviceGetHandleBySerial(serial, &found));
}

static void abilities(void)
{
    int major = 0, minor = GARBAGE;
    unsigned architecture = GARBAGE, width = GARBAGE, number = GARBAGE, now = GARBAGE, later = GARBAGE;
    nvmlBrandType_t brand = (nvmlBrandType_t)GARBAGE;
    nvmlEnableState_t state = (nvmlEnableState_t)GARBAGE, pending = (nvmlEnableState_t)GARBAGE;
    nvmlComputeMode_t mode = (nvmlComputeMode_t)GARBAGE;
    OK(nvmlDeviceGetCudaComputeCapability(device, &major, &minor));
    REQUIRE(major == attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
    REQUIRE(minor == attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
    OK(nvmlDeviceGetBrand(device, &brand));
    REQUIRE(brand < NVML_BRAND_COUNT);
    OK(nvmlDeviceGetArchitecture(device, &architecture));
    REQUIRE(architecture >= NVML_DEVICE_ARCH_KEPLER && architecture != GARBAGE);
    SENSOR(attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH), attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH),
           nvmlDeviceGetMemoryBusWidth(device, &width), width);
    SENSOR(1, 100000, nvmlDeviceGetMaxClockInfo(device, NVML_CLOCK_SM, &number), number);
    OK(nvmlDeviceGetComputeMode(device, &mode));
    REQUIRE(mode == (nvmlComputeMode_t)attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE));
    OK(nvmlDeviceGetPersistenceMode(device, &state));
    REQUIRE(state == NVML_FEATURE_DISABLED || state == NVML_FEATURE_ENABLED);
    SENSOR(attribute(CU_DEVICE_ATTRIBUTE_ECC_ENABLED), attribute(CU_DEVICE_ATTRIBUTE_ECC_ENABLED),
           nvmlDeviceGetEccMode(device, &state, &pending), state);
    state = (nvmlEnableState_t)GARBAGE;
    OK(nvmlDeviceGetDisplayMode(device, &state));
    REQUIRE(state == NVML_FEATURE_DISABLED || state == NVML_FEATURE_ENABLED);
    state = (nvmlEnableState_t)GARBAGE;
    OK(nvmlDeviceGetDisplayActive(device, &state));
    REQUIRE(state == NVML_FEATURE_DISABLED || state == NVML_FEATURE_ENABLED);

    /* No part of a partitioned GPU. */
    SENSOR(NVML_DEVICE_MIG_DISABLE, NVML_DEVICE_MIG_ENABLE, nvmlDeviceGetMigMode(device, &now, &later), now);
    number = GARBAGE;
    SENSOR(0, 0, nvmlDeviceIsMigDeviceHandle(device, &number), number);
    number = GARBAGE;
    SENSOR(0, 7, nvmlDeviceGetMaxMigDeviceCount(device, &number), number);
}

static void sensors(void)
{
    unsigned number = GARBAGE;
    nvmlUtilization_t busy = {.gpu = GARBAGE};
    nvmlTemperature_t asked = {.version = nvmlTemperature_v1, .sensorType = NVML_TEMPERATURE_GPU, .temperature = GARBAGE};
    SENSOR(0, 100, nvmlDeviceGetUtilizationRates(device, &busy), busy.gpu);
    SENSOR(1, 150, nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &number), number);
    SENSOR(1, 150, nvmlDeviceGetTemperatureV(device, &asked), asked.temperature);
    number = GARBAGE;
    SENSOR(0, 5000000, nvmlDeviceGetPowerUsage(device, &number), number);
    number = GARBAGE;
    SENSOR(1, 5000000, nvmlDeviceGetPowerManagementLimit(device, &number), number);
    number = GARBAGE;
    SENSOR(1, 5000000, nvmlDeviceGetEnforcedPowerLimit(device, &number), number);
    number = GARBAGE;
    SENSOR(0, 100000, nvmlDeviceGetClockInfo(device, NVML_CLOCK_SM, &number), number);
}

/* NVML and the driver count the same memory as used. Another side counts for NVML; it may take a moment. */
static void agree(void)
{
    size_t total = 1, left = 0;
    nvmlMemory_t told = {0};
    for (int tries = 0; tries < 100 && told.used != total - left; tries++) {
        OK(cuMemGetInfo(&left, &total));
        OK(nvmlDeviceGetMemoryInfo(device, &told));
        usleep(20000);
    }
    REQUIRE(told.total == total && told.used == total - left && told.free == left);
}

static void memory(void)
{
    enum { TAKEN = 16 << 20, LARGE = 100 << 20 };
    size_t total;
    CUdeviceptr taken, large;
    nvmlMemory_t before = {0}, after = {0};
    nvmlMemory_v2_t again = {.version = nvmlMemory_v2}, wrong = {.version = 12345};
    OK(cuDeviceTotalMem(&total, 0));
    OK(nvmlDeviceGetMemoryInfo(device, &before));
    REQUIRE(before.total == total && before.used + before.free == total);
    OK(cuMemAlloc(&taken, TAKEN));
    OK(cuMemsetD8(taken, 0, TAKEN));
    OK(cuCtxSynchronize());
    /* Another side counts; it may take a moment. */
    for (int tries = 0; tries < 100 && after.used < before.used + TAKEN; tries++) {
        OK(nvmlDeviceGetMemoryInfo(device, &after));
        usleep(20000);
    }
    REQUIRE(after.used >= before.used + TAKEN);
    agree();
    OK(cuMemAlloc(&large, LARGE));
    agree();
    OK(cuMemFree(large));
    agree();
    OK(nvmlDeviceGetMemoryInfo_v2(device, &again));
    REQUIRE(again.total == total && again.used >= before.used + TAKEN);
    EXPECT(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlDeviceGetMemoryInfo_v2(device, &wrong));
    OK(cuMemFree(taken));
}

/* This process computes on the device; nobody draws on it or shares it through a service. */
static void processes(void)
{
    enum { ROOM = 64 };
    nvmlProcessInfo_v1_t oldest[ROOM];
    nvmlProcessInfo_v2_t older[ROOM];
    nvmlProcessInfo_t now[ROOM];
    char name[256] = "";
    unsigned count = ROOM, me = ROOM, own = getpid();
    OK(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, now));
    for (unsigned i = 0; i < count; i++)
        if (now[i].pid == own) me = i;
    REQUIRE(count >= 1 && count < ROOM && me < count);
    unsigned old_count = ROOM, oldest_count = ROOM, drawing = GARBAGE;
    OK(nvmlDeviceGetComputeRunningProcesses_v2(device, &old_count, older));
    OK(nvmlDeviceGetComputeRunningProcesses(device, &oldest_count, oldest));
    REQUIRE(old_count == count && older[me].pid == own && oldest_count == count && oldest[me].pid == own);
    count = 0;
    EXPECT(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL));
    OK(nvmlSystemGetProcessName(own, name, sizeof name));
    REQUIRE(strstr(name, "nvml_queries") != NULL);

    drawing = ROOM;
    OK(nvmlDeviceGetGraphicsRunningProcesses_v3(device, &drawing, now));
    REQUIRE(drawing < ROOM);
    drawing = ROOM;
    OK(nvmlDeviceGetGraphicsRunningProcesses_v2(device, &drawing, older));
    REQUIRE(drawing < ROOM);
    drawing = ROOM;
    OK(nvmlDeviceGetGraphicsRunningProcesses(device, &drawing, oldest));
    REQUIRE(drawing < ROOM);
    drawing = ROOM;
    SENSOR(0, ROOM - 1, nvmlDeviceGetMPSComputeRunningProcesses_v3(device, &drawing, now), drawing);
    drawing = ROOM;
    SENSOR(0, ROOM - 1, nvmlDeviceGetMPSComputeRunningProcesses_v2(device, &drawing, older), drawing);
    drawing = ROOM;
    SENSOR(0, ROOM - 1, nvmlDeviceGetMPSComputeRunningProcesses(device, &drawing, oldest), drawing);
}

/* One GPU in one slot, and no link to any other. A GPU with NVLink has links where a program is on its machine. */
static void links(void)
{
    unsigned generation = 0, widest = 0, now = 0, width = 0, speed = 0, fastest = 0, number = GARBAGE;
    nvmlBusType_t bus = GARBAGE;
    nvmlGpuP2PStatus_t status = (nvmlGpuP2PStatus_t)GARBAGE;
    nvmlEnableState_t active = (nvmlEnableState_t)GARBAGE;
    nvmlPciInfo_t pci = {.bus = GARBAGE};
    nvmlPciInfoExt_t ext = {.version = nvmlPciInfoExt_v1}, wrong = {.version = 7};
    OK(nvmlDeviceGetMaxPcieLinkGeneration(device, &generation));
    OK(nvmlDeviceGetMaxPcieLinkWidth(device, &widest));
    OK(nvmlDeviceGetCurrPcieLinkGeneration(device, &now));
    OK(nvmlDeviceGetCurrPcieLinkWidth(device, &width));
    REQUIRE(1 <= now && now <= generation && generation <= 6 && 1 <= width && width <= widest && widest <= 32);
    OK(nvmlDeviceGetGpuMaxPcieLinkGeneration(device, &number));
    REQUIRE(number >= generation && number <= 6);
    OK(nvmlDeviceGetPcieLinkMaxSpeed(device, &fastest));
    REQUIRE(fastest >= NVML_PCIE_LINK_MAX_SPEED_2500MBPS);
    OK(nvmlDeviceGetPcieSpeed(device, &speed));
    REQUIRE(speed >= 2500 && speed % 500 == 0);
    number = GARBAGE;
    SENSOR(0, 1000000000, nvmlDeviceGetPcieThroughput(device, NVML_PCIE_UTIL_TX_BYTES, &number), number);
    EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetPcieThroughput(device, NVML_PCIE_UTIL_COUNT, &number));
    EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetCurrPcieLinkWidth(device, NULL));
    OK(nvmlDeviceGetBusType(device, &bus));
    REQUIRE(bus == NVML_BUS_TYPE_PCIE);
    OK(nvmlDeviceGetPciInfo_v3(device, &pci));
    OK(nvmlDeviceGetPciInfoExt(device, &ext));
    REQUIRE(ext.domain == pci.domain && ext.bus == pci.bus && ext.device == pci.device && strcmp(ext.busId, pci.busId) == 0);
    REQUIRE(ext.pciDeviceId == pci.pciDeviceId && ext.baseClass == 3);
    EXPECT(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlDeviceGetPciInfoExt(device, &wrong));

    OK(nvmlDeviceGetP2PStatus(device, device, NVML_P2P_CAPS_INDEX_READ, &status));
    REQUIRE((unsigned)status <= NVML_P2P_STATUS_UNKNOWN);
    EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetP2PStatus(device, device, NVML_P2P_CAPS_INDEX_UNKNOWN, &status));
    EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetP2PStatus(device, NULL, NVML_P2P_CAPS_INDEX_READ, &status));
    EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetP2PStatus(device, device, NVML_P2P_CAPS_INDEX_READ, NULL));
    nvmlGpuTopologyLevel_t level = (nvmlGpuTopologyLevel_t)GARBAGE;
    OK(nvmlDeviceGetTopologyCommonAncestor(device, device, &level));
    REQUIRE(level == NVML_TOPOLOGY_INTERNAL);

    SENSOR(0, 1, nvmlDeviceGetNvLinkState(device, 0, &active), active);
    number = GARBAGE;
    SENSOR(1, 20, nvmlDeviceGetNvLinkVersion(device, 0, &number), number);
    number = GARBAGE;
    SENSOR(0, 1, nvmlDeviceGetNvLinkCapability(device, 0, NVML_NVLINK_CAP_P2P_SUPPORTED, &number), number);
    pci.bus = GARBAGE;
    SENSOR(0, 255, nvmlDeviceGetNvLinkRemotePciInfo_v2(device, 0, &pci), pci.bus);
    pci.bus = GARBAGE;
    SENSOR(0, 255, nvmlDeviceGetNvLinkRemotePciInfo(device, 0, &pci), pci.bus);
    nvmlIntNvLinkDeviceType_t kind = (nvmlIntNvLinkDeviceType_t)GARBAGE;
    SENSOR(0, 255, nvmlDeviceGetNvLinkRemoteDeviceType(device, 0, &kind), kind);
    nvmlGpuFabricInfoV_t fabric = {.version = nvmlGpuFabricInfo_v2, .state = 99};
    nvmlGpuFabricInfo_t old_fabric = {.state = 99};
    SENSOR(0, NVML_GPU_FABRIC_STATE_COMPLETED, nvmlDeviceGetGpuFabricInfoV(device, &fabric), fabric.state);
    SENSOR(0, NVML_GPU_FABRIC_STATE_COMPLETED, nvmlDeviceGetGpuFabricInfo(device, &old_fabric), old_fabric.state);
    EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetNvLinkState(device, NVML_NVLINK_MAX_LINKS, &active));
    EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetNvLinkState(device, 0, NULL));

    nvmlFieldValue_t fields[] = {{.fieldId = NVML_FI_DEV_NVLINK_LINK_COUNT}, {.fieldId = NVML_FI_DEV_NVLINK_SPEED_MBPS_L0}, {.fieldId = NVML_FI_MAX + 1000}};
    OK(nvmlDeviceGetFieldValues(device, 3, fields));
    REQUIRE(fields[0].nvmlReturn == NVML_SUCCESS || fields[0].nvmlReturn == NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(fields[0].nvmlReturn != NVML_SUCCESS || (fields[0].valueType == NVML_VALUE_TYPE_UNSIGNED_INT && fields[0].value.uiVal <= NVML_NVLINK_MAX_LINKS));
    REQUIRE(fields[1].nvmlReturn == NVML_SUCCESS || fields[1].nvmlReturn == NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(fields[2].nvmlReturn != NVML_SUCCESS);
    EXPECT(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetFieldValues(device, 3, NULL));
}

int main(void)
{
    start();
    starting();
    versions();
    identity();
    abilities();
    sensors();
    links();
    memory();
    processes();
    OK(nvmlShutdown());
    OK(cuDevicePrimaryCtxRelease(0));
    return passed();
}
