//! Flags and enumerations of the CUDA 13.5 driver interface. `attributes` has the numbers of attributes.

#![allow(non_camel_case_types)]

use crate::types::{CUdevice, CUstream};
use std::ptr;

/// The version of the interface that defines these numbers.
pub const CUDA_VERSION: u32 = 13050;

/// The compute capability of the first GPUs with clusters, which is also the number in the `.target` of their PTX.
pub const FIRST_WITH_CLUSTERS: u32 = 90;

/// Streams that are not created: the legacy default stream, and the default stream of each host thread.
pub const CU_STREAM_LEGACY: CUstream = ptr::without_provenance_mut(1);
pub const CU_STREAM_PER_THREAD: CUstream = ptr::without_provenance_mut(2);

pub const CU_DEVICE_CPU: CUdevice = -1;
pub const CU_DEVICE_INVALID: CUdevice = -2;

/// The tags in the list `extra` of `cuLaunchKernel`.
pub const CU_LAUNCH_PARAM_END: usize = 0;
pub const CU_LAUNCH_PARAM_BUFFER_POINTER: usize = 1;
pub const CU_LAUNCH_PARAM_BUFFER_SIZE: usize = 2;

pub const CU_MEMHOSTALLOC_PORTABLE: u32 = 1;
pub const CU_MEMHOSTALLOC_DEVICEMAP: u32 = 2;
pub const CU_MEMHOSTALLOC_WRITECOMBINED: u32 = 4;
pub const CU_MEMHOSTREGISTER_PORTABLE: u32 = 1;
pub const CU_MEMHOSTREGISTER_DEVICEMAP: u32 = 2;
pub const CU_MEMHOSTREGISTER_IOMEMORY: u32 = 4;
pub const CU_MEMHOSTREGISTER_READ_ONLY: u32 = 8;

/// Values of `CUctx_flags`.
pub type CUctx_flags = u32;
pub const CU_CTX_SCHED_AUTO: CUctx_flags = 0;
pub const CU_CTX_SCHED_SPIN: CUctx_flags = 1;
pub const CU_CTX_SCHED_YIELD: CUctx_flags = 2;
pub const CU_CTX_SCHED_BLOCKING_SYNC: CUctx_flags = 4;
pub const CU_CTX_BLOCKING_SYNC: CUctx_flags = 4;
pub const CU_CTX_SCHED_MASK: CUctx_flags = 7;
pub const CU_CTX_MAP_HOST: CUctx_flags = 8;
pub const CU_CTX_LMEM_RESIZE_TO_MAX: CUctx_flags = 16;
pub const CU_CTX_COREDUMP_ENABLE: CUctx_flags = 32;
pub const CU_CTX_USER_COREDUMP_ENABLE: CUctx_flags = 64;
pub const CU_CTX_SYNC_MEMOPS: CUctx_flags = 128;
pub const CU_CTX_FLAGS_MASK: CUctx_flags = 255;

/// Values of `CUstream_flags`.
pub type CUstream_flags = u32;
pub const CU_STREAM_DEFAULT: CUstream_flags = 0;
pub const CU_STREAM_NON_BLOCKING: CUstream_flags = 1;

/// Values of `CUevent_flags`.
pub type CUevent_flags = u32;
pub const CU_EVENT_DEFAULT: CUevent_flags = 0;
pub const CU_EVENT_BLOCKING_SYNC: CUevent_flags = 1;
pub const CU_EVENT_DISABLE_TIMING: CUevent_flags = 2;
pub const CU_EVENT_INTERPROCESS: CUevent_flags = 4;

/// Values of `CUevent_record_flags`.
pub type CUevent_record_flags = u32;
pub const CU_EVENT_RECORD_DEFAULT: CUevent_record_flags = 0;
pub const CU_EVENT_RECORD_EXTERNAL: CUevent_record_flags = 1;

/// Values of `CUevent_wait_flags`.
pub type CUevent_wait_flags = u32;
pub const CU_EVENT_WAIT_DEFAULT: CUevent_wait_flags = 0;
pub const CU_EVENT_WAIT_EXTERNAL: CUevent_wait_flags = 1;

/// Values of `CUmemAttach_flags`.
pub type CUmemAttach_flags = u32;
pub const CU_MEM_ATTACH_GLOBAL: CUmemAttach_flags = 1;
pub const CU_MEM_ATTACH_HOST: CUmemAttach_flags = 2;
pub const CU_MEM_ATTACH_SINGLE: CUmemAttach_flags = 4;

/// Values of `CUoccupancy_flags`.
pub type CUoccupancy_flags = u32;
pub const CU_OCCUPANCY_DEFAULT: CUoccupancy_flags = 0;
pub const CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE: CUoccupancy_flags = 1;

/// Values of `CUstreamCaptureStatus`.
pub type CUstreamCaptureStatus = u32;
pub const CU_STREAM_CAPTURE_STATUS_NONE: CUstreamCaptureStatus = 0;
pub const CU_STREAM_CAPTURE_STATUS_ACTIVE: CUstreamCaptureStatus = 1;
pub const CU_STREAM_CAPTURE_STATUS_INVALIDATED: CUstreamCaptureStatus = 2;

/// Values of `CUstreamCaptureMode`.
pub type CUstreamCaptureMode = u32;
pub const CU_STREAM_CAPTURE_MODE_GLOBAL: CUstreamCaptureMode = 0;
pub const CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: CUstreamCaptureMode = 1;
pub const CU_STREAM_CAPTURE_MODE_RELAXED: CUstreamCaptureMode = 2;

/// Values of `CUmemorytype`.
pub type CUmemorytype = u32;
pub const CU_MEMORYTYPE_HOST: CUmemorytype = 1;
pub const CU_MEMORYTYPE_DEVICE: CUmemorytype = 2;
pub const CU_MEMORYTYPE_ARRAY: CUmemorytype = 3;
pub const CU_MEMORYTYPE_UNIFIED: CUmemorytype = 4;

/// Values of `CUcomputemode`.
pub type CUcomputemode = u32;
pub const CU_COMPUTEMODE_DEFAULT: CUcomputemode = 0;
pub const CU_COMPUTEMODE_PROHIBITED: CUcomputemode = 2;
pub const CU_COMPUTEMODE_EXCLUSIVE_PROCESS: CUcomputemode = 3;

/// Values of `CUfunc_cache`.
pub type CUfunc_cache = u32;
pub const CU_FUNC_CACHE_PREFER_NONE: CUfunc_cache = 0;
pub const CU_FUNC_CACHE_PREFER_SHARED: CUfunc_cache = 1;
pub const CU_FUNC_CACHE_PREFER_L1: CUfunc_cache = 2;
pub const CU_FUNC_CACHE_PREFER_EQUAL: CUfunc_cache = 3;

/// Values of `CUsharedconfig`.
pub type CUsharedconfig = u32;
pub const CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE: CUsharedconfig = 0;
pub const CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE: CUsharedconfig = 1;
pub const CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE: CUsharedconfig = 2;

/// Values of `CUmoduleLoadingMode`.
pub type CUmoduleLoadingMode = u32;
pub const CU_MODULE_EAGER_LOADING: CUmoduleLoadingMode = 1;
pub const CU_MODULE_LAZY_LOADING: CUmoduleLoadingMode = 2;

/// Values of `CUfunctionLoadingState`.
pub type CUfunctionLoadingState = u32;
pub const CU_FUNCTION_LOADING_STATE_UNLOADED: CUfunctionLoadingState = 0;
pub const CU_FUNCTION_LOADING_STATE_LOADED: CUfunctionLoadingState = 1;
pub const CU_FUNCTION_LOADING_STATE_MAX: CUfunctionLoadingState = 2;

/// Values of `CUdriverProcAddress_flags`.
pub type CUdriverProcAddress_flags = u32;
pub const CU_GET_PROC_ADDRESS_DEFAULT: CUdriverProcAddress_flags = 0;
pub const CU_GET_PROC_ADDRESS_LEGACY_STREAM: CUdriverProcAddress_flags = 1;
pub const CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM: CUdriverProcAddress_flags = 2;

/// Values of `CUdriverProcAddressQueryResult`.
pub type CUdriverProcAddressQueryResult = u32;
pub const CU_GET_PROC_ADDRESS_SUCCESS: CUdriverProcAddressQueryResult = 0;
pub const CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND: CUdriverProcAddressQueryResult = 1;
pub const CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT: CUdriverProcAddressQueryResult = 2;

/// Values of `CUmemAllocationType`.
pub type CUmemAllocationType = u32;
pub const CU_MEM_ALLOCATION_TYPE_INVALID: CUmemAllocationType = 0;
pub const CU_MEM_ALLOCATION_TYPE_PINNED: CUmemAllocationType = 1;
pub const CU_MEM_ALLOCATION_TYPE_MANAGED: CUmemAllocationType = 2;

/// Values of `CUmemAllocationHandleType`.
pub type CUmemAllocationHandleType = u32;
pub const CU_MEM_HANDLE_TYPE_NONE: CUmemAllocationHandleType = 0;
pub const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: CUmemAllocationHandleType = 1;
pub const CU_MEM_HANDLE_TYPE_WIN32: CUmemAllocationHandleType = 2;
pub const CU_MEM_HANDLE_TYPE_WIN32_KMT: CUmemAllocationHandleType = 4;
pub const CU_MEM_HANDLE_TYPE_FABRIC: CUmemAllocationHandleType = 8;

/// Values of `CUmemAllocationGranularity_flags`.
pub type CUmemAllocationGranularity_flags = u32;
pub const CU_MEM_ALLOC_GRANULARITY_MINIMUM: CUmemAllocationGranularity_flags = 0;
pub const CU_MEM_ALLOC_GRANULARITY_RECOMMENDED: CUmemAllocationGranularity_flags = 1;

/// Values of `CUmemLocationType`.
pub type CUmemLocationType = u32;
pub const CU_MEM_LOCATION_TYPE_INVALID: CUmemLocationType = 0;
pub const CU_MEM_LOCATION_TYPE_NONE: CUmemLocationType = 0;
pub const CU_MEM_LOCATION_TYPE_DEVICE: CUmemLocationType = 1;
pub const CU_MEM_LOCATION_TYPE_HOST: CUmemLocationType = 2;
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA: CUmemLocationType = 3;
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: CUmemLocationType = 4;
pub const CU_MEM_LOCATION_TYPE_INVISIBLE: CUmemLocationType = 5;
pub const CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN: CUmemLocationType = 6;

/// Values of `CUmemAccess_flags`.
pub type CUmemAccess_flags = u32;
pub const CU_MEM_ACCESS_FLAGS_PROT_NONE: CUmemAccess_flags = 0;
pub const CU_MEM_ACCESS_FLAGS_PROT_READ: CUmemAccess_flags = 1;
pub const CU_MEM_ACCESS_FLAGS_PROT_READWRITE: CUmemAccess_flags = 3;

/// Values of `CUmemcpy3DOperandType`.
pub type CUmemcpy3DOperandType = u32;
pub const CU_MEMCPY_OPERAND_TYPE_POINTER: CUmemcpy3DOperandType = 1;
pub const CU_MEMCPY_OPERAND_TYPE_ARRAY: CUmemcpy3DOperandType = 2;

/// Values of `CUmemcpySrcAccessOrder`.
pub type CUmemcpySrcAccessOrder = u32;
pub const CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: CUmemcpySrcAccessOrder = 1;
pub const CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL: CUmemcpySrcAccessOrder = 2;
pub const CU_MEMCPY_SRC_ACCESS_ORDER_ANY: CUmemcpySrcAccessOrder = 3;

/// Values of `CUmem_advise`.
pub type CUmem_advise = u32;
pub const CU_MEM_ADVISE_SET_READ_MOSTLY: CUmem_advise = 1;
pub const CU_MEM_ADVISE_UNSET_READ_MOSTLY: CUmem_advise = 2;
pub const CU_MEM_ADVISE_SET_PREFERRED_LOCATION: CUmem_advise = 3;
pub const CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: CUmem_advise = 4;
pub const CU_MEM_ADVISE_SET_ACCESSED_BY: CUmem_advise = 5;
pub const CU_MEM_ADVISE_UNSET_ACCESSED_BY: CUmem_advise = 6;

/// Values of `CUmem_range_attribute`.
pub type CUmem_range_attribute = u32;
pub const CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: CUmem_range_attribute = 1;
pub const CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION: CUmem_range_attribute = 2;
pub const CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: CUmem_range_attribute = 3;
pub const CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION: CUmem_range_attribute = 4;
pub const CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE: CUmem_range_attribute = 5;
pub const CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID: CUmem_range_attribute = 6;
pub const CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE: CUmem_range_attribute = 7;
pub const CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID: CUmem_range_attribute = 8;

/// Values of `CUdevResourceType`.
pub type CUdevResourceType = u32;
pub const CU_DEV_RESOURCE_TYPE_INVALID: CUdevResourceType = 0;
pub const CU_DEV_RESOURCE_TYPE_SM: CUdevResourceType = 1;
pub const CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG: CUdevResourceType = 1000;
pub const CU_DEV_RESOURCE_TYPE_WORKQUEUE: CUdevResourceType = 10000;

/// Values of `CUflushGPUDirectRDMAWritesOptions`.
pub type CUflushGPUDirectRDMAWritesOptions = u32;
pub const CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST: CUflushGPUDirectRDMAWritesOptions = 1;
pub const CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_MEMOPS: CUflushGPUDirectRDMAWritesOptions = 2;

/// Values of `CUGPUDirectRDMAWritesOrdering`.
pub type CUGPUDirectRDMAWritesOrdering = u32;
pub const CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE: CUGPUDirectRDMAWritesOrdering = 0;
pub const CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER: CUGPUDirectRDMAWritesOrdering = 100;
pub const CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES: CUGPUDirectRDMAWritesOrdering = 200;

/// Values of `CUDA_POINTER_ATTRIBUTE_ACCESS_FLAGS`.
pub type CUDA_POINTER_ATTRIBUTE_ACCESS_FLAGS = u32;
pub const CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE: CUDA_POINTER_ATTRIBUTE_ACCESS_FLAGS = 0;
pub const CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ: CUDA_POINTER_ATTRIBUTE_ACCESS_FLAGS = 1;
pub const CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE: CUDA_POINTER_ATTRIBUTE_ACCESS_FLAGS = 3;

/// Values of `CUresourcetype`.
pub type CUresourcetype = u32;
pub const CU_RESOURCE_TYPE_ARRAY: CUresourcetype = 0;
pub const CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: CUresourcetype = 1;
pub const CU_RESOURCE_TYPE_LINEAR: CUresourcetype = 2;
pub const CU_RESOURCE_TYPE_PITCH2D: CUresourcetype = 3;

/// Values of `CUaddress_mode`.
pub type CUaddress_mode = u32;
pub const CU_TR_ADDRESS_MODE_WRAP: CUaddress_mode = 0;
pub const CU_TR_ADDRESS_MODE_CLAMP: CUaddress_mode = 1;
pub const CU_TR_ADDRESS_MODE_MIRROR: CUaddress_mode = 2;
pub const CU_TR_ADDRESS_MODE_BORDER: CUaddress_mode = 3;

/// Values of `CUfilter_mode`.
pub type CUfilter_mode = u32;
pub const CU_TR_FILTER_MODE_POINT: CUfilter_mode = 0;
pub const CU_TR_FILTER_MODE_LINEAR: CUfilter_mode = 1;

/// Values of `CUstreamWaitValue_flags`.
pub type CUstreamWaitValue_flags = u32;
pub const CU_STREAM_WAIT_VALUE_GEQ: CUstreamWaitValue_flags = 0;
pub const CU_STREAM_WAIT_VALUE_EQ: CUstreamWaitValue_flags = 1;
pub const CU_STREAM_WAIT_VALUE_AND: CUstreamWaitValue_flags = 2;
pub const CU_STREAM_WAIT_VALUE_NOR: CUstreamWaitValue_flags = 3;
pub const CU_STREAM_WAIT_VALUE_FLUSH: CUstreamWaitValue_flags = 1073741824;

/// Values of `CUstreamWriteValue_flags`.
pub type CUstreamWriteValue_flags = u32;
pub const CU_STREAM_WRITE_VALUE_DEFAULT: CUstreamWriteValue_flags = 0;
pub const CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER: CUstreamWriteValue_flags = 1;

/// Values of `CUstreamBatchMemOpType`.
pub type CUstreamBatchMemOpType = u32;
pub const CU_STREAM_MEM_OP_WAIT_VALUE_32: CUstreamBatchMemOpType = 1;
pub const CU_STREAM_MEM_OP_WRITE_VALUE_32: CUstreamBatchMemOpType = 2;
pub const CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: CUstreamBatchMemOpType = 3;
pub const CU_STREAM_MEM_OP_WAIT_VALUE_64: CUstreamBatchMemOpType = 4;
pub const CU_STREAM_MEM_OP_WRITE_VALUE_64: CUstreamBatchMemOpType = 5;
pub const CU_STREAM_MEM_OP_BARRIER: CUstreamBatchMemOpType = 6;
pub const CU_STREAM_MEM_OP_ATOMIC_REDUCTION: CUstreamBatchMemOpType = 8;

/// Values of `CUstreamMemoryBarrier_flags`.
pub type CUstreamMemoryBarrier_flags = u32;
pub const CU_STREAM_MEMORY_BARRIER_TYPE_SYS: CUstreamMemoryBarrier_flags = 0;
pub const CU_STREAM_MEMORY_BARRIER_TYPE_GPU: CUstreamMemoryBarrier_flags = 1;

/// Values of `CUexecAffinityType`.
pub type CUexecAffinityType = u32;
pub const CU_EXEC_AFFINITY_TYPE_SM_COUNT: CUexecAffinityType = 0;
pub const CU_EXEC_AFFINITY_TYPE_MAX: CUexecAffinityType = 1;

/// Values of `CUgraphInstantiate_flags`.
pub type CUgraphInstantiate_flags = u32;
pub const CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH: CUgraphInstantiate_flags = 1;
pub const CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD: CUgraphInstantiate_flags = 2;
pub const CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH: CUgraphInstantiate_flags = 4;
pub const CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY: CUgraphInstantiate_flags = 8;

/// Values of `CUuserObject_flags`.
pub type CUuserObject_flags = u32;
pub const CU_USER_OBJECT_NO_DESTRUCTOR_SYNC: CUuserObject_flags = 1;

pub const CU_STREAM_ADD_CAPTURE_DEPENDENCIES: u32 = 0;
pub const CU_STREAM_SET_CAPTURE_DEPENDENCIES: u32 = 1;

pub const CU_GRAPH_NODE_TYPE_KERNEL: u32 = 0;
pub const CU_GRAPH_NODE_TYPE_MEMCPY: u32 = 1;
pub const CU_GRAPH_NODE_TYPE_MEMSET: u32 = 2;
pub const CU_GRAPH_NODE_TYPE_HOST: u32 = 3;
pub const CU_GRAPH_NODE_TYPE_GRAPH: u32 = 4;
pub const CU_GRAPH_NODE_TYPE_EMPTY: u32 = 5;
pub const CU_GRAPH_NODE_TYPE_WAIT_EVENT: u32 = 6;
pub const CU_GRAPH_NODE_TYPE_EVENT_RECORD: u32 = 7;

pub const CUDA_GRAPH_INSTANTIATE_SUCCESS: u32 = 0;
pub const CUDA_GRAPH_INSTANTIATE_ERROR: u32 = 1;
pub const CU_GRAPH_NODE_TYPE_MEM_ALLOC: u32 = 10;
pub const CU_GRAPH_NODE_TYPE_MEM_FREE: u32 = 11;
pub const CU_GRAPH_NODE_TYPE_CONDITIONAL: u32 = 13;
pub const CU_GRAPH_COND_TYPE_IF: u32 = 0;
pub const CU_GRAPH_COND_TYPE_WHILE: u32 = 1;
pub const CU_GRAPH_COND_TYPE_SWITCH: u32 = 2;
pub const CU_GRAPH_COND_ASSIGN_DEFAULT: u32 = 1;

pub const CU_GRAPH_EXEC_UPDATE_SUCCESS: u32 = 0;
pub const CU_GRAPH_EXEC_UPDATE_ERROR: u32 = 1;
pub const CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED: u32 = 2;
pub const CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED: u32 = 3;
pub const CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED: u32 = 6;
pub const CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED: u32 = 5;
pub const CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE: u32 = 7;

pub const CU_GRAPH_DEPENDENCY_TYPE_DEFAULT: u8 = 0;
pub const CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC: u8 = 1;
pub const CU_GRAPH_KERNEL_NODE_PORT_DEFAULT: u8 = 0;
pub const CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC: u8 = 1;
pub const CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER: u8 = 2;

pub const CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: u32 = 0;
pub const CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: u32 = 1;
pub const CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: u32 = 2;
pub const CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: u32 = 3;

pub const CU_GRAPH_USER_OBJECT_MOVE: u32 = 1;
pub const CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE: u32 = 0;
pub const CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE: u32 = 1;
/// The ownership that the driver reports for a node, so that no program moves its graph.
pub const CU_GRAPH_CHILD_GRAPH_OWNERSHIP_INVALID: u32 = u32::MAX;
