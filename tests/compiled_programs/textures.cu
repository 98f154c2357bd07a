// Textures, surfaces and arrays are refused where they are made, with the code for it, and nothing else suffers.
#include "check.h"
#include <string.h>

__global__ void add_one(float *data) { data[threadIdx.x] += 1; }

int main()
{
    float host[32] = {0}, *data;
    OK(cudaMalloc(&data, sizeof host));
    OK(cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice));

    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = data;
    resource.res.linear.desc = cudaCreateChannelDesc<float>();
    resource.res.linear.sizeInBytes = sizeof host;
    cudaTextureDesc sampling = {};
    sampling.readMode = cudaReadModeElementType;
    cudaTextureObject_t texture = 0;
    EXPECT(cudaErrorNotSupported, cudaCreateTextureObject(&texture, &resource, &sampling, nullptr));
    EXPECT(cudaErrorNotSupported, cudaGetLastError());
    REQUIRE(strcmp(cudaGetErrorName(cudaErrorNotSupported), "cudaErrorNotSupported") == 0);

    cudaArray_t array = nullptr;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    EXPECT(cudaErrorNotSupported, cudaMallocArray(&array, &format, 16, 16));
    EXPECT(cudaErrorNotSupported, cudaMalloc3DArray(&array, &format, make_cudaExtent(8, 8, 8)));
    cudaMipmappedArray_t levels = nullptr;
    EXPECT(cudaErrorNotSupported, cudaMallocMipmappedArray(&levels, &format, make_cudaExtent(8, 8, 8), 2));
    cudaSurfaceObject_t surface = 0;
    FAILS(cudaCreateSurfaceObject(&surface, &resource));
    cudaGetLastError();

    add_one<<<1, 32>>>(data);
    OK(cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost));
    for (float value : host) REQUIRE(value == 1);
    return passed();
}
