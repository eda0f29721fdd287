// The primitives of AVX2 and FMA: vectors of 8 floats; bfloat16 weights are widened as they are multiplied.
#pragma once

#include <immintrin.h>

#include "types.h"

namespace {

using Vec = __m256;
using Act = float;
constexpr int kWidth = 8, kMaxRows = 6;
template <int R>
constexpr int kVectors = R <= 2 ? 4 : 2;  // few rows need more sums beside each other to hide latency

inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec splat(float x) { return _mm256_set1_ps(x); }
inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline Vec load(const bf16* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
inline void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
// Rounds to nearest, ties to even; a NaN stays one.
inline void store(bf16* p, Vec v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(is_odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i wide = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), is_nan);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(wide, wide), 0x08);
  _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(packed));
}
inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec fnma(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }
inline Vec round(Vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec times_power_of_two(Vec p, Vec n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return mul(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
inline float sum(Vec v) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float highest(Vec v) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
// `v` in the first `count` places, `other` behind.
inline Vec keep_first(Vec v, int64_t count, Vec other) {
  const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), places)));
}

// sum += a * b. As assembly, because compilers else choose forms that overwrite a or b, and then spill sums.
inline __attribute__((always_inline)) void add_product(Vec& sum, Vec a, Vec b) {
  asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
}

// acc[r] += a[r][0] * weights for each row; and what was loaded before is loaded again after.
template <int R>
inline __attribute__((always_inline)) void add_products(const Act* a, int64_t lda, const Vec (&weights)[kVectors<R>],
                                                        Vec (&acc)[R][kVectors<R>]) {
#pragma GCC unroll 6
  for (int r = 0; r < R; r++) {
    const Vec value = _mm256_broadcast_ss(a + r * lda);
#pragma GCC unroll 4
    for (int c = 0; c < kVectors<R>; c++) add_product(acc[r][c], value, weights[c]);
  }
  asm volatile("" ::: "memory");
}

alignas(32) const uint32_t kHighHalves[8] = {0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
                                             0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};

// Sums, weights and one value fill the sixteen registers, so a pair is loaded twice and not kept.
template <int R, bool kPrefetch>
inline __attribute__((always_inline)) void accumulate(const Act* a, int64_t lda, const bf16* b, int64_t num_k,
                                                      Vec (&acc)[R][kVectors<R>], int64_t ahead) {
  for (int64_t k = 0; k < num_k; k += 2, b += 2 * kPanel) {
    if constexpr (kPrefetch) _mm_prefetch(b + ahead, _MM_HINT_T0);
    if constexpr (kPrefetch && kVectors<R> == 4) _mm_prefetch(b + ahead + kPanel, _MM_HINT_T0);
#pragma GCC unroll 2
    for (int second = 0; second < 2; second++) {  // the first of each pair, then the second
      Vec weights[kVectors<R>];
#pragma GCC unroll 4
      for (int c = 0; c < kVectors<R>; c++) {
        const Vec pairs = load((const float*)(b + c * 2 * kWidth));
        weights[c] = second ? _mm256_and_ps(_mm256_load_ps((const float*)kHighHalves), pairs)
                            : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
      }
      add_products<R>(a + k + second, lda, weights, acc);
    }
  }
}

}  // namespace
