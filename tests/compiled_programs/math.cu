// Device math against the host's, within the bounds that the CUDA C++ Programming Guide gives (in units of the last place).
#include "check.h"
#include <cmath>

using namespace std;

enum { N = 4096 };

template <typename T> struct Results { T exp, log, sin, cos, tan, pow, sqrt, div, erf, cbrt, fma, hypot, tgamma; };

// The same text for both sides: the host also needs it for long double, which devices do not have.
#define EVALUATE(T, x, r)        \
    r.exp = exp(x);              \
    r.log = log(x);              \
    r.sin = sin(x);              \
    r.cos = cos(x);              \
    r.tan = tan(x);              \
    r.pow = pow(x, T(1.75));     \
    r.sqrt = sqrt(x);            \
    r.div = T(3) / x;            \
    r.erf = erf(x);              \
    r.cbrt = cbrt(x);            \
    r.fma = fma(x, x, T(-1));    \
    r.hypot = hypot(x, T(2));    \
    r.tgamma = tgamma(x);

template <typename T> __global__ void run(const T *x, Results<T> *out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        EVALUATE(T, x[i], out[i])
    }
}

// The host computes in the next wider type, so that its own error does not count.
template <typename T, typename Wide> void compare(const char *name, T got, Wide exact, double bound)
{
    double spacing = nextafter((double)fabs(got), INFINITY) - fabs((double)got);
    if (sizeof(T) == 4) spacing = (double)nextafterf((float)fabs(got), INFINITY) - fabs((double)got);
    double error = fabs((double)((Wide)got - exact)) / spacing;
    if (!(error <= bound + 0.5)) {  // half a unit for rounding the exact value
        fprintf(stderr, "%s: %.17g, not %.17g: %.2f units\n", name, (double)got, (double)exact, error);
        exit(1);
    }
}

template <typename T, typename Wide> void check(const double *bounds)
{
    static T host[N];
    static Results<T> results[N];
    T *x;
    Results<T> *out;
    for (int i = 0; i < N; i++) host[i] = T(0.001) + T(i) * T(20) / N;
    OK(cudaMalloc(&x, sizeof host));
    OK(cudaMalloc(&out, sizeof results));
    OK(cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice));
    run<<<N / 128, 128>>>(x, out);
    OK(cudaGetLastError());
    OK(cudaMemcpy(results, out, sizeof results, cudaMemcpyDeviceToHost));
    for (int i = 0; i < N; i++) {
        const Results<T> &got = results[i];
        Results<Wide> exact;
        Wide wide = host[i];
        EVALUATE(Wide, wide, exact)
        compare("exp", got.exp, exact.exp, bounds[0]);
        compare("log", got.log, exact.log, bounds[1]);
        compare("sin", got.sin, exact.sin, bounds[2]);
        compare("cos", got.cos, exact.cos, bounds[3]);
        compare("tan", got.tan, exact.tan, bounds[4]);
        compare("pow", got.pow, exact.pow, bounds[5]);
        compare("sqrt", got.sqrt, exact.sqrt, bounds[6]);
        compare("div", got.div, exact.div, bounds[7]);
        compare("erf", got.erf, exact.erf, bounds[8]);
        compare("cbrt", got.cbrt, exact.cbrt, bounds[9]);
        compare("fma", got.fma, exact.fma, bounds[10]);
        compare("hypot", got.hypot, exact.hypot, bounds[11]);
        compare("tgamma", got.tgamma, exact.tgamma, bounds[12]);
    }
}

int main()
{
    const double singles[] = {2, 1, 2, 2, 4, 4, 0, 0, 2, 1, 0, 3, 5};
    const double doubles[] = {1, 1, 2, 2, 2, 2, 0, 0, 2, 1, 0, 2, 10};
    check<float, double>(singles);
    check<double, long double>(doubles);
    return passed();
}
