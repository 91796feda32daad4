// Conversions between float and the 16-bit types, one at a time and in pairs. Rounds to nearest even.
#pragma once

namespace mirage {

MIRAGE_DEVICE float bits_float(uint32_t x) {
  float r;
  memcpy(&r, &x, 4);
  return r;
}
MIRAGE_DEVICE uint32_t float_bits(float x) {
  uint32_t r;
  memcpy(&r, &x, 4);
  return r;
}
namespace detail {
// The same word, of which the compiler knows nothing.
MIRAGE_DEVICE uint32_t opaque(uint32_t x) { return x; }
}  // namespace detail

// What tensor cores read of a float as TF32: 10 bits behind the point, the others dropped; and rounded to so many,
// to nearest, ties away from zero.
MIRAGE_DEVICE float to_tf32(float x) { return bits_float(float_bits(x) & 0xffffe000u); }
MIRAGE_DEVICE float round_tf32(float x) {
  return x == x ? bits_float((float_bits(x) + 0x1000u) & 0xffffe000u) : x;
}

MIRAGE_DEVICE float to_float(float x) { return x; }
MIRAGE_DEVICE float to_float(f16 x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000) << 16, magnitude = uint32_t(x.bits & 0x7fff) << 13;
  // Multiplying by 2^112 moves the exponent bias and makes subnormals exact; inf and NaN keep their own exponent.
  const uint32_t scaled = float_bits(bits_float(magnitude) * 0x1p112f);
  return bits_float(sign | ((x.bits & 0x7c00) == 0x7c00 ? magnitude | 0x7f800000u : scaled));
}
MIRAGE_DEVICE float to_float(bf16 x) { return bits_float(uint32_t(x.bits) << 16); }
MIRAGE_DEVICE float to_float(int8_t x) { return float(x); }
MIRAGE_DEVICE float to_float(uint8_t x) { return float(x); }
MIRAGE_DEVICE float to_float(f8e5m2 x) { return to_float(f16{uint16_t(x.bits << 8)}); }
MIRAGE_DEVICE float to_float(f8e4m3 x) {
  const uint32_t size = x.bits & 0x7f;
  const float found = size == 0x7f ? bits_float(0x7fc00000u) : to_float(f16{uint16_t(size << 7)}) * 256.0f;
  return x.bits & 0x80 ? -found : found;
}

template <class T>
MIRAGE_DEVICE T from_float(float x);
template <>
MIRAGE_DEVICE float from_float<float>(float x) {
  return x;
}
template <>
MIRAGE_DEVICE f16 from_float<f16>(float x) {
  const uint32_t bits = float_bits(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {0x7fff};                    // NaN, as the GPU writes it
  if (magnitude >= 0x477ff000u) return {uint16_t(sign | 0x7c00)};  // rounds to 65536 or more: infinity
  if (magnitude < 0x38800000u) {                                   // subnormal: let the float adder round at 2^-24
    return {uint16_t(sign | (float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u))};
  }
  return {uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13))};
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
namespace detail {
// A number that the type has, or else NaN.
template <class B>
MIRAGE_DEVICE B same_number(float x) {
  for (int bits = 0; bits < 256; bits++) {
    if (float_bits(to_float(B{uint8_t(bits)})) == float_bits(x)) return B{uint8_t(bits)};
  }
  return B{0x7f};
}
}  // namespace detail
template <>
MIRAGE_DEVICE f8e4m3 from_float<f8e4m3>(float x) {
  return detail::same_number<f8e4m3>(x);
}
template <>
MIRAGE_DEVICE f8e5m2 from_float<f8e5m2>(float x) {
  return detail::same_number<f8e5m2>(x);
}
template <>
MIRAGE_DEVICE bf16 from_float<bf16>(float x) {
  const uint32_t bits = float_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
}

template <class T>
MIRAGE_DEVICE uint32_t pack2(float low, float high) {
  return from_float<T>(low).bits | uint32_t(from_float<T>(high).bits) << 16;
}

// Four numbers of one byte as two pairs of T: the first two and the others.
template <class B, class T>
MIRAGE_DEVICE void widen_bytes(uint32_t word, uint32_t& low, uint32_t& high) {
  float x[4];
  B held[4];
  memcpy(held, &word, 4);
  for (int i = 0; i < 4; i++) x[i] = to_float(held[i]);
  low = pack2<T>(x[0], x[1]), high = pack2<T>(x[2], x[3]);
}
// The same: the even ones and the odd ones.
template <class B, class T>
MIRAGE_DEVICE void widen_twins(uint32_t word, uint32_t& even, uint32_t& odd) {
  widen_bytes<B, T>((word & 0xff0000ffu) | (word & 0xff00u) << 8 | (word & 0xff0000u) >> 8, even, odd);
}

template <class T>
MIRAGE_DEVICE float2 unpack2(uint32_t x) {
  return make_float2(to_float(T{uint16_t(x)}), to_float(T{uint16_t(x >> 16)}));
}

}  // namespace mirage
