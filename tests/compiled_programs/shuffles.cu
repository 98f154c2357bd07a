// What the threads of a warp tell each other directly: shuffles of every kind, width and type, and votes.
#include "check.h"

enum { KINDS = 10 };

// Lane l of the warp brings 10 * l; each row of the result is one kind of exchange.
__global__ void exchange(int *rows, double *wide, long long *longs)
{
    const unsigned all = 0xffffffff;
    int lane = threadIdx.x, mine = 10 * lane;
    int *row = rows + lane;
    row[0 * 32] = __shfl_sync(all, mine, 5);
    row[1 * 32] = __shfl_sync(all, mine, lane + 3);        // past the end it goes round
    row[2 * 32] = __shfl_sync(all, mine, 1, 8);            // in groups of eight
    row[3 * 32] = __shfl_up_sync(all, mine, 2);
    row[4 * 32] = __shfl_up_sync(all, mine, 1, 16);
    row[5 * 32] = __shfl_down_sync(all, mine, 4);
    row[6 * 32] = __shfl_down_sync(all, mine, 3, 8);
    row[7 * 32] = __shfl_xor_sync(all, mine, 9);
    row[8 * 32] = __shfl_xor_sync(all, mine, 1, 4);
    row[9 * 32] = lane;
    if (lane < 16) row[9 * 32] = __shfl_xor_sync(0xffff, mine, 15); // only half of the warp takes part
    wide[lane] = __shfl_down_sync(all, 0.5 * lane, 1);
    longs[lane] = __shfl_xor_sync(all, (1ll << 40) * lane, 31);
}

__global__ void vote(unsigned *out)
{
    int lane = threadIdx.x;
    out[lane] = __ballot_sync(0xffffffff, lane % 3 == 0);
    out[32 + lane] = __any_sync(0xffffffff, lane == 31) * 2 + __all_sync(0xffffffff, lane < 31);
    if (lane & 1) out[64 + lane] = __activemask();
    out[96 + lane] = __match_any_sync(0xffffffff, lane / 5);
    int same;
    out[128 + lane] = __match_all_sync(0xffffffff, 7, &same) + same;
}

static int expected(int kind, int lane)
{
    switch (kind) {
    case 0: return 50;
    case 1: return 10 * ((lane + 3) % 32);
    case 2: return 10 * (lane / 8 * 8 + 1);
    case 3: return 10 * (lane < 2 ? lane : lane - 2);
    case 4: return 10 * (lane % 16 < 1 ? lane : lane - 1);
    case 5: return 10 * (lane + 4 > 31 ? lane : lane + 4);
    case 6: return 10 * (lane % 8 + 3 > 7 ? lane : lane + 3);
    case 7: return 10 * (lane ^ 9);
    case 8: return 10 * (lane ^ 1);
    default: return lane < 16 ? 10 * (lane ^ 15) : lane;
    }
}

int main()
{
    int host[KINDS][32], *rows;
    double wide[32], *device_wide;
    long long longs[32], *device_longs;
    unsigned votes[5][32], *device_votes;
    OK(cudaMalloc(&rows, sizeof host));
    OK(cudaMalloc(&device_wide, sizeof wide));
    OK(cudaMalloc(&device_longs, sizeof longs));
    OK(cudaMalloc(&device_votes, sizeof votes));
    exchange<<<1, 32>>>(rows, device_wide, device_longs);
    OK(cudaMemcpy(host, rows, sizeof host, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(wide, device_wide, sizeof wide, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(longs, device_longs, sizeof longs, cudaMemcpyDeviceToHost));
    for (int lane = 0; lane < 32; lane++) {
        for (int kind = 0; kind < KINDS; kind++) REQUIRE(host[kind][lane] == expected(kind, lane));
        REQUIRE(wide[lane] == 0.5 * (lane == 31 ? 31 : lane + 1));
        REQUIRE(longs[lane] == (1ll << 40) * (lane ^ 31));
    }

    vote<<<1, 32>>>(device_votes);
    OK(cudaMemcpy(votes, device_votes, sizeof votes, cudaMemcpyDeviceToHost));
    for (int lane = 0; lane < 32; lane++) {
        unsigned group = 0;
        for (int other = 0; other < 32; other++) group |= (unsigned)(other / 5 == lane / 5) << other;
        REQUIRE(votes[0][lane] == 0x49249249u);
        REQUIRE(votes[1][lane] == 2);
        if (lane & 1) REQUIRE(votes[2][lane] >> lane & 1 && !(votes[2][lane] & 0x55555555));
        REQUIRE(votes[3][lane] == group);
        REQUIRE(votes[4][lane] == 0u); // all bits, and one more
    }
    return passed();
}
