// Tensor core products of one warpgroup of TF32: d[64 x N] += a[64 x 8] * b[8 x N], N = 32, 64 or 128, float accumulators
// and a in registers, b in shared memory as a 128-byte swizzled tile whose rows are 32 floats along k (Major::K): the
// next 8 of k start 32 bytes on. Elements are floats of which 10 bits behind the point are read. From sm_90a on.
//
// All 128 threads of warps 4g .. 4g + 3 call each function. Order: wgmma_fence(d) and wgmma_hold(a), products,
// wgmma_commit(), wgmma_wait<pending>(d), wgmma_hold(a): the products read a's registers until they are waited for.
#pragma once

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace mirage {

template <int R>
MIRAGE_DEVICE void wgmma_hold(float (&a)[R]) {
  detail::pin(a);
}

// Returns once at most Pending of the newest committed groups are unfinished; sums are not to be touched yet.
template <int Pending>
MIRAGE_DEVICE void wgmma_pass() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

namespace detail {

template <int N>
struct WgmmaTf32;

// One shape, of the registers that `warpgroup_wgmma.cuh` has for it.
#define MIRAGE_WGMMA_TF32(N, REGISTERS, OUTPUTS, P0, P1, P2, P3, P4)                                               \
  template <>                                                                                                      \
  struct WgmmaTf32<N> {                                                                                            \
    static MIRAGE_DEVICE void run(float (&d)[N / 2], const float (&a)[4], uint64_t b) {                            \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" REGISTERS "}, {%" #P0 ", %" #P1     \
                   ", %" #P2 ", %" #P3 "}, %" #P4 ", 1, 1, 1;"                                                     \
                   : MIRAGE_LIST(OUTPUTS)                                                                          \
                   : "r"(float_bits(a[0])), "r"(float_bits(a[1])), "r"(float_bits(a[2])), "r"(float_bits(a[3])),   \
                     "l"(b));                                                                                      \
    }                                                                                                              \
  };

MIRAGE_WGMMA_TF32(32, MIRAGE_TEXT32, (MIRAGE_OUT32), 16, 17, 18, 19, 20)
MIRAGE_WGMMA_TF32(64, MIRAGE_TEXT64, (MIRAGE_OUT64), 32, 33, 34, 35, 36)
MIRAGE_WGMMA_TF32(128, MIRAGE_TEXT128, (MIRAGE_OUT128), 64, 65, 66, 67, 68)

}  // namespace detail

template <int N>
MIRAGE_DEVICE void wgmma_m64k8_tf32(float (&d)[N / 2], const float (&a)[4], uint64_t b) {
  detail::WgmmaTf32<N>::run(d, a, b);
}

}  // namespace mirage
#endif
