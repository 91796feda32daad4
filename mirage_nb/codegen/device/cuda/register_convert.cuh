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
MIRAGE_DEVICE float to_float(int8_t x) { return float(x); }
MIRAGE_DEVICE float to_float(uint8_t x) { return float(x); }

namespace detail {
// Two floats of one byte as two of 16 bits: all that they have.
MIRAGE_DEVICE uint32_t halves(f8e5m2, uint32_t two) { return __byte_perm(two, 0, 0x1404); }
MIRAGE_DEVICE uint32_t halves(f8e4m3, uint32_t two) {
  uint32_t r;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(uint16_t(two)));
#else
  const uint32_t apart = __byte_perm(two, 0, 0x1404), size = apart & 0x7f007f00u;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(r) : "r"(size >> 1 | (apart & 0x80008000u)), "r"(0x5c005c00u));
  if ((size & 0x7f00u) == 0x7f00u) r |= 0x7fffu;
  if (size >> 16 == 0x7f00u) r |= 0x7fff0000u;
#endif
  return r;
}
}  // namespace detail

MIRAGE_DEVICE float to_float(f8e4m3 x) { return to_float(f16{uint16_t(detail::halves(x, x.bits))}); }
MIRAGE_DEVICE float to_float(f8e5m2 x) { return to_float(f16{uint16_t(x.bits << 8)}); }

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
// Numbers that the type has; no others are stored in one byte.
template <>
MIRAGE_DEVICE int8_t from_float<int8_t>(float x) {
  return int8_t(x);
}
template <>
MIRAGE_DEVICE uint8_t from_float<uint8_t>(float x) {
  return uint8_t(x);
}
template <>
MIRAGE_DEVICE f8e5m2 from_float<f8e5m2>(float x) {
  return f8e5m2{uint8_t(from_float<f16>(x).bits >> 8)};
}
template <>
MIRAGE_DEVICE f8e4m3 from_float<f8e4m3>(float x) {
  const uint32_t bits = from_float<f16>(x * 0.00390625f).bits, size = bits >> 7 & 0x7f;
  return f8e4m3{uint8_t(bits >> 8 & 0x80 | (x == x ? size : 0x7f))};
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
constexpr bool IS_F16 = false;
template <>
constexpr bool IS_F16<f16> = true;
template <class B>
constexpr bool IS_FLOAT8 = false;
template <>
constexpr bool IS_FLOAT8<f8e4m3> = true;
template <>
constexpr bool IS_FLOAT8<f8e5m2> = true;

namespace detail {
// Two bytes of a word, by their places, as two numbers of T. A whole one is the lowest bits of a number whose last bit
// counts 1, which is taken off again: of 1024 in f16, of 2^23 in f32; a signed one is 128 more in front.
template <class B, class T, int First, int Second>
MIRAGE_DEVICE uint32_t widen_two(uint32_t word) {
  if constexpr (IS_FLOAT8<B>) {
    const uint32_t two = halves(B{}, __byte_perm(word, 0, 0x4400 | Second << 4 | First));
    if constexpr (IS_F16<T>) return two;
    const float2 apart = make_float2(to_float(f16{uint16_t(two)}), to_float(f16{uint16_t(two >> 16)}));
    return pack2<T>(apart.x, apart.y);
  } else {
    constexpr bool SIGNED = B(-1) < B(0);
    if (SIGNED) word ^= 0x80808080u;
    if constexpr (IS_F16<T>) {
      uint32_t r;
      asm("sub.f16x2 %0, %1, %2;"
          : "=r"(r)
          : "r"(__byte_perm(word, 0x64646464u, 0x4040 | Second << 8 | First)), "r"(SIGNED ? 0x64806480u : 0x64006400u));
      return r;
    }
    const float base = SIGNED ? 8388736.0f : 8388608.0f;
    return pack2<T>(bits_float(__byte_perm(word, 0x4b000000u, 0x7440 | First)) - base,
                    bits_float(__byte_perm(word, 0x4b000000u, 0x7440 | Second)) - base);
  }
}
template <class B, class T, int Step>
MIRAGE_DEVICE void widen(uint32_t word, uint32_t& low, uint32_t& high) {
  low = widen_two<B, T, 0, Step>(word), high = widen_two<B, T, 3 - Step, 3>(word);
}
}  // namespace detail

// Four numbers of one byte as two pairs of T: the first two and the others.
template <class B, class T>
MIRAGE_DEVICE void widen_bytes(uint32_t word, uint32_t& low, uint32_t& high) {
  detail::widen<B, T, 1>(word, low, high);
}
// The same: the even ones and the odd ones.
template <class B, class T>
MIRAGE_DEVICE void widen_twins(uint32_t word, uint32_t& even, uint32_t& odd) {
  detail::widen<B, T, 2>(word, even, odd);
}

template <class T>
MIRAGE_DEVICE float2 unpack2(uint32_t x) {
  return make_float2(to_float(T{uint16_t(x)}), to_float(T{uint16_t(x >> 16)}));
}

}  // namespace mirage
