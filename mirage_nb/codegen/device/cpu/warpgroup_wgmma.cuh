// Tensor core products of one warpgroup: d[64 x N] += a[64 x 16] * b[16 x N], N = 8 or a multiple of 16 up to 256, float
// accumulators in registers, b (and a, if wanted) in shared memory as 128-byte swizzled tiles.
//
// All 128 threads of warps 4g .. 4g + 3 call each function. Order: wgmma_fence(d), products, wgmma_commit(),
// wgmma_wait<pending>(d); with a in registers wgmma_fence(d, a) and wgmma_wait<pending>(d, a). Each warp computes its own 16 rows; in deferred mode at the wait.
#pragma once

namespace mirage {

// A tile's place, major index and the distance to its next 64 columns; the engine reads it back.
template <Major M>
MIRAGE_DEVICE uint64_t wgmma_descriptor(const void* shared, int leading_bytes = 16) {
  return cpu::shared_offset(shared) | uint64_t(leading_bytes) << 32 | uint64_t(M == Major::MN) << 63;
}

namespace detail {
template <class T>
constexpr bool IS_BF16 = false;
template <>
constexpr bool IS_BF16<bf16> = true;
}  // namespace detail

template <int R>
MIRAGE_DEVICE void wgmma_fence(float (&)[R] MIRAGE_SITE) {
  cpu::collective(cpu::Collective::WgmmaFence, {}, line);
}
template <int R, int K>
MIRAGE_DEVICE void wgmma_fence(float (&d)[R], uint32_t (&)[K][1][4] MIRAGE_SITE) {
  wgmma_fence(d MIRAGE_PASS);
}
MIRAGE_DEVICE void wgmma_commit(MIRAGE_SITE_ALONE) { cpu::collective(cpu::Collective::WgmmaCommit, {}, line); }

// Returns once at most Pending of the newest committed groups are unfinished.
template <int Pending, int R>
MIRAGE_DEVICE void wgmma_wait(float (&)[R] MIRAGE_SITE) {
  cpu::collective(cpu::Collective::WgmmaWait, {nullptr, nullptr, nullptr, Pending, nullptr}, line);
}

template <int Pending, int R, int K>
MIRAGE_DEVICE void wgmma_wait(float (&d)[R], uint32_t (&)[K][1][4] MIRAGE_SITE) {
  wgmma_wait<Pending>(d MIRAGE_PASS);
}

template <int K>
MIRAGE_DEVICE void wgmma_hold(uint32_t (&)[K][1][4]) {}

// d += a * b with both in shared memory; ADD false: d = a * b.
template <int N, class T, Major A_MAJOR, Major B_MAJOR, bool ADD = true>
MIRAGE_DEVICE void wgmma_m64k16(float (&d)[N / 2], uint64_t a, uint64_t b MIRAGE_SITE) {
  const cpu::WgmmaShape shape{N, detail::IS_BF16<T>, A_MAJOR == Major::MN, B_MAJOR == Major::MN, a, b, false, ADD};
  cpu::collective(cpu::Collective::Wgmma, {d, nullptr, nullptr, 0, &shape}, line);
}
// d += a * b with a in registers.
template <int N, class T, Major B_MAJOR>
MIRAGE_DEVICE void wgmma_m64k16(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b MIRAGE_SITE) {
  const cpu::WgmmaShape shape{N, detail::IS_BF16<T>, false, B_MAJOR == Major::MN, 0, b};
  cpu::collective(cpu::Collective::Wgmma, {d, a, nullptr, 0, &shape}, line);
}

}  // namespace mirage
