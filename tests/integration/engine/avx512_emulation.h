// Stands in for the AVX512_BF16 instructions that avx512.h uses, on CPUs that lack them: compile with `-include` of this
// file, for AVX2 and FMA. What has no instructions still has types: compilers keep a __m512 in two halves.
//
// So the code for AVX512_BF16 (its tiles of 12 rows, its pairs, its masks, its layout of gates) is run by the tests of
// any machine. What it cannot show is speed, and what CPUs do with denormals: these products keep them.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

template <class F>
inline __m512 emulated_each(F value_of) {
  __m512 result;
  for (int i = 0; i < 16; i++) result[i] = value_of(i);
  return result;
}

template <class To, class From>
inline To emulated_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline float emulated_widen(uint16_t value) { return emulated_bits<float>((uint32_t)value << 16); }

// To nearest, ties to even; a NaN stays one.
inline uint16_t emulated_narrow(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const uint32_t bits = emulated_bits<uint32_t>(value);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <class T>
inline T emulated_load(const void* from) {
  T to;
  std::memcpy(&to, from, sizeof to);
  return to;
}

template <class T>
inline void emulated_store(void* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

inline __m512i emulated_widen_u16(__m256i values) {
  uint16_t narrow[16];
  uint32_t wide[16];
  std::memcpy(narrow, &values, sizeof narrow);
  for (int i = 0; i < 16; i++) wide[i] = narrow[i];
  return emulated_load<__m512i>(wide);
}

inline __m512i emulated_widen_i8(__m128i values) {
  int32_t wide[16];
  const auto narrow = (const int8_t*)&values;
  for (int i = 0; i < 16; i++) wide[i] = narrow[i];
  return emulated_load<__m512i>(wide);
}

inline __m512 emulated_float(__m512i values) {
  int32_t words[16];
  std::memcpy(words, &values, sizeof words);
  return emulated_each([&](int i) { return (float)words[i]; });
}

inline __m512i emulated_shift_left(__m512i values, int count) {
  uint32_t words[16];
  std::memcpy(words, &values, sizeof words);
  for (uint32_t& word : words) word <<= count;
  return emulated_load<__m512i>(words);
}

inline __m512i emulated_set1_epi32(int value) {
  int words[16];
  for (int& word : words) word = value;
  return emulated_load<__m512i>(words);
}

inline __m256i emulated_narrow_all(__m512 values) {
  uint16_t narrow[16];
  for (int i = 0; i < 16; i++) narrow[i] = emulated_narrow(values[i]);
  return emulated_load<__m256i>(narrow);
}

inline __m512bh emulated_narrow_two(__m512 high, __m512 low) {
  uint16_t narrow[32];
  for (int i = 0; i < 16; i++) narrow[i] = emulated_narrow(low[i]), narrow[16 + i] = emulated_narrow(high[i]);
  return emulated_load<__m512bh>(narrow);
}

// The order of the instruction: the second of each pair first, each product added by a fused multiply.
inline __m512 emulated_dot_pairs(__m512 sums, __m512bh a, __m512bh b) {
  uint16_t left[32], right[32];
  std::memcpy(left, &a, sizeof left);
  std::memcpy(right, &b, sizeof right);
  return emulated_each([&](int i) {
    const float second = std::fmaf(emulated_widen(left[2 * i + 1]), emulated_widen(right[2 * i + 1]), sums[i]);
    return std::fmaf(emulated_widen(left[2 * i]), emulated_widen(right[2 * i]), second);
  });
}

inline float emulated_sum(__m512 values) {
  float sum = 0;
  for (int i = 0; i < 16; i++) sum += values[i];
  return sum;
}

inline float emulated_highest(__m512 values) {
  float highest = values[0];
  for (int i = 1; i < 16; i++) highest = values[i] > highest ? values[i] : highest;
  return highest;
}

}  // namespace

#define __AVX512BF16__ 1
#define _mm512_setzero_ps() (__m512{})
#define _mm512_set1_ps(x) emulated_each([&](int) { return x; })
#define _mm512_set1_epi32(x) emulated_set1_epi32(x)
#define _mm512_loadu_ps(p) emulated_load<__m512>(p)
#define _mm512_loadu_si512(p) emulated_load<__m512i>(p)
#define _mm512_storeu_ps(p, v) emulated_store(p, v)
#define _mm512_castsi512_ps(v) emulated_bits<__m512>(v)
#define _mm512_slli_epi32(v, count) emulated_shift_left(v, count)
#define _mm512_storeu_si512(p, v) emulated_store(p, v)
#define _mm512_cvtepu16_epi32(v) emulated_widen_u16(v)
#define _mm512_cvtepi8_epi32(v) emulated_widen_i8(v)
#define _mm512_cvtepi32_ps(v) emulated_float(v)
#define _mm512_cvtne2ps_pbh(high, low) emulated_narrow_two(high, low)
#define _mm512_cvtneps_pbh(v) emulated_narrow_all(v)
#define _mm512_add_ps(a, b) ((a) + (b))
#define _mm512_sub_ps(a, b) ((a) - (b))
#define _mm512_mul_ps(a, b) ((a) * (b))
#define _mm512_div_ps(a, b) ((a) / (b))
// A NaN in either place leaves the second operand, as the instructions do.
#define _mm512_max_ps(a, b) emulated_each([&](int i) { return a[i] > b[i] ? a[i] : b[i]; })
#define _mm512_min_ps(a, b) emulated_each([&](int i) { return a[i] < b[i] ? a[i] : b[i]; })
#define _mm512_fmadd_ps(a, b, c) emulated_each([&](int i) { return std::fmaf(a[i], b[i], c[i]); })
#define _mm512_fnmadd_ps(a, b, c) emulated_each([&](int i) { return std::fmaf(-a[i], b[i], c[i]); })
#define _mm512_roundscale_ps(a, places) emulated_each([&](int i) { return std::nearbyint(a[i]); })
#define _mm512_scalef_ps(a, n) emulated_each([&](int i) { return std::ldexp(a[i], (int)std::floor(n[i])); })
#define _mm512_mask_mov_ps(other, mask, v) emulated_each([&](int i) { return mask >> i & 1 ? v[i] : other[i]; })
#define _mm512_reduce_add_ps(v) emulated_sum(v)
#define _mm512_reduce_max_ps(v) emulated_highest(v)
#define _mm512_dpbf16_ps(sums, a, b) emulated_dot_pairs(sums, a, b)
