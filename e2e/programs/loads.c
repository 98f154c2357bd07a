/* Loads CUDA as any program does; what the loader says is its last word. */
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    if (dlopen("libcuda.so.1", RTLD_NOW)) return puts("loaded"), 0;
    return puts(dlerror()), 1;
}
