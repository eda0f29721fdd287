// Products with packed weights, and what becomes of their sums.
#pragma once

#include <omp.h>

#include <algorithm>
#include <type_traits>

#include "int8.h"
#include "share.h"
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

// Calls f(row, integral_constant<rows>) for strips of about equal height: 32 rows at 12 are 11, 11 and 10.
template <class F>
inline void in_strips(int64_t row0, int64_t row1, F f) {
  const int64_t strips = (row1 - row0 + kMaxRows - 1) / kMaxRows, strip = (row1 - row0 + strips - 1) / strips;
  for (int64_t row = row0; row < row1; row += strip)
    with_rows(std::min(strip, row1 - row), [&](auto rows) { f(row, rows); });
}

// epilogue(row, column, two vectors) for each two vectors of sums [R][kColumns<R>].
template <int R, class W, class Epilogue>
inline void finish(const Product<W>& p, int64_t row, int64_t column, const float* sums, Epilogue epilogue) {
  for (int r = 0; r < R; r++)
    for (int64_t c = 0; c < kColumns<R>; c += 2 * kWidth) {
      const int64_t output = column + c;
      const float* sum = sums + r * kColumns<R> + c;
      Vec first = load(sum), second = load(sum + kWidth);
      if constexpr (std::is_same_v<W, int8_t>) {
        first = mul(first, mul(splat(1 / kInt8Unit), load(p.scales + output)));
        second = mul(second, mul(splat(1 / kInt8Unit), load(p.scales + output + kWidth)));
      }
      if (p.bias) first = add(first, load(p.bias + output)), second = add(second, load(p.bias + output + kWidth));
      epilogue(row + r, output, first, second);
    }
}

// One panel for some rows, as it is stored. A step of few rows is bound by reading the weights, so with `prefetch` the
// next panel is brought in during the first pass over the rows.
template <class W, class Epilogue>
inline void multiply_stored(const Product<W>& p, int64_t panel, int64_t row0, int64_t row1, bool prefetch,
                            Epilogue epilogue) {
  in_strips(row0, row1, [&](int64_t row, auto rows) {
    constexpr int R = rows();
    for (int64_t column = 0; column < kPanel; column += kColumns<R>) {
      alignas(64) float sums[R * kColumns<R>];
      const Act* a = p.x + row * p.num_k;
      const W* b = p.w + panel * kPanel * p.num_k + 2 * column;
      if (prefetch && row == row0)
        tile<R, false, true>(a, p.num_k, b, p.num_k, sums, row1 - row0 <= kMaxRows ? 1024 : kPanel * p.num_k);
      else
        tile<R, false, false>(a, p.num_k, b, p.num_k, sums, 0);
      finish<R>(p, row, panel * kPanel + column, sums, epilogue);
    }
  });
}

// One panel for some rows, converted for all of them: some k at a time, which then stay in the first cache.
template <class Epilogue>
inline void multiply_converted(const Product<int8_t>& p, int64_t panel, int64_t row0, int64_t row1, Epilogue epilogue) {
  constexpr int64_t max_k = 256;
  alignas(64) bf16 converted[max_k * kPanel];
  alignas(64) float sums[kRowBlock * kPanel];
  for (int64_t k = 0; k < p.num_k; k += max_k) {
    const int64_t num_k = std::min(max_k, p.num_k - k);
    convert(p.w + (panel * p.num_k + k) * kPanel, num_k, converted, max_k * kPanel);
    in_strips(row0, row1, [&](int64_t row, auto rows) {
      constexpr int R = rows();
      for (int64_t column = 0; column < kPanel; column += kColumns<R>) {
        float* s = sums + (row - row0) * kPanel + R * column;
        const Act* a = p.x + row * p.num_k + k;
        if (k == 0)
          tile<R, false, false>(a, p.num_k, converted + 2 * column, num_k, s, 0);
        else
          tile<R, true, false>(a, p.num_k, converted + 2 * column, num_k, s, 0);
        if (k + num_k == p.num_k) finish<R>(p, row, panel * kPanel + column, s, epilogue);
      }
    });
  }
}

template <class Epilogue>
inline void multiply_panel(const Product<bf16>& p, int64_t panel, int64_t row0, int64_t row1, bool prefetch,
                           Epilogue epilogue) {
  multiply_stored(p, panel, row0, row1, prefetch, epilogue);
}

template <class Epilogue>
inline void multiply_panel(const Product<int8_t>& p, int64_t panel, int64_t row0, int64_t row1, bool prefetch,
                           Epilogue epilogue) {
  constexpr int64_t most_rows_as_stored = 24;  // for more, converting once costs less than converting for each strip
  if (row1 - row0 <= most_rows_as_stored)
    multiply_stored(p, panel, row0, row1, prefetch, epilogue);
  else
    multiply_converted(p, panel, row0, row1, epilogue);
}

// epilogue(row, column, two vectors) for each two vectors of columns of each row. An item is some panels for up to
// kRowBlock rows.
template <class W, class Epilogue>
void multiply(const Product<W>& p, int64_t num_columns, Epilogue epilogue) {
  constexpr int64_t max_panels_an_item = 24;
  const int64_t num_panels = (num_columns + kPanel - 1) / kPanel, num_blocks = (p.num_rows + kRowBlock - 1) / kRowBlock;
  const int64_t parts = (num_blocks == 1 ? 2 : 1) * omp_get_num_threads();
  const int64_t panels_an_item = std::clamp<int64_t>(num_panels / parts, 1, max_panels_an_item);
  const int64_t items_a_block = (num_panels + panels_an_item - 1) / panels_an_item;
  share(num_blocks * items_a_block, [&](int64_t item) {
    const int64_t row0 = item / items_a_block * kRowBlock, row1 = std::min(p.num_rows, row0 + kRowBlock);
    const int64_t panel0 = item % items_a_block * panels_an_item;
    const int64_t panel1 = std::min(num_panels, panel0 + panels_an_item);
    for (int64_t panel = panel0; panel < panel1; panel++)
      multiply_panel(p, panel, row0, row1, num_blocks == 1, epilogue);
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
void linear(const Product<W>& p) {
  multiply(p, p.num_outputs, [&p](int64_t row, int64_t output, Vec first, Vec second) {
    T* y = (T*)p.y + row * p.num_outputs;
    store_two(y + output, first, second, y + p.num_outputs);
  });
}

template <class W>
void linear_add(const Product<W>& p) {
  multiply(p, p.num_outputs, [&p](int64_t row, int64_t output, Vec first, Vec second) {
    float* y = (float*)p.y + row * p.num_outputs + output;
    store(y, add(load(y), first));
    store(y + kWidth, add(load(y + kWidth), second));
  });
}

// Gate and up columns lie in turns of kWidth.
template <class W>
void linear_silu(const Product<W>& p) {
  multiply(p, 2 * p.num_outputs, [&p](int64_t row, int64_t column, Vec gate, Vec up) {
    store((Act*)p.y + row * p.num_outputs + column / 2, mul(silu(gate), up));
  });
}

}  // namespace
