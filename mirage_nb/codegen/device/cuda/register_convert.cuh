// Conversions between float and the 16-bit types, one at a time and in pairs. Rounds to nearest even.
#pragma once

namespace mirage {

MIRAGE_DEVICE float bits_float(uint32_t x) { return __uint_as_float(x); }
MIRAGE_DEVICE uint32_t float_bits(float x) { return __float_as_uint(x); }
namespace detail {
// The same word, of which the compiler knows nothing.
MIRAGE_DEVICE uint32_t opaque(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}
}  // namespace detail

// What tensor cores read of a float as TF32: 10 bits behind the point, the others dropped; and rounded to so many,
// to nearest, ties away from zero.
MIRAGE_DEVICE float to_tf32(float x) { return bits_float(float_bits(x) & 0xffffe000u); }
MIRAGE_DEVICE float round_tf32(float x) {
  uint32_t r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return bits_float(r);
}

MIRAGE_DEVICE float to_float(float x) { return x; }
MIRAGE_DEVICE float to_float(f16 x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
  return r;
}
MIRAGE_DEVICE float to_float(bf16 x) { return bits_float(uint32_t(x.bits) << 16); }

template <class T>
MIRAGE_DEVICE T from_float(float x);
template <>
MIRAGE_DEVICE float from_float<float>(float x) {
  return x;
}
template <>
MIRAGE_DEVICE f16 from_float<f16>(float x) {
  f16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}
template <>
MIRAGE_DEVICE bf16 from_float<bf16>(float x) {
  bf16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}

template <class T>
MIRAGE_DEVICE uint32_t pack2(float low, float high);
template <>
MIRAGE_DEVICE uint32_t pack2<f16>(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <>
MIRAGE_DEVICE uint32_t pack2<bf16>(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

template <class T>
MIRAGE_DEVICE float2 unpack2(uint32_t x) {
  return make_float2(to_float(T{uint16_t(x)}), to_float(T{uint16_t(x >> 16)}));
}

}  // namespace mirage
