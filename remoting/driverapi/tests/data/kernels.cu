// Kernels whose descriptions differ: parameters of many sizes, shared memory, bounds, variables. Nobody runs them.
struct Odd { char a; short b; char c[3]; };
struct Big { double values[600]; };

__constant__ float weights[16] = {1, 2, 3};
__device__ int counter = 7;
__device__ double sums[3];

extern "C" __global__ void nothing() { counter++; }

extern "C" __global__ void scalars(float *x, int n, char c, double d) {
    if (threadIdx.x < n) x[threadIdx.x] = weights[threadIdx.x & 15] * c + d;
}

extern "C" __global__ void structures(Odd o, const int *p, Odd q, long long z) { sums[0] += o.a + q.b + *p + z; }

// More than 4 KiB of parameters are described in another way.
extern "C" __global__ void large(Big b, float *x) { x[threadIdx.x] = b.values[threadIdx.x]; }

extern "C" __global__ void __launch_bounds__(192, 2) bounded(int *x) {
    __shared__ int s[100];
    s[threadIdx.x % 100] = *x;
    __syncthreads();
    x[threadIdx.x] = s[(threadIdx.x + 1) % 100];
}

extern "C" __global__ void dynamic(int *x) {
    extern __shared__ int s[];
    s[threadIdx.x] = *x;
    __syncthreads();
    x[threadIdx.x] = s[1];
}

extern "C" __global__ void local_array(int *x, int n) {
    int a[300];
    for (int i = 0; i < n; i++) a[i] = x[i];
    for (int i = n; i > 0; i--) x[i] += a[a[i] % 300];
}

template <class T> __global__ void generic(T *x, T y) { *x = y; }
template __global__ void generic<float>(float *, float);

#if __CUDA_ARCH__ >= 900
extern "C" __global__ void __cluster_dims__(2, 1, 1) clustered(int *x) { x[threadIdx.x] = blockIdx.x; }
extern "C" __global__ void __launch_bounds__(256, 1, 4) up_to_four(int *x) { x[threadIdx.x] = blockIdx.x; }
extern "C" __global__ void __block_size__((128, 1, 1)) required(int *x) { x[threadIdx.x] = blockIdx.x; }
#endif
