// Copies that name devices, on a machine that may have one: from a device to itself is a copy like any other.
#include "check.h"

int main()
{
    int devices, can = -1, host[256], back[256], *from, *to;
    OK(cudaGetDeviceCount(&devices));
    for (int i = 0; i < 256; i++) host[i] = i * i;
    OK(cudaMalloc(&from, sizeof host));
    OK(cudaMalloc(&to, sizeof host));
    OK(cudaMemcpy(from, host, sizeof host, cudaMemcpyHostToDevice));

    OK(cudaMemset(to, 0, sizeof host));
    OK(cudaMemcpyPeer(to, 0, from, 0, sizeof host));
    OK(cudaMemcpy(back, to, sizeof back, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 256; i++) REQUIRE(back[i] == i * i);

    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMemsetAsync(to, 0, sizeof host, stream));
    OK(cudaMemcpyPeerAsync(to + 128, 0, from, 0, 128 * sizeof(int), stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(back, to, sizeof back, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 256; i++) REQUIRE(back[i] == (i < 128 ? 0 : (i - 128) * (i - 128)));

    cudaMemcpy3DPeerParms box = {};
    box.srcPtr = make_cudaPitchedPtr(from, 64, 16, 16);
    box.dstPtr = make_cudaPitchedPtr(to, 64, 16, 16);
    box.srcPos = make_cudaPos(4 * sizeof(int), 2, 0);
    box.extent = make_cudaExtent(8 * sizeof(int), 4, 1);
    OK(cudaMemset(to, 0xff, sizeof host));
    OK(cudaMemcpy3DPeer(&box));
    OK(cudaMemcpy(back, to, sizeof back, cudaMemcpyDeviceToHost));
    for (int y = 0; y < 16; y++)
        for (int x = 0; x < 16; x++) {
            int source = (y + 2) * 16 + x + 4;
            REQUIRE(back[y * 16 + x] == (x < 8 && y < 4 ? source * source : -1));
        }

    OK(cudaDeviceCanAccessPeer(&can, 0, 0));
    REQUIRE(can == 0);
    FAILS(cudaDeviceEnablePeerAccess(0, 0));
    cudaGetLastError();
    EXPECT(cudaErrorInvalidDevice, cudaMemcpyPeer(to, devices, from, 0, 4));
    return passed();
}
