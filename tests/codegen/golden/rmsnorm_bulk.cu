#include "mirage_device.cuh"

using namespace mirage;

extern "C" __global__ void __launch_bounds__(288, 1)
kernel0(f16* __restrict__ o0, const __grid_constant__ TensorMap map1, const __grid_constant__ TensorMap map0) {
  const int thread = thread_index(), warp = warp_index(), lane = lane_index();
  const int block_x = (int)blockIdx.x;
  MIRAGE_DYNAMIC_SHARED(shared);
  f16* const ring0 = reinterpret_cast<f16*>(shared + 131072);  // 4 x f16[2, 256], %0
  f16* const ring1 = reinterpret_cast<f16*>(shared + 0);  // 4 x f16[256, 64], %1
  float* const t4 = reinterpret_cast<float*>(shared + 5120);  // f16[2, 1], %4
  float* const t6 = reinterpret_cast<float*>(shared + 0);  // 8 x f16[2, 64], %6
  grid_dependency_launch();
  MIRAGE_SHARED(uint64_t, full, 4);
  MIRAGE_SHARED(uint64_t, empty, 4);
  if (warp == 8) {
    // the producer warp: one lane streams tiles as slots become empty
    if (lane == 0) {
      tma_prefetch_map(map1);
      tma_prefetch_map(map0);
      for (int s = 0; s < 4; ++s) {
        mbarrier_init(full + s, 1);
        mbarrier_init(empty + s, 8);
      }
      fence_mbarrier_init();
    }
    warp_sync();
    barrier_arrive(2, 288);
    if (lane == 0) {
      for (int f = 0; f < 16; ++f) {
        const int slot = f % 4;
        mbarrier_wait(empty + slot, (f / 4 + 1) % 2);
        mbarrier_arrive_expect_tx(full + slot, 33792);
        // %1 = operand 1, imap (1), fmap 0: f16[256, 64]
        tma_load_2d_once(ring1 + slot * 16384, map1, full + slot, block_x * 64, f * 256);
        // %0 = operand 0, imap (-), fmap 1: f16[2, 256]
        MIRAGE_UNROLL
        for (int p = 0; p < 4; ++p) {
          tma_load_2d(ring0 + slot * 2048 + p * 512, map0, full + slot, f * 256 + p * 64, 0);
        }
      }
    }
    return;
  }
  barrier_sync(2, 288);
  float a4[1];
  MIRAGE_UNROLL
  for (int s = 0; s < 1; ++s) a4[s] = 0.0f;
  float a6[1][4][1][4] = {};
  for (int iteration = 0; iteration < 16; ++iteration) {
    mbarrier_wait(full + iteration % 4, iteration / 4 % 2);
    const f16* const t1 = ring1 + iteration % 4 * 16384;
    const f16* const t0 = ring0 + iteration % 4 * 2048;
    // %3 = Sum(%2): f16[2, 1], into %4
    {
      const int o = thread / 32;
      if (o < 2) for (int k = thread % 32; k < 32; k += 32) {
        const auto x0_1 = to_floats(load<8>(t0 + ((k * 8 / 64) * 512 + swizzle<128>(o * 128 + (k * 8 % 64) * 2) / 2)));
        MIRAGE_UNROLL
        for (int v = 0; v < 8; ++v) {
          const float sqr_2 = square(x0_1[v]);
          a4[0] += sqr_2;
        }
      }
    }
    // %5 = Matmul(%0, %1): f16[2, 64], warps 1 x 1 x 1 x 8 (batch x rows x columns x depth), transposed, into %6
    {
      const int warp_k = warp % 8;
      MIRAGE_UNROLL
      for (int k = 0; k < 2; ++k) {
        uint32_t p[4][4];
        uint32_t q[1][2];
        MIRAGE_UNROLL
        for (int r = 0; r < 4; ++r) {
          ldmatrix_x4_trans(p[r], t1 + warp_k * 2048 + k * 1024 + lane / 16 * 512 + swizzle<128>(lane % 8 * 128 + r * 32 + lane / 8 % 2 * 16) / 2);
        }
        ldmatrix_x2(q[0], t0 + ((warp_k * 32 + k * 16 + lane / 8 % 2 * 8) / 64) * 512 + swizzle<128>((lane % 8 < 2 ? lane % 8 : 1) * 128 + ((warp_k * 32 + k * 16 + lane / 8 % 2 * 8) % 64) * 2) / 2);
        MIRAGE_UNROLL
        for (int r = 0; r < 4; ++r) {
          mma_m16n8k16<f16>(a6[0][r][0], p[r], q[0]);
        }
      }
    }
    fence_proxy_async();
    warp_sync();
    if (lane == 0) mbarrier_arrive(empty + iteration % 4);
  }
  barrier_sync(1, 256);
  // %4 = sum accumulator of %3 (to shared memory)
  {
    float result = a4[0];
    const int o = thread / 32;
    result = warp_sum<32>(result);
    if (thread % 32 == 0 && o < 2) t4[o] = from_float<float>(result);
  }
  // %6 = sum accumulator of %5 (to shared memory)
  {
    const int warp_k = warp % 8;
    {
      MIRAGE_UNROLL
      for (int r = 0; r < 4; ++r) {
        MIRAGE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int row = r * 16 + mma_d_row(lane, i);
          const int column = mma_d_column(lane, i);
          if (column < 2) t6[warp_k * 160 + column * 68 + row] = from_float<float>(a6[0][r][0][i]);
        }
      }
    }
  }
  barrier_sync(1, 256);
  // output 0 = %7
  {
    const int e = thread;
    if (e < 64) {
      const int i0 = e / 32;
      const int i1 = e % 32;
      auto x6_1 = load<2>(t6 + (i0 * 68 + i1 * 2));
      MIRAGE_UNROLL
      for (int q = 1; q < 8; ++q) {
        const auto more = load<2>(t6 + q * 160 + i0 * 68 + i1 * 2);
        MIRAGE_UNROLL
        for (int v = 0; v < 2; ++v) x6_1[v] += more[v];
      }
      const float x4_2 = to_float(t4[i0]);
      const float mul_3 = x4_2 * 0.000244140625f;
      const float sqrt_4 = fast_sqrt(mul_3);
      const Divisor by_div_5 = divisor(sqrt_4);
      Vec<float, 2> y;
      MIRAGE_UNROLL
      for (int v = 0; v < 2; ++v) {
        const float div_5 = x6_1[v] / by_div_5;
        y[v] = div_5;
      }
      store(o0 + (i0 * 6144 + block_x * 64 + i1 * 2), from_floats<f16>(y));
    }
  }
}
