// The micro-kernel: a few rows times a panel.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "isa.h"

namespace {

template <class W>
constexpr int64_t kBytesOfPair = 2 * kPanel * sizeof(W);  // a pair of k of a panel
template <int R>
constexpr int64_t kColumns = kVectors<R> * kWidth;  // of one pass over a panel
template <int R>
constexpr int kPasses = kPanel / kColumns<R>;

// Sums of one pass, in registers.
template <int R>
struct Sums {
  Vec acc[R][kVectors<R>];

  ALWAYS_INLINE void clear() {
    each([](Vec& sum, int64_t, int64_t) INLINED { sum = zero(); });
  }
  ALWAYS_INLINE void load_from(const float* sums, int64_t stride) {
    each([&](Vec& sum, int64_t r, int64_t column) INLINED { sum = load(sums + r * stride + column); });
  }
  ALWAYS_INLINE void store_to(float* sums, int64_t stride) {
    each([&](Vec& sum, int64_t r, int64_t column) INLINED { store(sums + r * stride + column, sum); });
  }

 private:
  // f(vector, row, column).
  template <class F>
  ALWAYS_INLINE void each(F f) {
    unroll<R>([&](auto r) INLINED {
      unroll<kVectors<R>>([&](auto c) INLINED { f(acc[r()][c()], r(), c() * kWidth); });
    });
  }
};

// sums[R][kPanel], rows `stride` apart, = (kAdd: sums +) a[R][0..num_k), rows lda apart, times a panel; with kPrefetch,
// brings in what is ahead. A function of its own, for the sake of the registers.
template <int R, bool kAdd, bool kPrefetch, class W>
__attribute__((noinline)) void tile(const Act* a, int64_t lda, const W* panel, int64_t num_k, float* sums,
                                    int64_t stride, Ahead& ahead) {
  Ahead mine = ahead;  // a copy that can live in registers
  for (int pass = 0; pass < kPasses<R>; pass++) {
    Sums<R> part;
    if constexpr (kAdd)
      part.load_from(sums + pass * kColumns<R>, stride);
    else
      part.clear();
    accumulate<R, kPrefetch>(a, lda, panel + 2 * pass * kColumns<R>, num_k, part.acc, mine);
    part.store_to(sums + pass * kColumns<R>, stride);
  }
  ahead = mine;
}

// The panels of a row's blocks, which follow each other along k.
struct BlockPanels {
  const bf16* first;     // the panel of block 0
  int64_t block_stride;  // values from a block's to the next one's
  const int64_t* blocks;

  const bf16* operator[](int64_t i) const { return first + blocks[i] * block_stride; }
};

// sums[R][kPanel], rows `stride` apart, += a[R][0..num_k) times the panels of blocks, kPanel of k from each. With
// kPrefetch, brings in the next block's panel, and last the panel behind the first one.
template <int R, bool kPrefetch>
__attribute__((noinline)) void tile_of_blocks(const Act* a, int64_t lda, const BlockPanels panels, int64_t num_k,
                                              float* sums, int64_t stride) {
  for (int pass = 0; pass < kPasses<R>; pass++) {
    const int64_t column = 2 * pass * kColumns<R>;
    Sums<R> part;
    part.load_from(sums + pass * kColumns<R>, stride);
    for (int64_t k = 0; k < num_k; k += kPanel) {
      const bf16* next = k + kPanel < num_k ? panels[k / kPanel + 1] : panels[0] + kPanel * kPanel;
      Ahead ahead{(const char*)(next + column), kBytesOfPair<bf16>};
      accumulate<R, kPrefetch>(a + k, lda, panels[k / kPanel] + column, std::min(kPanel, num_k - k), part.acc, ahead);
    }
    part.store_to(sums + pass * kColumns<R>, stride);
  }
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

// Calls f(row, integral_constant<rows>) for strips of about equal height: 32 rows at 12 are 11, 11 and 10.
template <class F>
inline void in_strips(int64_t row0, int64_t row1, F f) {
  const int64_t num_strips = (row1 - row0 + kMaxRows - 1) / kMaxRows;
  for (int64_t strip = 0; strip < num_strips; strip++) {
    const int64_t begin = row0 + strip * (row1 - row0) / num_strips;
    const int64_t end = row0 + (strip + 1) * (row1 - row0) / num_strips;
    with_rows(end - begin, [&](auto rows) { f(begin, rows); });
  }
}

}  // namespace
