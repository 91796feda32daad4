// Float functions in registers; fast_* are exact to rounding here.
#pragma once

namespace mirage {

#define NEGATIVE_INFINITY (-__builtin_inff())

MIRAGE_DEVICE float fast_exp2(float x) { return __builtin_exp2f(x); }
MIRAGE_DEVICE float fast_sqrt(float x) { return __builtin_sqrtf(x); }
MIRAGE_DEVICE float fast_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
MIRAGE_DEVICE float fast_reciprocal(float x) { return 1.0f / x; }
MIRAGE_DEVICE float fast_divide(float a, float b) { return a / b; }
// NaN where one of the two is.
MIRAGE_DEVICE float maximum(float a, float b) { return a != a || a > b ? a : b; }
MIRAGE_DEVICE float minimum(float a, float b) { return a != a || a < b ? a : b; }
MIRAGE_DEVICE float fused_multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MIRAGE_DEVICE double fused_multiply_add(double a, double b, double c) { return __builtin_fma(a, b, c); }
MIRAGE_DEVICE float erf_value(float x) { return __builtin_erff(x); }
MIRAGE_DEVICE float power(float x, float y) { return __builtin_powf(x, y); }
MIRAGE_DEVICE float natural_log(float x) { return __builtin_logf(x); }
MIRAGE_DEVICE float log_one_plus(float x) { return __builtin_log1pf(x); }
MIRAGE_DEVICE float exp_minus_one(float x) { return __builtin_expm1f(x); }
MIRAGE_DEVICE float floor_value(float x) { return __builtin_floorf(x); }
MIRAGE_DEVICE float absolute(float x) { return __builtin_fabsf(x); }
MIRAGE_DEVICE float sine(float x) { return __builtin_sinf(x); }
MIRAGE_DEVICE float cosine(float x) { return __builtin_cosf(x); }
MIRAGE_DEVICE float arc_tangent(float x) { return __builtin_atanf(x); }

}  // namespace mirage
