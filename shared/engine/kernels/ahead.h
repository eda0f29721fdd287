// Memory that is brought into the cache while something else is computed.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "unroll.h"

namespace {

constexpr int64_t kLine = 64;  // bytes of a cache line

// What comes next, and how much of it with each pair of k: `step` bytes.
struct Ahead {
  const char* next;
  int64_t step;

  template <int kLines>
  ALWAYS_INLINE void fetch() {
    for (int line = 0; line < kLines; line++) _mm_prefetch(next + line * kLine, _MM_HINT_T0);
    next += step;
  }
};

}  // namespace
