// Cooperative groups within a block: the block itself, tiles of a warp, and the threads that happen to be together.
#include "check.h"
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

namespace cg = cooperative_groups;

// Each tile of `size` threads adds up its words; lane 0 of a tile writes.
template <int size> __global__ void tile_sums(const int *in, int *out)
{
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<size> tile = cg::tiled_partition<size>(block);
    int value = in[block.thread_rank()];
    for (int offset = tile.size() / 2; offset > 0; offset /= 2) value += tile.shfl_down(value, offset);
    if (tile.thread_rank() == 0) out[tile.meta_group_rank()] = value;
}

__global__ void reduced(const int *in, int *sum, int *largest)
{
    cg::thread_block block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    int mine = in[block.thread_rank()];
    int of_warp = cg::reduce(warp, mine, cg::plus<int>());
    int most = cg::reduce(warp, mine, cg::greater<int>());
    if (warp.thread_rank() == 0) {
        atomicAdd(sum, of_warp);
        atomicMax(largest, most);
    }
}

// Votes of tiles of eight: who has an odd word, and whether any or all do.
__global__ void votes(const int *in, unsigned *ballots, int *any, int *all)
{
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    bool odd = in[threadIdx.x] & 1;
    unsigned ballot = tile.ballot(odd);
    int some = tile.any(odd), every = tile.all(odd);
    if (tile.thread_rank() == 0) {
        ballots[tile.meta_group_rank()] = ballot;
        any[tile.meta_group_rank()] = some;
        all[tile.meta_group_rank()] = every;
    }
}

// The threads that take a branch count themselves, and their first one adds for all.
__global__ void together(const int *in, int *count)
{
    if (in[threadIdx.x] % 3 == 0) {
        cg::coalesced_group active = cg::coalesced_threads();
        if (active.thread_rank() == 0) atomicAdd(count, active.size());
    }
}

// A block in shared memory, turned round with a barrier between.
__global__ void reverse(int *data)
{
    __shared__ int words[256];
    cg::thread_block block = cg::this_thread_block();
    unsigned i = block.thread_rank();
    words[i] = data[i];
    block.sync();
    data[i] = words[block.num_threads() - 1 - i];
}

template <int size> static void check_tiles(const int *host, const int *in, int *out)
{
    int sums[256 / size];
    tile_sums<size><<<1, 256>>>(in, out);
    OK(cudaMemcpy(sums, out, sizeof sums, cudaMemcpyDeviceToHost));
    for (int t = 0; t < 256 / size; t++) {
        int expected = 0;
        for (int i = 0; i < size; i++) expected += host[t * size + i];
        REQUIRE(sums[t] == expected);
    }
}

int main()
{
    int host[256], back[256], *in, *out;
    for (int i = 0; i < 256; i++) host[i] = (i * 37) % 101;
    OK(cudaMalloc(&in, sizeof host));
    OK(cudaMalloc(&out, 4 * sizeof host));
    OK(cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice));
    check_tiles<32>(host, in, out);
    check_tiles<16>(host, in, out);
    check_tiles<4>(host, in, out);

    int sum = 0, most = 0, threes = 0, result[2];
    for (int value : host) {
        sum += value;
        most = value > most ? value : most;
        threes += value % 3 == 0;
    }
    OK(cudaMemset(out, 0, 8));
    reduced<<<1, 256>>>(in, out, out + 1);
    OK(cudaMemcpy(result, out, sizeof result, cudaMemcpyDeviceToHost));
    REQUIRE(result[0] == sum && result[1] == most);

    int any[32], all[32];
    unsigned ballots[32];
    votes<<<1, 256>>>(in, (unsigned *)out, out + 32, out + 64);
    OK(cudaMemcpy(ballots, out, sizeof ballots, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(any, out + 32, sizeof any, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(all, out + 64, sizeof all, cudaMemcpyDeviceToHost));
    for (int t = 0; t < 32; t++) {
        unsigned expected = 0;
        for (int i = 0; i < 8; i++) expected |= (host[8 * t + i] & 1) << i;
        REQUIRE(ballots[t] == expected && !any[t] == (expected == 0) && !all[t] == (expected != 0xff));
    }

    OK(cudaMemset(out, 0, 4));
    together<<<1, 256>>>(in, out);
    OK(cudaMemcpy(result, out, 4, cudaMemcpyDeviceToHost));
    REQUIRE(result[0] == threes);

    reverse<<<1, 256>>>(in);
    OK(cudaMemcpy(back, in, sizeof back, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 256; i++) REQUIRE(back[i] == host[255 - i]);
    return passed();
}
