"""Tables of the functions that each attribute of a device promises, by the documentation of the CUDA driver API:
`CUdevice_attribute` in https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html and the functions that it
names.

Every attribute is in exactly one of the tables. Names are without `CU_DEVICE_ATTRIBUTE_`.
"""

from __future__ import annotations

import re

from support.system import ROOT

_CIG = ("cuStreamBeginCaptureToCig", "cuStreamEndCaptureToCig")
_EXPORT = ("cuMemExportToShareableHandle", "cuMemImportFromShareableHandle")
_ENDPOINTS = ("cuLogicalEndpointCreate", "cuLogicalEndpointBindMem", "cuLogicalEndpointBindAddr")
_SPARSE = ("cuMemMapArrayAsync", "cuArrayGetSparseProperties", "cuMipmappedArrayGetSparseProperties")
_DOMAINS = ("cuDeviceGetDevResource", "cuDevSmResourceSplit")

# An attribute is reported if and only if all its functions are provided.
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "CAN_MAP_HOST_MEMORY": ("cuMemHostAlloc", "cuMemHostGetDevicePointer_v2"),
    "UNIFIED_ADDRESSING": ("cuPointerGetAttribute", "cuPointerGetAttributes", "cuMemcpy", "cuMemcpyPeer"),
    "GPU_OVERLAP": ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"),
    "ASYNC_ENGINE_COUNT": ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"),
    "STREAM_PRIORITIES_SUPPORTED": ("cuStreamCreateWithPriority", "cuStreamGetPriority", "cuCtxGetStreamPriorityRange"),
    "MANAGED_MEMORY": ("cuMemAllocManaged", "cuStreamAttachMemAsync"),
    "CAN_USE_STREAM_MEM_OPS_V1": ("cuStreamWaitValue32", "cuStreamWriteValue32", "cuStreamBatchMemOp"),
    "CAN_USE_64_BIT_STREAM_MEM_OPS_V1": ("cuStreamWaitValue64", "cuStreamWriteValue64"),
    "CAN_USE_STREAM_WAIT_VALUE_NOR_V1": ("cuStreamWaitValue32", "cuStreamBatchMemOp"),
    "CAN_USE_64_BIT_STREAM_MEM_OPS": ("cuStreamWaitValue64_v2", "cuStreamWriteValue64_v2", "cuStreamBatchMemOp_v2"),
    "CAN_USE_STREAM_WAIT_VALUE_NOR": ("cuStreamWaitValue32_v2", "cuStreamBatchMemOp_v2"),
    "COOPERATIVE_MULTI_DEVICE_LAUNCH": ("cuLaunchCooperativeKernelMultiDevice",),
    "HOST_REGISTER_SUPPORTED": ("cuMemHostRegister_v2", "cuMemHostUnregister"),
    "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": (
        "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap",
        "cuMemSetAccess", "cuMemGetAccess", "cuMemGetAllocationGranularity", "cuMemRetainAllocationHandle",
        "cuMemGetAllocationPropertiesFromHandle",
    ),
    "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": _EXPORT,
    "SPARSE_CUDA_ARRAY_SUPPORTED": _SPARSE,
    "DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED": ("cuArrayGetMemoryRequirements", "cuMipmappedArrayGetMemoryRequirements"),
    "TIMELINE_SEMAPHORE_INTEROP_SUPPORTED": (
        "cuImportExternalSemaphore", "cuSignalExternalSemaphoresAsync", "cuWaitExternalSemaphoresAsync",
    ),
    "MEMORY_POOLS_SUPPORTED": (
        "cuMemAllocAsync", "cuMemFreeAsync", "cuMemAllocFromPoolAsync", "cuMemPoolCreate", "cuMemPoolDestroy",
        "cuMemPoolTrimTo", "cuMemPoolSetAttribute", "cuMemPoolGetAttribute", "cuMemPoolSetAccess", "cuMemPoolGetAccess",
        "cuDeviceGetDefaultMemPool", "cuDeviceGetMemPool", "cuDeviceSetMemPool",
    ),
    "MEMPOOL_SUPPORTED_HANDLE_TYPES": (
        "cuMemPoolExportToShareableHandle", "cuMemPoolImportFromShareableHandle", "cuMemPoolExportPointer",
        "cuMemPoolImportPointer",
    ),
    "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS": ("cuFlushGPUDirectRDMAWrites",),
    "DMA_BUF_SUPPORTED": ("cuMemGetHandleForAddressRange",),
    "HOST_ALLOC_DMA_BUF_SUPPORTED": ("cuMemGetHandleForAddressRange",),
    "DMA_BUF_MMAP_SUPPORTED": ("cuMemGetHandleForAddressRange",),
    "IPC_EVENT_SUPPORTED": ("cuIpcGetEventHandle", "cuIpcOpenEventHandle"),
    "MULTICAST_SUPPORTED": ("cuMulticastCreate", "cuMulticastAddDevice", "cuMulticastBindMem", "cuMulticastUnbind"),
    "MEM_DECOMPRESS_ALGORITHM_MASK": ("cuMemBatchDecompressAsync",),
    "MEM_DECOMPRESS_MAXIMUM_LENGTH": ("cuMemBatchDecompressAsync",),
    "D3D12_CIG_SUPPORTED": _CIG,
    "D3D12_CIG_STREAMS_SUPPORTED": _CIG,
    "VULKAN_CIG_SUPPORTED": _CIG,
    "VULKAN_CIG_STREAMS_SUPPORTED": _CIG,
    "LOGICAL_ENDPOINT_UNICAST_SUPPORTED": _ENDPOINTS,
    "LOGICAL_ENDPOINT_MULTICAST_SUPPORTED": _ENDPOINTS,
    "LOGICAL_ENDPOINT_COUNTED_OPS_SUPPORTED": _ENDPOINTS,
    "LOGICAL_ENDPOINT_UNICAST_ACCESS_ON_OWNER_DEVICE_SUPPORTED": _ENDPOINTS,
    "LOGICAL_ENDPOINT_SUPPORTED_HANDLE_TYPES": ("cuLogicalEndpointExport", "cuLogicalEndpointImport"),
    "LOCALITY_DOMAIN_COUNT": _DOMAINS,
    "LOCALITY_DOMAIN_MULTIPROCESSOR_COUNT": _DOMAINS,
}  # fmt: skip

# If an attribute is reported, its functions are provided. They may be provided without it too.
PROMISES: dict[str, tuple[str, ...]] = {
    # Encoding works without a device that reads through tensor maps.
    "TENSOR_MAP_ACCESS_SUPPORTED": (
        "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col", "cuTensorMapEncodeIm2colWide", "cuTensorMapReplaceAddress",
    ),
    # The same functions take file descriptors, which have an attribute of their own.
    "HANDLE_TYPE_WIN32_HANDLE_SUPPORTED": _EXPORT,
    "HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED": _EXPORT,
    "HANDLE_TYPE_FABRIC_SUPPORTED": _EXPORT,
    "HOST_NUMA_MULTINODE_IPC_SUPPORTED": _EXPORT,
    "TENSOR_MAP_LARGE_TENSOR_MIN_SIZE": ("cuTensorMapSetAllocationClass",),
    "CAN_FLUSH_REMOTE_WRITES": ("cuStreamWaitValue32_v2", "cuStreamBatchMemOp_v2"),
    "ATOMIC_REDUCTION_SUPPORTED": ("cuStreamBatchMemOp_v2",),
    # Without the attribute, calls are accepted and change nothing.
    "CONCURRENT_MANAGED_ACCESS": ("cuMemPrefetchAsync_v2", "cuMemAdvise_v2", "cuMemRangeGetAttribute"),
    "CLUSTER_LAUNCH": ("cuLaunchKernelEx", "cuOccupancyMaxActiveClusters", "cuOccupancyMaxPotentialClusterSize"),
    "COOPERATIVE_LAUNCH": ("cuLaunchCooperativeKernel",),
    "MAX_PERSISTING_L2_CACHE_SIZE": ("cuCtxResetPersistingL2Cache", "cuCtxSetLimit"),
    "MAX_ACCESS_POLICY_WINDOW_SIZE": ("cuStreamSetAttribute",),
    "MEM_SYNC_DOMAIN_COUNT": ("cuLaunchKernelEx", "cuStreamSetAttribute"),
}  # fmt: skip

# Flags and locations that functions accept or refuse: whether each is provided if the device has it.
# `tests/compiled_programs/capabilities.c` calls the functions with them and compares.
FLAGS: dict[str, bool] = {
    "READ_ONLY_HOST_REGISTER_SUPPORTED": True,
    "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": True,
    "HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": True,
    "HOST_NUMA_MEMORY_POOLS_SUPPORTED": False,
    "HOST_MEMORY_POOLS_SUPPORTED": False,
}

# Requested by a flag. The result says whether the request was granted; it is never an error.
WISHES: dict[str, bool] = {
    "GENERIC_COMPRESSION_SUPPORTED": False,
    "GPU_DIRECT_RDMA_SUPPORTED": False,
    "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED": False,
    "GPU_DIRECT_RDMA_WITH_LOCALIZED_MEMORY_SUPPORTED": False,
}

# Abilities of kernels, sizes, speeds and locations, which promise no function of the driver.
NO_FUNCTIONS = re.compile(
    r"MAX_(?!PERSISTING|ACCESS_POLICY).*|MAXIMUM_.*|SHARED_MEMORY_PER_BLOCK|REGISTERS_PER_BLOCK|RESERVED_SHARED_.*"
    r"|TOTAL_CONSTANT_MEMORY|WARP_SIZE|.*CLOCK_RATE|.*_ALIGNMENT|MULTIPROCESSOR_COUNT|GLOBAL_MEMORY_BUS_WIDTH|L2_CACHE_SIZE"
    r"|KERNEL_EXEC_TIMEOUT|INTEGRATED|ECC_ENABLED|(GPU_)?PCI_.*|TCC_DRIVER|COMPUTE_CAPABILITY_.*|COMPUTE_PREEMPTION_SUPPORTED"
    r"|SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO|(GLOBAL|LOCAL)_L1_CACHE_SUPPORTED|MULTI_GPU_BOARD(_GROUP_ID)?|MPS_ENABLED"
    r"|(ONLY_PARTIAL_)?HOST_NATIVE_ATOMIC_SUPPORTED|PAGEABLE_MEMORY_ACCESS(_USES_HOST_PAGE_TABLES)?|CAN_TEX2D_GATHER"
    r"|DIRECT_MANAGED_MEM_ACCESS_FROM_HOST|CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM|UNIFIED_FUNCTION_POINTERS"
    r"|COMPUTE_MODE|CONCURRENT_KERNELS|GPU_DIRECT_RDMA_WRITES_ORDERING|NUMA_CONFIG|NUMA_ID|HOST_NUMA_ID"
)


def numbers() -> dict[str, int]:
    """Returns the number of each attribute by its name. If an attribute has several names, the last one counts."""
    text = (ROOT / "remoting" / "driverapi" / "src" / "attributes.rs").read_text()
    found = re.findall(r"CU_DEVICE_ATTRIBUTE_(\w+): CUdevice_attribute = (\d+);", text)
    by_number = {int(number): name for name, number in found if name != "MAX"}
    return {name: number for number, name in by_number.items()}
