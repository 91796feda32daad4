// Tensor core products of one warpgroup of TF32: d[64 x N] += a[64 x 8] * b[8 x N], N = 32, 64 or 128, float accumulators
// and a in registers, b in shared memory as a 128-byte swizzled tile whose rows are 32 floats along k (Major::K): the
// next 8 of k start 32 bytes on. Elements are floats of which 10 bits behind the point are read.
//
// All 128 threads of warps 4g .. 4g + 3 call each function. Order: wgmma_fence(d) and wgmma_hold(a), products,
// wgmma_commit(), wgmma_wait<pending>(d), wgmma_hold(a). In deferred mode products are computed at the wait.
#pragma once

namespace mirage {

template <int R>
MIRAGE_DEVICE void wgmma_hold(float (&)[R]) {}

// Returns once at most Pending of the newest committed groups are unfinished; sums are not to be touched yet.
template <int Pending>
MIRAGE_DEVICE void wgmma_pass(MIRAGE_SITE_ALONE) {
  cpu::collective(cpu::Collective::WgmmaWait, {nullptr, nullptr, nullptr, Pending, nullptr}, line);
}

template <int N>
MIRAGE_DEVICE void wgmma_m64k8_tf32(float (&d)[N / 2], const float (&a)[4], uint64_t b MIRAGE_SITE) {
  static_assert(N == 32 || N == 64 || N == 128, "32, 64 or 128 columns");
  const cpu::WgmmaShape shape{N, false, false, false, 0, b, true};
  cpu::collective(cpu::Collective::Wgmma, {d, a, nullptr, 0, &shape}, line);
}

}  // namespace mirage
