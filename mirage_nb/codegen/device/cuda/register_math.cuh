// Float functions in registers. fast_*: the approximate units of the GPU, relative error about 2^-21.
#pragma once

namespace mirage {

#define NEGATIVE_INFINITY __int_as_float(0xff800000)

MIRAGE_DEVICE float fast_exp2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
MIRAGE_DEVICE float fast_sqrt(float x) {
  float r;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
MIRAGE_DEVICE float fast_rsqrt(float x) {
  float r;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
MIRAGE_DEVICE float fast_reciprocal(float x) {
  float r;
  asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
MIRAGE_DEVICE float fast_divide(float a, float b) {
  float r;
  asm("div.full.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
// NaN where one of the two is.
MIRAGE_DEVICE float maximum(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
MIRAGE_DEVICE float minimum(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
MIRAGE_DEVICE float fused_multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
MIRAGE_DEVICE double fused_multiply_add(double a, double b, double c) { return fma(a, b, c); }
MIRAGE_DEVICE float erf_value(float x) { return erff(x); }
MIRAGE_DEVICE float power(float x, float y) { return powf(x, y); }
MIRAGE_DEVICE float natural_log(float x) { return logf(x); }
MIRAGE_DEVICE float log_one_plus(float x) { return log1pf(x); }
MIRAGE_DEVICE float exp_minus_one(float x) { return expm1f(x); }
MIRAGE_DEVICE float floor_value(float x) { return floorf(x); }
MIRAGE_DEVICE float absolute(float x) { return fabsf(x); }
MIRAGE_DEVICE float sine(float x) { return sinf(x); }
MIRAGE_DEVICE float cosine(float x) { return cosf(x); }
MIRAGE_DEVICE float arc_tangent(float x) { return atanf(x); }

}  // namespace mirage
