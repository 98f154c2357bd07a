// Kernels hand data to each other beside flags: two words are written, and read, at once (NCCL's LL protocol does so).
#include "check.h"

const int ROUNDS = 20000;

__device__ void put(uint4 *to, uint4 v)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
}

__device__ uint4 get(uint4 *from)
{
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

// Two kernels at the same time: each waits for the other's flags of a round, looks at the data beside them, and answers.
__global__ void play(uint4 *own, uint4 *other, unsigned *wrong)
{
    for (unsigned round = 1; round <= ROUNDS; round++) {
        put(other + threadIdx.x, make_uint4(round * 3, round, ~round, round));
        uint4 v;
        do v = get(own + threadIdx.x);
        while (v.y < round || v.w < round);
        // The other kernel may be a round ahead already.
        if (v.x != v.y * 3 || v.z != ~v.w) atomicAdd(wrong, 1);
    }
}

int main()
{
    uint4 *lines;
    unsigned *wrong, found;
    OK(cudaMalloc(&lines, 64 * sizeof(uint4)));
    OK(cudaMalloc(&wrong, sizeof *wrong));
    OK(cudaMemset(lines, 0, 64 * sizeof(uint4)));
    OK(cudaMemset(wrong, 0, sizeof *wrong));
    OK(cudaDeviceSynchronize());
    cudaStream_t streams[2];
    for (int i = 0; i < 2; i++) {
        OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        play<<<1, 32, 0, streams[i]>>>(lines + 32 * i, lines + 32 * (1 - i), wrong);
    }
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(&found, wrong, sizeof found, cudaMemcpyDeviceToHost));
    REQUIRE(found == 0);
    return passed();
}
