/* Arrays by the driver's own functions: descriptors, and copies of stretches that are counted in bytes from the start. */
#include "check.h"
#include <cuda.h>
#include <string.h>

enum { W = 16, H = 6 };

/* What kernels read through these `sampling.cu` and `arrays.cu` check. */
static void objects(CUarray array)
{
    CUDA_RESOURCE_DESC resource, found;
    CUDA_TEXTURE_DESC sampling, back;
    CUDA_RESOURCE_VIEW_DESC view;
    CUtexObject texture = 0;
    CUsurfObject surface = 0;
    memset(&resource, 0, sizeof resource);
    memset(&sampling, 0, sizeof sampling);
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array;
    sampling.addressMode[1] = CU_TR_ADDRESS_MODE_MIRROR;
    sampling.filterMode = CU_TR_FILTER_MODE_LINEAR;
    sampling.flags = CU_TRSF_NORMALIZED_COORDINATES;
    sampling.borderColor[2] = 0.5f;
    OK(cuTexObjectCreate(&texture, &resource, &sampling, NULL));
    REQUIRE(texture != 0);
    OK(cuTexObjectGetResourceDesc(&found, texture));
    REQUIRE(found.resType == CU_RESOURCE_TYPE_ARRAY && found.res.array.hArray == array);
    OK(cuTexObjectGetTextureDesc(&back, texture));
    REQUIRE(memcmp(&back, &sampling, sizeof back) == 0);
    FAILS(cuTexObjectGetResourceViewDesc(&view, texture)); /* it was made without one */
    FAILS(cuSurfObjectDestroy(texture));
    OK(cuTexObjectDestroy(texture));
    FAILS(cuTexObjectDestroy(texture));
    FAILS(cuTexObjectGetTextureDesc(&back, texture));

    OK(cuSurfObjectCreate(&surface, &resource));
    memset(&found, 1, sizeof found);
    OK(cuSurfObjectGetResourceDesc(&found, surface));
    REQUIRE(found.resType == CU_RESOURCE_TYPE_ARRAY && found.res.array.hArray == array);
    OK(cuSurfObjectDestroy(surface));
    FAILS(cuSurfObjectDestroy(surface));
    sampling.filterMode = 7;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&texture, &resource, &sampling, NULL));
}

int main(void)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));

    CUDA_ARRAY_DESCRIPTOR plane = {W, H, CU_AD_FORMAT_SIGNED_INT16, 2}, flat;
    CUDA_ARRAY3D_DESCRIPTOR volume = {W, H, 3, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SURFACE_LDST}, deep;
    CUarray one, two, three;
    OK(cuArrayCreate(&one, &plane));
    OK(cuArrayCreate(&two, &plane));
    OK(cuArray3DCreate(&three, &volume));
    OK(cuArrayGetDescriptor(&flat, one));
    REQUIRE(flat.Width == W && flat.Height == H && flat.Format == CU_AD_FORMAT_SIGNED_INT16 && flat.NumChannels == 2);
    OK(cuArray3DGetDescriptor(&deep, three));
    REQUIRE(deep.Width == W && deep.Depth == 3 && deep.NumChannels == 1 && deep.Flags == CUDA_ARRAY3D_SURFACE_LDST);
    OK(cuArray3DGetDescriptor(&deep, two));
    REQUIRE(deep.Height == H && deep.Depth == 0 && deep.Flags == 0);
    CUDA_ARRAY_DESCRIPTOR wrong = {W, H, CU_AD_FORMAT_FLOAT, 3};
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuArrayCreate(&(CUarray){0}, &wrong));

    /* Stretches of one row, and of whole rows. */
    unsigned host[W * H], back[W * H];
    for (int i = 0; i < W * H; i++) host[i] = i * 77777u;
    CUdeviceptr device;
    CUstream stream;
    OK(cuMemAlloc(&device, sizeof host));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemcpyHtoD(device, host, sizeof host));
    OK(cuMemcpyHtoA(one, 0, host, sizeof host));
    OK(cuMemcpyAtoH(back, one, 0, sizeof back));
    REQUIRE(memcmp(back, host, sizeof back) == 0);
    OK(cuMemcpyDtoA(two, W * 4 * 2, device, W * 4 * 3));
    OK(cuMemcpyAtoH(back, two, W * 4 * 2, W * 4 * 3));
    REQUIRE(memcmp(back, host, W * 4 * 3) == 0);
    OK(cuMemcpyHtoA(two, W * 4 + 8, host + 5, 20));
    OK(cuMemcpyAtoD(device, two, W * 4 + 8, 20));
    OK(cuMemcpyDtoH(back, device, 20));
    REQUIRE(memcmp(back, host + 5, 20) == 0);
    OK(cuMemcpyAtoA(one, 8, two, W * 4 + 8, 20));
    OK(cuMemcpyAtoH(back, one, 0, W * 4));
    for (int i = 0; i < W; i++) REQUIRE(back[i] == host[i >= 2 && i < 7 ? i + 3 : i]);
    OK(cuMemcpyHtoAAsync(one, W * 4 * 5, host, W * 4, stream));
    OK(cuMemcpyAtoHAsync(back, one, W * 4 * 4, W * 4 * 2, stream));
    OK(cuStreamSynchronize(stream));
    REQUIRE(memcmp(back, host + W * 4, W * 4) == 0 && memcmp(back + W, host, W * 4) == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoA(one, sizeof host - 8, host, 16)); /* beyond the end */
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyAtoH(back, one, W * 4 * H, 4));

    /* A box of slices, from pitched rows and back. */
    float slices[3][H][W], found[2][4][5];
    for (int i = 0; i < 3 * H * W; i++) ((float *)slices)[i] = (float)i;
    CUDA_MEMCPY3D copy = {0};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = slices;
    copy.srcPitch = W * 4;
    copy.srcHeight = H;
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = three;
    copy.WidthInBytes = W * 4;
    copy.Height = H;
    copy.Depth = 3;
    OK(cuMemcpy3D(&copy));
    memset(&copy, 0, sizeof copy);
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = three;
    copy.srcXInBytes = 12;
    copy.srcY = 1;
    copy.srcZ = 1;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = found;
    copy.dstPitch = 20;
    copy.dstHeight = 4;
    copy.WidthInBytes = 20;
    copy.Height = 4;
    copy.Depth = 2;
    OK(cuMemcpy3DAsync(&copy, stream));
    OK(cuStreamSynchronize(stream));
    for (int z = 0; z < 2; z++)
        for (int y = 0; y < 4; y++)
            for (int x = 0; x < 5; x++) REQUIRE(found[z][y][x] == slices[z + 1][y + 1][x + 3]);
    copy.Depth = 3;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&copy)); /* the array has no fourth slice */

    objects(three);
    OK(cuArrayDestroy(one));
    OK(cuArrayDestroy(two));
    OK(cuArrayDestroy(three));
    FAILS(cuArrayDestroy(three));
    FAILS(cuMemcpyHtoA(one, 0, host, 4));
    OK(cuStreamDestroy(stream));
    OK(cuMemFree(device));
    OK(cuDevicePrimaryCtxRelease(0));
    return passed();
}
