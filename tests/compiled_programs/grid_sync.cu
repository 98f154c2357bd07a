// Cooperative groups of a whole grid: all blocks that fit wait for each other, many times.
#include "check.h"
#include <cooperative_groups.h>
#include <vector>

namespace cg = cooperative_groups;

// Sums up in a tree over all threads of the grid: each round reads what other blocks wrote in the round before.
__global__ void add_up(unsigned *words, unsigned n, unsigned *rounds)
{
    cg::grid_group grid = cg::this_grid();
    unsigned me = grid.thread_rank();
    for (unsigned width = 1; width < n; width *= 2) {
        unsigned other = me + width < n ? *(volatile unsigned *)&words[me + width] : 0;
        grid.sync();
        if (me < n) words[me] += other;
        grid.sync();
        if (me == 0) ++*rounds;
    }
}

// Arriving and waiting apart: what was written before the first is seen behind the second.
__global__ void pass_on(unsigned *words, unsigned n)
{
    cg::grid_group grid = cg::this_grid();
    unsigned me = grid.thread_rank(), sum = 0;
    words[me] = me;
    auto token = grid.barrier_arrive();
    for (unsigned i = 0; i < 100; i++) sum += i;
    grid.barrier_wait(std::move(token));
    unsigned right = *(volatile unsigned *)&words[(me + blockDim.x) % n];
    grid.sync();
    words[me] = right + sum;
}

__global__ void is_valid(int *valid) { *valid = cg::this_grid().is_valid(); }

static cudaError_t launch(unsigned blocks, unsigned threads, unsigned *words, unsigned n, unsigned *rounds)
{
    void *arguments[] = {&words, &n, &rounds};
    return cudaLaunchCooperativeKernel(add_up, blocks, threads, arguments, 0, 0);
}

static void check_sum(unsigned blocks, unsigned threads, unsigned *words, unsigned *rounds)
{
    unsigned n = blocks * threads, sum = 0, doublings = 0;
    std::vector<unsigned> host(n);
    for (unsigned i = 0; i < n; i++) sum += host[i] = i * 2654435761u;
    while (1u << doublings < n) doublings++;
    OK(cudaMemcpy(words, host.data(), n * sizeof n, cudaMemcpyHostToDevice));
    OK(cudaMemset(rounds, 0, sizeof *rounds));
    OK(launch(blocks, threads, words, n, rounds));
    unsigned got[2];
    OK(cudaMemcpy(&got[0], words, sizeof n, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(&got[1], rounds, sizeof n, cudaMemcpyDeviceToHost));
    REQUIRE(got[0] == sum && got[1] == doublings);
}

int main()
{
    int offered, most, processors, valid[2];
    OK(cudaDeviceGetAttribute(&offered, cudaDevAttrCooperativeLaunch, 0));
    REQUIRE(offered);
    OK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    unsigned *words, *rounds;
    OK(cudaMalloc(&words, 1 << 20));
    OK(cudaMalloc(&rounds, sizeof *rounds));

    check_sum(1, 1, words, rounds);
    check_sum(5, 96, words, rounds);
    check_sum(processors, 256, words, rounds);

    // As many blocks as fit, and one more.
    const unsigned threads = 64;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&most, add_up, threads, 0));
    REQUIRE(most > 1);
    check_sum(most * processors, threads, words, rounds);
    EXPECT(cudaErrorCooperativeLaunchTooLarge, launch(most * processors + 1, threads, words, 1, rounds));
    EXPECT(cudaErrorCooperativeLaunchTooLarge, cudaGetLastError());

    // By the launch attribute, of a grid of two dimensions.
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(4, 3);
    config.blockDim = dim3(32, 2);
    config.attrs = &attribute;
    config.numAttrs = 1;
    unsigned n = 4 * 3 * 64;
    OK(cudaLaunchKernelEx(&config, pass_on, words, n));
    std::vector<unsigned> host(n);
    OK(cudaMemcpy(host.data(), words, n * sizeof n, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < n; i++) REQUIRE(host[i] == (i + 32) % n + 4950);

    // Only such a launch has a grid whose blocks can wait for each other.
    void *arguments[] = {&words};
    is_valid<<<1, 1>>>((int *)words);
    OK(cudaMemcpy(&valid[0], words, sizeof(int), cudaMemcpyDeviceToHost));
    OK(cudaLaunchCooperativeKernel(is_valid, 1, 1, arguments, 0, 0));
    OK(cudaMemcpy(&valid[1], words, sizeof(int), cudaMemcpyDeviceToHost));
    REQUIRE(!valid[0] && valid[1]);
    return passed();
}
