/* What `remotegpu run` has programs find in place of nvJitLink, whose result, machine code, the software GPU does not
 * execute. Its functions have a version and are no default ones: a program that was linked with nvJitLink finds them and
 * is told, and one that looks for them by name (numba, cuda.core) finds none and links with the driver. */
#include <string.h>
#include <unistd.h>

enum { ERROR_INTERNAL = 6 };

static int refuse(void)
{
    static const char line[] = "remotegpu: software GPU: nvJitLink (link-time optimisation) is not provided, because it "
                               "makes machine code; link PTX with cuLinkCreate, or use a real GPU\n";
    static int told;
    if (!__atomic_exchange_n(&told, 1, __ATOMIC_RELAXED) && write(STDERR_FILENO, line, strlen(line)) < 0) return ERROR_INTERNAL;
    return ERROR_INTERNAL;
}

#define STRING(text) #text
#define VALUE(macro) STRING(macro)
#define NAMED(name) \
    __asm__(".globl stand_in_" #name "\n.set stand_in_" #name ", refuse\n.symver stand_in_" #name "," #name "@" VALUE(SONAME));
#define OF_RELEASE(name, release) NAMED(__##name##_##release)
#define FUNCTION(name)                                                                                            \
    NAMED(name)                                                                                                   \
    OF_RELEASE(name, 12_0) OF_RELEASE(name, 12_1) OF_RELEASE(name, 12_2) OF_RELEASE(name, 12_3)                   \
    OF_RELEASE(name, 12_4) OF_RELEASE(name, 12_5) OF_RELEASE(name, 12_6) OF_RELEASE(name, 12_7)                   \
    OF_RELEASE(name, 12_8) OF_RELEASE(name, 12_9) OF_RELEASE(name, 13_0) OF_RELEASE(name, 13_1)                   \
    OF_RELEASE(name, 13_2) OF_RELEASE(name, 13_3) OF_RELEASE(name, 13_4) OF_RELEASE(name, 13_5)                   \
    OF_RELEASE(name, 13_6) OF_RELEASE(name, 13_7) OF_RELEASE(name, 13_8) OF_RELEASE(name, 13_9)

/* The names in the assembler are not seen by the compiler. */
__attribute__((used)) static int (*const keep)(void) = refuse;

FUNCTION(nvJitLinkVersion)
FUNCTION(nvJitLinkCreate)
FUNCTION(nvJitLinkDestroy)
FUNCTION(nvJitLinkAddData)
FUNCTION(nvJitLinkAddFile)
FUNCTION(nvJitLinkComplete)
FUNCTION(nvJitLinkGetLinkedCubinSize)
FUNCTION(nvJitLinkGetLinkedCubin)
FUNCTION(nvJitLinkGetLinkedPtxSize)
FUNCTION(nvJitLinkGetLinkedPtx)
FUNCTION(nvJitLinkGetLinkedLTOIRSize)
FUNCTION(nvJitLinkGetLinkedLTOIR)
FUNCTION(nvJitLinkGetErrorLogSize)
FUNCTION(nvJitLinkGetErrorLog)
FUNCTION(nvJitLinkGetInfoLogSize)
FUNCTION(nvJitLinkGetInfoLog)
