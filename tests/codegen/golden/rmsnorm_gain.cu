#include "mirage_device.cuh"

using namespace mirage;

extern "C" __global__ void __launch_bounds__(288, 1)
kernel0(f16* __restrict__ o0, const __grid_constant__ TensorMap map2, const __grid_constant__ TensorMap map0, const __grid_constant__ TensorMap map1) {
  const int thread = thread_index(), warp = warp_index(), lane = lane_index();
  const int block_x = (int)blockIdx.x;
  MIRAGE_DYNAMIC_SHARED(shared);
  f16* const ring0 = reinterpret_cast<f16*>(shared + 65536);  // 4 x f16[16, 128], %0
  f16* const ring1 = reinterpret_cast<f16*>(shared + 81920);  // 4 x f16[128], %1
  f16* const ring2 = reinterpret_cast<f16*>(shared + 0);  // 4 x f16[128, 64], %2
  float* const t5 = reinterpret_cast<float*>(shared + 34816);  // f16[16, 1], %5
  f16* const t6 = reinterpret_cast<f16*>(shared + 90112);  // f16[16, 128], %6
  float* const t8 = reinterpret_cast<float*>(shared + 0);  // 8 x f16[16, 64], %8
  grid_dependency_launch();
  MIRAGE_SHARED(uint64_t, full, 4);
  MIRAGE_SHARED(uint64_t, empty, 4);
  if (warp == 8) {
    // the producer warp: one lane streams tiles as slots become empty
    if (lane == 0) {
      tma_prefetch_map(map2);
      tma_prefetch_map(map0);
      tma_prefetch_map(map1);
      for (int s = 0; s < 4; ++s) {
        mbarrier_init(full + s, 1);
        mbarrier_init(empty + s, 8);
      }
      fence_mbarrier_init();
    }
    warp_sync();
    barrier_arrive(2, 288);
    if (lane == 0) {
      for (int f = 0; f < 8; ++f) {
        const int slot = f % 4;
        mbarrier_wait(empty + slot, (f / 4 + 1) % 2);
        mbarrier_arrive_expect_tx(full + slot, 20736);
        // %2 = operand 2, imap (1), fmap 0: f16[128, 64]
        tma_load_2d_once(ring2 + slot * 8192, map2, full + slot, block_x * 64, f * 128);
        // %0 = operand 0, imap (-), fmap 1: f16[16, 128]
        MIRAGE_UNROLL
        for (int p = 0; p < 2; ++p) {
          tma_load_2d(ring0 + slot * 2048 + p * 1024, map0, full + slot, f * 128 + p * 64, 0);
        }
        // %1 = operand 1, imap (-), fmap 0: f16[128]
        MIRAGE_UNROLL
        for (int p = 0; p < 2; ++p) {
          tma_load_2d(ring1 + slot * 1024 + p * 512, map1, full + slot, f * 128 + p * 64, 0);
        }
      }
    }
    return;
  }
  barrier_sync(2, 288);
  float a5[1];
  MIRAGE_UNROLL
  for (int s = 0; s < 1; ++s) a5[s] = 0.0f;
  float a8[1][1][8][4] = {};
  for (int iteration = 0; iteration < 8; ++iteration) {
    mbarrier_wait(full + iteration % 4, iteration / 4 % 2);
    barrier_sync(1, 256);
    const f16* const t2 = ring2 + iteration % 4 * 8192;
    const f16* const t0 = ring0 + iteration % 4 * 2048;
    const f16* const t1 = ring1 + iteration % 4 * 1024;
    // %4 = Sum(%3): f16[16, 1], into %5
    {
      const int o = thread / 16;
      for (int k = thread % 16; k < 16; k += 16) {
        const auto x0_1 = to_floats(load<8>(t0 + ((k * 8 / 64) * 1024 + (o / 8) * 512 + swizzle<128>((o % 8) * 128 + (k * 8 % 64) * 2) / 2)));
        MIRAGE_UNROLL
        for (int v = 0; v < 8; ++v) {
          const float sqr_2 = square(x0_1[v]);
          a5[0] += sqr_2;
        }
      }
    }
    // %6 = EwMul(%0, %1): f16[16, 128]
    {
      const int e = thread;
      const int i0 = e / 16;
      const int i1 = e % 16;
      const auto x0_1 = to_floats(load<8>(t0 + ((i1 * 8 / 64) * 1024 + (i0 / 8) * 512 + swizzle<128>((i0 % 8) * 128 + (i1 * 8 % 64) * 2) / 2)));
      const auto x1_2 = to_floats(load<8>(t1 + ((i1 * 8 / 64) * 512 + swizzle<128>((i1 * 8 % 64) * 2) / 2)));
      Vec<float, 8> y;
      MIRAGE_UNROLL
      for (int v = 0; v < 8; ++v) {
        const float mul_3 = x0_1[v] * x1_2[v];
        y[v] = mul_3;
      }
      store(t6 + ((i1 * 8 / 64) * 1024 + (i0 / 8) * 512 + swizzle<128>((i0 % 8) * 128 + (i1 * 8 % 64) * 2) / 2), from_floats<f16>(y));
    }
    barrier_sync(1, 256);
    // %7 = Matmul(%6, %2): f16[16, 64], warps 1 x 1 x 1 x 8 (batch x rows x columns x depth), into %8
    {
      const int warp_k = warp % 8;
      MIRAGE_UNROLL
      for (int k = 0; k < 1; ++k) {
        uint32_t p[1][4];
        uint32_t q[8][2];
        ldmatrix_x4(p[0], t6 + ((warp_k * 16 + lane / 16 * 8) / 64) * 1024 + (lane % 16 / 8) * 512 + swizzle<128>((lane % 16 % 8) * 128 + ((warp_k * 16 + lane / 16 * 8) % 64) * 2) / 2);
        MIRAGE_UNROLL
        for (int c = 0; c < 4; ++c) {
          uint32_t both[4];
          ldmatrix_x4_trans(both, t2 + warp_k * 1024 + lane / 8 % 2 * 512 + swizzle<128>(lane % 8 * 128 + c * 32 + lane / 16 * 16) / 2);
          q[2 * c][0] = both[0], q[2 * c][1] = both[1];
          q[2 * c + 1][0] = both[2], q[2 * c + 1][1] = both[3];
        }
        MIRAGE_UNROLL
        for (int c = 0; c < 8; ++c) {
          mma_m16n8k16<f16>(a8[0][0][c], p[0], q[c]);
        }
      }
    }
    fence_proxy_async();
    warp_sync();
    if (lane == 0) mbarrier_arrive(empty + iteration % 4);
  }
  barrier_sync(1, 256);
  // %5 = sum accumulator of %4 (to shared memory)
  {
    float result = a5[0];
    const int o = thread / 16;
    result = warp_sum<16>(result);
    if (thread % 16 == 0) t5[o] = from_float<float>(result);
  }
  // %8 = sum accumulator of %7 (to shared memory)
  {
    const int warp_k = warp % 8;
    {
      MIRAGE_UNROLL
      for (int c = 0; c < 8; ++c) {
        MIRAGE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int row = mma_d_row(lane, i);
          const int column = c * 8 + mma_d_column(lane, i);
          t8[warp_k * 1088 + row * 68 + column] = from_float<float>(a8[0][0][c][i]);
        }
      }
    }
  }
  barrier_sync(1, 256);
  // output 0 = %9
  {
    const int e = thread;
    const int i0 = e / 16;
    const int i1 = e % 16;
    auto x8_1 = load<4>(t8 + (i0 * 68 + i1 * 4));
    MIRAGE_UNROLL
    for (int q = 1; q < 8; ++q) {
      const auto more = load<4>(t8 + q * 1088 + i0 * 68 + i1 * 4);
      MIRAGE_UNROLL
      for (int v = 0; v < 4; ++v) x8_1[v] += more[v];
    }
    const float x5_2 = to_float(t5[i0]);
    const float mul_3 = x5_2 * 0.0009765625f;
    const float sqrt_4 = fast_sqrt(mul_3);
    const Divisor by_div_5 = divisor(sqrt_4);
    Vec<float, 4> y;
    MIRAGE_UNROLL
    for (int v = 0; v < 4; ++v) {
      const float div_5 = x8_1[v] / by_div_5;
      y[v] = div_5;
    }
    store(o0 + (i0 * 4096 + block_x * 64 + i1 * 4), from_floats<f16>(y));
  }
}
