// Output of kernels is there after a wait, also where a question has told before that all is complete.
#include "check.h"

__global__ void greet(int number)
{
    printf("kernel %d\n", number);
}

static void say(int number)
{
    printf("program %d\n", number);
    fflush(stdout);
}

int main()
{
    cudaStream_t stream;
    cudaEvent_t event;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    for (int turn = 0; turn < 3; turn++) {
        greet<<<1, 1, 0, stream>>>(2 * turn);
        OK(cudaEventRecord(event, stream));
        while (cudaEventQuery(event) == cudaErrorNotReady) {
        }
        OK(cudaEventSynchronize(event));
        say(2 * turn);
        greet<<<1, 1, 0, stream>>>(2 * turn + 1);
        while (cudaStreamQuery(stream) == cudaErrorNotReady) {
        }
        OK(cudaStreamSynchronize(stream));
        say(2 * turn + 1);
    }
    return passed();
}
