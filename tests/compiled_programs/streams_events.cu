// Order within and between streams, and what events say about it.
#include "check.h"

__global__ void append(int *log, int *length, int value) { log[(*length)++] = value; }

__global__ void spin(long long cycles)
{
    long long start = clock64();
    while (clock64() - start < cycles) {}
}

int main()
{
    int *log, *length, host[8], count;
    OK(cudaMalloc(&log, sizeof host));
    OK(cudaMalloc(&length, sizeof *length));
    OK(cudaMemset(length, 0, sizeof *length));
    OK(cudaDeviceSynchronize());

    cudaStream_t first, second;
    OK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    cudaEvent_t begin, middle, end, untimed;
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&middle));
    OK(cudaEventCreate(&end));
    OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));

    // An event that was never recorded is complete.
    OK(cudaEventQuery(begin));

    OK(cudaEventRecord(begin, first));
    spin<<<1, 1, 0, first>>>(1000000);
    append<<<1, 1, 0, first>>>(log, length, 1);
    OK(cudaEventRecord(middle, first));
    OK(cudaStreamWaitEvent(second, middle, 0));
    append<<<1, 1, 0, second>>>(log, length, 2);
    OK(cudaEventRecord(end, second));
    OK(cudaStreamWaitEvent(first, end, 0));
    append<<<1, 1, 0, first>>>(log, length, 3);
    OK(cudaEventRecord(untimed, first));
    OK(cudaEventSynchronize(untimed));

    OK(cudaMemcpy(&count, length, sizeof count, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(host, log, sizeof host, cudaMemcpyDeviceToHost));
    REQUIRE(count == 3 && host[0] == 1 && host[1] == 2 && host[2] == 3);
    OK(cudaEventQuery(end));
    OK(cudaStreamQuery(first));

    float total, part;
    OK(cudaEventElapsedTime(&total, begin, end));
    OK(cudaEventElapsedTime(&part, begin, middle));
    REQUIRE(part > 0 && total >= part);
    EXPECT(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&total, begin, untimed));

    // Waiting for the legacy stream is waiting for every blocking stream.
    cudaStream_t blocking;
    OK(cudaStreamCreate(&blocking));
    append<<<1, 1, 0, blocking>>>(log, length, 4);
    append<<<1, 1>>>(log, length, 5);
    append<<<1, 1, 0, blocking>>>(log, length, 6);
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(host, log, sizeof host, cudaMemcpyDeviceToHost));
    REQUIRE(host[3] == 4 && host[4] == 5 && host[5] == 6);

    int lowest, highest, priority;
    OK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    REQUIRE(highest <= lowest);
    cudaStream_t urgent;
    OK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, highest));
    OK(cudaStreamGetPriority(urgent, &priority));
    REQUIRE(priority == highest);
    unsigned flags;
    OK(cudaStreamGetFlags(urgent, &flags));
    REQUIRE(flags == cudaStreamNonBlocking);

    cudaStream_t all[] = {first, second, blocking, urgent};
    for (cudaStream_t stream : all) OK(cudaStreamDestroy(stream));
    cudaEvent_t events[] = {begin, middle, end, untimed};
    for (cudaEvent_t event : events) OK(cudaEventDestroy(event));
    return passed();
}
