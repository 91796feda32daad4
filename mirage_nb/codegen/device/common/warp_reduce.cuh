// Reductions inside one warp: butterflies of shuffles, the result in every lane.
#pragma once

namespace mirage {

struct Add {
  MIRAGE_DEVICE float operator()(float a, float b) const { return a + b; }
};
struct Maximum {
  MIRAGE_DEVICE float operator()(float a, float b) const { return maximum(a, b); }
};
namespace detail {
// Combines lanes that differ in the bits First .. Last/2 of their index.
template <int First, int Last, class Combine>
MIRAGE_DEVICE float butterfly(float v, Combine combine MIRAGE_SITE) {
  static_assert(First > 0 && Last <= 32 && (First & (First - 1)) == 0 && (Last & (Last - 1)) == 0, "powers of two");
  MIRAGE_UNROLL
  for (int bit = Last / 2; bit >= First; bit /= 2) v = combine(v, shuffle_xor(v, bit MIRAGE_PASS));
  return v;
}
}  // namespace detail

// Over aligned groups of Width lanes.
template <int Width = 32>
MIRAGE_DEVICE float warp_sum(float v MIRAGE_SITE) {
  return detail::butterfly<1, Width>(v, Add() MIRAGE_PASS);
}
template <int Width = 32>
MIRAGE_DEVICE float warp_max(float v MIRAGE_SITE) {
  return detail::butterfly<1, Width>(v, Maximum() MIRAGE_PASS);
}
}  // namespace mirage
