// The micro-kernel: a few rows times some columns of a panel.
#pragma once

#include <type_traits>
#include <utility>

#include "int8.h"

namespace {

template <int R>
constexpr int64_t kColumns = kVectors<R> * kWidth;  // of one pass over a panel

// sums[R][kColumns] = (kAdd: sums +) a[R][0..num_k) times kColumns columns of a panel; meanwhile, with kPrefetch, brings
// in what lies `ahead` elements further on. A function of its own, for the sake of the registers.
template <int R, bool kAdd, bool kPrefetch, class W>
__attribute__((noinline)) void tile(const Act* a, int64_t lda, const W* b, int64_t num_k, float* sums,
                                    int64_t ahead) {
  Vec acc[R][kVectors<R>];
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int c = 0; c < kVectors<R>; c++) acc[r][c] = kAdd ? load(sums + r * kColumns<R> + c * kWidth) : zero();
  accumulate<R, kPrefetch>(a, lda, b, num_k, acc, ahead);
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int c = 0; c < kVectors<R>; c++) store(sums + r * kColumns<R> + c * kWidth, acc[r][c]);
}

// Calls f(integral_constant<rows>) for 1 to kMaxRows rows.
template <int R = kMaxRows, class F>
inline void with_rows(int64_t rows, F&& f) {
  if constexpr (R == 1) {
    f(std::integral_constant<int, 1>{});
  } else {
    if (rows == R) return f(std::integral_constant<int, R>{});
    with_rows<R - 1>(rows, std::forward<F>(f));
  }
}

}  // namespace
