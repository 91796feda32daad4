#include "mirage_device.cuh"

using namespace mirage;

extern "C" __global__ void __launch_bounds__(288, 1)
kernel0(f16* __restrict__ o0, const __grid_constant__ TensorMap map1, const __grid_constant__ TensorMap map2, const __grid_constant__ TensorMap map0) {
  const int thread = thread_index(), warp = warp_index(), lane = lane_index();
  const int block_x = (int)blockIdx.x;
  MIRAGE_DYNAMIC_SHARED(shared);
  f16* const ring0 = reinterpret_cast<f16*>(shared + 131072);  // 4 x f16[8, 256], %0
  f16* const ring1 = reinterpret_cast<f16*>(shared + 0);  // 4 x f16[256, 32], %1
  f16* const ring2 = reinterpret_cast<f16*>(shared + 65536);  // 4 x f16[256, 32], %2
  float* const t4 = reinterpret_cast<float*>(shared + 0);  // 8 x f16[8, 32], %4
  float* const t6 = reinterpret_cast<float*>(shared + 9216);  // 8 x f16[8, 32], %6
  grid_dependency_launch();
  MIRAGE_SHARED(uint64_t, full, 4);
  MIRAGE_SHARED(uint64_t, empty, 4);
  if (warp == 8) {
    // the producer warp: one lane streams tiles as slots become empty
    if (lane == 0) {
      tma_prefetch_map(map1);
      tma_prefetch_map(map2);
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
        mbarrier_arrive_expect_tx(full + slot, 36864);
        // %1 = operand 1, imap (1), fmap 0: f16[256, 32]
        tma_load_2d_once(ring1 + slot * 8192, map1, full + slot, block_x * 32, f * 256);
        // %2 = operand 2, imap (1), fmap 0: f16[256, 32]
        tma_load_2d_once(ring2 + slot * 8192, map2, full + slot, block_x * 32, f * 256);
        // %0 = operand 0, imap (-), fmap 1: f16[8, 256]
        MIRAGE_UNROLL
        for (int p = 0; p < 4; ++p) {
          tma_load_2d(ring0 + slot * 2048 + p * 512, map0, full + slot, f * 256 + p * 64, 0);
        }
      }
    }
    return;
  }
  barrier_sync(2, 288);
  float a4[1][2][1][4] = {};
  float a6[1][2][1][4] = {};
  for (int iteration = 0; iteration < 16; ++iteration) {
    mbarrier_wait(full + iteration % 4, iteration / 4 % 2);
    const f16* const t1 = ring1 + iteration % 4 * 8192;
    const f16* const t2 = ring2 + iteration % 4 * 8192;
    const f16* const t0 = ring0 + iteration % 4 * 2048;
    // %3 = Matmul(%0, %1): f16[8, 32], warps 1 x 1 x 1 x 8 (batch x rows x columns x depth), transposed, into %4
    {
      const int warp_k = warp % 8;
      MIRAGE_UNROLL
      for (int k = 0; k < 2; ++k) {
        uint32_t p[2][4];
        uint32_t q[1][2];
        MIRAGE_UNROLL
        for (int r = 0; r < 2; ++r) {
          ldmatrix_x4_trans(p[r], t1 + warp_k * 1024 + k * 512 + lane / 16 * 256 + swizzle<64>(lane % 8 * 64 + r * 32 + lane / 8 % 2 * 16) / 2);
        }
        ldmatrix_x2(q[0], t0 + ((warp_k * 32 + k * 16 + lane / 8 % 2 * 8) / 64) * 512 + swizzle<128>(lane % 8 * 128 + ((warp_k * 32 + k * 16 + lane / 8 % 2 * 8) % 64) * 2) / 2);
        MIRAGE_UNROLL
        for (int r = 0; r < 2; ++r) {
          mma_m16n8k16<f16>(a4[0][r][0], p[r], q[0]);
        }
      }
    }
    // %5 = Matmul(%0, %2): f16[8, 32], warps 1 x 1 x 1 x 8 (batch x rows x columns x depth), transposed, into %6
    {
      const int warp_k = warp % 8;
      MIRAGE_UNROLL
      for (int k = 0; k < 2; ++k) {
        uint32_t p[2][4];
        uint32_t q[1][2];
        MIRAGE_UNROLL
        for (int r = 0; r < 2; ++r) {
          ldmatrix_x4_trans(p[r], t2 + warp_k * 1024 + k * 512 + lane / 16 * 256 + swizzle<64>(lane % 8 * 64 + r * 32 + lane / 8 % 2 * 16) / 2);
        }
        ldmatrix_x2(q[0], t0 + ((warp_k * 32 + k * 16 + lane / 8 % 2 * 8) / 64) * 512 + swizzle<128>(lane % 8 * 128 + ((warp_k * 32 + k * 16 + lane / 8 % 2 * 8) % 64) * 2) / 2);
        MIRAGE_UNROLL
        for (int r = 0; r < 2; ++r) {
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
    const int warp_k = warp % 8;
    {
      MIRAGE_UNROLL
      for (int r = 0; r < 2; ++r) {
        MIRAGE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int row = r * 16 + mma_d_row(lane, i);
          const int column = mma_d_column(lane, i);
          t4[warp_k * 288 + column * 36 + row] = from_float<float>(a4[0][r][0][i]);
        }
      }
    }
  }
  // %6 = sum accumulator of %5 (to shared memory)
  {
    const int warp_k = warp % 8;
    {
      MIRAGE_UNROLL
      for (int r = 0; r < 2; ++r) {
        MIRAGE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int row = r * 16 + mma_d_row(lane, i);
          const int column = mma_d_column(lane, i);
          t6[warp_k * 288 + column * 36 + row] = from_float<float>(a6[0][r][0][i]);
        }
      }
    }
  }
  barrier_sync(1, 256);
  // output 0 = %7
  {
    const int e = thread;
    if (e < 128) {
      const int i0 = e / 16;
      const int i1 = e % 16;
      auto x4_1 = load<2>(t4 + (i0 * 36 + i1 * 2));
      MIRAGE_UNROLL
      for (int q = 1; q < 8; ++q) {
        const auto more = load<2>(t4 + q * 288 + i0 * 36 + i1 * 2);
        MIRAGE_UNROLL
        for (int v = 0; v < 2; ++v) x4_1[v] += more[v];
      }
      auto x6_3 = load<2>(t6 + (i0 * 36 + i1 * 2));
      MIRAGE_UNROLL
      for (int q = 1; q < 8; ++q) {
        const auto more = load<2>(t6 + q * 288 + i0 * 36 + i1 * 2);
        MIRAGE_UNROLL
        for (int v = 0; v < 2; ++v) x6_3[v] += more[v];
      }
      Vec<float, 2> y;
      MIRAGE_UNROLL
      for (int v = 0; v < 2; ++v) {
        const float silu_2 = silu(x4_1[v]);
        const float mul_4 = silu_2 * x6_3[v];
        y[v] = mul_4;
      }
      store(o0 + (i0 * 4096 + block_x * 32 + i1 * 2), from_floats<f16>(y));
    }
  }
}
