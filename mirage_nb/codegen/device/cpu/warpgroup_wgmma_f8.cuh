// Tensor core products of one warpgroup of floats of one byte: d[64 x N] += a[64 x 32] * b[32 x N], float accumulators in
// registers, a and b in shared memory as 128-byte swizzled tiles whose rows are 128 elements along k (Major::K): the next
// 32 of k start 32 bytes on. Products are exact; d keeps 13 bits behind the point, the others are dropped.
//
// All 128 threads of warps 4g .. 4g + 3 call each function. Order: wgmma_fence(d), products, wgmma_commit(),
// wgmma_wait<pending>(d). In deferred mode products are computed at the wait.
#pragma once

namespace mirage {
namespace detail {
template <class T>
constexpr cpu::F8 F8_TYPE = cpu::F8::E4M3;
template <>
constexpr cpu::F8 F8_TYPE<f8e5m2> = cpu::F8::E5M2;
}  // namespace detail

// d += a * b; ADD false: d = a * b.
template <int N, class A, class B, Major A_MAJOR, Major B_MAJOR, bool ADD = true>
MIRAGE_DEVICE void wgmma_m64k32(float (&d)[N / 2], uint64_t a, uint64_t b MIRAGE_SITE) {
  static_assert(A_MAJOR == Major::K && B_MAJOR == Major::K, "floats of one byte lie along k");
  const cpu::WgmmaShape shape{N, false, false, false, a, b, false, ADD, detail::F8_TYPE<A>, detail::F8_TYPE<B>};
  cpu::collective(cpu::Collective::Wgmma, {d, nullptr, nullptr, 0, &shape}, line);
}

}  // namespace mirage
