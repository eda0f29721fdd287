// How the threads of a step share an op's work.
#pragma once

#include <cstdint>

namespace {

// Shares items among the threads of the enclosing parallel region; returns when all are done.
template <class F>
inline void share(int64_t num_items, F f) {
#pragma omp for schedule(dynamic, 1)
  for (int64_t i = 0; i < num_items; i++) f(i);
}

}  // namespace
