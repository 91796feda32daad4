// Tensor core products of one warpgroup: d[64 x N] += a[64 x 16] * b[16 x N], N = 8 or a multiple of 16 up to 256, float
// accumulators in registers, b (and a, if wanted) in shared memory as 128-byte swizzled tiles. From sm_90a on.
//
// All 128 threads of warps 4g .. 4g + 3 call each function. Order: wgmma_fence(d), products, wgmma_commit(),
// wgmma_wait<pending>(d); with a in registers wgmma_fence(d, a) and wgmma_wait<pending>(d, a). Thread t holds row 16 * (t / 32) + mma_d_row(t % 32, i % 4) and column
// 8 * (i / 4) + mma_d_column(t % 32, i % 4) in d[i]; a in registers is four mma_m16n8k16 fragments, one per warp.
#pragma once

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace mirage {

// Tiles with rows of 128 bytes in the 128-byte swizzle. Major::K: a row is one index of M or N and 64 of K; the next
// 16 of K start 32 bytes on. Major::MN: a row is one index of K and 64 of M or N; the next 16 of K start 2048 bytes on,
// the next 64 of M or N `leading_bytes` on.
template <Major M>
MIRAGE_DEVICE uint64_t wgmma_descriptor(const void* shared, int leading_bytes = 16) {
  const uint64_t start = (shared_address(shared) & 0x3ffff) >> 4;
  const uint64_t leading = M == Major::K ? 1 : leading_bytes >> 4;
  return start | leading << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

namespace detail {

// Keeps the compiler from moving accumulators across the asynchronous products.
template <int R>
MIRAGE_DEVICE void pin(float (&d)[R]) {
  MIRAGE_UNROLL
  for (int i = 0; i < R; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// The products read a's registers until they are waited for: named behind the wait, none is used for something else.
template <int K>
MIRAGE_DEVICE void pin(uint32_t (&a)[K][1][4]) {
  MIRAGE_UNROLL
  for (int k = 0; k < K; k++)
    asm volatile("" : "+r"(a[k][0][0]), "+r"(a[k][0][1]), "+r"(a[k][0][2]), "+r"(a[k][0][3])::"memory");
}

template <class T>
constexpr bool IS_F16 = false;
template <>
constexpr bool IS_F16<f16> = true;

template <int N>
struct Wgmma;

#define MIRAGE_R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define MIRAGE_R8 "%8, %9, %10, %11, %12, %13, %14, %15"
#define MIRAGE_R16 "%16, %17, %18, %19, %20, %21, %22, %23"
#define MIRAGE_R24 "%24, %25, %26, %27, %28, %29, %30, %31"
#define MIRAGE_R32 "%32, %33, %34, %35, %36, %37, %38, %39"
#define MIRAGE_R40 "%40, %41, %42, %43, %44, %45, %46, %47"
#define MIRAGE_R48 "%48, %49, %50, %51, %52, %53, %54, %55"
#define MIRAGE_R56 "%56, %57, %58, %59, %60, %61, %62, %63"
#define MIRAGE_R64 "%64, %65, %66, %67, %68, %69, %70, %71"
#define MIRAGE_R72 "%72, %73, %74, %75, %76, %77, %78, %79"
#define MIRAGE_R80 "%80, %81, %82, %83, %84, %85, %86, %87"
#define MIRAGE_R88 "%88, %89, %90, %91, %92, %93, %94, %95"
#define MIRAGE_R96 "%96, %97, %98, %99, %100, %101, %102, %103"
#define MIRAGE_R104 "%104, %105, %106, %107, %108, %109, %110, %111"
#define MIRAGE_R112 "%112, %113, %114, %115, %116, %117, %118, %119"
#define MIRAGE_R120 "%120, %121, %122, %123, %124, %125, %126, %127"
#define MIRAGE_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MIRAGE_D8(i) MIRAGE_D4(i), MIRAGE_D4(i + 4)

#define MIRAGE_WGMMA_SHARED(N, TYPE, REGISTERS, OUTPUTS, A, B, TRANS_A, TRANS_B, ADDS)                           \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS "}, %" #A ", %" #B \
               ", %" #ADDS ", 1, 1, %" #TRANS_A ", %" #TRANS_B ";"                                               \
               : OUTPUTS                                                                                         \
               : "l"(a), "l"(b), "n"(A_MAJOR == Major::MN), "n"(B_MAJOR == Major::MN), "n"(ADD))
#define MIRAGE_WGMMA_REGISTER(N, TYPE, REGISTERS, OUTPUTS, A0, A1, A2, A3, B, TRANS_B)                              \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS "}, {%" #A0 ", %" #A1 \
               ", %" #A2 ", %" #A3 "}, %" #B ", 1, 1, 1, %" #TRANS_B ";"                                            \
               : OUTPUTS                                                                                            \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(B_MAJOR == Major::MN))

// One shape: the text of its registers, their operands, and the numbers of the six operands that follow them.
#define MIRAGE_WGMMA_SHAPE(N, REGISTERS, OUTPUTS, P0, P1, P2, P3, P4, P5)                          \
  template <>                                                                                      \
  struct Wgmma<N> {                                                                                \
    template <class T, Major A_MAJOR, Major B_MAJOR, bool ADD>                                     \
    static MIRAGE_DEVICE void run(float (&d)[N / 2], uint64_t a, uint64_t b) {                     \
      if constexpr (IS_F16<T>) {                                                                   \
        MIRAGE_WGMMA_SHARED(N, "f16", REGISTERS, MIRAGE_LIST(OUTPUTS), P0, P1, P2, P3, P4);        \
      } else {                                                                                     \
        MIRAGE_WGMMA_SHARED(N, "bf16", REGISTERS, MIRAGE_LIST(OUTPUTS), P0, P1, P2, P3, P4);       \
      }                                                                                            \
    }                                                                                              \
    template <class T, Major B_MAJOR>                                                              \
    static MIRAGE_DEVICE void run(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {         \
      if constexpr (IS_F16<T>) {                                                                   \
        MIRAGE_WGMMA_REGISTER(N, "f16", REGISTERS, MIRAGE_LIST(OUTPUTS), P0, P1, P2, P3, P4, P5);  \
      } else {                                                                                     \
        MIRAGE_WGMMA_REGISTER(N, "bf16", REGISTERS, MIRAGE_LIST(OUTPUTS), P0, P1, P2, P3, P4, P5); \
      }                                                                                            \
    }                                                                                              \
  };
#define MIRAGE_LIST(list) MIRAGE_UNWRAP list
#define MIRAGE_UNWRAP(...) __VA_ARGS__

// Every shape has the registers of the one before it and eight more.
#define MIRAGE_TEXT16 MIRAGE_R0
#define MIRAGE_OUT16 MIRAGE_D8(0)
#define MIRAGE_TEXT32 MIRAGE_TEXT16 ", " MIRAGE_R8
#define MIRAGE_OUT32 MIRAGE_OUT16, MIRAGE_D8(8)
#define MIRAGE_TEXT48 MIRAGE_TEXT32 ", " MIRAGE_R16
#define MIRAGE_OUT48 MIRAGE_OUT32, MIRAGE_D8(16)
#define MIRAGE_TEXT64 MIRAGE_TEXT48 ", " MIRAGE_R24
#define MIRAGE_OUT64 MIRAGE_OUT48, MIRAGE_D8(24)
#define MIRAGE_TEXT80 MIRAGE_TEXT64 ", " MIRAGE_R32
#define MIRAGE_OUT80 MIRAGE_OUT64, MIRAGE_D8(32)
#define MIRAGE_TEXT96 MIRAGE_TEXT80 ", " MIRAGE_R40
#define MIRAGE_OUT96 MIRAGE_OUT80, MIRAGE_D8(40)
#define MIRAGE_TEXT112 MIRAGE_TEXT96 ", " MIRAGE_R48
#define MIRAGE_OUT112 MIRAGE_OUT96, MIRAGE_D8(48)
#define MIRAGE_TEXT128 MIRAGE_TEXT112 ", " MIRAGE_R56
#define MIRAGE_OUT128 MIRAGE_OUT112, MIRAGE_D8(56)
#define MIRAGE_TEXT144 MIRAGE_TEXT128 ", " MIRAGE_R64
#define MIRAGE_OUT144 MIRAGE_OUT128, MIRAGE_D8(64)
#define MIRAGE_TEXT160 MIRAGE_TEXT144 ", " MIRAGE_R72
#define MIRAGE_OUT160 MIRAGE_OUT144, MIRAGE_D8(72)
#define MIRAGE_TEXT176 MIRAGE_TEXT160 ", " MIRAGE_R80
#define MIRAGE_OUT176 MIRAGE_OUT160, MIRAGE_D8(80)
#define MIRAGE_TEXT192 MIRAGE_TEXT176 ", " MIRAGE_R88
#define MIRAGE_OUT192 MIRAGE_OUT176, MIRAGE_D8(88)
#define MIRAGE_TEXT208 MIRAGE_TEXT192 ", " MIRAGE_R96
#define MIRAGE_OUT208 MIRAGE_OUT192, MIRAGE_D8(96)
#define MIRAGE_TEXT224 MIRAGE_TEXT208 ", " MIRAGE_R104
#define MIRAGE_OUT224 MIRAGE_OUT208, MIRAGE_D8(104)
#define MIRAGE_TEXT240 MIRAGE_TEXT224 ", " MIRAGE_R112
#define MIRAGE_OUT240 MIRAGE_OUT224, MIRAGE_D8(112)
#define MIRAGE_TEXT256 MIRAGE_TEXT240 ", " MIRAGE_R120
#define MIRAGE_OUT256 MIRAGE_OUT240, MIRAGE_D8(120)

MIRAGE_WGMMA_SHAPE(8, "%0, %1, %2, %3", (MIRAGE_D4(0)), 4, 5, 6, 7, 8, 9)
MIRAGE_WGMMA_SHAPE(16, MIRAGE_TEXT16, (MIRAGE_OUT16), 8, 9, 10, 11, 12, 13)
MIRAGE_WGMMA_SHAPE(32, MIRAGE_TEXT32, (MIRAGE_OUT32), 16, 17, 18, 19, 20, 21)
MIRAGE_WGMMA_SHAPE(48, MIRAGE_TEXT48, (MIRAGE_OUT48), 24, 25, 26, 27, 28, 29)
MIRAGE_WGMMA_SHAPE(64, MIRAGE_TEXT64, (MIRAGE_OUT64), 32, 33, 34, 35, 36, 37)
MIRAGE_WGMMA_SHAPE(80, MIRAGE_TEXT80, (MIRAGE_OUT80), 40, 41, 42, 43, 44, 45)
MIRAGE_WGMMA_SHAPE(96, MIRAGE_TEXT96, (MIRAGE_OUT96), 48, 49, 50, 51, 52, 53)
MIRAGE_WGMMA_SHAPE(112, MIRAGE_TEXT112, (MIRAGE_OUT112), 56, 57, 58, 59, 60, 61)
MIRAGE_WGMMA_SHAPE(128, MIRAGE_TEXT128, (MIRAGE_OUT128), 64, 65, 66, 67, 68, 69)
MIRAGE_WGMMA_SHAPE(144, MIRAGE_TEXT144, (MIRAGE_OUT144), 72, 73, 74, 75, 76, 77)
MIRAGE_WGMMA_SHAPE(160, MIRAGE_TEXT160, (MIRAGE_OUT160), 80, 81, 82, 83, 84, 85)
MIRAGE_WGMMA_SHAPE(176, MIRAGE_TEXT176, (MIRAGE_OUT176), 88, 89, 90, 91, 92, 93)
MIRAGE_WGMMA_SHAPE(192, MIRAGE_TEXT192, (MIRAGE_OUT192), 96, 97, 98, 99, 100, 101)
MIRAGE_WGMMA_SHAPE(208, MIRAGE_TEXT208, (MIRAGE_OUT208), 104, 105, 106, 107, 108, 109)
MIRAGE_WGMMA_SHAPE(224, MIRAGE_TEXT224, (MIRAGE_OUT224), 112, 113, 114, 115, 116, 117)
MIRAGE_WGMMA_SHAPE(240, MIRAGE_TEXT240, (MIRAGE_OUT240), 120, 121, 122, 123, 124, 125)
MIRAGE_WGMMA_SHAPE(256, MIRAGE_TEXT256, (MIRAGE_OUT256), 128, 129, 130, 131, 132, 133)

}  // namespace detail

template <int R>
MIRAGE_DEVICE void wgmma_fence(float (&d)[R]) {
  detail::pin(d);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Also for K operands a, each 16 deep, that come in registers.
template <int R, int K>
MIRAGE_DEVICE void wgmma_fence(float (&d)[R], uint32_t (&a)[K][1][4]) {
  detail::pin(a);
  wgmma_fence(d);
}
MIRAGE_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Returns once at most Pending of the newest committed groups are unfinished.
template <int Pending, int R>
MIRAGE_DEVICE void wgmma_wait(float (&d)[R]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
  detail::pin(d);
}

template <int Pending, int R, int K>
MIRAGE_DEVICE void wgmma_wait(float (&d)[R], uint32_t (&a)[K][1][4]) {
  wgmma_wait<Pending>(d);
  detail::pin(a);
}

// Operands in registers are as they are up to here.
template <int K>
MIRAGE_DEVICE void wgmma_hold(uint32_t (&a)[K][1][4]) {
  detail::pin(a);
}

// d += a * b with both in shared memory; ADD false: d = a * b.
template <int N, class T, Major A_MAJOR, Major B_MAJOR, bool ADD = true>
MIRAGE_DEVICE void wgmma_m64k16(float (&d)[N / 2], uint64_t a, uint64_t b) {
  detail::Wgmma<N>::template run<T, A_MAJOR, B_MAJOR, ADD>(d, a, b);
}
// d += a * b with a in registers.
template <int N, class T, Major B_MAJOR>
MIRAGE_DEVICE void wgmma_m64k16(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {
  detail::Wgmma<N>::template run<T, B_MAJOR>(d, a, b);
}

}  // namespace mirage
#endif
