// The primitives of AVX512_BF16: vectors of 16 floats, and products of pairs of bfloat16.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "ahead.h"
#include "types.h"

namespace {

using Vec = __m512;
using Act = bf16;  // activations: what is multiplied by weights
constexpr int kWidth = 16, kMaxRows = 12;
template <int R>
constexpr int kVectors = 2;  // columns of one pass over a panel, in vectors
constexpr bool kSharesPrefetch = false;  // the first strip of rows brings in the whole next panel

inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec splat(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline Vec load(const bf16* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
inline void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
inline void store(bf16* p, Vec v) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(v)); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec fnma(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }
inline Vec round(Vec a) { return _mm512_roundscale_ps(a, 0); }
inline Vec times_power_of_two(Vec p, Vec n) { return _mm512_scalef_ps(p, n); }
inline float sum(Vec v) { return _mm512_reduce_add_ps(v); }
inline float highest(Vec v) { return _mm512_reduce_max_ps(v); }
// `v` in the first `count` places, `other` behind.
inline Vec keep_first(Vec v, int64_t count, Vec other) {
  return _mm512_mask_mov_ps(other, (__mmask16)((1u << count) - 1), v);
}

// acc[r] += a[r][0..2) * the pairs of 32 columns, for each row.
template <int R>
ALWAYS_INLINE void add_products(const Act* a, int64_t lda, __m512bh b0, __m512bh b1,
                                                        Vec (&acc)[R][kVectors<R>]) {
  unroll<R>([&](auto r) INLINED {
    int pair;
    std::memcpy(&pair, a + r() * lda, sizeof pair);
    const auto value = (__m512bh)_mm512_set1_epi32(pair);
    acc[r()][0] = _mm512_dpbf16_ps(acc[r()][0], value, b0);
    acc[r()][1] = _mm512_dpbf16_ps(acc[r()][1], value, b1);
  });
}

// 32 weights, in their order.
inline __m512bh load_pairs(const bf16* b) { return (__m512bh)_mm512_loadu_si512(b); }

// int8 weights are multiplied as they are.
constexpr float kInt8Unit = 1;

inline __m512bh load_pairs(const int8_t* b) {
  const __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)b));
  const __m512i high = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(b + kWidth)));
  return _mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
}
inline void convert_pairs(const int8_t* b, bf16* out) { _mm512_storeu_si512(out, (__m512i)load_pairs(b)); }

// acc[R] += a[R][0..num_k) times columns of a panel, W bf16 or int8.
template <int R, bool kPrefetch, class W>
ALWAYS_INLINE void accumulate(const Act* a, int64_t lda, const W* b, int64_t num_k,
                                                      Vec (&acc)[R][kVectors<R>], Ahead& ahead) {
  for (int64_t k = 0; k < num_k; k += 2, b += 2 * kPanel) {
    const __m512bh b0 = load_pairs(b), b1 = load_pairs(b + kPanel);
    if constexpr (kPrefetch) ahead.fetch<sizeof(W)>();
    add_products<R>(a + k, lda, b0, b1, acc);
  }
}

}  // namespace
