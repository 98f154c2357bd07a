// Textures against the formulas of CUDA's programming guide (appendix on texture fetching), computed here on the host:
// every addressing mode, both filters, layers, three dimensions, small integers read as fractions.
#include "check.h"
#include <algorithm>
#include <cmath>
#include <vector>

const int W = 7, H = 5, D = 3, POINTS = 400;

struct Setting {
    cudaTextureAddressMode mode;
    bool linear, normalised;
};

struct Volume {
    std::vector<float> values;
    int w, h, d;
};

// Where an index leads along one axis; -1 is the border.
static int index_of(int i, int n, const Setting &s)
{
    if (s.mode == cudaAddressModeBorder) return i < 0 || i >= n ? -1 : i;
    if (s.mode == cudaAddressModeWrap && s.normalised) return ((i % n) + n) % n;
    if (s.mode == cudaAddressModeMirror && s.normalised) {
        int turn = ((i % (2 * n)) + 2 * n) % (2 * n);
        return turn < n ? turn : 2 * n - 1 - turn;
    }
    return std::min(std::max(i, 0), n - 1);
}

static float scaled(float x, int n, const Setting &s)
{
    if (!s.normalised) return x;
    float whole = std::floor(x), part = x - whole;
    if (s.mode == cudaAddressModeWrap) return part * n;
    if (s.mode == cudaAddressModeMirror) return (((long)whole & 1) ? 1 - part : part) * n;
    return x * n;
}

static double texel(const Volume &v, int x, int y, int z, const Setting &s)
{
    x = index_of(x, v.w, s), y = index_of(y, v.h, s), z = index_of(z, v.d, s);
    return x < 0 || y < 0 || z < 0 ? 0 : v.values[(z * v.h + y) * v.w + x];
}

static double expected(const Volume &v, const float *at, int axes, const Setting &s)
{
    int sizes[3] = {v.w, v.h, v.d}, base[3] = {0, 0, 0};
    double part[3] = {0, 0, 0};
    for (int k = 0; k < axes; k++) {
        float x = scaled(at[k], sizes[k], s);
        if (s.linear) x -= 0.5f;
        base[k] = (int)std::floor(x);
        part[k] = s.linear ? std::round((x - std::floor(x)) * 256) / 256 : 0;
    }
    double sum = 0;
    for (int corner = 0; corner < 1 << axes; corner++) {
        double weight = 1;
        int i[3] = {base[0], base[1], base[2]};
        for (int k = 0; k < axes; k++) {
            int far = corner >> k & 1;
            weight *= far ? part[k] : 1 - part[k];
            i[k] += far;
        }
        if (weight != 0) sum += weight * texel(v, i[0], i[1], i[2], s);
    }
    return sum;
}

__global__ void sample(cudaTextureObject_t t, const float *at, float *out, int axes, int layer)
{
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i >= POINTS) return;
    float x = at[3 * i], y = at[3 * i + 1], z = at[3 * i + 2];
    if (layer >= 0) out[i] = axes == 1 ? tex1DLayered<float>(t, x, layer) : tex2DLayered<float>(t, x, y, layer);
    else out[i] = axes == 1 ? tex1D<float>(t, x) : axes == 2 ? tex2D<float>(t, x, y) : tex3D<float>(t, x, y, z);
}

static float *device_points, *device_out;
static std::vector<float> points(3 * POINTS);

static void compare(cudaTextureObject_t t, const Volume &v, int axes, int layer, const Setting &s, double scale)
{
    std::vector<float> got(POINTS);
    sample<<<(POINTS + 127) / 128, 128>>>(t, device_points, device_out, axes, layer);
    OK(cudaMemcpy(got.data(), device_out, POINTS * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < POINTS; i++) {
        double want = expected(v, &points[3 * i], axes, s) * scale;
        if (std::fabs(got[i] - want) > 1e-3) {
            fprintf(stderr, "axes %d layer %d mode %d linear %d normalised %d at %g %g %g: %g, not %g\n", axes, layer,
                    s.mode, s.linear, s.normalised, points[3 * i], points[3 * i + 1], points[3 * i + 2], got[i], want);
            exit(1);
        }
    }
}

static cudaTextureObject_t texture_of(cudaArray_t array, const Setting &s, cudaTextureReadMode read)
{
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureDesc description = {};
    for (auto &mode : description.addressMode) mode = s.mode;
    description.filterMode = s.linear ? cudaFilterModeLinear : cudaFilterModePoint;
    description.normalizedCoords = s.normalised;
    description.readMode = read;
    cudaTextureObject_t texture;
    OK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
    cudaTextureDesc back = {};
    OK(cudaGetTextureObjectTextureDesc(&back, texture));
    REQUIRE(back.filterMode == description.filterMode && back.addressMode[0] == s.mode);
    return texture;
}

template <typename T>
static void fill(cudaArray_t array, std::vector<T> &values, int w, int h, int d)
{
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(values.data(), w * sizeof(T), w, h);
    copy.dstArray = array;
    copy.extent = make_cudaExtent(w, std::max(h, 1), std::max(d, 1));
    copy.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&copy));
}

static std::vector<Setting> settings()
{
    std::vector<Setting> all;
    for (auto mode : {cudaAddressModeWrap, cudaAddressModeClamp, cudaAddressModeMirror, cudaAddressModeBorder})
        for (bool linear : {false, true})
            for (bool normalised : {false, true}) all.push_back({mode, linear, normalised});
    return all;
}

int main()
{
    OK(cudaMalloc(&device_points, points.size() * 4));
    OK(cudaMalloc(&device_out, POINTS * 4));
    std::vector<float> numbers(W * H * D);
    for (size_t i = 0; i < numbers.size(); i++) numbers[i] = (float)((i * 37) % 101);
    std::vector<unsigned char> small(W * H);
    for (size_t i = 0; i < small.size(); i++) small[i] = (unsigned char)(i * 29);

    cudaChannelFormatDesc floats = cudaCreateChannelDesc<float>(), bytes = cudaCreateChannelDesc<unsigned char>();
    cudaArray_t line, plane, volume, lines, planes, fractions;
    OK(cudaMallocArray(&line, &floats, W));
    OK(cudaMallocArray(&plane, &floats, W, H));
    OK(cudaMalloc3DArray(&volume, &floats, make_cudaExtent(W, H, D)));
    OK(cudaMalloc3DArray(&lines, &floats, make_cudaExtent(W, 0, D), cudaArrayLayered));
    OK(cudaMalloc3DArray(&planes, &floats, make_cudaExtent(W, H, D), cudaArrayLayered));
    OK(cudaMallocArray(&fractions, &bytes, W, H));
    fill(line, numbers, W, 0, 0);
    fill(plane, numbers, W, H, 0);
    fill(volume, numbers, W, H, D);
    fill(lines, numbers, W, 1, D);
    fill(planes, numbers, W, H, D);
    OK(cudaMemcpy2DToArray(fractions, 0, 0, small.data(), W, W, H, cudaMemcpyHostToDevice));

    for (const Setting &s : settings()) {
        // Away from where rounding decides between two texels.
        for (int i = 0; i < POINTS; i++)
            for (int k = 0; k < 3; k++) {
                int n = k == 0 ? W : k == 1 ? H : D;
                float texels = -1.6f * n + 4.2f * n * ((i * (k * 2 + 7) + k * 31) % POINTS) / POINTS;
                texels = std::floor(texels * 64) / 64 + 1 / 128.f;
                points[3 * i + k] = s.normalised ? texels / n : texels;
            }
        OK(cudaMemcpy(device_points, points.data(), points.size() * 4, cudaMemcpyHostToDevice));
        auto check = [&](cudaArray_t array, Volume v, int axes, int layer, cudaTextureReadMode read, double scale) {
            cudaTextureObject_t texture = texture_of(array, s, read);
            compare(texture, v, axes, layer, s, scale);
            OK(cudaDestroyTextureObject(texture));
        };
        check(line, {numbers, W, 1, 1}, 1, -1, cudaReadModeElementType, 1);
        check(plane, {numbers, W, H, 1}, 2, -1, cudaReadModeElementType, 1);
        check(volume, {numbers, W, H, D}, 3, -1, cudaReadModeElementType, 1);
        for (int layer = 0; layer < D; layer++) {
            std::vector<float> row(numbers.begin() + layer * W, numbers.begin() + (layer + 1) * W);
            check(lines, {row, W, 1, 1}, 1, layer, cudaReadModeElementType, 1);
            std::vector<float> slice(numbers.begin() + layer * W * H, numbers.begin() + (layer + 1) * W * H);
            check(planes, {slice, W, H, 1}, 2, layer, cudaReadModeElementType, 1);
        }
        check(fractions, {std::vector<float>(small.begin(), small.end()), W, H, 1}, 2, -1,
              cudaReadModeNormalizedFloat, 1 / 255.0);
    }
    for (cudaArray_t array : {line, plane, volume, lines, planes, fractions}) OK(cudaFreeArray(array));
    return passed();
}
