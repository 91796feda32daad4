// Tensor core products of one warp: d[16x8] += a[16x16] * b[16x8] of 16-bit elements or doubles, or a[16x8] * b[8x8] of
// TF32; float accumulators, of doubles double ones. Fragments: warp_fragment.cuh.
#pragma once

namespace mirage {

template <class T>
MIRAGE_DEVICE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] MIRAGE_SITE);

template <>
MIRAGE_DEVICE void mma_m16n8k16<f16>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line) {
  cpu::collective(cpu::Collective::MmaF16, {d, a, b, 0, nullptr}, line);
}
template <>
MIRAGE_DEVICE void mma_m16n8k16<bf16>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line) {
  cpu::collective(cpu::Collective::MmaBf16, {d, a, b, 0, nullptr}, line);
}

MIRAGE_DEVICE void mma_m16n8k8_tf32(float (&d)[4], const float (&a)[4], const float (&b)[2] MIRAGE_SITE) {
  cpu::collective(cpu::Collective::MmaTf32, {d, a, b, 0, nullptr}, line);
}

MIRAGE_DEVICE void mma_m16n8k16_f64(double (&d)[4], const double (&a)[8], const double (&b)[4] MIRAGE_SITE) {
  cpu::collective(cpu::Collective::MmaF64, {d, a, b, 0, nullptr}, line);
}

}  // namespace mirage
