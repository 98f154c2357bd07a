/* A libcuda.so.1 without a GPU: what is left in an image by a toolkit's stub or by another machine's driver. */
int cuInit(unsigned flags) { return (void)flags, 100; /* CUDA_ERROR_NO_DEVICE */ }
int nvmlInit_v2(void) { return 9; /* NVML_ERROR_DRIVER_NOT_LOADED */ }
