// Loops over registers.
#pragma once

#include <type_traits>

namespace {

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define INLINED __attribute__((always_inline))  // of a lambda, behind its arguments

// Calls f(0), ..., f(N - 1), each number as a type. Unlike those of a loop that is unrolled later, these indices are
// known from the start: an array of vectors that is indexed by them lives in registers, whatever loops are around it.
template <int N, int I = 0, class F>
ALWAYS_INLINE void unroll(F&& f) {
  if constexpr (I < N) {
    f(std::integral_constant<int, I>{});
    unroll<N, I + 1>(f);
  }
}

}  // namespace
