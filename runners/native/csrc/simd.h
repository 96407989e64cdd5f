// Vectors of 8 floats or 256 bits of integers, and the few operations the kernels are written in.
//
// One implementation per dispatch target; the build defines which. Every kernel uses these names only, so that one
// source serves all targets. A target gives equal results for equal inputs, whatever surrounds them; two targets may
// differ in the last bits (the portable one has no fused multiply-add).
#pragma once

#include <cstdint>
#include <cstring>

#define HR_INLINE inline __attribute__((always_inline))

#if defined(HR_TARGET_AVX2)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

namespace hr {

constexpr int LANES = 8;

// e^x to about 2 units in the last place; exactly 0 below -87.3, so that masked scores weigh nothing; NaN stays NaN.
HR_INLINE floats exp(floats x) {
    const floats lowest = set1(-87.3f);
    const floats clamped = max_or_nan(lowest, min_or_nan(set1(88.0f), x));
    const floats n = round_even(mul(clamped, set1(1.44269504088896341f)));
    floats r = fnmadd(n, set1(0.693359375f), clamped);
    r = fnmadd(n, set1(-2.12194440e-4f), r);
    floats p = set1(1.9875691500e-4f);
    p = fmadd(p, r, set1(1.3981999507e-3f));
    p = fmadd(p, r, set1(8.3334519073e-3f));
    p = fmadd(p, r, set1(4.1665795894e-2f));
    p = fmadd(p, r, set1(1.6666665459e-1f));
    p = fmadd(p, r, set1(5.0000001201e-1f));
    p = add(fmadd(p, mul(r, r), r), set1(1.0f));
    return zero_where_below(x, lowest, mul(p, power_of_two(n)));
}

}  // namespace hr
