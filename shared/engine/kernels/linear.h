// Products with packed weights, and what becomes of their sums.
#pragma once

#include <algorithm>
#include <type_traits>

#include "int8.h"
#include "team.h"
#include "tile.h"
#include "vector_math.h"

namespace {

// A product x Wᵀ + bias, and where it goes. Rows of x and y are contiguous. Weights are bf16 or int8.
template <class W>
struct Product {
  const Act* x;
  const W* w;
  const float *scales, *bias;  // one a column; scales with int8 alone, a bias or none
  void* y;
  int64_t num_rows, num_k, num_outputs;
};

constexpr int64_t kRowBlock = 96;  // rows whose activations stay in the cache while panel after panel passes

// epilogue(row, column, two vectors) for each two vectors of a panel's sums [R][kPanel].
template <int R, class W, class Epilogue>
inline void finish(const Product<W>& p, int64_t row, int64_t panel, const float* sums, Epilogue epilogue) {
  for (int r = 0; r < R; r++)
    for (int64_t c = 0; c < kPanel; c += 2 * kWidth) {
      const int64_t output = panel * kPanel + c;
      const float* sum = sums + r * kPanel + c;
      Vec first = load(sum), second = load(sum + kWidth);
      if constexpr (std::is_same_v<W, int8_t>) {
        first = mul(first, mul(splat(1 / kInt8Unit), load(p.scales + output)));
        second = mul(second, mul(splat(1 / kInt8Unit), load(p.scales + output + kWidth)));
      }
      if (p.bias) first = add(first, load(p.bias + output)), second = add(second, load(p.bias + output + kWidth));
      epilogue(row + r, output, first, second);
    }
}

// Of so many rows over a panel.
inline int64_t passes_of(int64_t num_rows) {
  int64_t num_passes = 0;
  in_strips(0, num_rows, [&](int64_t, auto rows) { num_passes += kPasses<rows()>; });
  return num_passes;
}

// What to bring in while a panel is multiplied. A single pass over it reads memory as fast as it comes, and does best
// to stay a little ahead of itself; else there is time for the next panel, of which passes bring in a share each.
template <class W>
inline Ahead ahead_of(const W* panel, int64_t num_k, int64_t num_passes) {
  if (num_passes == 1) return {(const char*)(panel + 1024), kBytesOfPair<W>};
  return {(const char*)(panel + kPanel * num_k), kBytesOfPair<W> / (kSharesPrefetch ? num_passes : 1)};
}

// One panel for some rows, as it is stored. A step of few rows is bound by reading weights: then `num_passes` tells how
// many there are over the panel, which bring in what comes next; else it is 0.
template <class W, class Epilogue>
inline void multiply_stored(const Product<W>& p, int64_t panel, int64_t row0, int64_t row1, int64_t num_passes,
                            Epilogue epilogue) {
  const W* w = p.w + panel * kPanel * p.num_k;
  Ahead ahead = num_passes > 0 ? ahead_of(w, p.num_k, num_passes) : Ahead{};
  in_strips(row0, row1, [&](int64_t row, auto rows) {
    constexpr int R = rows();
    alignas(64) float sums[R * kPanel];
    if (num_passes > 0 && (kSharesPrefetch || row == row0))
      tile<R, false, true>(p.x + row * p.num_k, p.num_k, w, p.num_k, sums, kPanel, ahead);
    else
      tile<R, false, false>(p.x + row * p.num_k, p.num_k, w, p.num_k, sums, kPanel, ahead);
    finish<R>(p, row, panel, sums, epilogue);
  });
}

// One panel for some rows, converted for all of them: some k at a time, which then stay in the first cache.
template <class Epilogue>
inline void multiply_converted(const Product<int8_t>& p, int64_t panel, int64_t row0, int64_t row1, Epilogue epilogue) {
  constexpr int64_t max_k = 256;
  alignas(64) bf16 converted[max_k * kPanel];
  alignas(64) float sums[kRowBlock * kPanel];
  Ahead nothing{};
  for (int64_t k = 0; k < p.num_k; k += max_k) {
    const int64_t num_k = std::min(max_k, p.num_k - k);
    convert(p.w + (panel * p.num_k + k) * kPanel, num_k, converted, max_k * kPanel);
    in_strips(row0, row1, [&](int64_t row, auto rows) {
      constexpr int R = rows();
      float* s = sums + (row - row0) * kPanel;
      const Act* a = p.x + row * p.num_k + k;
      if (k == 0)
        tile<R, false, false>(a, p.num_k, converted, num_k, s, kPanel, nothing);
      else
        tile<R, true, false>(a, p.num_k, converted, num_k, s, kPanel, nothing);
      if (k + num_k == p.num_k) finish<R>(p, row, panel, s, epilogue);
    });
  }
}

template <class Epilogue>
inline void multiply_panel(const Product<bf16>& p, int64_t panel, int64_t row0, int64_t row1, int64_t num_passes,
                           Epilogue epilogue) {
  multiply_stored(p, panel, row0, row1, num_passes, epilogue);
}

template <class Epilogue>
inline void multiply_panel(const Product<int8_t>& p, int64_t panel, int64_t row0, int64_t row1, int64_t num_passes,
                           Epilogue epilogue) {
  constexpr int64_t most_rows_as_stored = 24;  // for more, converting once costs less than converting for each strip
  if (row1 - row0 <= most_rows_as_stored)
    multiply_stored(p, panel, row0, row1, num_passes, epilogue);
  else
    multiply_converted(p, panel, row0, row1, epilogue);
}

// epilogue(row, column, two vectors) for each two vectors of columns of each row. An item is a few panels for up to
// kRowBlock rows; there are so many that threads can share them evenly, and each gets the same number of panels.
template <class W, class Epilogue>
void multiply(Team& team, const Product<W>& p, int64_t num_columns, Epilogue epilogue) {
  const int64_t num_panels = (num_columns + kPanel - 1) / kPanel, num_blocks = (p.num_rows + kRowBlock - 1) / kRowBlock;
  const int64_t items_a_block = std::min(num_panels, 8 * Team::num_threads());
  const int64_t num_passes = num_blocks == 1 ? passes_of(p.num_rows) : 0;
  team.share(num_blocks * items_a_block, [&](int64_t item) {
    const int64_t row0 = item / items_a_block * kRowBlock, row1 = std::min(p.num_rows, row0 + kRowBlock);
    const int64_t part = item % items_a_block, end = (part + 1) * num_panels / items_a_block;
    for (int64_t panel = part * num_panels / items_a_block; panel < end; panel++)
      multiply_panel(p, panel, row0, row1, num_passes, epilogue);
  });
}

// Two vectors into y[0..2 * kWidth), or what of it is before `end`: a matrix may end within a panel.
template <class T>
inline void store_two(T* y, Vec first, Vec second, const T* end) {
  if (y + 2 * kWidth <= end) {
    store(y, first);
    store(y + kWidth, second);
  } else if (y < end) {
    T values[2 * kWidth];
    store(values, first);
    store(values + kWidth, second);
    std::copy(values, values + (end - y), y);
  }
}

template <class T, class W>
void linear(Team& team, const Product<W>& p) {
  multiply(team, p, p.num_outputs, [&p](int64_t row, int64_t output, Vec first, Vec second) {
    T* y = (T*)p.y + row * p.num_outputs;
    store_two(y + output, first, second, y + p.num_outputs);
  });
}

template <class W>
void linear_add(Team& team, const Product<W>& p) {
  multiply(team, p, p.num_outputs, [&p](int64_t row, int64_t output, Vec first, Vec second) {
    float* y = (float*)p.y + row * p.num_outputs + output;
    store(y, add(load(y), first));
    store(y + kWidth, add(load(y + kWidth), second));
  });
}

// Gate and up columns lie in turns of kWidth.
template <class W>
void linear_silu(Team& team, const Product<W>& p) {
  multiply(team, p, 2 * p.num_outputs, [&p](int64_t row, int64_t column, Vec gate, Vec up) {
    store((Act*)p.y + row * p.num_outputs + column / 2, mul(silu(gate), up));
  });
}

}  // namespace
