/* Copies bytes to the device, to another place there, and back, other ones in each round, until an error comes; prints
   it. `wrong` if they changed, `right` after many rounds. In C, because it is started a thousand times. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 20000, ROUNDS = 50 };
typedef unsigned long long Pointer;

int main(int count, char **arguments) {
    unsigned char sent[BYTES], got[BYTES];
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib || count != 2) { puts("no start"); return 1; }
    srand(atoi(arguments[1]));
    int (*init)(unsigned) = dlsym(lib, "cuInit");
    int (*retain)(void **, int) = dlsym(lib, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = dlsym(lib, "cuCtxSetCurrent");
    int (*alloc)(Pointer *, size_t) = dlsym(lib, "cuMemAlloc_v2");
    int (*there)(Pointer, const void *, size_t) = dlsym(lib, "cuMemcpyHtoD_v2");
    int (*across)(Pointer, Pointer, size_t) = dlsym(lib, "cuMemcpyDtoD_v2");
    int (*back)(void *, Pointer, size_t) = dlsym(lib, "cuMemcpyDtoH_v2");
    int (*synchronize)(void) = dlsym(lib, "cuCtxSynchronize");
    void *context;
    Pointer first, second;
    int code = init(0);
    if (!code) code = retain(&context, 0);
    if (!code) code = set(context);
    if (!code) code = alloc(&first, BYTES);
    if (!code) code = alloc(&second, BYTES);
    for (int round = 0; !code; round++) {
        if (round == ROUNDS) { puts("right"); return 0; }
        for (int i = 0; i < BYTES; i++) sent[i] = rand();
        memset(got, 0, BYTES);
        code = there(first, sent, BYTES);
        if (!code) code = across(second, first, BYTES);
        if (!code) code = back(got, second, BYTES);
        if (!code && memcmp(sent, got, BYTES)) { puts("wrong"); return 0; }
        if (!code) code = synchronize();
    }
    printf("error %d\n", code);
    return 0;
}
