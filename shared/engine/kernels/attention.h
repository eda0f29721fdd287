// Attention of a step's queries over the blocks of their rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "share.h"
#include "tile.h"
#include "vector_math.h"

namespace {

constexpr int64_t kGroup = 512;  // positions that meet a query at a time; cut at multiples of it, whatever the step

// What one KV head of one row attends with.
struct Context {
  const int64_t* blocks;
  const bf16 *keys, *values;  // of block 0
  int64_t block_stride, dim, heads_a_kv;
  float scale;
};

// Attention of R queries, `heads_a_kv` a token, the first token at `position`: softmax online over groups of positions
// (Milakov & Gimelshein 2018). A query's result depends on its own position and no other.
//
// Args: queries [R][dim]; sums [R] and out [R][dim] come out, out still to be divided by sums.
template <int R>
void attend(const Act* queries, int64_t position, const Context& c, float* sums, float* out) {
  alignas(64) static thread_local float scores[kMaxRows * kGroup];
  alignas(64) static thread_local Act weights[kMaxRows * kGroup];
  constexpr bool kReads = R <= 4;  // few queries are bound by reading the cache
  const int64_t end = position + (R - 1) / c.heads_a_kv + 1;
  float highs[R], corrections[R];
  for (int r = 0; r < R; r++) highs[r] = -INFINITY, sums[r] = 0;
  for (int64_t group = 0; group < end; group += kGroup) {
    const int64_t group_len = std::min(end - group, kGroup), num_blocks = (group_len + kPanel - 1) / kPanel;
    const int64_t* table = c.blocks + group / kPanel;
    const auto ahead = [&](int64_t b) { return b + 1 < num_blocks ? (table[b + 1] - table[b]) * c.block_stride : 0; };
    alignas(64) float products[R * kColumns<R>];
    for (int64_t b = 0; b < num_blocks; b++)
      for (int64_t column = 0; column < kPanel; column += kColumns<R>) {
        tile<R, false, kReads>(queries, c.dim, c.keys + table[b] * c.block_stride + 2 * column, c.dim, products, ahead(b));
        for (int r = 0; r < R; r++)
          std::copy_n(products + r * kColumns<R>, kColumns<R>, scores + r * kGroup + b * kPanel + column);
      }
    for (int r = 0; r < R; r++) {
      const int64_t seen = std::clamp<int64_t>(position + r / c.heads_a_kv + 1 - group, 0, group_len);
      const int64_t whole = seen / kWidth * kWidth;
      const float* s = scores + r * kGroup;
      Act* w = weights + r * kGroup;
      Vec high = splat(-INFINITY);
      for (int64_t j = 0; j < whole; j += kWidth) high = max(high, load(s + j));
      if (whole < seen) high = max(high, keep_first(load(s + whole), seen - whole, splat(-INFINITY)));
      const float new_high = std::max(highs[r], highest(high) * c.scale);
      corrections[r] = highs[r] == new_high ? 1.f : std::exp(highs[r] - new_high);
      highs[r] = new_high;
      Vec total = zero();
      for (int64_t j = 0; j < num_blocks * kPanel; j += kWidth) {
        Vec e = zero();
        if (j < seen) e = keep_first(exp(fma(load(s + j), splat(c.scale), splat(-new_high))), std::min<int64_t>(seen - j, kWidth), zero());
        total = add(total, e);
        store(w + j, e);
      }
      sums[r] = sums[r] * corrections[r] + sum(total);
    }
    for (int64_t d = 0; d < c.dim; d += kPanel)
      for (int64_t column = 0; column < kPanel; column += kColumns<R>) {
        for (int r = 0; r < R; r++)
          for (int64_t j = 0; j < kColumns<R>; j += kWidth) {
            const Vec before = group == 0 ? zero() : mul(load(out + r * c.dim + d + column + j), splat(corrections[r]));
            store(products + r * kColumns<R> + j, before);
          }
        for (int64_t b = 0; b < num_blocks; b++) {
          const int64_t num_tokens = std::min(kPanel, (group_len - b * kPanel + 1) / 2 * 2);
          const bf16* panel = c.values + table[b] * c.block_stride + d * kPanel + 2 * column;
          tile<R, true, kReads>(weights + b * kPanel, kGroup, panel, num_tokens, products, ahead(b));
        }
        for (int r = 0; r < R; r++)
          std::copy_n(products + r * kColumns<R>, kColumns<R>, out + r * c.dim + d + column);
      }
  }
}

// Some tokens of a row, for one KV head.
struct AttentionItem {
  int64_t row, head, token;
};

int64_t tokens_a_tile(const Shape& shape) { return kMaxRows * shape.num_kv_heads / shape.num_heads; }

std::vector<AttentionItem> cut_attention(const Step& step, const Shape& shape) {
  const int64_t tokens_an_item = 16 * tokens_a_tile(shape);
  std::vector<AttentionItem> items;
  for (int64_t row = 0; row < step.num_rows; row++) {
    const int64_t num_tokens = step.row_starts[row + 1] - step.row_starts[row];
    for (int64_t t = (num_tokens - 1) / tokens_an_item * tokens_an_item; t >= 0; t -= tokens_an_item)  // long ones first
      for (int64_t head = 0; head < shape.num_kv_heads; head++) items.push_back({row, head, t});
  }
  return items;
}

void attention(const Act* qkv, const Step& step, const Shape& shape, int64_t layer,
               const std::vector<AttentionItem>& items, Act* out) {
  const int64_t dim = shape.head_dim, heads_a_kv = shape.num_heads / shape.num_kv_heads, head_size = kPanel * dim;
  const int64_t width = (shape.num_heads + 2 * shape.num_kv_heads) * dim, tile_len = tokens_a_tile(shape);
  share((int64_t)items.size(), [&](int64_t i) {
    alignas(64) Act queries[kMaxRows * kMaxHeadDim];
    alignas(64) float result[kMaxRows * kMaxHeadDim];
    float sums[kMaxRows];
    const auto [row, head, token0] = items[i];
    const int64_t first = step.row_starts[row], num_tokens = step.row_starts[row + 1] - first;
    const bf16* keys = shape.pool + (layer * 2 * shape.num_kv_heads + head) * head_size;
    const Context context{step.block_table + row * step.block_table_stride, keys, keys + shape.num_kv_heads * head_size,
                          shape.block_stride, dim, heads_a_kv, 1.f / std::sqrt((float)dim)};
    for (int64_t t = token0; t < std::min(num_tokens, token0 + 16 * tile_len); t += tile_len) {
      const int64_t len = std::min(tile_len, num_tokens - t), position = step.kv_lens[row] - num_tokens + t;
      for (int64_t j = 0; j < len; j++)
        std::copy_n(qkv + (first + t + j) * width + head * heads_a_kv * dim, heads_a_kv * dim, queries + j * heads_a_kv * dim);
      with_rows(len * heads_a_kv, [&](auto rows) { attend<rows()>(queries, position, context, sums, result); });
      for (int64_t r = 0; r < len * heads_a_kv; r++) {
        Act* o = out + (first + t + r / heads_a_kv) * shape.num_heads * dim + (head * heads_a_kv + r % heads_a_kv) * dim;
        for (int64_t d = 0; d < dim; d += kWidth) store(o + d, mul(load(result + r * dim + d), splat(1.f / sums[r])));
      }
    }
  });
}

}  // namespace
