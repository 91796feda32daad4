// Elementwise functions built from the fast ones of register_math.cuh. Float in, float out.
#pragma once

namespace mirage {

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LOWEST_FLOAT = -3.402823466e38f;

// What many numbers are divided by. Of one below 2^-128 the inverse is infinite where the quotients need not be.
struct Divisor {
  float scale, inverse;
};
MIRAGE_DEVICE Divisor divisor(float x) {
  const float scale = absolute(x) < 0x1p-100f ? 0x1p64f : 1.0f;
  return {scale, fast_reciprocal(x * scale)};
}
MIRAGE_DEVICE float operator/(float x, Divisor by) { return x * by.scale * by.inverse; }

MIRAGE_DEVICE float fast_exp(float x) { return fast_exp2(x * LOG2_E); }
MIRAGE_DEVICE float sigmoid(float x) { return fast_reciprocal(1.0f + fast_exp(-x)); }
MIRAGE_DEVICE float silu(float x) { return fast_divide(x, 1.0f + fast_exp(-x)); }
// 1 - 2 / (exp(2x) + 1) loses digits near zero, where the odd series is exact enough.
MIRAGE_DEVICE float fast_tanh(float x) {
  float s = x * x;
  float series = x * (1.0f + s * (-0.33333333f + s * (0.13333333f + s * (-0.05396825f + s * 0.02186949f))));
  float quotient = 1.0f - 2.0f * fast_reciprocal(fast_exp(2.0f * x) + 1.0f);
  return s < 0.0625f ? series : quotient;
}
// x * erfc(-x / sqrt(2)) / 2 without cancellation on either side. erfc as in Abramowitz and Stegun 7.1.26, error 1.5e-7.
MIRAGE_DEVICE float gelu(float x) {
  const float z = absolute(x) * 0.70710678118654752f;
  const float t = fast_reciprocal(1.0f + 0.3275911f * z);
  const float series = 0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f)));
  const float tail = 0.5f * t * series * fast_exp2(-LOG2_E * z * z);
  return x * (x < 0.0f ? tail : 1.0f - tail);
}
MIRAGE_DEVICE float gelu_tanh(float x) {
  return 0.5f * x * (1.0f + fast_tanh(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}
MIRAGE_DEVICE float square(float x) { return x * x; }
// NaN stays NaN; it lies on no side of a step.
MIRAGE_DEVICE float sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }
// Comparisons as they are said of no number: ptxas (CUDA 13.0) takes `x * x >= 0.0f`, and that a magnitude or an
// exponential is above what none is below, for true of any x.
MIRAGE_DEVICE bool not_below(float x, float y) { return maximum(x, y) == x; }
MIRAGE_DEVICE bool above(float x, float y) { return not_below(x, y) && x != y; }
MIRAGE_DEVICE float step(float x) { return not_below(x, 0.0f) ? 1.0f : 0.0f; }
// The row that a number names, of so many; -1 if it names none.
MIRAGE_DEVICE int row_named(float number, int rows) {
  const int row = not_below(number, 0.0f) && above((float)rows, number) ? (int)number : 0;
  return number == (float)row ? row : -1;
}
MIRAGE_DEVICE float relu(float x) { return maximum(x, 0.0f); }
MIRAGE_DEVICE float clamp(float x, float low, float high) { return minimum(maximum(x, low), high); }
// What was shifted by `top`, shifted by the larger `rise` instead. Where nothing but minus infinity was seen, the shift
// left no number: beside anything larger it counts nothing, beside its like the result is no number either.
MIRAGE_DEVICE float rescaled(float value, float top, float rise) {
  const float fall = top - rise;
  return (fall == NEGATIVE_INFINITY ? 0.0f : value) * fast_exp(fall);
}

}  // namespace mirage
