/* Windows of images and boxes of volumes: every form of the copies in two and three dimensions, against loops. */
#include "driver.h"

enum { PITCH = 64, ROWS = 12, SLICES = 5, SLICE = PITCH * ROWS, ALL = SLICE * SLICES };
enum { WIDTH = 19, HEIGHT = 4, DEPTH = 2 };

static unsigned char source[ALL], back[ALL], expected[ALL];
static CUdeviceptr from, to;
static CUstream stream;
static CUcontext context;

static void expect_box(unsigned depth, unsigned from_x, unsigned from_y, unsigned from_z, unsigned x, unsigned y, unsigned z)
{
    memset(expected, 0xee, ALL);
    for (unsigned k = 0; k < depth; k++)
        for (unsigned j = 0; j < HEIGHT; j++)
            for (unsigned i = 0; i < WIDTH; i++)
                expected[(z + k) * SLICE + (y + j) * PITCH + x + i] =
                    source[(from_z + k) * SLICE + (from_y + j) * PITCH + from_x + i];
}

static void prepare(void)
{
    OK(cuMemcpyHtoD(from, source, ALL));
    OK(cuMemsetD8(to, 0xee, ALL));
    OK(cuCtxSynchronize());
}

static void require_box(void)
{
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH(back, to, ALL));
    REQUIRE(memcmp(back, expected, ALL) == 0);
}

static void in_two_dimensions(void)
{
    CUDA_MEMCPY2D copy = {.srcXInBytes = 3, .srcY = 2, .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = from,
                          .srcPitch = PITCH, .dstXInBytes = 7, .dstY = 1, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = to, .dstPitch = PITCH, .WidthInBytes = WIDTH, .Height = HEIGHT};
    expect_box(1, 3, 2, 0, 7, 1, 0);
    prepare();
    OK(cuMemcpy2D(&copy));
    require_box();
    prepare();
    OK(cuMemcpy2DUnaligned(&copy));
    require_box();
    prepare();
    OK(cuMemcpy2DAsync(&copy, stream));
    require_box();

    /* From the host, and where the address alone says whose memory it is. */
    prepare();
    copy.srcMemoryType = CU_MEMORYTYPE_HOST, copy.srcHost = source, copy.srcDevice = 0;
    OK(cuMemcpy2D(&copy));
    require_box();
    prepare();
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED, copy.srcDevice = from;
    OK(cuMemcpy2D(&copy));
    require_box();

    /* Back to the host. */
    memset(back, 0xee, ALL);
    copy.dstMemoryType = CU_MEMORYTYPE_HOST, copy.dstHost = back;
    OK(cuMemcpy2DAsync(&copy, stream));
    OK(cuStreamSynchronize(stream));
    REQUIRE(memcmp(back, expected, ALL) == 0);
    copy.WidthInBytes = PITCH + 1;
    FAILS(cuMemcpy2D(&copy));
}

static void in_three_dimensions(void)
{
    CUDA_MEMCPY3D copy = {.srcXInBytes = 5, .srcY = 3, .srcZ = 1, .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = from,
                          .srcPitch = PITCH, .srcHeight = ROWS, .dstXInBytes = 11, .dstY = 6, .dstZ = 2,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = to, .dstPitch = PITCH, .dstHeight = ROWS,
                          .WidthInBytes = WIDTH, .Height = HEIGHT, .Depth = DEPTH};
    expect_box(DEPTH, 5, 3, 1, 11, 6, 2);
    prepare();
    OK(cuMemcpy3D(&copy));
    require_box();
    prepare();
    OK(cuMemcpy3DAsync(&copy, stream));
    require_box();

    CUDA_MEMCPY3D_PEER peer = {.srcXInBytes = 5, .srcY = 3, .srcZ = 1, .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                               .srcDevice = from, .srcContext = context, .srcPitch = PITCH, .srcHeight = ROWS,
                               .dstXInBytes = 11, .dstY = 6, .dstZ = 2, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                               .dstDevice = to, .dstContext = context, .dstPitch = PITCH, .dstHeight = ROWS,
                               .WidthInBytes = WIDTH, .Height = HEIGHT, .Depth = DEPTH};
    prepare();
    OK(cuMemcpy3DPeer(&peer));
    require_box();
    prepare();
    OK(cuMemcpy3DPeerAsync(&peer, stream));
    require_box();

    memset(back, 0xee, ALL);
    copy.dstMemoryType = CU_MEMORYTYPE_HOST, copy.dstHost = back, copy.dstDevice = 0;
    OK(cuMemcpy3D(&copy));
    REQUIRE(memcmp(back, expected, ALL) == 0);
}

int main(void)
{
    context = start();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&from, ALL));
    OK(cuMemAlloc(&to, ALL));
    for (int i = 0; i < ALL; i++) source[i] = (unsigned char)(7 * i + i / PITCH);
    in_two_dimensions();
    in_three_dimensions();
    OK(cuMemFree(from));
    OK(cuMemFree(to));
    OK(cuStreamDestroy(stream));
    OK(cuDevicePrimaryCtxRelease(0));
    return passed();
}
