// The first program anybody runs; the sums of small whole numbers are exact.
#include "check.h"
#include <vector>

__global__ void add(const float *a, const float *b, float *c, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

int main()
{
    const int n = 100003;  // not a multiple of the block size
    std::vector<float> a(n), b(n), c(n, -1);
    for (int i = 0; i < n; i++) a[i] = i, b[i] = 2 * (i % 1000);
    float *da, *db, *dc;
    size_t bytes = n * sizeof(float);
    OK(cudaMalloc(&da, bytes));
    OK(cudaMalloc(&db, bytes));
    OK(cudaMalloc(&dc, bytes));
    OK(cudaMemcpy(da, a.data(), bytes, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(db, b.data(), bytes, cudaMemcpyHostToDevice));
    add<<<(n + 255) / 256, 256>>>(da, db, dc, n);
    OK(cudaGetLastError());
    OK(cudaMemcpy(c.data(), dc, bytes, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) REQUIRE(c[i] == i + 2 * (i % 1000));
    OK(cudaFree(da));
    OK(cudaFree(db));
    OK(cudaFree(dc));
    return passed();
}
