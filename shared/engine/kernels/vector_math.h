// Functions of vectors, by the primitives of whichever instruction set.
#pragma once

#include "isa.h"

namespace {

// exp, about 1e-7 relative (polynomial of Cephes' expf). Beyond ±87 counts as ±87; a NaN stays one.
inline Vec exp(Vec x) {
  x = min(splat(87.f), max(splat(-87.f), x));
  const Vec n = round(mul(x, splat(1.44269504f)));
  const Vec r = fnma(n, splat(-2.12194440e-4f), fnma(n, splat(0.693359375f), x));
  Vec p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(0.5f));
  p = fma(p, mul(r, r), add(r, splat(1.f)));
  return times_power_of_two(p, n);
}

inline Vec silu(Vec g) { return div(g, add(splat(1.f), exp(sub(zero(), g)))); }

}  // namespace
