// Arrays: what they are, copies into, out of and between them; textures of plain memory; surfaces.
#include "check.h"
#include <vector>

const int W = 37, H = 11;

__global__ void fetch(cudaTextureObject_t t, int *out, int n)
{
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i < n) out[i] = tex1Dfetch<int>(t, i - 1); // the first and the last lie outside
}

__global__ void read_pitched(cudaTextureObject_t t, uchar4 *out)
{
    int x = threadIdx.x, y = blockIdx.x;
    out[y * W + x] = tex2D<uchar4>(t, x + 0.5f, y + 0.5f);
}

__global__ void negate(cudaSurfaceObject_t from, cudaSurfaceObject_t to)
{
    int x = threadIdx.x, y = blockIdx.x;
    float2 v;
    surf2Dread(&v, from, x * (int)sizeof v, y);
    surf2Dwrite(make_float2(-v.y, -v.x), to, x * (int)sizeof v, y);
}

__global__ void outside(cudaSurfaceObject_t s, float *out)
{
    surf2Dwrite(7.0f, s, -4, 0, cudaBoundaryModeZero); // written nowhere
    out[0] = surf2Dread<float>(s, W * 8, 0, cudaBoundaryModeZero);
    out[1] = surf2Dread<float>(s, -8, 2, cudaBoundaryModeClamp);
}

__global__ void layers(cudaSurfaceObject_t s)
{
    short v;
    surf2DLayeredread(&v, s, threadIdx.x * 2, threadIdx.y, blockIdx.x);
    surf2DLayeredwrite((short)(v + blockIdx.x + 1), s, threadIdx.x * 2, threadIdx.y, blockIdx.x);
}

__global__ void corners(cudaTextureObject_t t, float4 *out)
{
    *out = tex2Dgather<float4>(t, 3.f, 2.f, 0);
}

static cudaResourceDesc of_array(cudaArray_t array)
{
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    return resource;
}

static void plain_memory()
{
    std::vector<int> host(W * H), back(W * H + 2);
    for (int i = 0; i < W * H; i++) host[i] = i * i - 50;
    int *data, *out;
    OK(cudaMalloc(&data, host.size() * 4));
    OK(cudaMalloc(&out, back.size() * 4));
    OK(cudaMemcpy(data, host.data(), host.size() * 4, cudaMemcpyHostToDevice));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = data;
    resource.res.linear.desc = cudaCreateChannelDesc<int>();
    resource.res.linear.sizeInBytes = host.size() * 4;
    cudaTextureDesc sampling = {};
    cudaTextureObject_t texture;
    OK(cudaCreateTextureObject(&texture, &resource, &sampling, nullptr));
    cudaTextureObject_t another;
    cudaResourceDesc longer = resource;
    longer.res.linear.sizeInBytes += 64; // than there is, which drivers do not mind
    OK(cudaCreateTextureObject(&another, &longer, &sampling, nullptr));
    OK(cudaDestroyTextureObject(another));
    OK(cudaCreateTextureObject(&another, &resource, &sampling, nullptr));
    for (int i = 0; i < 50; i++) fetch<<<8, 64>>>(another, out, (int)back.size());
    OK(cudaDestroyTextureObject(another)); // what was launched still has it
    OK(cudaMemset(out, 0, back.size() * 4));
    fetch<<<8, 64>>>(texture, out, (int)back.size());
    OK(cudaMemcpy(back.data(), out, back.size() * 4, cudaMemcpyDeviceToHost));
    REQUIRE(back.front() == 0 && back.back() == 0);
    for (int i = 0; i < W * H; i++) REQUIRE(back[i + 1] == host[i]);
    cudaResourceDesc found = {};
    OK(cudaGetTextureObjectResourceDesc(&found, texture));
    REQUIRE(found.resType == cudaResourceTypeLinear && found.res.linear.devPtr == data);
    OK(cudaDestroyTextureObject(texture));
    FAILS(cudaDestroyTextureObject(texture));
    cudaGetLastError();

    uchar4 *rows;
    size_t pitch;
    std::vector<uchar4> colours(W * H), seen(W * H);
    for (int i = 0; i < W * H; i++) colours[i] = make_uchar4(i, i + 1, 2 * i, 255 - i);
    OK(cudaMallocPitch(&rows, &pitch, W * 4, H));
    OK(cudaMemcpy2D(rows, pitch, colours.data(), W * 4, W * 4, H, cudaMemcpyHostToDevice));
    resource = {};
    resource.resType = cudaResourceTypePitch2D;
    resource.res.pitch2D.devPtr = rows;
    resource.res.pitch2D.desc = cudaCreateChannelDesc<uchar4>();
    resource.res.pitch2D.width = W;
    resource.res.pitch2D.height = H;
    resource.res.pitch2D.pitchInBytes = pitch;
    OK(cudaCreateTextureObject(&texture, &resource, &sampling, nullptr));
    uchar4 *shown;
    OK(cudaMalloc(&shown, W * H * 4));
    read_pitched<<<H, W>>>(texture, shown);
    OK(cudaMemcpy(seen.data(), shown, W * H * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < W * H; i++) REQUIRE(seen[i].x == colours[i].x && seen[i].y == colours[i].y && seen[i].w == colours[i].w);
    OK(cudaDestroyTextureObject(texture));
    OK(cudaFree(shown));
    OK(cudaFree(rows));
    OK(cudaFree(data));
    OK(cudaFree(out));
}

static void copies()
{
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float2>(), found;
    cudaArray_t one, two;
    cudaExtent extent;
    unsigned flags;
    OK(cudaMallocArray(&one, &format, W, H, cudaArraySurfaceLoadStore));
    OK(cudaMallocArray(&two, &format, W, H, cudaArraySurfaceLoadStore));
    OK(cudaArrayGetInfo(&found, &extent, &flags, one));
    REQUIRE(found.x == 32 && found.y == 32 && found.z == 0 && found.f == cudaChannelFormatKindFloat);
    REQUIRE(extent.width == W && extent.height == H && extent.depth == 0 && flags == cudaArraySurfaceLoadStore);

    std::vector<float2> host(W * H), back(W * H);
    for (int i = 0; i < W * H; i++) host[i] = make_float2(i, 1000 + i);
    OK(cudaMemcpy2DToArray(one, 0, 0, host.data(), W * 8, W * 8, H, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2DFromArray(back.data(), W * 8, one, 0, 0, W * 8, H, cudaMemcpyDeviceToHost));
    for (int i = 0; i < W * H; i++) REQUIRE(back[i].x == host[i].x && back[i].y == host[i].y);
    // A box in the middle, from array to array, in a stream.
    OK(cudaMemcpy2DToArray(two, 0, 0, std::vector<float2>(W * H, make_float2(5, 5)).data(), W * 8, W * 8, H,
                           cudaMemcpyHostToDevice));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    cudaMemcpy3DParms copy = {};
    copy.srcArray = one;
    copy.srcPos = make_cudaPos(2, 1, 0);
    copy.dstArray = two;
    copy.dstPos = make_cudaPos(4, 3, 0);
    copy.extent = make_cudaExtent(10, 6, 1);
    copy.kind = cudaMemcpyDeviceToDevice;
    OK(cudaMemcpy3DAsync(&copy, stream));
    OK(cudaMemcpy2DFromArrayAsync(back.data(), W * 8, two, 0, 0, W * 8, H, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++) {
            bool inside = x >= 4 && x < 14 && y >= 3 && y < 9;
            REQUIRE(back[y * W + x].x == (inside ? host[(y - 2) * W + x - 2].x : 5));
        }
    FAILS(cudaMemcpy2DToArray(one, 8, 0, host.data(), W * 8, W * 8, H, cudaMemcpyHostToDevice));
    cudaGetLastError();

    float2 *device;
    OK(cudaMalloc(&device, W * H * 8));
    // Surfaces of both.
    OK(cudaMemcpy2DToArray(one, 0, 0, host.data(), W * 8, W * 8, H, cudaMemcpyHostToDevice));
    cudaSurfaceObject_t from, to;
    cudaResourceDesc resource = of_array(one);
    OK(cudaCreateSurfaceObject(&from, &resource));
    resource = of_array(two);
    OK(cudaCreateSurfaceObject(&to, &resource));
    negate<<<H, W>>>(from, to);
    OK(cudaMemcpy2DFromArray(back.data(), W * 8, two, 0, 0, W * 8, H, cudaMemcpyDeviceToHost));
    for (int i = 0; i < W * H; i++) REQUIRE(back[i].x == -host[i].y && back[i].y == -host[i].x);
    outside<<<1, 1>>>(from, (float *)device);
    float found_outside[2];
    OK(cudaMemcpy(found_outside, device, sizeof found_outside, cudaMemcpyDeviceToHost));
    REQUIRE(found_outside[0] == 0 && found_outside[1] == host[2 * W].x);
    cudaResourceDesc described = {};
    OK(cudaGetSurfaceObjectResourceDesc(&described, from));
    REQUIRE(described.res.array.array == one);
    OK(cudaDestroySurfaceObject(from));
    OK(cudaDestroySurfaceObject(to));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(device));
    OK(cudaFreeArray(one));
    OK(cudaFreeArray(two));
    FAILS(cudaFreeArray(two));
    cudaGetLastError();
}

static void layered_surface()
{
    cudaChannelFormatDesc format = cudaCreateChannelDesc<short>();
    cudaArray_t array;
    OK(cudaMalloc3DArray(&array, &format, make_cudaExtent(8, 4, 3), cudaArrayLayered | cudaArraySurfaceLoadStore));
    std::vector<short> host(8 * 4 * 3), back(8 * 4 * 3);
    for (size_t i = 0; i < host.size(); i++) host[i] = (short)(i * 3);
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(host.data(), 16, 8, 4);
    copy.dstArray = array;
    copy.extent = make_cudaExtent(8, 4, 3);
    copy.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&copy));
    cudaSurfaceObject_t surface;
    cudaResourceDesc resource = of_array(array);
    OK(cudaCreateSurfaceObject(&surface, &resource));
    layers<<<3, dim3(8, 4)>>>(surface);
    cudaMemcpy3DParms out = {};
    out.srcArray = array;
    out.dstPtr = make_cudaPitchedPtr(back.data(), 16, 8, 4);
    out.extent = make_cudaExtent(8, 4, 3);
    out.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&out));
    for (size_t i = 0; i < host.size(); i++) REQUIRE(back[i] == host[i] + (short)(i / 32) + 1);
    OK(cudaDestroySurfaceObject(surface));
    OK(cudaFreeArray(array));
}

static void gathered()
{
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t array;
    OK(cudaMallocArray(&array, &format, 8, 8, cudaArrayTextureGather));
    std::vector<float> host(64);
    for (int i = 0; i < 64; i++) host[i] = (float)i;
    OK(cudaMemcpy2DToArray(array, 0, 0, host.data(), 32, 32, 8, cudaMemcpyHostToDevice));
    cudaResourceDesc resource = of_array(array);
    cudaTextureDesc sampling = {};
    sampling.addressMode[0] = sampling.addressMode[1] = cudaAddressModeClamp;
    cudaTextureObject_t texture;
    OK(cudaCreateTextureObject(&texture, &resource, &sampling, nullptr));
    float4 *out, found;
    OK(cudaMalloc(&out, sizeof found));
    corners<<<1, 1>>>(texture, out);
    OK(cudaMemcpy(&found, out, sizeof found, cudaMemcpyDeviceToHost));
    REQUIRE(found.x == 18 && found.y == 19 && found.z == 11 && found.w == 10);
    OK(cudaDestroyTextureObject(texture));
    OK(cudaFree(out));
    OK(cudaFreeArray(array));
}

// Copies into and out of arrays, and kernels between them, as nodes of a graph: launched twice, with other input.
static void captured()
{
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float2>();
    cudaArray_t one, two;
    OK(cudaMallocArray(&one, &format, W, H, cudaArraySurfaceLoadStore));
    OK(cudaMallocArray(&two, &format, W, H, cudaArraySurfaceLoadStore));
    cudaResourceDesc from = of_array(one), to = of_array(two);
    cudaSurfaceObject_t read, write;
    OK(cudaCreateSurfaceObject(&read, &from));
    OK(cudaCreateSurfaceObject(&write, &to));
    float2 *input, *output;
    OK(cudaMalloc(&input, W * H * 8));
    OK(cudaMallocHost(&output, W * H * 8));

    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaMemcpy2DToArrayAsync(one, 0, 0, input, W * 8, W * 8, H, cudaMemcpyDeviceToDevice, stream));
    negate<<<H, W, 0, stream>>>(read, write);
    cudaMemcpy3DParms copy = {};
    copy.srcArray = two;
    copy.dstArray = one;
    copy.srcPos = make_cudaPos(0, 2, 0);
    copy.extent = make_cudaExtent(W, 1, 1);
    copy.kind = cudaMemcpyDeviceToDevice;
    OK(cudaMemcpy3DAsync(&copy, stream));
    OK(cudaMemcpy2DFromArrayAsync(output, W * 8, one, 0, 0, W * 8, H, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&executable, graph, 0));
    for (int turn = 1; turn <= 2; turn++) {
        std::vector<float2> host(W * H);
        for (int i = 0; i < W * H; i++) host[i] = make_float2(turn * i, turn + i);
        OK(cudaMemcpy(input, host.data(), host.size() * 8, cudaMemcpyHostToDevice));
        OK(cudaGraphLaunch(executable, stream));
        OK(cudaStreamSynchronize(stream));
        for (int i = 0; i < W; i++) {
            float2 wanted = host[2 * W + i];
            REQUIRE(output[i].x == -wanted.y && output[i].y == -wanted.x);
        }
        for (int i = W; i < W * H; i++) REQUIRE(output[i].x == host[i].x && output[i].y == host[i].y);
    }
    OK(cudaGraphExecDestroy(executable));
    OK(cudaGraphDestroy(graph));
    OK(cudaDestroySurfaceObject(read));
    OK(cudaDestroySurfaceObject(write));
    OK(cudaFreeArray(one));
    OK(cudaFreeArray(two));
    OK(cudaFree(input));
    OK(cudaFreeHost(output));
    OK(cudaStreamDestroy(stream));
}

// Arrays count against the device's memory, and give it back.
static void charged()
{
    size_t before, during, after, total;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float4>();
    cudaArray_t array;
    OK(cudaMemGetInfo(&before, &total));
    OK(cudaMallocArray(&array, &format, 4096, 1024));
    OK(cudaMemGetInfo(&during, &total));
    REQUIRE(before - during >= 64ul << 20);
    OK(cudaFreeArray(array));
    OK(cudaMemGetInfo(&after, &total));
    REQUIRE(after == before);
    std::vector<cudaArray_t> all;
    while (all.size() < 10000 && cudaMallocArray(&array, &format, 4096, 4096) == cudaSuccess) all.push_back(array);
    EXPECT(cudaErrorMemoryAllocation, cudaGetLastError());
    REQUIRE(all.size() * (256ul << 20) <= total);
    for (cudaArray_t each : all) OK(cudaFreeArray(each));
    OK(cudaMemGetInfo(&after, &total));
    REQUIRE(after == before);
}

static void refused()
{
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaMipmappedArray_t levels = nullptr;
    EXPECT(cudaErrorNotSupported, cudaMallocMipmappedArray(&levels, &format, make_cudaExtent(8, 8, 0), 2));
    cudaArray_t cube = nullptr;
    EXPECT(cudaErrorNotSupported, cudaMalloc3DArray(&cube, &format, make_cudaExtent(8, 8, 6), cudaArrayCubemap));
    cudaGetLastError();
    // A surface needs an array that was made for it.
    cudaArray_t array;
    OK(cudaMallocArray(&array, &format, 8, 8));
    cudaResourceDesc resource = of_array(array);
    cudaSurfaceObject_t surface;
    FAILS(cudaCreateSurfaceObject(&surface, &resource));
    cudaGetLastError();
    OK(cudaFreeArray(array));
}

int main()
{
    plain_memory();
    copies();
    layered_surface();
    gathered();
    captured();
    charged();
    refused();
    return passed();
}
