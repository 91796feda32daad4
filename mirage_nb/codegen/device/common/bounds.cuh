// Bounds of many values at once: what a mask may be over a tile, from the least and the largest of what it is made of.
// Where a value may be no number, so that it is neither below nor above another one, both bounds are none, and whatever
// is asked of these may be so: of numbers that are none, and of what is computed of infinities.
#pragma once

namespace mirage {

struct Bounds {
  float low, high;
  MIRAGE_DEVICE Bounds(float value) : low(value), high(value) {}
  MIRAGE_DEVICE Bounds(float least, float largest) : low(least), high(largest) {}
  MIRAGE_DEVICE void take(Bounds x) { low = minimum(low, x.low), high = maximum(high, x.high); }
};
// Of no value so far, and of any.
MIRAGE_DEVICE Bounds no_bounds() { return {-NEGATIVE_INFINITY, NEGATIVE_INFINITY}; }
MIRAGE_DEVICE Bounds any_bounds() { return NEGATIVE_INFINITY - NEGATIVE_INFINITY; }
// Of what all lanes of a warp have.
MIRAGE_DEVICE Bounds across_lanes(Bounds x MIRAGE_SITE) {
  return {-warp_max(-x.low MIRAGE_PASS), warp_max(x.high MIRAGE_PASS)};
}
// Whether any of them may be another number than zero.
MIRAGE_DEVICE bool may_be(Bounds x) { return !(x.low == 0.0f && x.high == 0.0f); }

namespace detail {
MIRAGE_DEVICE Bounds truth(bool surely, bool maybe) { return {surely ? 1.0f : 0.0f, maybe ? 1.0f : 0.0f}; }
MIRAGE_DEVICE float most(Bounds x) { return maximum(absolute(x.low), absolute(x.high)); }
// The same bounds, of what is computed of numbers of this size: none if that is infinite.
MIRAGE_DEVICE Bounds finite(Bounds x, float size) { return {x.low + 0.0f * size, x.high + 0.0f * size}; }
// Of a product, which may be rounded before something is added to it, or not.
MIRAGE_DEVICE Bounds product(float x, float y) {
  const float rounded = x * y;
  const float more = fused_multiply_add(x, y, -rounded) == 0.0f ? 0.0f : 0x1p-23f * absolute(rounded);
  return {rounded - more, rounded + more};
}
}  // namespace detail

MIRAGE_DEVICE Bounds operator-(Bounds x) { return {-x.high, -x.low}; }
MIRAGE_DEVICE Bounds operator+(Bounds x, Bounds y) {
  return detail::finite({x.low + y.low, x.high + y.high}, detail::most(x) + detail::most(y));
}
MIRAGE_DEVICE Bounds operator-(Bounds x, Bounds y) { return x + -y; }
MIRAGE_DEVICE Bounds operator*(Bounds x, Bounds y) {
  Bounds found = detail::product(x.low, y.low);
  found.take(detail::product(x.low, y.high));
  found.take(detail::product(x.high, y.low));
  found.take(detail::product(x.high, y.high));
  return detail::finite(found, detail::most(x) + detail::most(y));
}
MIRAGE_DEVICE Bounds minimum(Bounds x, Bounds y) { return {minimum(x.low, y.low), minimum(x.high, y.high)}; }
MIRAGE_DEVICE Bounds maximum(Bounds x, Bounds y) { return {maximum(x.low, y.low), maximum(x.high, y.high)}; }
MIRAGE_DEVICE Bounds absolute(Bounds x) {
  return {maximum(maximum(x.low, -x.high), 0.0f), detail::most(x)};
}
MIRAGE_DEVICE Bounds square(Bounds x) {
  const Bounds size = absolute(x);
  return {detail::product(size.low, size.low).low, detail::product(size.high, size.high).high};
}
MIRAGE_DEVICE Bounds relu(Bounds x) { return maximum(x, 0.0f); }
MIRAGE_DEVICE Bounds floor_value(Bounds x) { return {floor_value(x.low), floor_value(x.high)}; }
MIRAGE_DEVICE Bounds sign(Bounds x) { return {sign(x.low), sign(x.high)}; }
MIRAGE_DEVICE Bounds step(Bounds x) { return detail::truth(not_below(x.low, 0.0f), !(x.high < 0.0f)); }
MIRAGE_DEVICE Bounds greater(Bounds x, Bounds y) {
  return detail::truth(above(x.low, y.high), !not_below(y.low, x.high));
}
MIRAGE_DEVICE Bounds greater_equal(Bounds x, Bounds y) {
  return detail::truth(not_below(x.low, y.high), !above(y.low, x.high));
}
MIRAGE_DEVICE Bounds equal(Bounds x, Bounds y) {
  const bool one = x.low == x.high && y.low == y.high && x.low == y.low;
  return detail::truth(one, !above(x.low, y.high) && !above(y.low, x.high));
}
// Of what is one of two, by a mask.
MIRAGE_DEVICE Bounds choice(Bounds mask, Bounds x, Bounds other) {
  if (!may_be(mask)) return other;
  if (!(above(mask.low, 0.0f) || above(0.0f, mask.high))) x.take(other);
  return x;
}

}  // namespace mirage
