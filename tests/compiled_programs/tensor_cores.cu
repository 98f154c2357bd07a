// Matrices of a warp, as <mma.h> has them: each type and shape that compute capability 8.0 offers, in all layouts, from
// global and from shared memory, against the plain product.
#include "check.h"
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#include <type_traits>
#include <vector>

using namespace nvcuda;

// What a fragment's element is in memory.
template <typename T> struct memory { typedef T type; };
template <> struct memory<wmma::precision::tf32> { typedef float type; };

template <typename T, typename C, typename D, int M, int N, int K, typename LA, typename LB>
__global__ void multiply(const typename memory<T>::type *a, const typename memory<T>::type *b, const C *c, D *d,
                         wmma::layout_t layout, bool shared)
{
    typedef typename memory<T>::type element;
    __shared__ __align__(32) element copies[M * K + K * N];
    if (shared) {
        for (int i = threadIdx.x; i < M * K; i += 32) copies[i] = a[i];
        for (int i = threadIdx.x; i < K * N; i += 32) copies[M * K + i] = b[i];
        __syncwarp();
        a = copies;
        b = copies + M * K;
    }
    wmma::fragment<wmma::matrix_a, M, N, K, T, LA> fa;
    wmma::fragment<wmma::matrix_b, M, N, K, T, LB> fb;
    wmma::fragment<wmma::accumulator, M, N, K, C> fc;
    wmma::fragment<wmma::accumulator, M, N, K, D> fd;
    wmma::load_matrix_sync(fa, a, std::is_same<LA, wmma::row_major>::value ? K : M);
    wmma::load_matrix_sync(fb, b, std::is_same<LB, wmma::row_major>::value ? N : K);
    wmma::load_matrix_sync(fc, c, layout == wmma::mem_row_major ? N : M, layout);
    // Work on elements needs no knowledge of where they are.
    for (int i = 0; i < fc.num_elements; i++) fc.x[i] = fc.x[i] + C(1);
    wmma::mma_sync(fd, fa, fb, fc);
    wmma::store_matrix_sync(d, fd, layout == wmma::mem_row_major ? N : M, layout);
}

template <typename T> static T *on_device(const std::vector<T> &host)
{
    T *device;
    OK(cudaMalloc(&device, host.size() * sizeof(T)));
    OK(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    return device;
}

template <typename T, typename C, typename D, int M, int N, int K, typename LA, typename LB>
static void check_layout(wmma::layout_t layout, bool shared)
{
    typedef typename memory<T>::type element;
    const bool a_rows = std::is_same<LA, wmma::row_major>::value, b_rows = std::is_same<LB, wmma::row_major>::value;
    const bool c_rows = layout == wmma::mem_row_major, negative = !std::is_same<T, unsigned char>::value;
    // Small whole numbers: exact in all types, whatever the order of the sums.
    auto a_at = [&](int m, int k) { return (m * 5 + k * 3) % 7 - (negative ? 3 : 0); };
    auto b_at = [&](int k, int n) { return (k * 2 + n * 3) % 5 - (negative ? 2 : 0); };
    auto c_at = [&](int m, int n) { return (m * 3 + n) % 50; };
    std::vector<element> a(M * K), b(K * N);
    std::vector<C> c(M * N);
    std::vector<D> d(M * N);
    for (int m = 0; m < M; m++)
        for (int k = 0; k < K; k++) a[a_rows ? m * K + k : k * M + m] = element((float)a_at(m, k));
    for (int k = 0; k < K; k++)
        for (int n = 0; n < N; n++) b[b_rows ? k * N + n : n * K + k] = element((float)b_at(k, n));
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) c[c_rows ? m * N + n : n * M + m] = C((float)c_at(m, n));
    element *da = on_device(a), *db = on_device(b);
    C *dc = on_device(c);
    D *dd = on_device(d);
    multiply<T, C, D, M, N, K, LA, LB><<<1, 32>>>(da, db, dc, dd, layout, shared);
    OK(cudaGetLastError());
    OK(cudaMemcpy(d.data(), dd, d.size() * sizeof(D), cudaMemcpyDeviceToHost));
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            int sum = c_at(m, n) + 1;
            for (int k = 0; k < K; k++) sum += a_at(m, k) * b_at(k, n);
            REQUIRE((float)d[c_rows ? m * N + n : n * M + m] == (float)sum);
        }
    OK(cudaFree(da));
    OK(cudaFree(db));
    OK(cudaFree(dc));
    OK(cudaFree(dd));
}

template <typename T, typename C, typename D, int M, int N, int K> static void check()
{
    check_layout<T, C, D, M, N, K, wmma::row_major, wmma::col_major>(wmma::mem_row_major, false);
    check_layout<T, C, D, M, N, K, wmma::row_major, wmma::row_major>(wmma::mem_col_major, true);
    check_layout<T, C, D, M, N, K, wmma::col_major, wmma::row_major>(wmma::mem_row_major, true);
    check_layout<T, C, D, M, N, K, wmma::col_major, wmma::col_major>(wmma::mem_col_major, false);
}

template <typename T, typename C, typename D> static void check_shapes()
{
    check<T, C, D, 16, 16, 16>();
    check<T, C, D, 8, 32, 16>();
    check<T, C, D, 32, 8, 16>();
}

// Sums of bytes end at the largest number instead of going over.
__global__ void saturate(int *d)
{
    wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, int> c;
    wmma::fill_fragment(a, 100);
    wmma::fill_fragment(b, 100);
    wmma::fill_fragment(c, 0x7ffffff0);
    wmma::mma_sync(c, a, b, c, true);
    wmma::store_matrix_sync(d, c, 16, wmma::mem_row_major);
}

int main()
{
    check_shapes<half, float, float>();
    check_shapes<half, half, half>();
    check_shapes<half, half, float>();
    check_shapes<half, float, half>();
    check_shapes<__nv_bfloat16, float, float>();
    check_shapes<signed char, int, int>();
    check_shapes<unsigned char, int, int>();
    check<wmma::precision::tf32, float, float, 16, 16, 8>();
    check<double, double, double, 8, 8, 4>();

    int host[256], *device;
    OK(cudaMalloc(&device, sizeof host));
    saturate<<<1, 32>>>(device);
    OK(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
    for (int value : host) REQUIRE(value == 0x7fffffff);
    return passed();
}
