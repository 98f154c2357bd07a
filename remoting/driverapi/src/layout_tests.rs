//! Tests of the layouts of C types. The sizes and offsets were measured with a C compiler and the CUDA 13.5 headers on
//! x86-64 Linux.

#![cfg(test)]

macro_rules! layout {
    ($test:ident: $($type:ty, $size:literal, [$($field:ident $offset:literal),*];)*) => {
        #[test]
        fn $test() {
            $(
                assert_eq!(size_of::<$type>(), $size, stringify!($type));
                $(assert_eq!(std::mem::offset_of!($type, $field), $offset, stringify!($type.$field));)*
            )*
        }
    };
}

mod types {
    use crate::arrays::{CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC};
    use crate::types::*;

    layout! { layouts_of_types:
        CUuuid, 16, [bytes 0];
        CUipcMemHandle, 64, [reserved 0];
        CUipcEventHandle, 64, [reserved 0];
        CUmemFabricHandle, 64, [data 0];
        CUmemPoolPtrExportData, 64, [reserved 0];
        CUdevprop, 56, [maxThreadsPerBlock 0, maxThreadsDim 4, maxGridSize 16, sharedMemPerBlock 28,
            totalConstantMemory 32, SIMDWidth 36, memPitch 40, regsPerBlock 44, clockRate 48, textureAlign 52];
        CUexecAffinityParam, 8, [type_ 0, smCount 4];
        CUctxCigParam, 16, [sharedDataType 0, sharedData 8];
        CUctxCreateParams, 24, [execAffinityParams 0, numExecAffinityParams 8, cigParams 16];
        CUaccessPolicyWindow, 32, [base_ptr 0, num_bytes 8, hitRatio 16, hitProp 20, missProp 24];
        CUlaunchMemSyncDomainMap, 2, [default_ 0, remote 1];
        CUlaunchAttributeValue, 64, [pad 0, scalar 0, clusterDim 0, accessPolicyWindow 0, programmaticEvent 0,
            launchCompletionEvent 0, memSyncDomainMap 0];
        CUlaunchAttribute, 72, [id 0, pad 4, value 8];
        CUlaunchConfig, 56, [gridDimX 0, gridDimY 4, gridDimZ 8, blockDimX 12, blockDimY 16, blockDimZ 20,
            sharedMemBytes 24, hStream 32, attrs 40, numAttrs 48];
        CUDA_LAUNCH_PARAMS, 56, [function 0, gridDimX 8, gridDimY 12, gridDimZ 16, blockDimX 20, blockDimY 24,
            blockDimZ 28, sharedMemBytes 32, hStream 40, kernelParams 48];
        CUDA_MEMCPY2D, 128, [srcXInBytes 0, srcY 8, srcMemoryType 16, srcHost 24, srcDevice 32, srcArray 40,
            srcPitch 48, dstXInBytes 56, dstY 64, dstMemoryType 72, dstHost 80, dstDevice 88, dstArray 96,
            dstPitch 104, WidthInBytes 112, Height 120];
        CUgraphEdgeData, 8, [type_ 2];
        CUDA_MEMSET_NODE_PARAMS, 40, [value 16, width 24];
        CUDA_MEMSET_NODE_PARAMS_v2, 48, [ctx 40];
        CUDA_HOST_NODE_PARAMS, 16, [];
        CUDA_MEMCPY_NODE_PARAMS, 216, [copyCtx 8, copyParams 16];
        CUDA_CHILD_GRAPH_NODE_PARAMS, 16, [ownership 8];
        CUDA_MEM_ALLOC_NODE_PARAMS, 120, [accessDescs 88, accessDescCount 96, bytesize 104, dptr 112];
        CUDA_CONDITIONAL_NODE_PARAMS, 32, [handle 0, type_ 8, size 12, phGraph_out 16, ctx 24];
        CUgraphNodeParams, 256, [reserved0 4, of 16, reserved2 248];
        CUgraphExecUpdateResultInfo, 24, [errorNode 8, errorFromNode 16];
        CUDA_GRAPH_INSTANTIATE_PARAMS, 32, [hUploadStream 8, hErrNode_out 16, result_out 24];
        CUDA_MEMCPY3D_PEER, 200, [srcXInBytes 0, srcY 8, srcZ 16, srcLOD 24, srcMemoryType 32, srcHost 40,
            srcDevice 48, srcArray 56, srcContext 64, srcPitch 72, srcHeight 80, dstXInBytes 88, dstY 96, dstZ 104,
            dstLOD 112, dstMemoryType 120, dstHost 128, dstDevice 136, dstArray 144, dstContext 152, dstPitch 160,
            dstHeight 168, WidthInBytes 176, Height 184, Depth 192];
        CUDA_RESOURCE_DESC, 144, [resType 0, words 8, flags 136];
        CUDA_TEXTURE_DESC, 104, [filterMode 12, flags 16, mipmapLevelBias 28, borderColor 40, reserved 56];
        CUDA_RESOURCE_VIEW_DESC, 112, [width 8, firstMipmapLevel 32, lastLayer 44, reserved 48];
        CUDA_ARRAY_DESCRIPTOR, 24, [Width 0, Height 8, Format 16, NumChannels 20];
        CUDA_ARRAY3D_DESCRIPTOR, 40, [Width 0, Height 8, Depth 16, Format 24, NumChannels 28, Flags 32];
        CUstreamBatchMemOpParams, 48, [operation 0, barrier_flags 4, address 8, value 16, flags 24, alias 32];
        CUmemLocation, 8, [type_ 0, id 4];
        CUmemcpy3DOperand, 40, [type_ 0, ptr 8, rowLength 16, layerHeight 24, locHint 32];
        CUDA_MEMCPY3D_BATCH_OP, 112, [src 0, dst 40, width 80, height 88, depth 96, srcAccessOrder 104, flags 108];
        CUmemAllocationProp, 32, [type_ 0, requestedHandleTypes 4, location 8, win32HandleMetaData 16, allocFlags 24];
        CUmemAccessDesc, 12, [location 0, flags 8];
        CUmemPoolProps, 88, [allocType 0, handleTypes 4, location 8, win32SecurityAttributes 16, maxSize 24,
            usage 32, gpuDirectRDMACapable 34, reserved 35];
        CUmemcpyAttributes, 24, [srcAccessOrder 0, srcLocHint 4, dstLocHint 12, flags 20];
        CUtensorMap, 128, [opaque 0];
        CUgraphEdgeData, 8, [from_port 0, to_port 1, type_ 2, reserved 3];
        CUDA_KERNEL_NODE_PARAMS_v1, 56, [func 0, gridDimX 8, gridDimY 12, gridDimZ 16, blockDimX 20, blockDimY 24,
            blockDimZ 28, sharedMemBytes 32, kernelParams 40, extra 48];
        CUDA_KERNEL_NODE_PARAMS, 72, [v1 0, kern 56, ctx 64];
    }
}

mod nvml {
    use crate::nvml::*;

    layout! { layouts_of_nvml:
        nvmlMemory_t, 24, [total 0, free 8, used 16];
        nvmlMemory_v2_t, 40, [version 0, total 8, reserved 16, free 24, used 32];
        nvmlBAR1Memory_t, 24, [bar1Total 0, bar1Free 8, bar1Used 16];
        nvmlUtilization_t, 8, [gpu 0, memory 4];
        nvmlPciInfo_t, 68, [busIdLegacy 0, domain 16, bus 20, device 24, pciDeviceId 28, pciSubSystemId 32, busId 36];
        nvmlPciInfoExt_v1_t, 64, [version 0, domain 4, bus 8, device 12, pciDeviceId 16, pciSubSystemId 20,
            baseClass 24, subClass 28, busId 32];
        nvmlProcessInfo_v1_t, 16, [pid 0, usedGpuMemory 8];
        nvmlProcessInfo_v2_t, 24, [pid 0, usedGpuMemory 8, gpuInstanceId 16, computeInstanceId 20];
        nvmlProcessUtilizationSample_t, 32, [pid 0, timeStamp 8, smUtil 16, memUtil 20, encUtil 24, decUtil 28];
        nvmlTemperature_v1_t, 12, [version 0, sensorType 4, temperature 8];
        nvmlDeviceAttributes_t, 40, [multiprocessorCount 0, sharedCopyEngineCount 4, sharedDecoderCount 8,
            sharedEncoderCount 12, sharedJpegCount 16, sharedOfaCount 20, gpuInstanceSliceCount 24,
            computeInstanceSliceCount 28, memorySizeMB 32];
        nvmlFieldValue_t, 40, [fieldId 0, scopeId 4, timestamp 8, latencyUsec 16, valueType 24, nvmlReturn 28,
            value 32];
    }
}
