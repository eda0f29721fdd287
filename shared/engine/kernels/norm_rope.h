// RMSNorm, and what happens to queries, keys and values before attention.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "isa.h"
#include "team.h"

namespace {

// y = x / sqrt(mean(x²) + eps) * w; y may be x.
template <class In, class Out>
inline void norm_row(const In* x, const float* w, Out* y, int64_t size, float eps) {
  Vec squares = zero();
  for (int64_t j = 0; j < size; j += kWidth) squares = fma(load(x + j), load(x + j), squares);
  const Vec scale = splat(1.f / std::sqrt(sum(squares) / (float)size + eps));
  for (int64_t j = 0; j < size; j += kWidth) store(y + j, mul(mul(load(x + j), scale), load(w + j)));
}

void rmsnorm(Team& team, const float* x, const float* w, Act* y, int64_t num_rows, int64_t size, float eps) {
  share_rows(team, num_rows, 16, [=](int64_t t) { norm_row(x + t * size, w, y + t * size, size, eps); });
}

// y[i] = row tokens[i] of x, normed.
void rmsnorm_at(Team& team, const float* x, const int64_t* tokens, const float* w, Act* y, int64_t num_rows,
                int64_t size, float eps) {
  share_rows(team, num_rows, 16, [=](int64_t i) { norm_row(x + tokens[i] * size, w, y + i * size, size, eps); });
}

// y[t] = row ids[t] of the table; a token with an id below 0 has its vector in y already.
void embed(Team& team, const int64_t* ids, const bf16* table, float* y, int64_t num_rows, int64_t size) {
  share_rows(team, num_rows, 16, [=](int64_t t) {
    for (int64_t j = 0; ids[t] >= 0 && j < size; j += kWidth) store(y + t * size + j, load(table + ids[t] * size + j));
  });
}

struct HeadNorms {
  const float *query, *key;  // [head_dim] each, or none
  float eps;
};

void rotate(Act* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t j = 0; j < half; j += kWidth) {
    const Vec a = load(x + j), b = load(x + half + j), c = load(cos + j), s = load(sin + j);
    store(x + j, sub(mul(a, c), mul(b, s)));
    store(x + half + j, add(mul(b, c), mul(a, s)));
  }
}

// Norms and rotates the queries and keys of a token in place; writes its keys and values to its block.
void rope_and_write_token(Act* token, int64_t t, const Step& step, const Shape& shape, int64_t layer,
                          const HeadNorms& norms) {
  const int64_t dim = shape.head_dim, half = dim / 2, num_kv = shape.num_kv_heads, head_size = kPanel * dim;
  const int64_t num_rotated = shape.num_heads + num_kv;
  const float* cos = shape.rope_table + step.positions[t] * dim;
  for (int64_t h = 0; h < num_rotated; h++) {
    Act* x = token + h * dim;
    const float* norm = h < shape.num_heads ? norms.query : norms.key;
    if (norm) norm_row(x, norm, x, dim, norms.eps);
    rotate(x, cos, cos + half, half);
  }
  const int64_t slot = step.slots[t], place = slot % kPanel;
  // What lies behind a row's last token is an earlier owner's, and may be no number: its pair must not meet that.
  const bool ends_pair = place % 2 == 0 && (t + 1 == step.num_tokens || step.slots[t + 1] != slot + 1);
  bf16* block = shape.pool + slot / kPanel * shape.block_stride + layer * 2 * num_kv * head_size;
  for (int64_t h = 0; h < num_kv; h++) {
    alignas(64) bf16 key[kMaxHeadDim], value[kMaxHeadDim];
    for (int64_t j = 0; j < dim; j += kWidth) {
      store(key + j, load(token + (shape.num_heads + h) * dim + j));
      store(value + j, load(token + (num_rotated + h) * dim + j));
    }
    bf16* keys = block + h * head_size + 2 * place;
    bf16* values = block + (num_kv + h) * head_size + place / 2 * 2 * kPanel + place % 2;
    for (int64_t j = 0; j < half; j++) std::memcpy(keys + j * 2 * kPanel, key + 2 * j, 2 * sizeof(bf16));
    for (int64_t j = 0; j < dim; j++) {
      bf16* v = values + j / kPanel * kPanel * kPanel + j % kPanel * 2;
      *v = value[j];
      if (ends_pair) v[1] = 0;
    }
  }
}

void rope_and_write(Team& team, Act* qkv, const Step& step, const Shape& shape, int64_t layer, const HeadNorms& norms) {
  const int64_t width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
  const auto write = [&](int64_t t) { rope_and_write_token(qkv + t * width, t, step, shape, layer, norms); };
  constexpr int64_t apart = 64;  // neighbours of one row, written by several threads, would share a block's cache lines
  if (step.num_tokens == step.num_rows) return share_rows(team, step.num_tokens, apart, write);
  team.share((step.num_tokens + apart - 1) / apart, [&](int64_t i) {
    for (int64_t t = i * apart; t < std::min(step.num_tokens, (i + 1) * apart); t++) write(t);
  });
}

}  // namespace
