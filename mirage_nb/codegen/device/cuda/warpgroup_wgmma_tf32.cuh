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

#define MIRAGE_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MIRAGE_D16(i) MIRAGE_D4(i), MIRAGE_D4(i + 4), MIRAGE_D4(i + 8), MIRAGE_D4(i + 12)
#define MIRAGE_A4 "r"(float_bits(a[0])), "r"(float_bits(a[1])), "r"(float_bits(a[2])), "r"(float_bits(a[3]))

template <>
struct WgmmaTf32<32> {
  static MIRAGE_DEVICE void run(float (&d)[16], const float (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, {%16, %17, %18, %19}, %20, 1, 1, 1;"
        : MIRAGE_D16(0)
        : MIRAGE_A4, "l"(b));
  }
};
template <>
struct WgmmaTf32<64> {
  static MIRAGE_DEVICE void run(float (&d)[32], const float (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, 1, 1, 1;"
        : MIRAGE_D16(0), MIRAGE_D16(16)
        : MIRAGE_A4, "l"(b));
  }
};
template <>
struct WgmmaTf32<128> {
  static MIRAGE_DEVICE void run(float (&d)[64], const float (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, 1, 1, 1;"
        : MIRAGE_D16(0), MIRAGE_D16(16), MIRAGE_D16(32), MIRAGE_D16(48)
        : MIRAGE_A4, "l"(b));
  }
};

#undef MIRAGE_D4
#undef MIRAGE_D16
#undef MIRAGE_A4

}  // namespace detail

template <int N>
MIRAGE_DEVICE void wgmma_m64k8_tf32(float (&d)[N / 2], const float (&a)[4], uint64_t b) {
  detail::WgmmaTf32<N>::run(d, a, b);
}

}  // namespace mirage
#endif
