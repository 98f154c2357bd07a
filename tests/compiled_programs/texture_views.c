/* Textures that show an array in another format, or some of its layers: what kernels read there, and what is told. */
#include "driver.h"

enum { W = 8, H = 4, LAYERS = 4 };

/* show: each texel of a layer, four channels. blend: the same at real coordinates, in the middle between two texels. */
static const char *const reading_ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry show(.param .u64 out, .param .u64 texture)\n"
    "{\n"
    "    .reg .b64 %d<5>;\n    .reg .b32 %r<9>;\n"
    "    ld.param.u64 %d1, [out];\n    ld.param.u64 %d2, [texture];\n"
    "    mov.u32 %r1, %tid.x;\n    mov.u32 %r2, %ctaid.x;\n    mov.u32 %r7, %ntid.x;\n"
    "    tex.2d.v4.u32.s32 {%r3, %r4, %r5, %r6}, [%d2, {%r1, %r2}];\n"
    "    mad.lo.u32 %r8, %r2, %r7, %r1;\n    mul.wide.u32 %d3, %r8, 16;\n    add.s64 %d4, %d1, %d3;\n"
    "    st.global.v4.u32 [%d4], {%r3, %r4, %r5, %r6};\n    ret;\n"
    "}\n"
    ".visible .entry layer(.param .u64 out, .param .u64 texture, .param .u32 layer)\n"
    "{\n"
    "    .reg .b64 %d<5>;\n    .reg .b32 %r<10>;\n"
    "    ld.param.u64 %d1, [out];\n    ld.param.u64 %d2, [texture];\n    ld.param.u32 %r9, [layer];\n"
    "    mov.u32 %r1, %tid.x;\n    mov.u32 %r2, %ctaid.x;\n    mov.u32 %r7, %ntid.x;\n"
    "    tex.a2d.v4.u32.s32 {%r3, %r4, %r5, %r6}, [%d2, {%r9, %r1, %r2, %r2}];\n"
    "    mad.lo.u32 %r8, %r2, %r7, %r1;\n    mul.wide.u32 %d3, %r8, 16;\n    add.s64 %d4, %d1, %d3;\n"
    "    st.global.v4.u32 [%d4], {%r3, %r4, %r5, %r6};\n    ret;\n"
    "}\n"
    ".visible .entry blend(.param .u64 out, .param .u64 texture)\n"
    "{\n"
    "    .reg .b64 %d<5>;\n    .reg .b32 %r<4>;\n    .reg .f32 %f<7>;\n"
    "    ld.param.u64 %d1, [out];\n    ld.param.u64 %d2, [texture];\n"
    "    mov.u32 %r1, %tid.x;\n    mov.u32 %r2, %ctaid.x;\n    mov.u32 %r3, %ntid.x;\n"
    "    cvt.rn.f32.u32 %f1, %r1;\n    add.f32 %f1, %f1, 0f3F800000;\n"
    "    cvt.rn.f32.u32 %f2, %r2;\n    add.f32 %f2, %f2, 0f3F000000;\n"
    "    tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [%d2, {%f1, %f2}];\n"
    "    mad.lo.u32 %r3, %r2, %r3, %r1;\n    mul.wide.u32 %d3, %r3, 16;\n    add.s64 %d4, %d1, %d3;\n"
    "    st.global.v4.f32 [%d4], {%f3, %f4, %f5, %f6};\n    ret;\n"
    "}\n";

union texel {
    unsigned words[4];
    int integers[4];
    float floats[4];
};

static CUfunction show, layer, blend;
static CUdeviceptr out;
static union texel seen[H][W];

static void run(CUfunction kernel, CUtexObject texture, unsigned which)
{
    void *parameters[] = {&out, &texture, &which};
    OK(cuMemsetD32(out, 0xEEEEEEEE, W * H * 4));
    OK(cuLaunchKernel(kernel, H, 1, 1, W, 1, 1, 0, NULL, parameters, NULL));
    OK(cuMemcpyDtoH(seen, out, sizeof seen));
}

static CUarray filled(CUarray_format format, unsigned channels, unsigned layers, const void *texels, size_t bytes)
{
    CUDA_ARRAY3D_DESCRIPTOR asked = {W, H, layers, format, channels, layers ? CUDA_ARRAY3D_LAYERED : 0};
    CUarray array;
    OK(cuArray3DCreate(&array, &asked));
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = texels, .srcPitch = W * bytes, .srcHeight = H,
                          .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = array, .WidthInBytes = W * bytes,
                          .Height = H, .Depth = layers ? layers : 1};
    OK(cuMemcpy3D(&copy));
    return array;
}

static CUDA_RESOURCE_VIEW_DESC view_of(CUresourceViewFormat format, unsigned layers, unsigned first, unsigned last)
{
    return (CUDA_RESOURCE_VIEW_DESC){.format = format, .width = W, .height = H, .depth = layers, .firstLayer = first,
                                     .lastLayer = last};
}

static CUresult create(CUtexObject *texture, CUarray array, unsigned flags, CUfilter_mode filter,
                       const CUDA_RESOURCE_VIEW_DESC *view)
{
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_ARRAY, .res.array.hArray = array};
    CUDA_TEXTURE_DESC sampling = {.addressMode = {CU_TR_ADDRESS_MODE_CLAMP, CU_TR_ADDRESS_MODE_CLAMP},
                                  .filterMode = filter, .flags = flags};
    return cuTexObjectCreate(texture, &resource, &sampling, view);
}

/* Shows an array in a format, and checks what is told of the view. */
static void shown_as(CUarray array, CUresourceViewFormat format, unsigned flags)
{
    CUtexObject texture;
    CUDA_RESOURCE_VIEW_DESC view = view_of(format, 0, 0, 0), told;
    OK(create(&texture, array, flags, CU_TR_FILTER_MODE_POINT, &view));
    memset(&told, 0x77, sizeof told);
    OK(cuTexObjectGetResourceViewDesc(&told, texture));
    REQUIRE(told.format == format && told.width == W && told.height == H && told.depth == 0 && !told.lastMipmapLevel);
    REQUIRE(!told.firstMipmapLevel && !told.firstLayer && !told.lastLayer);
    run(show, texture, 0);
    OK(cuTexObjectDestroy(texture));
    FAILS(cuTexObjectGetResourceViewDesc(&told, texture));
}

#define EACH(check) \
    for (unsigned y = 0; y < H; y++) \
        for (unsigned x = 0; x < W; x++) REQUIRE(check)

static int near(float one, float other) { return one - other < 1e-6f && other - one < 1e-6f; }

static void formats(void)
{
    static unsigned char bytes[H][W][4];
    static unsigned short halves[H][W][2];
    unsigned integer = CU_TRSF_READ_AS_INTEGER;
    for (unsigned i = 0; i < sizeof bytes; i++) ((unsigned char *)bytes)[i] = (unsigned char)(i * 37 + 11);
    CUarray array = filled(CU_AD_FORMAT_UNSIGNED_INT8, 4, 0, bytes, 4);
    memcpy(halves, bytes, sizeof halves);
    const unsigned *words = (const unsigned *)(const void *)bytes;

    /* As it is. */
    CUresourceViewFormat same[] = {CU_RES_VIEW_FORMAT_NONE, CU_RES_VIEW_FORMAT_UINT_4X8};
    for (int i = 0; i < 2; i++) {
        shown_as(array, same[i], integer);
        EACH(seen[y][x].words[0] == bytes[y][x][0] && seen[y][x].words[3] == bytes[y][x][3]);
        shown_as(array, same[i], 0);
        EACH(near(seen[y][x].floats[2], bytes[y][x][2] / 255.0f));
    }
    shown_as(array, CU_RES_VIEW_FORMAT_SINT_4X8, integer);
    EACH(seen[y][x].integers[0] == (signed char)bytes[y][x][0] && seen[y][x].integers[2] == (signed char)bytes[y][x][2]);
    shown_as(array, CU_RES_VIEW_FORMAT_SINT_4X8, 0);
    EACH(near(seen[y][x].floats[1], (signed char)bytes[y][x][1] < -127 ? -1 : (signed char)bytes[y][x][1] / 127.0f));
    shown_as(array, CU_RES_VIEW_FORMAT_UINT_2X16, integer);
    EACH(seen[y][x].words[0] == halves[y][x][0] && seen[y][x].words[1] == halves[y][x][1]);
    shown_as(array, CU_RES_VIEW_FORMAT_SINT_2X16, integer);
    EACH(seen[y][x].integers[1] == (short)halves[y][x][1]);
    shown_as(array, CU_RES_VIEW_FORMAT_UINT_1X32, integer);
    EACH(seen[y][x].words[0] == words[y * W + x]);
    shown_as(array, CU_RES_VIEW_FORMAT_SINT_1X32, 0);
    EACH(seen[y][x].words[0] == words[y * W + x]);
    OK(cuArrayDestroy(array));
}

/* Words that are numbers can be filtered as such: the mean of two neighbours, at the edge the last one. */
static void numbers(void)
{
    static float texels[H][W];
    for (unsigned i = 0; i < W * H; i++) ((float *)texels)[i] = (float)(i * i) + 0.25f;
    CUarray array = filled(CU_AD_FORMAT_UNSIGNED_INT32, 1, 0, texels, 4);
    CUDA_RESOURCE_VIEW_DESC view = view_of(CU_RES_VIEW_FORMAT_FLOAT_1X32, 1, 0, 0);
    CUtexObject texture;
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&texture, array, 0, CU_TR_FILTER_MODE_LINEAR, NULL));
    OK(create(&texture, array, 0, CU_TR_FILTER_MODE_LINEAR, &view));
    run(blend, texture, 0);
    EACH(seen[y][x].floats[0] == (texels[y][x] + texels[y][x + 1 < W ? x + 1 : x]) / 2);
    OK(cuTexObjectDestroy(texture));
    /* Two halves of a word: 1 and -2. */
    unsigned pairs[W * H];
    for (unsigned i = 0; i < W * H; i++) pairs[i] = 0xC0003C00;
    CUarray packed = filled(CU_AD_FORMAT_SIGNED_INT32, 1, 0, pairs, 4);
    view.format = CU_RES_VIEW_FORMAT_FLOAT_2X16;
    OK(create(&texture, packed, 0, CU_TR_FILTER_MODE_POINT, &view));
    run(blend, texture, 0);
    EACH(seen[y][x].floats[0] == 1 && seen[y][x].floats[1] == -2);
    OK(cuTexObjectDestroy(texture));
    OK(cuArrayDestroy(packed));
    OK(cuArrayDestroy(array));
}

static void layers(void)
{
    static unsigned texels[LAYERS][H][W];
    for (unsigned i = 0; i < LAYERS * H * W; i++) ((unsigned *)texels)[i] = 1000 + i;
    CUarray array = filled(CU_AD_FORMAT_UNSIGNED_INT32, 1, LAYERS, texels, 4);
    for (unsigned first = 0; first < LAYERS; first++) {
        for (unsigned last = first; last < LAYERS; last++) {
            CUDA_RESOURCE_VIEW_DESC view = view_of(CU_RES_VIEW_FORMAT_UINT_1X32, LAYERS, first, last), told;
            CUtexObject texture;
            OK(create(&texture, array, CU_TRSF_READ_AS_INTEGER, CU_TR_FILTER_MODE_POINT, &view));
            OK(cuTexObjectGetResourceViewDesc(&told, texture));
            REQUIRE(told.firstLayer == first && told.lastLayer == last && told.depth == LAYERS);
            for (unsigned which = 0; first + which <= last; which++) {
                run(layer, texture, which);
                EACH(seen[y][x].words[0] == texels[first + which][y][x]);
            }
            OK(cuTexObjectDestroy(texture));
        }
    }
    CUtexObject texture;
    CUDA_RESOURCE_VIEW_DESC wrong[] = {view_of(CU_RES_VIEW_FORMAT_UINT_1X32, LAYERS, 2, 1),
                                       view_of(CU_RES_VIEW_FORMAT_UINT_1X32, LAYERS, 0, LAYERS),
                                       view_of(CU_RES_VIEW_FORMAT_UINT_1X32, LAYERS - 1, 0, 0)};
    for (int i = 0; i < 3; i++)
        EXPECT(CUDA_ERROR_INVALID_VALUE, create(&texture, array, 0, CU_TR_FILTER_MODE_POINT, &wrong[i]));
    OK(cuArrayDestroy(array));
}

/* What the documentation allows of no array of one layer. */
static void mistakes(void)
{
    static unsigned texels[H][W];
    CUarray array = filled(CU_AD_FORMAT_UNSIGNED_INT32, 1, 0, texels, 4);
    CUtexObject texture;
    CUDA_RESOURCE_VIEW_DESC right = view_of(CU_RES_VIEW_FORMAT_UINT_1X32, 0, 0, 0), wrong[9];
    for (int i = 0; i < 9; i++) wrong[i] = right;
    wrong[0].width = W - 1;
    wrong[1].height = H + 1;
    wrong[2].depth = 2;
    wrong[3].firstMipmapLevel = 1;
    wrong[4].lastMipmapLevel = 1;
    wrong[5].firstLayer = 1;
    wrong[6].lastLayer = 1;
    wrong[7].format = CU_RES_VIEW_FORMAT_UINT_2X32;
    wrong[8].format = 0x23;
    for (int i = 0; i < 9; i++)
        EXPECT(CUDA_ERROR_INVALID_VALUE, create(&texture, array, 0, CU_TR_FILTER_MODE_POINT, &wrong[i]));
    OK(create(&texture, array, 0, CU_TR_FILTER_MODE_POINT, &right));
    OK(cuTexObjectDestroy(texture));
    OK(cuArrayDestroy(array));
    /* Plain memory has no view. */
    CUDA_RESOURCE_DESC plain = {.resType = CU_RESOURCE_TYPE_LINEAR, .res.linear = {.devPtr = out, .format =
                                CU_AD_FORMAT_UNSIGNED_INT32, .numChannels = 1, .sizeInBytes = W * H * 4}};
    CUDA_TEXTURE_DESC sampling = {.filterMode = CU_TR_FILTER_MODE_POINT};
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&texture, &plain, &sampling, &right));
}

int main(void)
{
    CUmodule module;
    start();
    OK(cuModuleLoadData(&module, reading_ptx));
    OK(cuModuleGetFunction(&show, module, "show"));
    OK(cuModuleGetFunction(&layer, module, "layer"));
    OK(cuModuleGetFunction(&blend, module, "blend"));
    OK(cuMemAlloc(&out, sizeof seen));
    formats();
    numbers();
    layers();
    mistakes();
    return passed();
}
