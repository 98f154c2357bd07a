/* What the programs share: every call is checked, a program prints "ok" if all of it was as it should be. */
#pragma once
#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(condition)                                                              \
    do {                                                                                \
        if (!(condition)) {                                                             \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);   \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

/* A call of the runtime or the driver has to return this code (0 is success in both). */
#define EXPECT(code, call)                                                              \
    do {                                                                                \
        int got_ = (int)(call), want_ = (int)(code);                                    \
        if (got_ != want_) {                                                            \
            fprintf(stderr, "%s:%d: %s: %d, not %d\n", __FILE__, __LINE__, #call, got_, want_); \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

#define OK(call) EXPECT(0, call)

/* A call has to fail, where the documentation leaves open with which code. */
#define FAILS(call) REQUIRE((call) != 0)

static inline int passed(void)
{
    puts("ok");
    return 0;
}
