// int8 weights: how a panel of them becomes one of bfloat16.
//
// A weight w is multiplied as w * kInt8Unit, which bfloat16 and float32 hold exactly. So it is the same, bit for bit,
// whether the micro-kernel converts weights as it goes (few rows) or a panel is converted before (many rows).
#pragma once

#include "isa.h"

namespace {

// The first num_k of a panel (or of what is left of it) as bf16; meanwhile brings in what lies `ahead` weights on.
inline void convert(const int8_t* w, int64_t num_k, bf16* out, int64_t ahead) {
  for (int64_t i = 0; i < num_k * kPanel; i += 2 * kWidth) {
    convert_pairs(w + i, out + i);
    _mm_prefetch(w + i + ahead, _MM_HINT_T0);
  }
}

}  // namespace
