// Tiled matrix product in shared memory, in float, double and int, with sizes that do not fit the tiles.
#include "check.h"
#include <vector>

template <typename T, int TILE> __global__ void multiply(const T *a, const T *b, T *c, int m, int n, int k)
{
    __shared__ T left[TILE][TILE], right[TILE][TILE + 1];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    T sum = 0;
    for (int start = 0; start < k; start += TILE) {
        int i = start + threadIdx.x, j = start + threadIdx.y;
        left[threadIdx.y][threadIdx.x] = row < m && i < k ? a[row * k + i] : T(0);
        right[threadIdx.y][threadIdx.x] = column < n && j < k ? b[j * n + column] : T(0);
        __syncthreads();
#pragma unroll
        for (int t = 0; t < TILE; t++) sum += left[threadIdx.y][t] * right[t][threadIdx.x];
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}

template <typename T> void check(int m, int n, int k)
{
    std::vector<T> a(m * k), b(k * n), c(m * n);
    for (int i = 0; i < m * k; i++) a[i] = T(i % 13 - 6);
    for (int i = 0; i < k * n; i++) b[i] = T(i % 7 - 3);
    T *da, *db, *dc;
    OK(cudaMalloc(&da, a.size() * sizeof(T)));
    OK(cudaMalloc(&db, b.size() * sizeof(T)));
    OK(cudaMalloc(&dc, c.size() * sizeof(T)));
    OK(cudaMemcpy(da, a.data(), a.size() * sizeof(T), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(db, b.data(), b.size() * sizeof(T), cudaMemcpyHostToDevice));
    dim3 grid((n + 15) / 16, (m + 15) / 16), block(16, 16);
    multiply<T, 16><<<grid, block>>>(da, db, dc, m, n, k);
    OK(cudaGetLastError());
    OK(cudaMemcpy(c.data(), dc, c.size() * sizeof(T), cudaMemcpyDeviceToHost));
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            long sum = 0;  // small whole numbers: exact in all three types
            for (int l = 0; l < k; l++) sum += long(a[i * k + l]) * long(b[l * n + j]);
            REQUIRE(c[i * n + j] == T(sum));
        }
    OK(cudaFree(da));
    OK(cudaFree(db));
    OK(cudaFree(dc));
}

int main()
{
    check<float>(61, 47, 100);
    check<double>(33, 64, 17);
    check<int>(16, 16, 16);
    check<int>(1, 90, 5);
    return passed();
}
