#include "mirage_device.cuh"

using namespace mirage;

extern "C" __global__ void __launch_bounds__(256, 1)
kernel0(const f16* __restrict__ x0, const f16* __restrict__ x1, const f16* __restrict__ x2, const f16* __restrict__ x3, f16* __restrict__ o0) {
  const int thread = thread_index(), warp = warp_index(), lane = lane_index();
  const int block_x = (int)blockIdx.x;
  MIRAGE_DYNAMIC_SHARED(shared);
  f16* const ring0 = reinterpret_cast<f16*>(shared + 49152);  // 4 x f16[16, 64], %0
  f16* const ring1 = reinterpret_cast<f16*>(shared + 0);  // 4 x f16[64, 64], %1
  f16* const ring2 = reinterpret_cast<f16*>(shared + 36864);  // 4 x f16[64, 16], %2
  f16* const t3 = reinterpret_cast<f16*>(shared + 68608);  // f16[16, 64], %3
  float* const t4 = reinterpret_cast<float*>(shared + 58368);  // f16[16, 64], %4
  f16* const t5 = reinterpret_cast<f16*>(shared + 71680);  // f16[16, 16], %5
  float* const t6 = reinterpret_cast<float*>(shared + 63488);  // f16[16, 64], %6
  float* const t8 = reinterpret_cast<float*>(shared + 0);  // f16[16, 64], %8
  // %3 = operand 3, imap (1), fmap -: f16[16, 64]
  {
    const int e = thread;
    if (e < 128) {
      const int i0 = e / 8;
      const int i1 = e % 8;
      cp_async<16>(t3 + i0 * 72 + i1 * 8, x3 + i0 * 4096 + block_x * 64 + i1 * 8);
    }
  }
  cp_async_commit();
  for (int f = 0; f < 3; ++f) {
    f16* const fill0 = ring0 + f * 1152;
    // %0 = operand 0, imap (-), fmap 1: f16[16, 64]
    {
      const int e = thread;
      if (e < 128) {
        const int i0 = e / 8;
        const int i1 = e % 8;
        cp_async<16>(fill0 + i0 * 72 + i1 * 8, x0 + i0 * 256 + f * 64 + i1 * 8);
      }
    }
    f16* const fill1 = ring1 + f * 4608;
    // %1 = operand 1, imap (1), fmap 0: f16[64, 64]
    MIRAGE_UNROLL
    for (int s = 0; s < 2; ++s) {
      const int e = thread + s * 256;
      const int i0 = e / 8;
      const int i1 = e % 8;
      cp_async<16>(fill1 + i0 * 72 + i1 * 8, x1 + f * 262144 + i0 * 4096 + block_x * 64 + i1 * 8);
    }
    f16* const fill2 = ring2 + f * 1536;
    // %2 = operand 2, imap (-), fmap 0: f16[64, 16]
    {
      const int e = thread;
      if (e < 128) {
        const int i0 = e / 2;
        const int i1 = e % 2;
        cp_async<16>(fill2 + i0 * 24 + i1 * 8, x2 + f * 1024 + i0 * 16 + i1 * 8);
      }
    }
    cp_async_commit();
  }
  float a8[4];
  MIRAGE_UNROLL
  for (int s = 0; s < 4; ++s) a8[s] = 0.0f;
  for (int iteration = 0; iteration < 4; ++iteration) {
    cp_async_wait<2>();
    block_sync();
    if (iteration + 3 < 4) {
      f16* const fill0 = ring0 + (iteration + 3) % 4 * 1152;
      // %0 = operand 0, imap (-), fmap 1: f16[16, 64]
      {
        const int e = thread;
        if (e < 128) {
          const int i0 = e / 8;
          const int i1 = e % 8;
          cp_async<16>(fill0 + i0 * 72 + i1 * 8, x0 + i0 * 256 + i1 * 8 + 192);
        }
      }
      f16* const fill1 = ring1 + (iteration + 3) % 4 * 4608;
      // %1 = operand 1, imap (1), fmap 0: f16[64, 64]
      MIRAGE_UNROLL
      for (int s = 0; s < 2; ++s) {
        const int e = thread + s * 256;
        const int i0 = e / 8;
        const int i1 = e % 8;
        cp_async<16>(fill1 + i0 * 72 + i1 * 8, x1 + i0 * 4096 + block_x * 64 + i1 * 8 + 786432);
      }
      f16* const fill2 = ring2 + (iteration + 3) % 4 * 1536;
      // %2 = operand 2, imap (-), fmap 0: f16[64, 16]
      {
        const int e = thread;
        if (e < 128) {
          const int i0 = e / 2;
          const int i1 = e % 2;
          cp_async<16>(fill2 + i0 * 24 + i1 * 8, x2 + i0 * 16 + i1 * 8 + 3072);
        }
      }
    }
    cp_async_commit();
    const f16* const t0 = ring0 + iteration % 4 * 1152;
    const f16* const t1 = ring1 + iteration % 4 * 4608;
    const f16* const t2 = ring2 + iteration % 4 * 1536;
    // %4 = Matmul(%0, %1): f16[16, 64], warps 1 x 1 x 8 x 1 (batch x rows x columns x depth)
    {
      const int warp_c = warp % 8;
      float a4[1][1][1][4] = {};
      MIRAGE_UNROLL
      for (int k = 0; k < 4; ++k) {
        uint32_t p[1][4];
        uint32_t q[1][2];
        ldmatrix_x4(p[0], t0 + lane % 16 * 72 + k * 16 + lane / 16 * 8);
        ldmatrix_x2_trans(q[0], t1 + k * 1152 + lane % 8 * 72 + lane / 8 % 2 * 576 + warp_c * 8);
        mma_m16n8k16<f16>(a4[0][0][0], p[0], q[0]);
      }
      {
        MIRAGE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int row = mma_d_row(lane, i);
          const int column = warp_c * 8 + mma_d_column(lane, i);
          t4[row * 68 + column] = from_float<float>(a4[0][0][0][i]);
        }
      }
    }
    // %5 = Matmul(%0, %2): f16[16, 16], warps 1 x 1 x 2 x 1 (batch x rows x columns x depth)
    {
      const int warp_c = warp % 2;
      float a5[1][1][1][4] = {};
      if (warp < 2) {
        MIRAGE_UNROLL
        for (int k = 0; k < 4; ++k) {
          uint32_t p[1][4];
          uint32_t q[1][2];
          ldmatrix_x4(p[0], t0 + lane % 16 * 72 + k * 16 + lane / 16 * 8);
          ldmatrix_x2_trans(q[0], t2 + k * 384 + lane % 8 * 24 + lane / 8 % 2 * 192 + warp_c * 8);
          mma_m16n8k16<f16>(a5[0][0][0], p[0], q[0]);
        }
      }
      if (warp < 2) {
        MIRAGE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int row = mma_d_row(lane, i);
          const int column = warp_c * 8 + mma_d_column(lane, i);
          t5[(row / 8) * 128 + swizzle<32>((row % 8) * 32 + column * 2) / 2] = from_float<f16>(a5[0][0][0][i]);
        }
      }
    }
    block_sync();
    // %6 = Matmul(%5, %3): f16[16, 64], warps 1 x 1 x 8 x 1 (batch x rows x columns x depth)
    {
      const int warp_c = warp % 8;
      float a6[1][1][1][4] = {};
      MIRAGE_UNROLL
      for (int k = 0; k < 1; ++k) {
        uint32_t p[1][4];
        uint32_t q[1][2];
        ldmatrix_x4(p[0], t5 + (lane % 16 / 8) * 128 + swizzle<32>((lane % 16 % 8) * 32 + lane / 16 * 16) / 2);
        ldmatrix_x2_trans(q[0], t3 + lane % 8 * 72 + lane / 8 % 2 * 576 + warp_c * 8);
        mma_m16n8k16<f16>(a6[0][0][0], p[0], q[0]);
      }
      {
        MIRAGE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int row = mma_d_row(lane, i);
          const int column = warp_c * 8 + mma_d_column(lane, i);
          t6[row * 68 + column] = from_float<float>(a6[0][0][0][i]);
        }
      }
    }
    block_sync();
    // %8 = sum accumulator of %7
    {
      const int e = thread;
      const int i0 = e / 16;
      const int i1 = e % 16;
      const auto x4_1 = to_floats(load<4>(t4 + (i0 * 68 + i1 * 4)));
      const auto x6_2 = to_floats(load<4>(t6 + (i0 * 68 + i1 * 4)));
      MIRAGE_UNROLL
      for (int v = 0; v < 4; ++v) {
        const float add_3 = x4_1[v] + x6_2[v];
        a8[0 * 4 + v] += add_3;
      }
    }
  }
  // %8 = sum accumulator of %7 (to shared memory)
  {
    const int e = thread;
    const int i0 = e / 16;
    const int i1 = e % 16;
    MIRAGE_UNROLL
    for (int v = 0; v < 4; ++v) {
      t8[i0 * 64 + i1 * 4 + v] = a8[0 * 4 + v];
    }
  }
  block_sync();
  // output 0 = %8
  {
    const int e = thread;
    const int i0 = e / 16;
    const int i1 = e % 16;
    const auto x8_1 = to_floats(load<4>(t8 + (i0 * 64 + i1 * 4)));
    Vec<float, 4> y;
    MIRAGE_UNROLL
    for (int v = 0; v < 4; ++v) {
      y[v] = x8_1[v];
    }
    store(o0 + (i0 * 4096 + block_x * 64 + i1 * 4), from_floats<f16>(y));
  }
}
