// The primitives of AVX2 and FMA: vectors of 8 floats; bfloat16 weights are widened as they are multiplied.
#pragma once

#include <immintrin.h>

#include "ahead.h"
#include "types.h"

namespace {

using Vec = __m256;
using Act = float;
constexpr int kWidth = 8, kMaxRows = 6;
template <int R>
constexpr int kVectors = R <= 3 ? 4 : 2;  // columns of one pass over a panel; few rows need more sums to hide latency
// All strips of rows bring in a share of the next panel: cores of this kind cannot have more than some two dozen lines
// under way, and what is being multiplied would wait behind them.
constexpr bool kSharesPrefetch = true;

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

alignas(32) const uint32_t kHighHalves[8] = {0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
                                             0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};

// int8 weights are multiplied as w * kInt8Unit: one shuffle brings them to the highest bytes of integers, where they
// have their signs. Sums that are so much larger overflow for activations above 1e26.
constexpr float kInt8Unit = 1 << 24;

alignas(32) const int8_t kTopOfPairs[2][32] = {
    {-1, -1, -1, 0, -1, -1, -1, 2,  -1, -1, -1, 4,  -1, -1, -1, 6,
     -1, -1, -1, 8, -1, -1, -1, 10, -1, -1, -1, 12, -1, -1, -1, 14},
    {-1, -1, -1, 1, -1, -1, -1, 3,  -1, -1, -1, 5,  -1, -1, -1, 7,
     -1, -1, -1, 9, -1, -1, -1, 11, -1, -1, -1, 13, -1, -1, -1, 15},
};

// The first or the second of 8 pairs of weights.
inline Vec load_of_pairs(const bf16* b, bool second) {
  const Vec pairs = load((const float*)b);
  if (!second) return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
  Vec high;  // as assembly, because compilers else keep the mask in a register, and spill sums
  asm("vandps %2, %1, %0" : "=x"(high) : "x"(pairs), "m"(*(const __m256*)kHighHalves));
  return high;
}
inline Vec load_of_pairs(const int8_t* b, bool second) {
  const __m256i pairs = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)b));
  return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(pairs, _mm256_load_si256((const __m256i*)kTopOfPairs[second])));
}

inline void convert_pairs(const int8_t* b, bf16* out) {
  const __m256i first = _mm256_srli_epi32(_mm256_castps_si256(load_of_pairs(b, false)), 16);
  const __m256i second = _mm256_castps_si256(load_of_pairs(b, true));
  _mm256_storeu_si256((__m256i*)out, _mm256_or_si256(first, second));
}

// sum += a * b. As assembly, because compilers else choose forms that overwrite a or b, and then spill sums.
ALWAYS_INLINE void add_product(Vec& sum, Vec a, Vec b) {
  asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
}

// Three sums += values * the same weights, which `load` puts into %0. Sums of three rows, their values and some weights
// are sixteen registers: all there are, and compilers that see the parts want one more.
#define ADD_TO_THREE(load, ...)                                                                                 \
  do {                                                                                                         \
    Vec weights;                                                                                               \
    asm volatile(load "vfmadd231ps %0, %4, %1\n\tvfmadd231ps %0, %5, %2\n\tvfmadd231ps %0, %6, %3"             \
                 : "=&x"(weights), "+x"(acc[0][c]), "+x"(acc[1][c]), "+x"(acc[2][c])                           \
                 : "x"(values[0]), "x"(values[1]), "x"(values[2]), __VA_ARGS__);                               \
  } while (false)

template <bool kSecond, int c>
ALWAYS_INLINE void add_to_three(const bf16* b, const Vec (&values)[3], Vec (&acc)[3][4]) {
  const auto& pairs = *(const __m256i_u*)b;
  if constexpr (kSecond)
    ADD_TO_THREE("vmovups %7, %0\n\tvandps %8, %0, %0\n\t", "m"(pairs), "m"(*(const __m256*)kHighHalves));
  else
    ADD_TO_THREE("vmovdqu %7, %0\n\tvpslld $16, %0, %0\n\t", "m"(pairs));
}

template <bool kSecond, int c>
ALWAYS_INLINE void add_to_three(const int8_t* b, const Vec (&values)[3], Vec (&acc)[3][4]) {
  ADD_TO_THREE("vbroadcasti128 %7, %0\n\tvpshufb %8, %0, %0\n\tvcvtdq2ps %0, %0\n\t",
               "m"(*(const __m128i_u*)b), "m"(*(const __m256i*)kTopOfPairs[kSecond]));
}
#undef ADD_TO_THREE

// acc[R] += a[R][kSecond], lda apart, times weights of as many pairs as a pass has columns.
template <int R, bool kSecond, class W>
ALWAYS_INLINE void add_products(const Act* a, int64_t lda, const W* b,
                                                        Vec (&acc)[R][kVectors<R>]) {
  if constexpr (R == 3) {
    const Vec values[3] = {_mm256_broadcast_ss(a), _mm256_broadcast_ss(a + lda), _mm256_broadcast_ss(a + 2 * lda)};
    unroll<kVectors<R>>([&](auto c) INLINED { add_to_three<kSecond, c()>(b + c() * 2 * kWidth, values, acc); });
  } else {
    Vec weights[kVectors<R>];
    unroll<kVectors<R>>([&](auto c) INLINED { weights[c()] = load_of_pairs(b + c() * 2 * kWidth, kSecond); });
    unroll<R>([&](auto r) INLINED {
      const Vec value = _mm256_broadcast_ss(a + r() * lda);
      unroll<kVectors<R>>([&](auto c) INLINED { add_product(acc[r()][c()], value, weights[c()]); });
    });
    asm volatile("" ::: "memory");  // what was loaded is loaded again: there is no register to keep it in
  }
}

// acc[R] += a[R][0..num_k) times columns of a panel, W bf16 or int8: the first of each pair of k, then the second.
template <int R, bool kPrefetch, class W>
ALWAYS_INLINE void accumulate(const Act* a, int64_t lda, const W* b, int64_t num_k,
                                                      Vec (&acc)[R][kVectors<R>], Ahead& ahead) {
  for (int64_t k = 0; k < num_k; k += 2, b += 2 * kPanel) {
    if constexpr (kPrefetch) ahead.fetch<kVectors<R> == 4 ? sizeof(W) : 1>();
    add_products<R, false>(a + k, lda, b, acc);
    add_products<R, true>(a + k + 1, lda, b, acc);
  }
}

}  // namespace
