//! C types of the CUDA driver interface on x86-64 Linux.
//!
//! Handles are plain pointers. Only a driver knows what they point to, and a program may pass any value. `layout_tests`
//! compares sizes and offsets with numbers measured with the CUDA 13.5 headers.

#![allow(non_camel_case_types, non_snake_case)]

use crate::attributes::CUlaunchAttributeID;
use crate::constants::{
    CU_GRAPH_EXEC_UPDATE_SUCCESS, CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE,
    CU_MEMCPY_OPERAND_TYPE_ARRAY, CU_MEMCPY_OPERAND_TYPE_POINTER, CU_MEMCPY_SRC_ACCESS_ORDER_ANY,
    CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED, CUmemAccess_flags,
    CUmemAllocationHandleType, CUmemAllocationType, CUmemLocationType, CUmemcpy3DOperandType, CUmemcpySrcAccessOrder,
    CUmemorytype, CUstreamBatchMemOpType,
};
use crate::errors::{CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ushort, c_void};

pub type CUresult = c_uint;
pub type CUdevice = c_int;
pub type CUdeviceptr = u64;
pub type CUcontext = *mut c_void;
pub type CUgreenCtx = *mut c_void;
pub type CUmodule = *mut c_void;
pub type CUfunction = *mut c_void;
pub type CUlibrary = *mut c_void;
pub type CUkernel = *mut c_void;
pub type CUlinkState = *mut c_void;
pub type CUstream = *mut c_void;
pub type CUevent = *mut c_void;
pub type CUarray = *mut c_void;
pub type CUmipmappedArray = *mut c_void;
pub type CUtexref = *mut c_void;
pub type CUsurfref = *mut c_void;
pub type CUtexObject = u64;
pub type CUsurfObject = u64;
pub type CUgraphicsResource = *mut c_void;
pub type CUmemoryPool = *mut c_void;
pub type CUmemGenericAllocationHandle = u64;
pub type CUexternalMemory = *mut c_void;
pub type CUexternalSemaphore = *mut c_void;
pub type CUgraph = *mut c_void;
pub type CUgraphNode = *mut c_void;
pub type CUgraphExec = *mut c_void;
pub type CUgraphDeviceNode = *mut c_void;
pub type CUuserObject = *mut c_void;
pub type CUdevResourceDesc = *mut c_void;
pub type CUlogsCallbackHandle = *mut c_void;
pub type CUlogIterator = c_uint;
pub type cuuint32_t = u32;
pub type cuuint64_t = u64;

/// A host function that a stream runs (`cuLaunchHostFunc`).
pub type CUhostFn = Option<unsafe extern "C" fn(userData: *mut c_void)>;
/// A callback that a stream runs. It gets the stream's status (`cuStreamAddCallback`).
pub type CUstreamCallback = Option<unsafe extern "C" fn(hStream: CUstream, status: CUresult, userData: *mut c_void)>;
/// A callback that returns the dynamic shared memory of a block size, in bytes (`cuOccupancyMaxPotentialBlockSize`).
pub type CUoccupancyB2DSize = Option<unsafe extern "C" fn(blockSize: c_int) -> usize>;
/// A callback for log messages (`cuLogsRegisterCallback`).
pub type CUlogsCallback =
    Option<unsafe extern "C" fn(data: *mut c_void, level: c_uint, message: *mut c_char, length: usize)>;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CUuuid {
    pub bytes: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUipcMemHandle {
    pub reserved: [u8; 64],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUipcEventHandle {
    pub reserved: [u8; 64],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemFabricHandle {
    pub data: [u8; 64],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemPoolPtrExportData {
    pub reserved: [u8; 64],
}

/// The result of the old `cuDeviceGetProperties`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUdevprop {
    pub maxThreadsPerBlock: c_int,
    pub maxThreadsDim: [c_int; 3],
    pub maxGridSize: [c_int; 3],
    pub sharedMemPerBlock: c_int,
    pub totalConstantMemory: c_int,
    pub SIMDWidth: c_int,
    pub memPitch: c_int,
    pub regsPerBlock: c_int,
    pub clockRate: c_int,
    pub textureAlign: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUexecAffinityParam {
    pub type_: c_uint,
    pub smCount: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUctxCigParam {
    pub sharedDataType: c_uint,
    pub sharedData: *mut c_void,
}

/// The parameters of `cuCtxCreate_v4`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUctxCreateParams {
    pub execAffinityParams: *mut CUexecAffinityParam,
    pub numExecAffinityParams: c_int,
    pub cigParams: *mut CUctxCigParam,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dim3 {
    pub x: c_uint,
    pub y: c_uint,
    pub z: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUaccessPolicyWindow {
    pub base_ptr: *mut c_void,
    pub num_bytes: usize,
    pub hitRatio: f32,
    pub hitProp: c_uint,
    pub missProp: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchProgrammaticEvent {
    pub event: CUevent,
    pub flags: c_int,
    pub triggerAtBlockStart: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchCompletionEvent {
    pub event: CUevent,
    pub flags: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchMemSyncDomainMap {
    pub default_: c_uchar,
    pub remote: c_uchar,
}

/// The value of a launch attribute. The attribute's id selects the field; `scalar` is used for all integers and
/// enumerations.
#[repr(C)]
#[derive(Clone, Copy)]
pub union CUlaunchAttributeValue {
    pub pad: [u8; 64],
    pub scalar: c_int,
    pub clusterDim: Dim3,
    pub accessPolicyWindow: CUaccessPolicyWindow,
    pub programmaticEvent: CUlaunchProgrammaticEvent,
    pub launchCompletionEvent: CUlaunchCompletionEvent,
    pub memSyncDomainMap: CUlaunchMemSyncDomainMap,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUlaunchAttribute {
    pub id: CUlaunchAttributeID,
    pub pad: [u8; 4],
    pub value: CUlaunchAttributeValue,
}

impl CUlaunchAttribute {
    /// Creates an attribute. `words` are the bytes of the value as little-endian numbers.
    pub fn new(id: CUlaunchAttributeID, words: [u64; 8]) -> Self {
        let mut pad = [0; 64];
        for (bytes, word) in pad.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Self { id, pad: [0; 4], value: CUlaunchAttributeValue { pad } }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchConfig {
    pub gridDimX: c_uint,
    pub gridDimY: c_uint,
    pub gridDimZ: c_uint,
    pub blockDimX: c_uint,
    pub blockDimY: c_uint,
    pub blockDimZ: c_uint,
    pub sharedMemBytes: c_uint,
    pub hStream: CUstream,
    pub attrs: *mut CUlaunchAttribute,
    pub numAttrs: c_uint,
}

/// The launch of one kernel by `cuLaunchCooperativeKernelMultiDevice`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_LAUNCH_PARAMS {
    pub function: CUfunction,
    pub gridDimX: c_uint,
    pub gridDimY: c_uint,
    pub gridDimZ: c_uint,
    pub blockDimX: c_uint,
    pub blockDimY: c_uint,
    pub blockDimZ: c_uint,
    pub sharedMemBytes: c_uint,
    pub hStream: CUstream,
    pub kernelParams: *mut *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMCPY2D {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr,
    pub srcArray: CUarray,
    pub srcPitch: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr,
    pub dstArray: CUarray,
    pub dstPitch: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
}

/// The description of a box copy. The peer form has contexts where the plain form has reserved words; the layout is the
/// same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMCPY3D_PEER {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcZ: usize,
    pub srcLOD: usize,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr,
    pub srcArray: CUarray,
    pub srcContext: CUcontext,
    pub srcPitch: usize,
    pub srcHeight: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstZ: usize,
    pub dstLOD: usize,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr,
    pub dstArray: CUarray,
    pub dstContext: CUcontext,
    pub dstPitch: usize,
    pub dstHeight: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
    pub Depth: usize,
}

pub type CUDA_MEMCPY3D = CUDA_MEMCPY3D_PEER;

/// The source or destination of a box copy, without offsets. Pitch and slice are in bytes.
pub struct BoxEnd {
    pub kind: CUmemorytype,
    pub address: u64,
    pub pitch: u64,
    pub slice: u64,
}

impl BoxEnd {
    fn host(&self) -> usize {
        if self.kind == CU_MEMORYTYPE_HOST { self.address as usize } else { 0 }
    }

    fn device(&self) -> CUdeviceptr {
        if self.kind == CU_MEMORYTYPE_HOST { 0 } else { self.address }
    }

    fn rows(&self) -> usize {
        self.slice.checked_div(self.pitch).unwrap_or(0) as usize
    }
}

impl CUDA_MEMCPY3D_PEER {
    /// Describes a copy of `extent`: bytes of a row, rows, slices.
    pub fn between(to: &BoxEnd, from: &BoxEnd, extent: [u64; 3]) -> Self {
        Self {
            srcXInBytes: 0,
            srcY: 0,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: from.kind,
            srcHost: std::ptr::with_exposed_provenance(from.host()),
            srcDevice: from.device(),
            srcArray: std::ptr::null_mut(),
            srcContext: std::ptr::null_mut(),
            srcPitch: from.pitch as usize,
            srcHeight: from.rows(),
            dstXInBytes: 0,
            dstY: 0,
            dstZ: 0,
            dstLOD: 0,
            dstMemoryType: to.kind,
            dstHost: std::ptr::with_exposed_provenance_mut(to.host()),
            dstDevice: to.device(),
            dstArray: std::ptr::null_mut(),
            dstContext: std::ptr::null_mut(),
            dstPitch: to.pitch as usize,
            dstHeight: to.rows(),
            WidthInBytes: extent[0] as usize,
            Height: extent[1] as usize,
            Depth: extent[2] as usize,
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUDA_ARRAY_DESCRIPTOR {
    pub Width: usize,
    pub Height: usize,
    pub Format: c_uint,
    pub NumChannels: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUDA_ARRAY3D_DESCRIPTOR {
    pub Width: usize,
    pub Height: usize,
    pub Depth: usize,
    pub Format: c_uint,
    pub NumChannels: c_uint,
    pub Flags: c_uint,
}

/// One operation of a batch, in the form for waits and writes. A barrier uses the first two words. In C this is a
/// union.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUstreamBatchMemOpParams {
    pub operation: CUstreamBatchMemOpType,
    pub barrier_flags: c_uint,
    pub address: u64,
    pub value: u64,
    pub flags: c_uint,
    pub alias: u64,
    pub pad: u64,
}

/// The source or destination of a copy in a batch, in the form for pointers. In C this is a union with the form for
/// arrays.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUmemcpy3DOperand {
    pub type_: CUmemcpy3DOperandType,
    pub ptr: CUdeviceptr,
    pub rowLength: usize,
    pub layerHeight: usize,
    pub locHint: CUmemLocation,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUDA_MEMCPY3D_BATCH_OP {
    pub src: CUmemcpy3DOperand,
    pub dst: CUmemcpy3DOperand,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub srcAccessOrder: CUmemcpySrcAccessOrder,
    pub flags: c_uint,
}

impl CUDA_MEMCPY3D_BATCH_OP {
    /// Returns the copy as a box between unified addresses. The order of access is ignored: both a read at the call and
    /// a read in the stream's order are correct.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_SUPPORTED` for arrays; `CUDA_ERROR_INVALID_VALUE` for an invalid copy.
    pub fn as_box(&self) -> Result<CUDA_MEMCPY3D_PEER, CUresult> {
        let Self { width, height, depth, .. } = *self;
        let known = (CU_MEMCPY_SRC_ACCESS_ORDER_STREAM..=CU_MEMCPY_SRC_ACCESS_ORDER_ANY).contains(&self.srcAccessOrder);
        if !known || width == 0 || height == 0 || depth == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let end = |operand: &CUmemcpy3DOperand| {
            match operand.type_ {
                CU_MEMCPY_OPERAND_TYPE_POINTER => {}
                CU_MEMCPY_OPERAND_TYPE_ARRAY => return Err(CUDA_ERROR_NOT_SUPPORTED),
                _ => return Err(CUDA_ERROR_INVALID_VALUE),
            }
            let or = |given, packed| if given == 0 { packed } else { given };
            let (pitch, rows) = (or(operand.rowLength, width), or(operand.layerHeight, height));
            let slice = pitch.checked_mul(rows).filter(|_| pitch >= width && rows >= height);
            let slice = slice.ok_or(CUDA_ERROR_INVALID_VALUE)? as u64;
            Ok(BoxEnd { kind: CU_MEMORYTYPE_UNIFIED, address: operand.ptr, pitch: pitch as u64, slice })
        };
        let extent = [width as u64, height as u64, depth as u64];
        Ok(CUDA_MEMCPY3D_PEER::between(&end(&self.dst)?, &end(&self.src)?, extent))
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUmemLocation {
    pub type_: CUmemLocationType,
    pub id: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUmemAllocFlags {
    pub compressionType: c_uchar,
    pub gpuDirectRDMACapable: c_uchar,
    pub usage: c_ushort,
    pub reserved: [c_uchar; 4],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAllocationProp {
    pub type_: CUmemAllocationType,
    pub requestedHandleTypes: CUmemAllocationHandleType,
    pub location: CUmemLocation,
    pub win32HandleMetaData: *mut c_void,
    pub allocFlags: CUmemAllocFlags,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUmemAccessDesc {
    pub location: CUmemLocation,
    pub flags: CUmemAccess_flags,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemPoolProps {
    pub allocType: CUmemAllocationType,
    pub handleTypes: CUmemAllocationHandleType,
    pub location: CUmemLocation,
    pub win32SecurityAttributes: *mut c_void,
    pub maxSize: usize,
    pub usage: c_ushort,
    pub gpuDirectRDMACapable: c_uchar,
    pub reserved: [c_uchar; 53],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemcpyAttributes {
    pub srcAccessOrder: c_uint,
    pub srcLocHint: CUmemLocation,
    pub dstLocHint: CUmemLocation,
    pub flags: c_uint,
}

/// A tensor map. It is opaque to programs; kernels read it from parameter memory.
#[repr(C, align(128))]
#[derive(Clone, Copy, Debug)]
pub struct CUtensorMap {
    pub opaque: [u64; 16],
}

/// The properties of an edge of a graph, for the `_v2` graph functions and `cuStreamGetCaptureInfo_v3`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUgraphEdgeData {
    pub from_port: c_uchar,
    pub to_port: c_uchar,
    pub type_: c_uchar,
    pub reserved: [c_uchar; 5],
}

/// The parameters of a kernel node before CUDA 12.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_KERNEL_NODE_PARAMS_v1 {
    pub func: CUfunction,
    pub gridDimX: c_uint,
    pub gridDimY: c_uint,
    pub gridDimZ: c_uint,
    pub blockDimX: c_uint,
    pub blockDimY: c_uint,
    pub blockDimZ: c_uint,
    pub sharedMemBytes: c_uint,
    pub kernelParams: *mut *mut c_void,
    pub extra: *mut *mut c_void,
}

/// The parameters of a kernel node: the older form, followed by the fields of CUDA 12.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_KERNEL_NODE_PARAMS {
    pub v1: CUDA_KERNEL_NODE_PARAMS_v1,
    pub kern: CUkernel,
    pub ctx: CUcontext,
}

impl From<CUDA_KERNEL_NODE_PARAMS_v1> for CUDA_KERNEL_NODE_PARAMS {
    fn from(v1: CUDA_KERNEL_NODE_PARAMS_v1) -> Self {
        Self { v1, kern: std::ptr::null_mut(), ctx: std::ptr::null_mut() }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMSET_NODE_PARAMS {
    pub dst: CUdeviceptr,
    pub pitch: usize,
    pub value: c_uint,
    pub elementSize: c_uint,
    pub width: usize,
    pub height: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_HOST_NODE_PARAMS {
    pub fn_: CUhostFn,
    pub userData: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_GRAPH_INSTANTIATE_PARAMS {
    pub flags: cuuint64_t,
    pub hUploadStream: CUstream,
    pub hErrNode_out: CUgraphNode,
    pub result_out: c_uint,
}

/// The result of `cuGraphExecUpdate_v2`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUgraphExecUpdateResultInfo {
    pub result: c_uint,
    pub errorNode: CUgraphNode,
    pub errorFromNode: CUgraphNode,
}

impl CUgraphExecUpdateResultInfo {
    /// Returns the result of the call itself.
    ///
    /// # Errors
    /// `CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE` if the graph could not be updated.
    pub fn answer(&self) -> Result<(), CUresult> {
        match self.result {
            CU_GRAPH_EXEC_UPDATE_SUCCESS => Ok(()),
            _ => Err(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE),
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMCPY_NODE_PARAMS {
    pub flags: c_int,
    pub reserved: c_int,
    pub copyCtx: CUcontext,
    pub copyParams: CUDA_MEMCPY3D,
}

/// The parameters of a memset node with its context. `cuGraphAddMemsetNode` takes the context as a separate argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMSET_NODE_PARAMS_v2 {
    pub memset: CUDA_MEMSET_NODE_PARAMS,
    pub ctx: CUcontext,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_CHILD_GRAPH_NODE_PARAMS {
    pub graph: CUgraph,
    pub ownership: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEM_ALLOC_NODE_PARAMS {
    pub poolProps: CUmemPoolProps,
    pub accessDescs: *const CUmemAccessDesc,
    pub accessDescCount: usize,
    pub bytesize: usize,
    pub dptr: CUdeviceptr,
}

impl CUDA_MEM_ALLOC_NODE_PARAMS {
    /// Whether the request is for one device's memory that no other device accesses and no handle exports. `readers` is
    /// its list `accessDescs`.
    pub fn is_plain(&self, readers: &[CUmemAccessDesc]) -> bool {
        let CUmemPoolProps { allocType, handleTypes, location, .. } = self.poolProps;
        allocType == CU_MEM_ALLOCATION_TYPE_PINNED
            && handleTypes == 0
            && location.type_ == CU_MEM_LOCATION_TYPE_DEVICE
            && readers.iter().all(|reader| reader.location == location)
            && self.bytesize != 0
    }

    /// Returns the parameters to report for memory that a node allocated.
    pub fn of(device: c_int, size: u64, address: CUdeviceptr) -> Self {
        let location = CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: device };
        Self {
            poolProps: CUmemPoolProps {
                allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
                handleTypes: 0,
                location,
                win32SecurityAttributes: std::ptr::null_mut(),
                maxSize: 0,
                usage: 0,
                gpuDirectRDMACapable: 0,
                reserved: [0; 53],
            },
            accessDescs: std::ptr::null(),
            accessDescCount: 0,
            bytesize: size as usize,
            dptr: address,
        }
    }
}

/// The parameters of a node of any type for `cuGraphAddNode`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union CUgraphNodeParams_union {
    pub kernel: CUDA_KERNEL_NODE_PARAMS,
    pub memcpy: CUDA_MEMCPY_NODE_PARAMS,
    pub memset: CUDA_MEMSET_NODE_PARAMS_v2,
    pub host: CUDA_HOST_NODE_PARAMS,
    pub graph: CUDA_CHILD_GRAPH_NODE_PARAMS,
    pub conditional: CUDA_CONDITIONAL_NODE_PARAMS,
    pub event: CUevent,
    pub alloc: CUDA_MEM_ALLOC_NODE_PARAMS,
    pub free: CUdeviceptr,
    pub bytes: [u64; 29],
}

/// The parameters of a conditional node. The driver owns the list of graphs, which exists as long as the node.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_CONDITIONAL_NODE_PARAMS {
    pub handle: u64,
    pub type_: c_uint,
    pub size: c_uint,
    pub phGraph_out: *mut CUgraph,
    pub ctx: CUcontext,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUgraphNodeParams {
    pub type_: c_uint,
    pub reserved0: [c_int; 3],
    pub of: CUgraphNodeParams_union,
    pub reserved2: i64,
}
