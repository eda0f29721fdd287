// What every part of the kernels speaks of.
#pragma once

#include <cstdint>

namespace {

using bf16 = uint16_t;
constexpr int64_t kPanel = 32;  // outputs of a panel, and tokens of a block
constexpr int64_t kMaxHeadDim = 256;

struct Step {
  const int64_t *positions, *slots, *row_starts, *kv_lens, *block_table;
  int64_t num_tokens, num_rows, num_logits, block_table_stride;
};

struct Shape {
  int64_t num_heads, num_kv_heads, head_dim;
  int64_t block_stride;     // values of a block, all layers
  const float* rope_table;  // [positions][head_dim]: cosines, then sines
  bf16* pool;
};

}  // namespace
