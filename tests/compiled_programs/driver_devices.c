/* What devices say about themselves, how their names lead to each other, and how functions and errors are named. */
#include "driver.h"
#include <dlfcn.h>
#include <strings.h>

static void names_and_numbers(void)
{
    int version, devices, device, mode;
    OK(cuDriverGetVersion(&version));
    REQUIRE(version >= 12000 && version < 20000);
    OK(cuDeviceGetCount(&devices));
    REQUIRE(devices >= 1);
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, devices));
    OK(cuDeviceGet(&device, 0));

    char name[256] = "", cut[5];
    OK(cuDeviceGetName(name, sizeof name, device));
    REQUIRE(strlen(name) >= 5);
    OK(cuDeviceGetName(cut, sizeof cut, device));
    REQUIRE(strlen(cut) == 4 && strncmp(name, cut, 4) == 0);

    char bus[32], expected[32];
    int found = -1;
    OK(cuDeviceGetPCIBusId(bus, sizeof bus, device));
    snprintf(expected, sizeof expected, "%04x:%02x:%02x.0", attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
             attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID), attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID));
    REQUIRE(strcasecmp(bus, expected) == 0);
    OK(cuDeviceGetByPCIBusId(&found, bus));
    REQUIRE(found == device);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetByPCIBusId(&found, "no place"));

    CUuuid uuid, zero;
    memset(&zero, 0, sizeof zero);
    OK(cuDeviceGetUuid(&uuid, device));
    REQUIRE(memcmp(&uuid, &zero, sizeof uuid) != 0);

    CUmoduleLoadingMode loading;
    OK(cuModuleGetLoadingMode(&loading));
    mode = loading;
    REQUIRE(mode == CU_MODULE_EAGER_LOADING || mode == CU_MODULE_LAZY_LOADING);
}

static void sizes(void)
{
    size_t total, free_bytes, of_context;
    OK(cuDeviceTotalMem(&total, 0));
    start();
    OK(cuMemGetInfo(&free_bytes, &of_context));
    REQUIRE(of_context == total && free_bytes <= total);

    int major, minor;
    OK(cuDeviceComputeCapability(&major, &minor, 0));
    REQUIRE(major == attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
    REQUIRE(minor == attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
    CUdevprop properties;
    OK(cuDeviceGetProperties(&properties, 0));
    REQUIRE(properties.maxThreadsPerBlock == attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
    REQUIRE(properties.maxThreadsDim[2] == attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z));
    REQUIRE(properties.maxGridSize[0] == attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X));
    REQUIRE(properties.sharedMemPerBlock == attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK));
    REQUIRE(properties.SIMDWidth == 32 && properties.regsPerBlock == attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK));

    int affinity = -1;
    OK(cuDeviceGetExecAffinitySupport(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0));
    REQUIRE(affinity == 0 || affinity == 1);
    OK(cuDevicePrimaryCtxRelease(0));
}

/* Programs ask before they share memory between devices; a device is no peer of itself. */
static void peers(void)
{
    int devices, can = -1, value;
    CUcontext own = start();
    OK(cuDeviceCanAccessPeer(&can, 0, 0));
    REQUIRE(can == 0);
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0));
    OK(cuDeviceGetCount(&devices));
    if (devices > 1) {
        OK(cuDeviceCanAccessPeer(&can, 0, 1));
        OK(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
        REQUIRE(can == value);
    }
    FAILS(cuCtxEnablePeerAccess(own, 0));
    EXPECT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(own));
    OK(cuDevicePrimaryCtxRelease(0));
}

static void errors(void)
{
    const char *text = NULL;
    OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    REQUIRE(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
    OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    REQUIRE(strcmp(text, "out of memory") == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetErrorName((CUresult)12345, &text));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetErrorString((CUresult)12345, &text));
}

/* A base name means another function for each version of CUDA that a program was built for. */
static void entry_points(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    REQUIRE(driver != NULL);
    void *address = NULL;
    CUdriverProcAddressQueryResult status;
    OK(cuGetProcAddress("cuMemAlloc", &address, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    REQUIRE(address != NULL && status == CU_GET_PROC_ADDRESS_SUCCESS);
    int (*count)(int *);
    OK(cuGetProcAddress("cuDeviceGetCount", (void **)&count, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    int devices = 0, same;
    OK(count(&devices));
    OK(cuDeviceGetCount(&same));
    REQUIRE(devices == same);
    OK(cuGetProcAddress("cuTravelInTime", &address, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    REQUIRE(address == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    OK(cuGetProcAddress("cuMemcpyHtoD", &address, 3000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    void *of_the_time = address;
    OK(cuGetProcAddress("cuMemcpyHtoD", &address, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    REQUIRE(of_the_time != address);
    OK(cuGetProcAddress("cuMemcpyHtoD", &of_the_time, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
    REQUIRE(of_the_time != address);

    CUresult (*older)(const char *, void **, int, cuuint64_t);
    OK(cuGetProcAddress("cuGetProcAddress", (void **)&older, 11030, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    void *again = NULL;
    OK(older("cuMemcpyHtoD", &again, 12000, CU_GET_PROC_ADDRESS_DEFAULT));
    REQUIRE(again == address);
    EXPECT(CUDA_ERROR_NOT_FOUND, older("cuTravelInTime", &again, 12000, CU_GET_PROC_ADDRESS_DEFAULT));

    /* Private tables are known by number; an unknown one is reported as absent. */
    CUuuid unknown = {"remotegpu tests"};
    const void *table = NULL;
    EXPECT(CUDA_ERROR_NOT_FOUND, cuGetExportTable(&table, &unknown));
    REQUIRE(table == NULL);
    dlclose(driver);
}

int main(void)
{
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuInit(1));
    OK(cuInit(0));
    names_and_numbers();
    sizes();
    peers();
    errors();
    entry_points();
    return passed();
}
