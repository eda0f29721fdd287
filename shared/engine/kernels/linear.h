// Products with packed weights, and what becomes of their sums.
#pragma once

#include <omp.h>

#include <algorithm>

#include "share.h"
#include "tile.h"
#include "vector_math.h"

namespace {

// A product x Wᵀ + bias, and where it goes. Rows of x and y are contiguous.
struct Product {
  const Act* x;
  const bf16* w;
  const float* bias;  // one a column, or none
  void* y;
  int64_t num_rows, num_k, num_outputs;
};

// epilogue(row, column, two vectors) for each two vectors of columns of each row.
//
// An item is some panels for up to 96 rows, whose activations stay in the cache while panel after panel passes. A step of
// few rows is bound by reading the weights, so the next panel is brought in during the first pass over the rows.
template <class Epilogue>
void multiply(const Product& p, int64_t num_columns, Epilogue epilogue) {
  constexpr int64_t row_block = 96, max_panels_an_item = 24;
  const int64_t num_panels = (num_columns + kPanel - 1) / kPanel, num_blocks = (p.num_rows + row_block - 1) / row_block;
  const int64_t parts = (num_blocks == 1 ? 2 : 1) * omp_get_num_threads();
  const int64_t panels_an_item = std::clamp<int64_t>(num_panels / parts, 1, max_panels_an_item);
  const int64_t items_a_block = (num_panels + panels_an_item - 1) / panels_an_item;
  share(num_blocks * items_a_block, [&](int64_t item) {
    const int64_t row0 = item / items_a_block * row_block, row1 = std::min(p.num_rows, row0 + row_block);
    const int64_t panel0 = item % items_a_block * panels_an_item;
    const int64_t panel1 = std::min(num_panels, panel0 + panels_an_item);
    // Strips of about equal height: 32 rows at 12 are 11, 11 and 10.
    const int64_t strips = (row1 - row0 + kMaxRows - 1) / kMaxRows, strip = (row1 - row0 + strips - 1) / strips;
    for (int64_t panel = panel0; panel < panel1; panel++)
      for (int64_t row = row0; row < row1; row += strip)
        with_rows(std::min(strip, row1 - row), [&](auto rows) {
          constexpr int R = rows();
          for (int64_t column = 0; column < kPanel; column += kColumns<R>) {
            alignas(64) float sums[R * kColumns<R>];
            const Act* a = p.x + row * p.num_k;
            const bf16* b = p.w + panel * kPanel * p.num_k + 2 * column;
            if (num_blocks == 1 && row == row0)
              tile<R, false, true>(a, p.num_k, b, p.num_k, sums, strips == 1 ? 1024 : kPanel * p.num_k);
            else
              tile<R, false, false>(a, p.num_k, b, p.num_k, sums, 0);
            for (int r = 0; r < R; r++)
              for (int64_t c = 0; c < kColumns<R>; c += 2 * kWidth) {
                const int64_t output = panel * kPanel + column + c;
                const float* sum = sums + r * kColumns<R> + c;
                Vec first = load(sum), second = load(sum + kWidth);
                if (p.bias) first = add(first, load(p.bias + output)), second = add(second, load(p.bias + output + kWidth));
                epilogue(row + r, output, first, second);
              }
          }
        });
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

template <class T>
void linear(const Product& p) {
  multiply(p, p.num_outputs, [&p](int64_t row, int64_t output, Vec first, Vec second) {
    T* y = (T*)p.y + row * p.num_outputs;
    store_two(y + output, first, second, y + p.num_outputs);
  });
}

void linear_add(const Product& p) {
  multiply(p, p.num_outputs, [&p](int64_t row, int64_t output, Vec first, Vec second) {
    float* y = (float*)p.y + row * p.num_outputs + output;
    store(y, add(load(y), first));
    store(y + kWidth, add(load(y + kWidth), second));
  });
}

// Gate and up columns lie in turns of kWidth.
void linear_silu(const Product& p) {
  multiply(p, 2 * p.num_outputs, [&p](int64_t row, int64_t column, Vec gate, Vec up) {
    store((Act*)p.y + row * p.num_outputs + column / 2, mul(silu(gate), up));
  });
}

}  // namespace
