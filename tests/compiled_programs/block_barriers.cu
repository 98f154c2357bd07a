// Barriers in shared memory that count arrivals, and copies to shared memory that they, or groups, wait for.
#include "check.h"
#include <cooperative_groups.h>
#include <cstdint>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_awbarrier_primitives.h>
#include <cuda_pipeline.h>

const int THREADS = 128, STAGES = 3, CHUNKS = 7;
typedef cuda::barrier<cuda::thread_scope_block> barrier;

__device__ unsigned shared_address(const void *pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

// The barrier's copies are done when its phase is, whoever asked for them.
__global__ void turn_round(const int *in, int *out)
{
    __shared__ int words[THREADS];
    __shared__ alignas(barrier) char place[sizeof(barrier)];
    barrier *arrived = (barrier *)place;
    if (threadIdx.x == 0) init(arrived, THREADS);
    __syncthreads();
    cuda::memcpy_async(words + threadIdx.x, in + threadIdx.x, cuda::aligned_size_t<4>(4), *arrived);
    auto token = arrived->arrive();
    arrived->wait(std::move(token));
    out[threadIdx.x] = words[THREADS - 1 - threadIdx.x];
    arrived->arrive_and_wait();
    // Half of the threads leave it; the others still get through.
    if (threadIdx.x >= THREADS / 2) {
        arrived->arrive_and_drop();
        return;
    }
    arrived->arrive_and_wait();
    words[threadIdx.x] = out[threadIdx.x];
    arrived->arrive_and_wait();
    out[threadIdx.x] = words[THREADS / 2 - 1 - threadIdx.x];
}

__device__ bool is_over(const __mbarrier_t *place, int parity)
{
    unsigned over;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(over) : "r"(shared_address(place)), "r"(parity) : "memory");
    return over;
}

// One warp fills what the others empty, each phase by its parity.
__global__ void hand_over(const int *in, int *out)
{
    __shared__ int slot[32];
    __shared__ __mbarrier_t full, empty;
    if (threadIdx.x == 0) {
        __mbarrier_init(&full, 32);
        __mbarrier_init(&empty, THREADS - 32);
    }
    __syncthreads();
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        if (threadIdx.x < 32) {
            // A barrier that is new counts as if the phase before were over.
            while (!is_over(&empty, (chunk + 1) & 1)) {}
            slot[threadIdx.x] = in[32 * chunk + threadIdx.x];
            __mbarrier_arrive(&full);
        } else {
            while (!is_over(&full, chunk & 1)) {}
            if (threadIdx.x < 64) out[32 * chunk + threadIdx.x - 32] = slot[63 - threadIdx.x] + chunk;
            __mbarrier_arrive(&empty);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        __mbarrier_inval(&full);
        __mbarrier_inval(&empty);
    }
}

// The instructions themselves: arrivals for several, counts in a state, copies that arrive, zeros behind short copies.
__global__ void by_hand(const int4 *in, int *out)
{
    __shared__ int4 rows[32];
    __shared__ uint64_t word, other;
    unsigned at = shared_address(&word), beside = shared_address(&other), mine = shared_address(&rows[threadIdx.x]);
    uint64_t state, first;
    unsigned pending, over;
    bool before;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 68;" ::"r"(at) : "memory");
        asm volatile("mbarrier.init.shared.b64 [%0], 5;" ::"r"(beside) : "memory");
        asm volatile("mbarrier.arrive.noComplete.shared.b64 %0, [%1], 3;" : "=l"(first) : "r"(beside) : "memory");
        asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(first));
        out[128] = pending;
        asm volatile("mbarrier.arrive_drop.noComplete.shared.b64 %0, [%1], 1;" : "=l"(first) : "r"(beside) : "memory");
        asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(first));
        out[129] = pending;
        asm volatile("mbarrier.arrive.noComplete.shared.b64 %0, [%1], 4;" : "=l"(first) : "r"(at) : "memory");
    }
    __syncthreads();
    // Eight of sixteen bytes, and four of the next row's; zeros behind.
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
                 ::"r"(mine), "l"(in + threadIdx.x), "r"(threadIdx.x & 1 ? 16 : 8) : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at) : "memory");
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(at) : "memory");
    asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(state));
    do {
        asm volatile("{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(over) : "r"(at), "l"(state) : "memory");
    } while (!over);
    before = is_over(&word, 1);
    int4 row = rows[31 - threadIdx.x];
    out[4 * threadIdx.x + 0] = row.x;
    out[4 * threadIdx.x + 1] = row.y;
    out[4 * threadIdx.x + 2] = row.z;
    out[4 * threadIdx.x + 3] = row.w;
    atomicMax(&out[130], pending);
    atomicAdd(&out[131], before);
}

// Copies in groups, some of them still under way: the oldest group is there when few enough are left.
__global__ void in_groups(const int *in, int *out)
{
    __shared__ int slots[STAGES][THREADS];
    auto fetch = [&](int chunk) {
        if (chunk < CHUNKS)
            __pipeline_memcpy_async(&slots[chunk % STAGES][threadIdx.x], in + chunk * THREADS + threadIdx.x, 4);
        __pipeline_commit();
    };
    for (int chunk = 0; chunk < STAGES - 1; chunk++) fetch(chunk);
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        fetch(chunk + STAGES - 1);
        __pipeline_wait_prior(STAGES - 1);
        __syncthreads();
        out[chunk * THREADS + threadIdx.x] = slots[chunk % STAGES][THREADS - 1 - threadIdx.x];
        __syncthreads();
    }
}

// A pipeline of the block, with barriers of its own in shared memory.
__global__ void in_stages(const int *in, int *out)
{
    __shared__ int slots[STAGES][THREADS];
    typedef cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES> stages;
    __shared__ alignas(stages) char place[sizeof(stages)];
    auto block = cooperative_groups::this_thread_block();
    auto pipeline = cuda::make_pipeline(block, new (place) stages);
    int fetched = 0;
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        for (; fetched < CHUNKS && fetched < chunk + STAGES; fetched++) {
            pipeline.producer_acquire();
            cuda::memcpy_async(block, slots[fetched % STAGES], in + fetched * THREADS, 4 * THREADS, pipeline);
            pipeline.producer_commit();
        }
        pipeline.consumer_wait();
        block.sync();
        out[chunk * THREADS + threadIdx.x] = slots[chunk % STAGES][THREADS - 1 - threadIdx.x];
        pipeline.consumer_release();
    }
}

static int host[CHUNKS * THREADS], back[CHUNKS * THREADS];

template <typename Kernel> static void run(Kernel kernel, int threads, const int *in, int *out)
{
    OK(cudaMemset(out, 0, sizeof host));
    kernel<<<1, threads>>>(in, out);
    OK(cudaGetLastError());
    OK(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
}

int main()
{
    int *in, *out;
    for (int i = 0; i < CHUNKS * THREADS; i++) host[i] = 7 * i + 3;
    OK(cudaMalloc(&in, sizeof host));
    OK(cudaMalloc(&out, sizeof host));
    OK(cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice));

    run(turn_round, THREADS, in, out);
    for (int i = 0; i < THREADS / 2; i++) REQUIRE(back[i] == host[THREADS / 2 + i]);
    for (int i = THREADS / 2; i < THREADS; i++) REQUIRE(back[i] == host[THREADS - 1 - i]);

    run(hand_over, THREADS, in, out);
    for (int i = 0; i < 32 * CHUNKS; i++) REQUIRE(back[i] == host[i / 32 * 32 + 31 - i % 32] + i / 32);

    OK(cudaMemset(out, 0, sizeof host));
    by_hand<<<1, 32>>>((const int4 *)in, out);
    OK(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 128; i++) {
        int from = 31 - i / 4;
        REQUIRE(back[i] == (from % 2 == 0 && i % 4 >= 2 ? 0 : host[4 * from + i % 4]));
    }
    // The counts before each arrival: five, then two. No thread found the phase after the first one over.
    REQUIRE(back[128] == 5 && back[129] == 2 && back[130] > 0 && back[130] <= 64 && back[131] == 0);

    run(in_groups, THREADS, in, out);
    for (int i = 0; i < CHUNKS * THREADS; i++) REQUIRE(back[i] == host[i / THREADS * THREADS + THREADS - 1 - i % THREADS]);
    run(in_stages, THREADS, in, out);
    for (int i = 0; i < CHUNKS * THREADS; i++) REQUIRE(back[i] == host[i / THREADS * THREADS + THREADS - 1 - i % THREADS]);
    return passed();
}
