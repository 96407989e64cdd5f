// Plain C++ on the compiler's vector extension: any machine, and the second opinion on the other targets.
#pragma once

#include <cmath>

namespace hr {

typedef float floats __attribute__((vector_size(32)));
typedef int32_t words __attribute__((vector_size(32)));
typedef uint32_t uwords __attribute__((vector_size(32)));
typedef int16_t shorts __attribute__((vector_size(32)));
typedef uint16_t ushorts __attribute__((vector_size(32)));
typedef int64_t bits __attribute__((vector_size(32)));

HR_INLINE floats zero() { return floats{}; }
HR_INLINE floats set1(float x) { return floats{x, x, x, x, x, x, x, x}; }
HR_INLINE floats load(const float* p) {
    floats v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
HR_INLINE void store(float* p, floats v) { std::memcpy(p, &v, sizeof v); }
HR_INLINE floats add(floats a, floats b) { return a + b; }
HR_INLINE floats sub(floats a, floats b) { return a - b; }
HR_INLINE floats mul(floats a, floats b) { return a * b; }
HR_INLINE floats div(floats a, floats b) { return a / b; }
HR_INLINE floats fmadd(floats a, floats b, floats c) { return a * b + c; }
HR_INLINE floats fnmadd(floats a, floats b, floats c) { return c - a * b; }
// Where a lane of the second operand is NaN, the result is NaN.
HR_INLINE floats min_or_nan(floats a, floats b) { return a < b ? a : b; }
HR_INLINE floats max_or_nan(floats a, floats b) { return a > b ? a : b; }
HR_INLINE floats magnitude(floats v) { return (floats)((words)v & 0x7FFFFFFF); }
HR_INLINE floats round_even(floats v) {
    for (int i = 0; i < 8; ++i) v[i] = std::nearbyintf(v[i]);
    return v;
}
HR_INLINE floats zero_where_below(floats x, floats limit, floats v) { return (floats)((words)v & ~(x < limit)); }
// 2^n for whole numbers n of [-126, 127]; anything else gives some number.
HR_INLINE floats power_of_two(floats n) {
    words biased{};
    for (int i = 0; i < 8; ++i) biased[i] = n[i] >= -126 && n[i] <= 127 ? (int32_t)n[i] + 127 : 0;
    return (floats)(biased << 23);
}

HR_INLINE bool any(words v) {
    int32_t all = 0;
    for (int i = 0; i < 8; ++i) all |= v[i];
    return all != 0;
}
HR_INLINE bool any_above(floats v, floats limit) { return any(v > limit); }
HR_INLINE bool any_equal(floats a, floats b) { return any(a == b); }

HR_INLINE float f16_to_f32(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, mantissa = half & 0x3FF;
    uint32_t word;
    if (exponent == 31) {
        word = sign | 0x7F800000 | mantissa << 13;
    } else if (exponent != 0) {
        word = sign | (exponent + 112) << 23 | mantissa << 13;
    } else {
        const float small = (float)mantissa * 0x1p-24f;
        std::memcpy(&word, &small, sizeof word);
        word |= sign;
    }
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
}
HR_INLINE uint16_t f32_to_f16(float value) {
    uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    const uint16_t sign = (uint16_t)(word >> 16 & 0x8000);
    word &= 0x7FFFFFFF;
    if (word > 0x7F800000) return sign | 0x7E00;
    if (word >= 0x477FF000) return sign | 0x7C00;
    if (word < 0x38800000) {  // subnormal: adding 0.5 leaves the rounded mantissa in the low bits
        float sum;
        std::memcpy(&sum, &word, sizeof sum);
        sum += 0.5f;
        std::memcpy(&word, &sum, sizeof word);
        return sign | (uint16_t)(word - 0x3F000000);
    }
    return sign | (uint16_t)((word + 0xC8000FFF + (word >> 13 & 1)) >> 13);
}
HR_INLINE floats load_f16(const uint16_t* p) {
    uint16_t half[8];
    std::memcpy(half, p, sizeof half);
    floats v;
    for (int i = 0; i < 8; ++i) v[i] = f16_to_f32(half[i]);
    return v;
}
HR_INLINE void store_f16(uint16_t* p, floats v) {
    for (int i = 0; i < 8; ++i) p[i] = f32_to_f16(v[i]);
}
HR_INLINE floats load_bf16(const uint16_t* p) {
    uint16_t half[8];
    std::memcpy(half, p, sizeof half);
    words v;
    for (int i = 0; i < 8; ++i) v[i] = (int32_t)((uint32_t)half[i] << 16);
    return (floats)v;
}
HR_INLINE floats load_u8(const uint8_t* p) {
    floats v;
    for (int i = 0; i < 8; ++i) v[i] = p[i];
    return v;
}
HR_INLINE floats load_s8(const int8_t* p) {
    floats v;
    for (int i = 0; i < 8; ++i) v[i] = p[i];
    return v;
}

HR_INLINE bits zero_bits() { return bits{}; }
HR_INLINE bits load_bits(const void* p) {
    bits v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
HR_INLINE void store_bits(void* p, bits v) { std::memcpy(p, &v, sizeof v); }
HR_INLINE bits and_bits(bits a, bits b) { return a & b; }
HR_INLINE bits or_bits(bits a, bits b) { return a | b; }
HR_INLINE bits set16(int16_t x) { return (bits)(shorts{} + x); }
HR_INLINE bits add16(bits a, bits b) { return (bits)((ushorts)a + (ushorts)b); }
HR_INLINE bits sub16(bits a, bits b) { return (bits)((ushorts)a - (ushorts)b); }
HR_INLINE bits add32(bits a, bits b) { return (bits)((uwords)a + (uwords)b); }
template <int N> HR_INLINE bits shift_right16(bits v) { return (bits)((ushorts)v >> N); }
template <int N> HR_INLINE bits shift_left16(bits v) { return (bits)((ushorts)v << N); }
// 16 signed bytes to 16-bit lanes.
HR_INLINE bits widen_s8(const int8_t* p) {
    shorts v;
    for (int i = 0; i < 16; ++i) v[i] = p[i];
    return (bits)v;
}
// Four bytes to every 32-bit lane.
HR_INLINE bits broadcast32(const void* p) {
    int32_t word;
    std::memcpy(&word, p, sizeof word);
    return (bits)(words{} + word);
}
// 16-bit products of neighbours, added in 32 bits.
HR_INLINE bits multiply_pairs16(bits a, bits b) {
    const words first = ((words)a << 16 >> 16) * ((words)b << 16 >> 16);
    return (bits)(first + ((words)a >> 16) * ((words)b >> 16));
}
// Products of unsigned by signed bytes, neighbours added in 16 bits; the caller rules out saturation.
HR_INLINE bits multiply_pairs8(bits unsigned_bytes, bits signed_bytes) {
    const shorts a = (shorts)unsigned_bytes, b = (shorts)signed_bytes;
    const shorts first = (a & 0xFF) * (b << 8 >> 8);
    return (bits)(first + (shorts)((ushorts)a >> 8) * (b >> 8));
}
HR_INLINE floats to_floats(bits v) { return __builtin_convertvector((words)v, floats); }
// Rounds to nearest even; NaN and what doesn't fit become some number.
HR_INLINE bits to_words(floats v) {
    words rounded{};
    for (int i = 0; i < 8; ++i) {
        const float x = std::nearbyintf(v[i]);
        rounded[i] = x > -2.1e9f && x < 2.1e9f ? (int32_t)x : INT32_MIN;
    }
    return (bits)rounded;
}
HR_INLINE int32_t clamp(int32_t x, int32_t limit) { return x > limit ? limit : x < -limit - 1 ? -limit - 1 : x; }
HR_INLINE void store_words_as16(int16_t* p, bits v) {
    for (int i = 0; i < 8; ++i) p[i] = (int16_t)clamp(((words)v)[i], 32767);
}
// Four times eight 32-bit numbers to 32 bytes, in order.
HR_INLINE bits narrow_words(bits a, bits b, bits c, bits d) {
    const words all[4] = {(words)a, (words)b, (words)c, (words)d};
    int8_t bytes[32];
    for (int i = 0; i < 32; ++i) bytes[i] = (int8_t)clamp(all[i / 8][i % 8], 127);
    return load_bits(bytes);
}
// Of each half of 16 signed bytes: sums of those at places 0 and 1 of each four, and of those at 2 and 3.
HR_INLINE void store_sums_of_bytes(int16_t* p, bits v) {
    int8_t bytes[32];
    store_bits(bytes, v);
    int16_t sums[4] = {};
    for (int i = 0; i < 32; ++i) sums[i / 16 * 2 + i % 4 / 2] = (int16_t)(sums[i / 16 * 2 + i % 4 / 2] + bytes[i]);
    std::memcpy(p, sums, sizeof sums);
}
// Swaps the second and third 16-bit number of each four.
HR_INLINE void store_words_as16_crossed(int16_t* p, bits v) {
    for (int i = 0; i < 8; ++i) p[(i & 4) | (i & 1) << 1 | (i & 2) >> 1] = (int16_t)clamp(((words)v)[i], 32767);
}

// A hint for other targets.
HR_INLINE void hold(bits&, bits&) {}
HR_INLINE void hold(floats&, floats&) {}
HR_INLINE void hold(floats&) {}

// Adds the lanes in a fixed order: pairs at distance 4, then 2, then 1.
HR_INLINE float sum(floats v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }
// Highest lane; a lane that is NaN may be lost.
HR_INLINE float highest(floats v) {
    float best = v[0];
    for (int i = 1; i < 8; ++i) best = v[i] > best ? v[i] : best;
    return best;
}

HR_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
HR_INLINE void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace hr
