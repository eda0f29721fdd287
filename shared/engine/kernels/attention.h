// Attention of a step's queries over the blocks of their rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "team.h"
#include "tile.h"
#include "vector_math.h"

namespace {

constexpr int64_t kGroup = 512;  // positions that meet a query at a time; cut at multiples of it, whatever the step

// What one KV head of one row attends with.
struct Context {
  BlockPanels keys, values;  // values: the panel of the first 32 dims
  int64_t dim, heads_a_kv;
  int64_t position;  // of the first of the row's tokens in this step
  float scale;

  // Of a query: they are counted through the row's tokens, `heads_a_kv` each.
  int64_t position_of(int64_t query) const { return position + query / heads_a_kv; }
};

// weights = exp(scores * scale - high) for the scores that are seen, and zeros up to num_scores. Returns their sum.
inline float exponentials(const float* scores, int64_t seen, int64_t num_scores, float scale, float high,
                          Act* weights) {
  Vec total = zero();
  for (int64_t j = 0; j < num_scores; j += kWidth) {
    Vec e = zero();
    if (j < seen) {
      e = exp(fma(load(scores + j), splat(scale), splat(-high)));
      if (seen < j + kWidth) e = keep_first(e, seen - j, zero());
    }
    total = add(total, e);
    store(weights + j, e);
  }
  return sum(total);
}

inline void scale_row(float* row, int64_t size, float factor) {
  for (int64_t j = 0; j < size; j += kWidth) store(row + j, mul(load(row + j), splat(factor)));
}

inline float highest_of(const float* values, int64_t count) {
  const int64_t whole = count / kWidth * kWidth;
  Vec high = splat(-INFINITY);
  for (int64_t j = 0; j < whole; j += kWidth) high = max(high, load(values + j));
  if (whole < count) high = max(high, keep_first(load(values + whole), count - whole, splat(-INFINITY)));
  return highest(high);
}

// Attention of up to kMaxRows queries, the first of which is number `first`: softmax online over groups of positions
// (Milakov & Gimelshein 2018). A query's result depends on its own position and no other.
//
// Args: queries [num_queries][dim]; out [num_queries][dim].
template <bool kPrefetch>
void attend(const Act* queries, int64_t first, int64_t num_queries, const Context& c, float* out) {
  alignas(64) float scores[kMaxRows * kGroup];
  alignas(64) Act weights[kMaxRows * kGroup];
  const int64_t end = c.position_of(first + num_queries - 1) + 1, dim = c.dim;
  float highs[kMaxRows], sums[kMaxRows];
  std::fill_n(highs, kMaxRows, -INFINITY);
  std::fill_n(sums, kMaxRows, 0.f);
  std::fill_n(out, num_queries * dim, 0.f);
  for (int64_t group = 0; group < end; group += kGroup) {
    const int64_t group_len = std::min(end - group, kGroup), num_scores = (group_len + kPanel - 1) / kPanel * kPanel;
    BlockPanels keys = c.keys, values = c.values;
    keys.blocks += group / kPanel, values.blocks += group / kPanel;
    with_rows(num_queries, [&](auto rows) {
      for (int64_t k = 0; k < num_scores; k += kPanel) {
        const bf16* next = k + kPanel < num_scores ? keys[k / kPanel + 1] : values[0];
        Ahead ahead{(const char*)next, kBytesOfPair<bf16>};
        tile<rows(), false, kPrefetch>(queries, dim, keys[k / kPanel], dim, scores + k, kGroup, ahead);
      }
    });
    for (int64_t r = 0; r < num_queries; r++) {
      const float* s = scores + r * kGroup;
      const int64_t seen = std::clamp<int64_t>(c.position_of(first + r) + 1 - group, 0, group_len);
      const float high = std::max(highs[r], highest_of(s, seen) * c.scale);
      const float correction = highs[r] == high ? 1.f : std::exp(highs[r] - high);
      highs[r] = high;
      sums[r] = sums[r] * correction + exponentials(s, seen, num_scores, c.scale, high, weights + r * kGroup);
      if (correction != 1.f) scale_row(out + r * dim, dim, correction);
    }
    const int64_t num_k = (group_len + 1) / 2 * 2;
    with_rows(num_queries, [&](auto rows) {
      for (int64_t d = 0; d < dim; d += kPanel, values.first += kPanel * kPanel)
        tile_of_blocks<rows(), kPrefetch>(weights, kGroup, values, num_k, out + d, dim);
    });
  }
  for (int64_t r = 0; r < num_queries; r++) scale_row(out + r * dim, dim, 1.f / sums[r]);
}

// Some queries of a row, for one KV head.
struct AttentionItem {
  int64_t row, head, first;
};

constexpr int64_t kQueriesAnItem = 16 * kMaxRows;

std::vector<AttentionItem> cut_attention(const Step& step, const Shape& shape) {
  std::vector<AttentionItem> items;
  for (int64_t row = 0; row < step.num_rows; row++) {
    const int64_t num_tokens = step.row_starts[row + 1] - step.row_starts[row];
    const int64_t num_queries = num_tokens * shape.num_heads / shape.num_kv_heads;
    for (int64_t first = (num_queries - 1) / kQueriesAnItem * kQueriesAnItem; first >= 0; first -= kQueriesAnItem)
      for (int64_t head = 0; head < shape.num_kv_heads; head++) items.push_back({row, head, first});
  }
  return items;
}

void attention(Team& team, const Act* qkv, const Step& step, const Shape& shape, int64_t layer,
               const std::vector<AttentionItem>& items, Act* out) {
  const int64_t dim = shape.head_dim, heads_a_kv = shape.num_heads / shape.num_kv_heads, head_size = kPanel * dim;
  const int64_t width = (shape.num_heads + 2 * shape.num_kv_heads) * dim;
  team.share((int64_t)items.size(), [&](int64_t i) {
    alignas(64) Act queries[kMaxRows * kMaxHeadDim];
    alignas(64) float result[kMaxRows * kMaxHeadDim];
    const auto [row, head, first] = items[i];
    const int64_t row_start = step.row_starts[row], num_tokens = step.row_starts[row + 1] - row_start;
    const int64_t* blocks = step.block_table + row * step.block_table_stride;
    const bf16* keys = shape.pool + (layer * 2 * shape.num_kv_heads + head) * head_size;
    const Context context{{keys, shape.block_stride, blocks},
                          {keys + shape.num_kv_heads * head_size, shape.block_stride, blocks},
                          dim,
                          heads_a_kv,
                          step.kv_lens[row] - num_tokens,
                          1.f / std::sqrt((float)dim)};
    const int64_t end = std::min(num_tokens * heads_a_kv, first + kQueriesAnItem);
    in_strips(first, end, [&](int64_t query, auto rows) {
      const auto token_of = [&](int64_t r) { return row_start + (query + r) / heads_a_kv; };
      const auto head_of = [&](int64_t r) { return head * heads_a_kv + (query + r) % heads_a_kv; };
      for (int64_t r = 0; r < rows(); r++)
        std::copy_n(qkv + token_of(r) * width + head_of(r) * dim, dim, queries + r * dim);
      if (end - first <= 2 * kMaxRows)  // few queries are bound by reading the cache
        attend<true>(queries, query, rows(), context, result);
      else
        attend<false>(queries, query, rows(), context, result);
      for (int64_t r = 0; r < rows(); r++) {
        Act* o = out + (token_of(r) * shape.num_heads + head_of(r)) * dim;
        for (int64_t d = 0; d < dim; d += kWidth) store(o + d, load(result + r * dim + d));
      }
    });
  });
}

}  // namespace
