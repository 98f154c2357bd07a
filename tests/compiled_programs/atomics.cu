// Atomic operations of every width, on global and on shared memory: many threads, results that only order-free,
// indivisible operations give.
#include "check.h"
#include <string.h>

struct Results {
    int add, sub, lowest, highest;
    unsigned unsigned_lowest, unsigned_highest, both, either, exclusive, up, down;
    unsigned long long wide_add, wide_lowest, wide_highest, wide_both, wide_either, wide_exclusive, wide_swapped;
    long long signed_lowest;
    float real;
    double real_wide;
    unsigned swapped_sum, locked;
    unsigned long long wide_counted;
    unsigned short narrow[2];
    unsigned lock;
};

template <class Place> __device__ void all_kinds(Place *r, unsigned i)
{
    atomicAdd(&r->add, (int)i - 7);
    atomicSub(&r->sub, (int)i);
    atomicMin(&r->lowest, -(int)i);
    atomicMax(&r->highest, (int)i);
    atomicMin(&r->unsigned_lowest, 0xfffffff0u - i);
    atomicMax(&r->unsigned_highest, 0x80000000u + i);
    atomicAnd(&r->both, ~(1u << (i % 31)));
    atomicOr(&r->either, 1u << (i % 29));
    atomicXor(&r->exclusive, i * 2654435761u);
    atomicInc(&r->up, 99);
    atomicDec(&r->down, 99);
    atomicAdd(&r->wide_add, 0x100000001ull * i);
    atomicMin(&r->wide_lowest, 0xffffffff00000000ull - i);
    atomicMax(&r->wide_highest, 0x8000000000000000ull + i);
    atomicMin(&r->signed_lowest, -0x100000000ll * i);
    atomicAnd(&r->wide_both, ~(1ull << (i % 61)));
    atomicOr(&r->wide_either, 1ull << (i % 59));
    atomicXor(&r->wide_exclusive, i * 0x9e3779b97f4a7c15ull);
    atomicAdd(&r->real, 0.5f);
    atomicAdd(&r->real_wide, 0.25);
    // What one leaves the next one finds: the sum of what was found and what stays is that of all.
    atomicAdd(&r->swapped_sum, atomicExch(&r->lock, i));
    // Loops of compare and swap, in the widths that have nothing else.
    unsigned long long seen = r->wide_counted, before;
    do {
        before = seen;
        seen = atomicCAS(&r->wide_counted, before, before + 3);
    } while (seen != before);
    unsigned short narrow = r->narrow[1], narrow_before;
    do {
        narrow_before = narrow;
        narrow = atomicCAS(&r->narrow[1], narrow_before, (unsigned short)(narrow_before + 5));
    } while (narrow != narrow_before);
    atomicExch(&r->wide_swapped, 77ull);
    atomicCAS(&r->locked, 0u, 1u);
}

__global__ void on_global(Results *results) { all_kinds(results, blockIdx.x * blockDim.x + threadIdx.x); }

__global__ void on_shared(Results *results)
{
    __shared__ Results own;
    if (threadIdx.x == 0) own = *results;
    __syncthreads();
    all_kinds(&own, threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) *results = own;
}

static Results start()
{
    Results r;
    memset(&r, 0, sizeof r);
    r.unsigned_lowest = 0xffffffff, r.both = 0xffffffff, r.down = 50;
    r.wide_lowest = ~0ull, r.wide_both = ~0ull, r.narrow[0] = 0xabcd;
    return r;
}

static void check(const Results &r, unsigned n)
{
    Results e = start();
    unsigned long long narrow = 0;
    for (unsigned i = 0; i < n; i++) {
        e.add += (int)i - 7;
        e.sub -= (int)i;
        e.both &= ~(1u << (i % 31));
        e.either |= 1u << (i % 29);
        e.exclusive ^= i * 2654435761u;
        e.up = e.up >= 99 ? 0 : e.up + 1;
        e.down = e.down == 0 || e.down > 99 ? 99 : e.down - 1;
        e.wide_add += 0x100000001ull * i;
        e.wide_both &= ~(1ull << (i % 61));
        e.wide_either |= 1ull << (i % 59);
        e.wide_exclusive ^= i * 0x9e3779b97f4a7c15ull;
        e.swapped_sum += i;
        narrow += 5;
    }
    REQUIRE(r.add == e.add && r.sub == e.sub);
    REQUIRE(r.lowest == 1 - (int)n && r.highest == (int)n - 1);
    REQUIRE(r.unsigned_lowest == 0xfffffff0u - (n - 1) && r.unsigned_highest == 0x80000000u + n - 1);
    REQUIRE(r.both == e.both && r.either == e.either && r.exclusive == e.exclusive);
    REQUIRE(r.up == e.up && r.down == e.down);
    REQUIRE(r.wide_add == e.wide_add);
    REQUIRE(r.wide_lowest == 0xffffffff00000000ull - (n - 1) && r.wide_highest == 0x8000000000000000ull + n - 1);
    REQUIRE(r.signed_lowest == -0x100000000ll * (n - 1));
    REQUIRE(r.wide_both == e.wide_both && r.wide_either == e.wide_either && r.wide_exclusive == e.wide_exclusive);
    REQUIRE(r.real == 0.5f * n && r.real_wide == 0.25 * n);
    REQUIRE(r.swapped_sum + r.lock == e.swapped_sum);
    REQUIRE(r.wide_counted == 3ull * n && r.wide_swapped == 77 && r.locked == 1);
    REQUIRE(r.narrow[0] == 0xabcd && r.narrow[1] == (unsigned short)narrow);
}

int main()
{
    Results host = start(), *device;
    OK(cudaMalloc(&device, sizeof host));
    OK(cudaMemcpy(device, &host, sizeof host, cudaMemcpyHostToDevice));
    on_global<<<20, 192>>>(device);
    OK(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
    check(host, 20 * 192);

    host = start();
    OK(cudaMemcpy(device, &host, sizeof host, cudaMemcpyHostToDevice));
    on_shared<<<1, 512>>>(device);
    OK(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
    check(host, 512);
    return passed();
}
