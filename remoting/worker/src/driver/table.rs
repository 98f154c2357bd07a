//! The functions of libcuda that the worker calls itself. They are loaded by versioned symbols, so that their
//! signatures are known.

use driverapi::arrays::{CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC};
use driverapi::types::{
    CUDA_ARRAY3D_DESCRIPTOR, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUgraphEdgeData,
    CUgraphNodeParams, CUlaunchAttributeValue, CUlaunchConfig, CUmemAccessDesc, CUmemAllocationProp, CUtensorMap,
};
use std::ffi::{CStr, c_char, c_int, c_void};

pub type Raw = *mut c_void;

macro_rules! table {
    ($($field:ident = $symbol:literal ($($type:ty),*);)*) => {
        /// The function pointers. A pointer is `None` if the loaded library does not have the symbol.
        #[derive(Clone, Default)]
        pub struct Table {
            $(pub $field: Option<unsafe extern "C" fn($($type),*) -> u32>,)*
        }

        impl Table {
            /// Fills the table: `find` returns the address of a symbol, or null.
            ///
            /// # Safety
            /// For each symbol, `find` must return null or a function of CUDA's signature for that symbol. The function
            /// must be callable as long as the table is used.
            pub unsafe fn load(find: &mut dyn FnMut(&CStr) -> Raw) -> Table {
                Table {
                    $($field: {
                        let address = find($symbol);
                        // SAFETY: the caller guarantees the signature. A null pointer is `None` of an optional function
                        // pointer.
                        unsafe { std::mem::transmute::<Raw, Option<unsafe extern "C" fn($($type),*) -> u32>>(address) }
                    },)*
                }
            }
        }
    };
}

table! {
    init = c"cuInit" (u32);
    driver_version = c"cuDriverGetVersion" (*mut i32);
    device_count = c"cuDeviceGetCount" (*mut i32);
    device_get = c"cuDeviceGet" (*mut i32, i32);
    device_name = c"cuDeviceGetName" (*mut c_char, i32, i32);
    device_uuid = c"cuDeviceGetUuid_v2" (*mut [u8; 16], i32);
    device_memory = c"cuDeviceTotalMem_v2" (*mut usize, i32);
    device_reaches = c"cuDeviceCanAccessPeer" (*mut c_int, i32, i32);
    device_peer_attribute = c"cuDeviceGetP2PAttribute" (*mut c_int, u32, i32, i32);
    device_attribute = c"cuDeviceGetAttribute" (*mut i32, u32, i32);

    primary_retain = c"cuDevicePrimaryCtxRetain" (*mut Raw, i32);
    primary_release = c"cuDevicePrimaryCtxRelease_v2" (i32);
    primary_set_flags = c"cuDevicePrimaryCtxSetFlags_v2" (i32, u32);
    context_create = c"cuCtxCreate_v2" (*mut Raw, u32, i32);
    context_create_v4 = c"cuCtxCreate_v4" (*mut Raw, Raw, u32, i32);
    context_destroy = c"cuCtxDestroy_v2" (Raw);
    context_set_current = c"cuCtxSetCurrent" (Raw);
    context_synchronize = c"cuCtxSynchronize" ();
    context_set_limit = c"cuCtxSetLimit" (u32, usize);

    granularity = c"cuMemGetAllocationGranularity" (*mut usize, *const CUmemAllocationProp, u32);
    address_reserve = c"cuMemAddressReserve" (*mut u64, usize, usize, u64, u64);
    address_free = c"cuMemAddressFree" (u64, usize);
    memory_create = c"cuMemCreate" (*mut u64, usize, *const CUmemAllocationProp, u64);
    memory_release = c"cuMemRelease" (u64);
    memory_retain = c"cuMemRetainAllocationHandle" (*mut u64, *mut c_void);
    memory_export = c"cuMemExportToShareableHandle" (*mut c_int, u64, u32, u64);
    memory_import = c"cuMemImportFromShareableHandle" (*mut u64, *mut c_void, u32);
    memory_map = c"cuMemMap" (u64, usize, usize, u64, u64);
    memory_unmap = c"cuMemUnmap" (u64, usize);
    memory_bound = c"remotegpu_bound" (u64, usize);
    writes_follow = c"remotegpu_follow_writes" (Raw);
    writes_taken = c"remotegpu_written" (*mut [u64; 2], *mut usize, u64, usize);
    memory_set_access = c"cuMemSetAccess" (u64, usize, *const CUmemAccessDesc, usize);
    host_alloc = c"cuMemHostAlloc" (*mut Raw, usize, u32);
    host_free = c"cuMemFreeHost" (Raw);
    host_register = c"cuMemHostRegister_v2" (Raw, usize, u32);
    host_unregister = c"cuMemHostUnregister" (Raw);

    copy_to_device = c"cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Raw);
    copy_to_host = c"cuMemcpyDtoHAsync_v2" (Raw, u64, usize, Raw);
    copy_on_device = c"cuMemcpyDtoDAsync_v2" (u64, u64, usize, Raw);
    copy_3d = c"cuMemcpy3DAsync_v2" (*const CUDA_MEMCPY3D, Raw);
    set_bytes = c"cuMemsetD8Async" (u64, u8, usize, Raw);

    array_create = c"cuArray3DCreate_v2" (*mut Raw, *const CUDA_ARRAY3D_DESCRIPTOR);
    array_destroy = c"cuArrayDestroy" (Raw);
    texture_create = c"cuTexObjectCreate" (
        *mut u64, *const CUDA_RESOURCE_DESC, *const CUDA_TEXTURE_DESC, *const CUDA_RESOURCE_VIEW_DESC
    );
    texture_destroy = c"cuTexObjectDestroy" (u64);
    surface_create = c"cuSurfObjectCreate" (*mut u64, *const CUDA_RESOURCE_DESC);
    surface_destroy = c"cuSurfObjectDestroy" (u64);

    stream_create = c"cuStreamCreateWithPriority" (*mut Raw, u32, i32);
    stream_destroy = c"cuStreamDestroy_v2" (Raw);
    stream_query = c"cuStreamQuery" (Raw);
    stream_wait_event = c"cuStreamWaitEvent" (Raw, Raw, u32);
    event_create = c"cuEventCreate" (*mut Raw, u32);
    event_record = c"cuEventRecord" (Raw, Raw);
    event_record_flags = c"cuEventRecordWithFlags" (Raw, Raw, u32);
    event_query = c"cuEventQuery" (Raw);
    event_synchronize = c"cuEventSynchronize" (Raw);
    event_elapsed = c"cuEventElapsedTime" (*mut f32, Raw, Raw);

    module_load = c"cuModuleLoadDataEx" (*mut Raw, *const c_void, u32, *mut u32, *mut Raw);
    module_unload = c"cuModuleUnload" (Raw);
    module_function_count = c"cuModuleGetFunctionCount" (*mut u32, Raw);
    module_functions = c"cuModuleEnumerateFunctions" (*mut Raw, u32, Raw);
    pointer_attribute = c"cuPointerGetAttribute" (*mut c_void, u32, u64);
    module_global = c"cuModuleGetGlobal_v2" (*mut u64, *mut usize, Raw, *const c_char);
    function_name = c"cuFuncGetName" (*mut *const c_char, Raw);
    function_load = c"cuFuncLoad" (Raw);
    function_param = c"cuFuncGetParamInfo" (Raw, usize, *mut usize, *mut usize);
    function_attribute = c"cuFuncGetAttribute" (*mut i32, u32, Raw);
    set_function_attribute = c"cuFuncSetAttribute" (Raw, u32, i32);
    set_function_cache_config = c"cuFuncSetCacheConfig" (Raw, u32);
    set_function_shared_mem_config = c"cuFuncSetSharedMemConfig" (Raw, u32);
    launch = c"cuLaunchKernelEx" (*const CUlaunchConfig, Raw, *mut Raw, *mut Raw);

    graph_create = c"cuGraphCreate" (*mut Raw, u32);
    graph_add_empty = c"cuGraphAddEmptyNode" (*mut Raw, Raw, *const Raw, usize);
    graph_add_kernel = c"cuGraphAddKernelNode_v2" (*mut Raw, Raw, *const Raw, usize, *const CUDA_KERNEL_NODE_PARAMS);
    graph_connect = c"cuGraphAddDependencies_v2" (Raw, *const Raw, *const Raw, *const CUgraphEdgeData, usize);
    graph_add_copy = c"cuGraphAddMemcpyNode" (*mut Raw, Raw, *const Raw, usize, *const CUDA_MEMCPY3D, Raw);
    graph_add_fill = c"cuGraphAddMemsetNode" (*mut Raw, Raw, *const Raw, usize, *const CUDA_MEMSET_NODE_PARAMS, Raw);
    graph_condition = c"cuGraphConditionalHandleCreate" (*mut u64, Raw, Raw, u32, u32);
    graph_add_node = c"cuGraphAddNode" (*mut Raw, Raw, *const Raw, usize, *mut CUgraphNodeParams);
    graph_set_attribute = c"cuGraphKernelNodeSetAttribute" (Raw, u32, *const CUlaunchAttributeValue);
    graph_instantiate = c"cuGraphInstantiateWithFlags" (*mut Raw, Raw, u64);
    graph_launch = c"cuGraphLaunch" (Raw, Raw);
    graph_exec_destroy = c"cuGraphExecDestroy" (Raw);
    graph_destroy = c"cuGraphDestroy" (Raw);

    tensor_map_tiled = c"cuTensorMapEncodeTiled" (
        *mut CUtensorMap, u32, u32, Raw, *const u64, *const u64, *const u32, *const u32, u32, u32, u32, u32
    );
    tensor_map_im2col = c"cuTensorMapEncodeIm2col" (
        *mut CUtensorMap, u32, u32, Raw, *const u64, *const u64, *const i32, *const i32, u32, u32, *const u32, u32, u32, u32,
        u32
    );
    tensor_map_im2col_wide = c"cuTensorMapEncodeIm2colWide" (
        *mut CUtensorMap, u32, u32, Raw, *const u64, *const u64, i32, i32, u32, u32, *const u32, u32, u32, u32, u32, u32
    );
    tensor_map_address = c"cuTensorMapReplaceAddress" (*mut CUtensorMap, Raw);
    tensor_map_class = c"cuTensorMapSetAllocationClass" (*mut CUtensorMap, u32, *mut u32);

    link_create = c"cuLinkCreate_v2" (u32, *mut u32, *mut Raw, *mut Raw);
    link_add = c"cuLinkAddData_v2" (Raw, u32, Raw, usize, *const c_char, u32, *mut u32, *mut Raw);
    link_complete = c"cuLinkComplete" (Raw, *mut Raw, *mut usize);
    link_destroy = c"cuLinkDestroy" (Raw);
}
