// Tensor core products of one warpgroup of floats of one byte: d[64 x N] += a[64 x 32] * b[32 x N], float accumulators in
// registers, a and b in shared memory as 128-byte swizzled tiles whose rows are 128 elements along k (Major::K): the next
// 32 of k start 32 bytes on. Products are exact; d keeps 13 bits behind the point, the others are dropped. From sm_90a on.
//
// All 128 threads of warps 4g .. 4g + 3 call each function. Order: wgmma_fence(d), products, wgmma_commit(),
// wgmma_wait<pending>(d). N: any of tile/instructions/table.py, F8_COLUMNS.
#pragma once

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace mirage {
namespace detail {

template <class T>
struct F8Name;
template <>
struct F8Name<f8e4m3> {
  static constexpr char text[] = "e4m3";
};
template <>
struct F8Name<f8e5m2> {
  static constexpr char text[] = "e5m2";
};

template <int N>
struct WgmmaF8;

// One shape, of the registers that `warpgroup_wgmma.cuh` has for it; the numbers of the five operands that follow them.
#define MIRAGE_WGMMA_F8(N, REGISTERS, OUTPUTS, P0, P1, P2, P3, P4)                                                   \
  template <>                                                                                                        \
  struct WgmmaF8<N> {                                                                                                \
    template <class A, class B, bool ADD>                                                                            \
    static MIRAGE_DEVICE void run(float (&d)[N / 2], uint64_t a, uint64_t b) {                                       \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.%" #P3 ".%" #P4 " {" REGISTERS "}, %" #P0 ", %" #P1 \
                   ", %" #P2 ", 1, 1;"                                                                               \
                   : MIRAGE_LIST(OUTPUTS)                                                                            \
                   : "l"(a), "l"(b), "n"(ADD), "C"(F8Name<A>::text), "C"(F8Name<B>::text));                          \
    }                                                                                                                \
  };

MIRAGE_WGMMA_F8(16, MIRAGE_TEXT16, (MIRAGE_OUT16), 8, 9, 10, 11, 12)
MIRAGE_WGMMA_F8(32, MIRAGE_TEXT32, (MIRAGE_OUT32), 16, 17, 18, 19, 20)
MIRAGE_WGMMA_F8(64, MIRAGE_TEXT64, (MIRAGE_OUT64), 32, 33, 34, 35, 36)
MIRAGE_WGMMA_F8(96, MIRAGE_TEXT96, (MIRAGE_OUT96), 48, 49, 50, 51, 52)
MIRAGE_WGMMA_F8(128, MIRAGE_TEXT128, (MIRAGE_OUT128), 64, 65, 66, 67, 68)
MIRAGE_WGMMA_F8(160, MIRAGE_TEXT160, (MIRAGE_OUT160), 80, 81, 82, 83, 84)
MIRAGE_WGMMA_F8(192, MIRAGE_TEXT192, (MIRAGE_OUT192), 96, 97, 98, 99, 100)

}  // namespace detail

// d += a * b; ADD false: d = a * b.
template <int N, class A, class B, Major A_MAJOR, Major B_MAJOR, bool ADD = true>
MIRAGE_DEVICE void wgmma_m64k32(float (&d)[N / 2], uint64_t a, uint64_t b) {
  static_assert(A_MAJOR == Major::K && B_MAJOR == Major::K, "floats of one byte lie along k");
  detail::WgmmaF8<N>::template run<A, B, ADD>(d, a, b);
}

}  // namespace mirage
#endif
