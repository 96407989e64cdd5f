// AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

namespace hr {

using floats = __m256;
using bits = __m256i;

HR_INLINE floats zero() { return _mm256_setzero_ps(); }
HR_INLINE floats set1(float x) { return _mm256_set1_ps(x); }
HR_INLINE floats load(const float* p) { return _mm256_loadu_ps(p); }
HR_INLINE void store(float* p, floats v) { _mm256_storeu_ps(p, v); }
HR_INLINE floats add(floats a, floats b) { return _mm256_add_ps(a, b); }
HR_INLINE floats sub(floats a, floats b) { return _mm256_sub_ps(a, b); }
HR_INLINE floats mul(floats a, floats b) { return _mm256_mul_ps(a, b); }
HR_INLINE floats div(floats a, floats b) { return _mm256_div_ps(a, b); }
HR_INLINE floats fmadd(floats a, floats b, floats c) { return _mm256_fmadd_ps(a, b, c); }
HR_INLINE floats fnmadd(floats a, floats b, floats c) { return _mm256_fnmadd_ps(a, b, c); }
// Where a lane of the second operand is NaN, the result is NaN.
HR_INLINE floats min_or_nan(floats a, floats b) { return _mm256_min_ps(a, b); }
HR_INLINE floats max_or_nan(floats a, floats b) { return _mm256_max_ps(a, b); }
HR_INLINE floats magnitude(floats v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }
HR_INLINE floats round_even(floats v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
HR_INLINE floats zero_where_below(floats x, floats limit, floats v) {
    return _mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), v);
}
// 2^n for whole numbers n of [-126, 127].
HR_INLINE floats power_of_two(floats n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}

HR_INLINE bool any_above(floats v, floats limit) {
    return _mm256_movemask_ps(_mm256_cmp_ps(v, limit, _CMP_GT_OQ)) != 0;
}
HR_INLINE bool any_equal(floats a, floats b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)) != 0; }

HR_INLINE floats load_f16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
HR_INLINE void store_f16(uint16_t* p, floats v) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
HR_INLINE floats load_bf16(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
HR_INLINE floats load_u8(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
HR_INLINE floats load_s8(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}

HR_INLINE bits zero_bits() { return _mm256_setzero_si256(); }
HR_INLINE bits load_bits(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
HR_INLINE void store_bits(void* p, bits v) { _mm256_storeu_si256((__m256i*)p, v); }
HR_INLINE bits and_bits(bits a, bits b) { return _mm256_and_si256(a, b); }
HR_INLINE bits or_bits(bits a, bits b) { return _mm256_or_si256(a, b); }
HR_INLINE bits set16(int16_t x) { return _mm256_set1_epi16(x); }
HR_INLINE bits add16(bits a, bits b) { return _mm256_add_epi16(a, b); }
HR_INLINE bits sub16(bits a, bits b) { return _mm256_sub_epi16(a, b); }
HR_INLINE bits add32(bits a, bits b) { return _mm256_add_epi32(a, b); }
template <int N> HR_INLINE bits shift_right16(bits v) { return _mm256_srli_epi16(v, N); }
template <int N> HR_INLINE bits shift_left16(bits v) { return _mm256_slli_epi16(v, N); }
// 16 signed bytes to 16-bit lanes.
HR_INLINE bits widen_s8(const int8_t* p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)); }
// Four bytes to every 32-bit lane.
HR_INLINE bits broadcast32(const void* p) {
    int32_t word;
    std::memcpy(&word, p, sizeof word);
    return _mm256_set1_epi32(word);
}
// 16-bit products of neighbours, added in 32 bits.
HR_INLINE bits multiply_pairs16(bits a, bits b) { return _mm256_madd_epi16(a, b); }
// Products of unsigned by signed bytes, neighbours added in 16 bits; the caller rules out saturation.
HR_INLINE bits multiply_pairs8(bits unsigned_bytes, bits signed_bytes) {
    return _mm256_maddubs_epi16(unsigned_bytes, signed_bytes);
}
HR_INLINE floats to_floats(bits words) { return _mm256_cvtepi32_ps(words); }
// Rounds to nearest even; NaN becomes some number.
HR_INLINE bits to_words(floats v) { return _mm256_cvtps_epi32(v); }
HR_INLINE void store_words_as16(int16_t* p, bits words) {
    const __m128i packed = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i*)p, packed);
}
// Four times eight 32-bit numbers to 32 bytes, in order.
HR_INLINE bits narrow_words(bits a, bits b, bits c, bits d) {
    const bits mixed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
// Of each half of 16 signed bytes: sums of those at places 0 and 1 of each four, and of those at 2 and 3.
HR_INLINE void store_sums_of_bytes(int16_t* p, bits bytes) {
    bits sums = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0x4E));
    sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0xB1));
    const int32_t halves[2] = {_mm256_extract_epi32(sums, 0), _mm256_extract_epi32(sums, 4)};
    std::memcpy(p, halves, sizeof halves);
}
// Swaps the second and third 16-bit number of each four.
HR_INLINE void store_words_as16_crossed(int16_t* p, bits words) {
    const __m128i packed = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i*)p, _mm_shufflehi_epi16(_mm_shufflelo_epi16(packed, 0xD8), 0xD8));
}

// Keeps the compiler from moving work on these accumulators: left alone it loads all inputs first and runs out of
// registers, which halves the speed.
HR_INLINE void hold(bits& a, bits& b) { asm volatile("" : "+x"(a), "+x"(b)); }
HR_INLINE void hold(floats& a, floats& b) { asm volatile("" : "+x"(a), "+x"(b)); }
HR_INLINE void hold(floats& a) { asm volatile("" : "+x"(a)); }

// Adds the lanes in a fixed order: pairs at distance 4, then 2, then 1.
HR_INLINE float sum(floats v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
// Highest lane; a lane that is NaN may be lost.
HR_INLINE float highest(floats v) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

HR_INLINE void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
HR_INLINE void pause() { _mm_pause(); }

}  // namespace hr
