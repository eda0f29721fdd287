// int8 weights: how they become what activations are multiplied by.
//
// A weight w is multiplied as w * kInt8Unit, which bfloat16 and float32 hold exactly. So it is the same, bit for bit,
// whether the micro-kernel converts weights as it goes (few rows) or a panel is converted before (many rows).
#pragma once

#include "isa.h"

namespace {

#if defined(__AVX512BF16__)

constexpr float kInt8Unit = 1;

// 32 weights, in their order.
inline __m512bh load_pairs(const int8_t* b) {
  const __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)b));
  const __m512i high = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(b + kWidth)));
  return _mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
}
inline void convert_pairs(const int8_t* b, bf16* out) { _mm512_storeu_si512(out, (__m512i)load_pairs(b)); }

template <int R, bool kPrefetch>
inline __attribute__((always_inline)) void accumulate(const Act* a, int64_t lda, const int8_t* b, int64_t num_k,
                                                      Vec (&acc)[R][kVectors<R>], int64_t ahead) {
  for (int64_t k = 0; k < num_k; k += 2, b += 2 * kPanel) {
    const __m512bh b0 = load_pairs(b), b1 = load_pairs(b + kPanel);
    if constexpr (kPrefetch) _mm_prefetch(b + ahead, _MM_HINT_T0);
    add_products<R>(a + k, lda, b0, b1, acc);
  }
}

#else  // AVX2

// One shuffle brings weights to the highest bytes of integers, where they have their signs. Sums that are so much larger
// overflow for activations above 1e26.
constexpr float kInt8Unit = 1 << 24;

alignas(32) const int8_t kFirstToTop[32] = {-1, -1, -1, 0, -1, -1, -1, 2,  -1, -1, -1, 4,  -1, -1, -1, 6,
                                            -1, -1, -1, 8, -1, -1, -1, 10, -1, -1, -1, 12, -1, -1, -1, 14};
alignas(32) const int8_t kSecondToTop[32] = {-1, -1, -1, 1, -1, -1, -1, 3,  -1, -1, -1, 5,  -1, -1, -1, 7,
                                             -1, -1, -1, 9, -1, -1, -1, 11, -1, -1, -1, 13, -1, -1, -1, 15};

// The first or the second of 8 pairs of weights.
inline Vec load_of_pairs(const int8_t* b, bool second) {
  const __m256i pairs = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)b));
  const __m256i places = _mm256_load_si256((const __m256i*)(second ? kSecondToTop : kFirstToTop));
  return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(pairs, places));
}
inline void convert_pairs(const int8_t* b, bf16* out) {
  const __m256i first = _mm256_srli_epi32(_mm256_castps_si256(load_of_pairs(b, false)), 16);
  const __m256i second = _mm256_castps_si256(load_of_pairs(b, true));
  _mm256_storeu_si256((__m256i*)out, _mm256_or_si256(first, second));
}

template <int R, bool kPrefetch>
inline __attribute__((always_inline)) void accumulate(const Act* a, int64_t lda, const int8_t* b, int64_t num_k,
                                                      Vec (&acc)[R][kVectors<R>], int64_t ahead) {
  for (int64_t k = 0; k < num_k; k += 2, b += 2 * kPanel) {
    if constexpr (kPrefetch) _mm_prefetch(b + ahead, _MM_HINT_T0);
#pragma GCC unroll 2
    for (int second = 0; second < 2; second++) {
      Vec weights[kVectors<R>];
#pragma GCC unroll 4
      for (int c = 0; c < kVectors<R>; c++) weights[c] = load_of_pairs(b + c * 2 * kWidth, second);
      add_products<R>(a + k + second, lda, weights, acc);
    }
  }
}

#endif

// The first num_k of a panel (or of what is left of it) as bf16; meanwhile brings in what lies `ahead` weights further on.
inline void convert(const int8_t* w, int64_t num_k, bf16* out, int64_t ahead) {
  for (int64_t i = 0; i < num_k * kPanel; i += 2 * kWidth) {
    convert_pairs(w + i, out + i);
    _mm_prefetch(w + i + ahead, _MM_HINT_T0);
  }
}

}  // namespace
