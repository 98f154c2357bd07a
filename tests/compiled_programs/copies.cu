// Pitched and three-dimensional copies and fills, against the same done with loops.
#include "check.h"
#include <string.h>

int main()
{
    // 2-D: a window of 37 x 11 bytes at (5, 3) of a pitched image.
    const int width = 100, height = 20;
    unsigned char image[height][width], back[height][width];
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) image[y][x] = 7 * y + x;
    unsigned char *device;
    size_t pitch;
    OK(cudaMallocPitch((void **)&device, &pitch, width, height));
    REQUIRE(pitch >= width && pitch % 32 == 0);
    OK(cudaMemcpy2D(device, pitch, image, width, width, height, cudaMemcpyHostToDevice));
    OK(cudaMemset2D(device + 3 * pitch + 5, pitch, 0xab, 37, 11));
    OK(cudaMemcpy2D(back, width, device, pitch, width, height, cudaMemcpyDeviceToHost));
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            bool inside = x >= 5 && x < 42 && y >= 3 && y < 14;
            REQUIRE(back[y][x] == (inside ? 0xab : image[y][x]));
        }
    memset(back, 0, sizeof back);
    OK(cudaMemcpy2D(&back[2][10], width, device + 3 * pitch + 5, pitch, 37, 11, cudaMemcpyDeviceToHost));
    REQUIRE(back[2][10] == 0xab && back[12][46] == 0xab && back[13][10] == 0 && back[2][47] == 0 && back[2][9] == 0);
    EXPECT(cudaErrorInvalidPitchValue, cudaMemcpy2D(back, width, device, pitch, width + 1, height, cudaMemcpyDeviceToHost));

    // 3-D: a box of 4 x 3 x 2 ints out of 8 x 6 x 5, device to device, then back.
    const int dx = 8, dy = 6, dz = 5;
    int volume[dz][dy][dx], box[2][3][4];
    for (int i = 0; i < dx * dy * dz; i++) (&volume[0][0][0])[i] = i;
    cudaExtent all = make_cudaExtent(dx * sizeof(int), dy, dz), part = make_cudaExtent(4 * sizeof(int), 3, 2);
    cudaPitchedPtr from, to;
    OK(cudaMalloc3D(&from, all));
    OK(cudaMalloc3D(&to, all));
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(volume, dx * sizeof(int), dx, dy);
    copy.dstPtr = from;
    copy.extent = all;
    copy.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&copy));

    OK(cudaMemset3D(to, 0xff, all));
    copy = {};
    copy.srcPtr = from;
    copy.srcPos = make_cudaPos(2 * sizeof(int), 1, 3);
    copy.dstPtr = to;
    copy.dstPos = make_cudaPos(0, 2, 1);
    copy.extent = part;
    copy.kind = cudaMemcpyDeviceToDevice;
    OK(cudaMemcpy3DAsync(&copy, 0));

    copy = {};
    copy.srcPtr = to;
    copy.srcPos = make_cudaPos(0, 2, 1);
    copy.dstPtr = make_cudaPitchedPtr(box, 4 * sizeof(int), 4, 3);
    copy.extent = part;
    copy.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&copy));
    for (int z = 0; z < 2; z++)
        for (int y = 0; y < 3; y++)
            for (int x = 0; x < 4; x++) REQUIRE(box[z][y][x] == volume[z + 3][y + 1][x + 2]);
    copy.srcPos = make_cudaPos(4 * sizeof(int), 2, 1);
    OK(cudaMemcpy3D(&copy));
    REQUIRE(box[0][0][0] == -1 && box[1][2][3] == -1);

    OK(cudaFree(device));
    OK(cudaFree(from.ptr));
    OK(cudaFree(to.ptr));
    return passed();
}
