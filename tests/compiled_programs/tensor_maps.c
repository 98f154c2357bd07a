/* Tensor maps: what CUDA allows is encoded, what it does not is refused, and a map tells its arguments apart. The form of a
 * map is the driver's secret, so maps are only compared. */
#include "driver.h"

typedef struct {
    CUtensorMapDataType type;
    cuuint32_t rank;
    CUdeviceptr address;
    cuuint64_t sizes[5], strides[4];
    cuuint32_t boxes[5], steps[5];
    CUtensorMapInterleave interleave;
    CUtensorMapSwizzle swizzle;
    CUtensorMapL2promotion promotion;
    CUtensorMapFloatOOBfill fill;
} Tiled;

static CUdeviceptr memory;

/* 64 rows of 64 floats, in boxes of 16 by 8. */
static Tiled matrix(void)
{
    return (Tiled){.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32, .rank = 2, .address = memory, .sizes = {64, 64},
                   .strides = {256}, .boxes = {16, 8}, .steps = {1, 1}};
}

static CUresult encode(CUtensorMap *map, Tiled t)
{
    return cuTensorMapEncodeTiled(map, t.type, t.rank, (void *)t.address, t.sizes, t.strides, t.boxes, t.steps,
                                  t.interleave, t.swizzle, t.promotion, t.fill);
}

static int same(const CUtensorMap *a, const CUtensorMap *b) { return memcmp(a, b, sizeof *a) == 0; }

static void tiled(void)
{
    CUtensorMap first, again, other;
    memset(&first, 0xee, sizeof first);
    memset(&again, 0xdd, sizeof again);
    OK(encode(&first, matrix()));
    OK(encode(&again, matrix()));
    REQUIRE(same(&first, &again));

#define DIFFERS(change)                                     \
    do {                                                    \
        Tiled t = matrix();                                 \
        change;                                             \
        OK(encode(&other, t));                              \
        REQUIRE(!same(&first, &other));                     \
    } while (0)
#define REFUSES(change)                                     \
    do {                                                    \
        Tiled t = matrix();                                 \
        change;                                             \
        other = first;                                      \
        EXPECT(CUDA_ERROR_INVALID_VALUE, encode(&other, t)); \
        REQUIRE(same(&first, &other));                      \
    } while (0)
    DIFFERS(t.address += 256);
    DIFFERS(t.sizes[1] = 32);
    DIFFERS(t.strides[0] = 512);
    DIFFERS(t.boxes[1] = 16);
    DIFFERS(t.steps[1] = 2);
    DIFFERS(t.swizzle = CU_TENSOR_MAP_SWIZZLE_64B);
    DIFFERS(t.promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
    DIFFERS(t.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA);
    DIFFERS(t.type = CU_TENSOR_MAP_DATA_TYPE_INT32);
    DIFFERS(t.rank = 3; t.sizes[2] = 4; t.strides[1] = 4096; t.boxes[2] = 1; t.steps[2] = 1);
    DIFFERS(t.rank = 1);

    REFUSES(t.rank = 0);
    REFUSES(t.rank = 6);
    REFUSES(t.address += 8);
    REFUSES(t.sizes[0] = 0);
    REFUSES(t.strides[0] = 264);
    REFUSES(t.strides[0] = 1ull << 40);
    REFUSES(t.boxes[1] = 257);
    REFUSES(t.boxes[1] = 0);
    REFUSES(t.boxes[0] = 3);
    REFUSES(t.steps[1] = 9);
    REFUSES(t.swizzle = CU_TENSOR_MAP_SWIZZLE_32B);
    REFUSES(t.interleave = CU_TENSOR_MAP_INTERLEAVE_16B);
    REFUSES(t.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA; t.type = CU_TENSOR_MAP_DATA_TYPE_INT32);

    Tiled t = matrix();
    EXPECT(CUDA_ERROR_INVALID_VALUE, encode(NULL, t));
    EXPECT(CUDA_ERROR_INVALID_VALUE, encode((CUtensorMap *)((char *)&other + 8), t));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuTensorMapEncodeTiled(&other, t.type, 2, (void *)memory, NULL, t.strides, t.boxes, t.steps, 0, 0, 0, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuTensorMapEncodeTiled(&other, t.type, 2, (void *)memory, t.sizes, NULL, t.boxes, t.steps, 0, 0, 0, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuTensorMapEncodeTiled(&other, t.type, 2, (void *)memory, t.sizes, t.strides, NULL, t.steps, 0, 0, 0, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuTensorMapEncodeTiled(&other, t.type, 2, (void *)memory, t.sizes, t.strides, t.boxes, NULL, 0, 0, 0, 0));
}

/* 8 images of 32 by 32 pixels of 64 channels, 16 bits each. */
static const cuuint64_t image_sizes[] = {64, 32, 32, 8}, image_strides[] = {128, 4096, 131072};
static const cuuint32_t image_steps[] = {1, 1, 1, 1};

static CUresult encode_images(CUtensorMap *map, CUdeviceptr address, int lower, int upper, unsigned channels,
                              unsigned pixels)
{
    int lowers[] = {lower, lower}, uppers[] = {upper, upper};
    return cuTensorMapEncodeIm2col(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, (void *)address, image_sizes, image_strides,
                                   lowers, uppers, channels, pixels, image_steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static void im2col(void)
{
    CUtensorMap first, again, other;
    memset(&first, 0xee, sizeof first);
    memset(&again, 0xdd, sizeof again);
    OK(encode_images(&first, memory, -1, -1, 64, 128));
    OK(encode_images(&again, memory, -1, -1, 64, 128));
    REQUIRE(same(&first, &again));
    OK(encode_images(&other, memory, -2, -1, 64, 128));
    REQUIRE(!same(&first, &other));
    OK(encode_images(&other, memory, -1, -1, 32, 128));
    REQUIRE(!same(&first, &other));
    OK(encode_images(&other, memory, -1, -1, 64, 64));
    REQUIRE(!same(&first, &other));
    EXPECT(CUDA_ERROR_INVALID_VALUE, encode_images(&other, memory, -129, -1, 64, 128));
    EXPECT(CUDA_ERROR_INVALID_VALUE, encode_images(&other, memory, -1, 128, 64, 128));
    EXPECT(CUDA_ERROR_INVALID_VALUE, encode_images(&other, memory, -1, -1, 128, 128)); /* 256 bytes are not swizzled */
    EXPECT(CUDA_ERROR_INVALID_VALUE, encode_images(&other, memory, -1, -1, 64, 1025));
    EXPECT(CUDA_ERROR_INVALID_VALUE, encode_images(&other, memory + 8, -1, -1, 64, 128));
}

static CUresult encode_wide(CUtensorMap *map, CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle, int lower)
{
    return cuTensorMapEncodeIm2colWide(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, (void *)memory, image_sizes, image_strides,
                                       lower, -1, 64, 128, image_steps, CU_TENSOR_MAP_INTERLEAVE_NONE, mode, swizzle,
                                       CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static void im2col_wide(void)
{
    CUtensorMap first, again, other;
    memset(&first, 0xee, sizeof first);
    memset(&again, 0xdd, sizeof again);
    /* For compute capability 10.0 and more; the software GPU only checks. */
    if (encode_wide(&first, CU_TENSOR_MAP_IM2COL_WIDE_MODE_W, CU_TENSOR_MAP_SWIZZLE_128B, -1)) {
        REQUIRE(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) == 9);
        return;
    }
    OK(encode_wide(&again, CU_TENSOR_MAP_IM2COL_WIDE_MODE_W, CU_TENSOR_MAP_SWIZZLE_128B, -1));
    REQUIRE(same(&first, &again));
    OK(encode_wide(&other, CU_TENSOR_MAP_IM2COL_WIDE_MODE_W128, CU_TENSOR_MAP_SWIZZLE_128B, -1));
    REQUIRE(!same(&first, &other));
    OK(encode_wide(&other, CU_TENSOR_MAP_IM2COL_WIDE_MODE_W, CU_TENSOR_MAP_SWIZZLE_128B, -3));
    REQUIRE(!same(&first, &other));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           encode_wide(&other, CU_TENSOR_MAP_IM2COL_WIDE_MODE_W, CU_TENSOR_MAP_SWIZZLE_NONE, -1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, encode_wide(&other, 2, CU_TENSOR_MAP_SWIZZLE_128B, -1));
}

static void changes(void)
{
    CUtensorMap map, elsewhere, junk;
    Tiled t = matrix();
    OK(encode(&map, t));
    t.address += 4096;
    OK(encode(&elsewhere, t));
    for (int i = 0; i < 3; i++) { /* there and back, the same each time */
        OK(cuTensorMapReplaceAddress(&map, (void *)t.address));
        REQUIRE(same(&map, &elsewhere));
        OK(cuTensorMapReplaceAddress(&map, (void *)memory));
        REQUIRE(!same(&map, &elsewhere));
    }
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuTensorMapReplaceAddress(&map, (void *)(memory + 8)));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuTensorMapReplaceAddress(NULL, (void *)memory));

    CUtensorMapAllocClass class = 77;
    CUresult set = cuTensorMapSetAllocationClass(&map, CU_TENSOR_MAP_ALLOC_CLASS_SMALL, &class);
    REQUIRE(class == CU_TENSOR_MAP_ALLOC_CLASS_SMALL);
    if (set == CUDA_ERROR_NOT_SUPPORTED) return; /* a driver before CUDA 13.5 */
    OK(set);
    class = 77;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuTensorMapSetAllocationClass(&map, 3, &class));
    REQUIRE(class == CU_TENSOR_MAP_ALLOC_CLASS_SMALL);
    junk = map;
    OK(cuTensorMapSetAllocationClass(&map, CU_TENSOR_MAP_ALLOC_CLASS_LARGE, &class));
    if (attribute(CU_DEVICE_ATTRIBUTE_TENSOR_MAP_LARGE_TENSOR_MIN_SIZE) == 0x7fffffff) {
        REQUIRE(class == CU_TENSOR_MAP_ALLOC_CLASS_SMALL && same(&map, &junk));
    }
}

/* A device that says it cannot read through tensor maps refuses a kernel that does, and only that one. */
static const char *const reads_ptx =
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".visible .entry reads(.param .align 64 .b8 map[128])\n"
    "{\n"
    "    .reg .b64 %d<2>;\n    .reg .b32 %r<4>;\n"
    "    .shared .align 128 .b8 box[512];\n    .shared .align 8 .b64 barrier;\n"
    "    mov.b64 %d1, map;\n    mov.u32 %r1, box;\n    mov.u32 %r2, barrier;\n    mov.u32 %r3, 0;\n"
    "    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1, {%r3, %r3}], [%r2];\n"
    "    ret;\n"
    "}\n"
    ".visible .entry does_not() { ret; }\n";

static void kernels(void)
{
    if (attribute(CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED)) return;
    CUmodule module;
    CUfunction reads, does_not;
    CUtensorMap map;
    OK(encode(&map, matrix()));
    void *parameters[] = {&map};
    OK(cuModuleLoadData(&module, reads_ptx));
    OK(cuModuleGetFunction(&does_not, module, "does_not"));
    OK(cuLaunchKernel(does_not, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxSynchronize());
    CUresult launched = cuModuleGetFunction(&reads, module, "reads");
    if (!launched) launched = cuLaunchKernel(reads, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
    if (!launched) launched = cuCtxSynchronize();
    EXPECT(CUDA_ERROR_INVALID_PTX, launched);
    OK(cuModuleUnload(module));
}

int main(void)
{
    CUcontext context = start();
    OK(cuMemAlloc(&memory, 2 << 20));
    tiled();
    im2col();
    im2col_wide();
    changes();
    kernels();
    OK(cuMemFree(memory));
    OK(cuCtxSetCurrent(NULL));
    CUtensorMap map;
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, encode(&map, matrix()));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuTensorMapReplaceAddress(&map, NULL));
    (void)context;
    OK(cuDevicePrimaryCtxRelease(0));
    return passed();
}
