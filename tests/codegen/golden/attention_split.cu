#include "mirage_device.cuh"

using namespace mirage;

extern "C" __global__ void __launch_bounds__(288, 1)
kernel0(const f16* __restrict__ x0, float* __restrict__ o0, float* __restrict__ o1, float* __restrict__ o2, const __grid_constant__ TensorMap map1, const __grid_constant__ TensorMap map2) {
  const int thread = thread_index(), warp = warp_index(), lane = lane_index();
  const int block_x = (int)blockIdx.x;
  const int block_y = (int)blockIdx.y;
  const int block_z = (int)blockIdx.z;
  MIRAGE_DYNAMIC_SHARED(shared);
  f16* const t0 = reinterpret_cast<f16*>(shared + 65536);  // f16[1, 64, 64], %0
  f16* const ring1 = reinterpret_cast<f16*>(shared + 0);  // 4 x f16[1, 64, 64], %1
  f16* const ring2 = reinterpret_cast<f16*>(shared + 32768);  // 4 x f16[1, 64, 64], %2
  float* const t10 = reinterpret_cast<float*>(shared + 34816);  // 2 x f16[1, 64, 1], %10
  float* const t12 = reinterpret_cast<float*>(shared + 0);  // 2 x f16[1, 64, 64], %12
  float* const t13 = reinterpret_cast<float*>(shared + 35840);  // f16[1, 64, 1], %13
  MIRAGE_SHARED(float, top7_all, 128);
  grid_dependency_launch();
  MIRAGE_SHARED(uint64_t, full, 4);
  MIRAGE_SHARED(uint64_t, empty, 4);
  if (warp == 8) {
    // the producer warp: one lane streams tiles as slots become empty
    if (lane == 0) {
      tma_prefetch_map(map1);
      tma_prefetch_map(map2);
      for (int s = 0; s < 4; ++s) {
        mbarrier_init(full + s, 1);
        mbarrier_init(empty + s, 8);
      }
      fence_mbarrier_init();
    }
    warp_sync();
    barrier_arrive(2, 288);
    if (lane == 0) {
      for (int f = 0; f < 4; ++f) {
        const int slot = f % 4;
        mbarrier_wait(empty + slot, (f / 4 + 1) % 2);
        mbarrier_arrive_expect_tx(full + slot, 16384);
        // %1 = operand 1, imap (0, -, 1), fmap 1: f16[1, 64, 64]
        tma_load_2d(ring1 + slot * 4096, map1, full + slot, 0, block_x * 4096 + block_z * 256 + f * 64);
        // %2 = operand 2, imap (0, -, 1), fmap 1: f16[1, 64, 64]
        tma_load_2d(ring2 + slot * 4096, map2, full + slot, 0, block_x * 4096 + block_z * 256 + f * 64);
      }
    }
    return;
  }
  // %0 = operand 0, imap (0, 1, -), fmap -: f16[1, 64, 64]
  MIRAGE_UNROLL
  for (int s = 0; s < 2; ++s) {
    const int e = thread + s * 256;
    const int i1 = e / 8;
    const int i2 = e % 8;
    cp_async<16>(t0 + i1 * 72 + i2 * 8, x0 + block_x * 16384 + block_y * 4096 + i1 * 64 + i2 * 8);
  }
  cp_async_commit();
  barrier_sync(2, 288);
  const int warp_k = warp % 2;
  const int warp_r = warp / 2 % 4;
  float top7[1][2];
  MIRAGE_UNROLL
  for (int r = 0; r < 1; ++r) top7[r][0] = top7[r][1] = NEGATIVE_INFINITY;
  float a10[1][2] = {};
  float a12[1][1][8][4] = {};
  cp_async_wait<0>();
  barrier_sync(1, 256);
  uint32_t held0[4][1][4];  // the rows of %0
  MIRAGE_UNROLL
  for (int k = 0; k < 4; ++k) {
    ldmatrix_x4(held0[k][0], t0 + warp_r * 1152 + lane % 16 * 72 + k * 16 + lane / 16 * 8);
  }
  for (int iteration = 0; iteration < 4; ++iteration) {
    mbarrier_wait(full + iteration % 4, iteration / 4 % 2);
    const f16* const t1 = ring1 + iteration % 4 * 4096;
    const f16* const t2 = ring2 + iteration % 4 * 4096;
    // %4 = Matmul(%0, %3): f16[1, 64, 64], warps 1 x 4 x 2 x 1 (batch x rows x columns x depth)
    float f4[1][1][4][4] = {};
    {
      const int warp_c = warp % 2;
      const int warp_r = warp / 2 % 4;
      MIRAGE_UNROLL
      for (int k = 0; k < 4; ++k) {
        uint32_t q[4][2];
        MIRAGE_UNROLL
        for (int c = 0; c < 2; ++c) {
          uint32_t both[4];
          ldmatrix_x4(both, t1 + warp_c * 2048 + c * 1024 + lane / 16 * 512 + swizzle<128>(lane % 8 * 128 + k * 32 + lane / 8 % 2 * 16) / 2);
          q[2 * c][0] = both[0], q[2 * c][1] = both[1];
          q[2 * c + 1][0] = both[2], q[2 * c + 1][1] = both[3];
        }
        MIRAGE_UNROLL
        for (int c = 0; c < 4; ++c) {
          mma_m16n8k16<f16>(f4[0][0][c], held0[k][0], q[c]);
        }
      }
    }
    // %6 = EwMul(%4, %5): f16[1, 64, 64]
    float f6[1][1][4][4];
    MIRAGE_UNROLL
    for (int c = 0; c < 4; ++c) {
      MIRAGE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float mul_1 = f4[0][0][c][i] * 0.125f;
        f6[0][0][c][i] = mul_1;
      }
    }
    // %7 = Max(%6): f16[1, 64, 1]
    float fade7[1][2];
    float shift7[1][2];
    MIRAGE_UNROLL
    for (int h = 0; h < 2; ++h) {
      float high = top7[0][h];
      MIRAGE_UNROLL
      for (int c = 0; c < 4; ++c) {
        high = maximum(high, maximum(f6[0][0][c][2 * h], f6[0][0][c][2 * h + 1]));
      }
      high = warp_max<4>(high);
      shift7[0][h] = maximum(high, LOWEST_FLOAT);
      fade7[0][h] = fast_exp(top7[0][h] - shift7[0][h]);
      top7[0][h] = high;
    }
    // %8 = Fused(%6, %7): f16[1, 64, 64] [EwSub, EwExp]
    float f8[1][1][4][4];
    MIRAGE_UNROLL
    for (int c = 0; c < 4; ++c) {
      MIRAGE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float sub_1 = f6[0][0][c][i] - shift7[0][i / 2];
        const float exp_2 = fast_exp(sub_1);
        f8[0][0][c][i] = exp_2;
      }
    }
    // %9 = Sum(%8): f16[1, 64, 1]
    MIRAGE_UNROLL
    for (int h = 0; h < 2; ++h) {
      a10[0][h] *= fade7[0][h];
    }
    uint32_t p8[2][1][4];
    MIRAGE_UNROLL
    for (int k = 0; k < 2; ++k) {
      MIRAGE_UNROLL
      for (int i = 0; i < 4; ++i) {
        p8[k][0][i] = pack2<f16>(f8[0][0][2 * k + i / 2][i % 2 * 2], f8[0][0][2 * k + i / 2][i % 2 * 2 + 1]);
      }
    }
    {
      const uint32_t one = pack2<f16>(1.0f, 1.0f);
      const uint32_t ones[2] = {one, one};
      float sum[4] = {};
      MIRAGE_UNROLL
      for (int k = 0; k < 2; ++k) {
        mma_m16n8k16<f16>(sum, p8[k][0], ones);
      }
      a10[0][0] += lane % 4 == 0 ? sum[0] : 0.0f;
      a10[0][1] += lane % 4 == 0 ? sum[2] : 0.0f;
    }
    // %10 = rescale accumulator of %9, %7
    // %11 = Matmul(%8, %2): f16[1, 64, 64], warps 1 x 4 x 1 x 2 (batch x rows x columns x depth)
    MIRAGE_UNROLL
    for (int c = 0; c < 8; ++c) {
      MIRAGE_UNROLL
      for (int i = 0; i < 4; ++i) {
        a12[0][0][c][i] *= fade7[0][i / 2];
      }
    }
    {
      const int warp_k = warp % 2;
      const int warp_r = warp / 2 % 4;
      MIRAGE_UNROLL
      for (int k = 0; k < 2; ++k) {
        uint32_t q[8][2];
        MIRAGE_UNROLL
        for (int c = 0; c < 4; ++c) {
          uint32_t both[4];
          ldmatrix_x4_trans(both, t2 + warp_k * 2048 + k * 1024 + lane / 8 % 2 * 512 + swizzle<128>(lane % 8 * 128 + c * 32 + lane / 16 * 16) / 2);
          q[2 * c][0] = both[0], q[2 * c][1] = both[1];
          q[2 * c + 1][0] = both[2], q[2 * c + 1][1] = both[3];
        }
        MIRAGE_UNROLL
        for (int c = 0; c < 8; ++c) {
          mma_m16n8k16<f16>(a12[0][0][c], p8[k][0], q[c]);
        }
      }
    }
    // %12 = rescale accumulator of %11, %7
    // %13 = max accumulator of %7
    fence_proxy_async();
    warp_sync();
    if (lane == 0) mbarrier_arrive(empty + iteration % 4);
  }
  // the warps that share rows agree on their maxima
  MIRAGE_UNROLL
  for (int h = 0; h < 2; ++h) {
    if (lane % 4 == 0) top7_all[warp_k * 64 + warp_r * 16 + mma_d_row(lane, 2 * h)] = top7[0][h];
  }
  barrier_sync(1, 256);
  float last7[1][2];
  MIRAGE_UNROLL
  for (int h = 0; h < 2; ++h) {
    float high = top7[0][h];
    MIRAGE_UNROLL
    for (int k = 0; k < 2; ++k) high = maximum(high, top7_all[k * 64 + warp_r * 16 + mma_d_row(lane, 2 * h)]);
    last7[0][h] = fast_exp(top7[0][h] - high);
    top7[0][h] = high;
  }
  MIRAGE_UNROLL
  for (int h = 0; h < 2; ++h) {
    a10[0][h] *= last7[0][h];
  }
  MIRAGE_UNROLL
  for (int c = 0; c < 8; ++c) {
    MIRAGE_UNROLL
    for (int i = 0; i < 4; ++i) {
      a12[0][0][c][i] *= last7[0][i / 2];
    }
  }
  // %10 = rescale accumulator of %9, %7 (to shared memory)
  {
    MIRAGE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const float result = warp_sum<4>(a10[0][h]);
      const int row = warp_r * 16 + mma_d_row(lane, 2 * h);
      if (lane % 4 == 0) t10[warp_k * 64 + row] = result;
    }
  }
  // %12 = rescale accumulator of %11, %7 (to shared memory)
  {
    const int warp_k = warp % 2;
    const int warp_r = warp / 2 % 4;
    {
      MIRAGE_UNROLL
      for (int c = 0; c < 8; ++c) {
        MIRAGE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int row = warp_r * 16 + mma_d_row(lane, i);
          const int column = c * 8 + mma_d_column(lane, i);
          t12[warp_k * 4352 + row * 68 + column] = from_float<float>(a12[0][0][c][i]);
        }
      }
    }
  }
  // %13 = max accumulator of %7 (to shared memory)
  {
    MIRAGE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const float result = top7[0][h];
      const int row = warp_r * 16 + mma_d_row(lane, 2 * h);
      if (lane % 4 == 0 && warp_k == 0) t13[row] = result;
    }
  }
  barrier_sync(1, 256);
  // output 0 = %14
  MIRAGE_UNROLL
  for (int s = 0; s < 2; ++s) {
    const int e = thread + s * 256;
    const int i2 = e / 8;
    const int i3 = e % 8;
    Vec<float, 8> y;
    MIRAGE_UNROLL
    for (int v = 0; v < 8; ++v) {
      float x12_1 = t12[i2 * 68 + i3 * 8 + v];
      MIRAGE_UNROLL
      for (int q = 1; q < 2; ++q) x12_1 += t12[q * 4352 + i2 * 68 + i3 * 8 + v];
      y[v] = x12_1;
    }
    store(o0 + (block_x * 262144 + block_z * 16384 + block_y * 4096 + i2 * 64 + i3 * 8), from_floats<float>(y));
  }
  // output 1 = %15
  {
    const int e = thread;
    if (e < 64) {
      float x10_1 = t10[e];
      MIRAGE_UNROLL
      for (int q = 1; q < 2; ++q) x10_1 += t10[q * 64 + e];
      o1[block_x * 4096 + block_z * 256 + block_y * 64 + e] = from_float<float>(x10_1);
    }
  }
  // output 2 = %16
  {
    const int e = thread;
    if (e < 64) {
      const float x13_1 = to_float(t13[e]);
      o2[block_x * 4096 + block_z * 256 + block_y * 64 + e] = from_float<float>(x13_1);
    }
  }
}

extern "C" __global__ void __launch_bounds__(64, 1)
kernel1(const float* x0, const float* x1, const float* x2, f16* __restrict__ o0) {
  const int thread = thread_index(), warp = warp_index(), lane = lane_index();
  const int block_x = (int)blockIdx.x;
  const int block_y = (int)blockIdx.y;
  grid_dependency_launch();
  grid_dependency_wait();
  {
    const int e = thread;
    const int i2 = e / 16;
    const int i3 = e % 16;
    Vec<float, 4> h0[16];  // f32[1, 16, 4, 64], %0
    MIRAGE_UNROLL
    for (int s = 0; s < 16; ++s) {
      h0[s] = load_once<4>(x0 + (block_x * 262144 + s * 16384 + block_y * 256 + i2 * 64 + i3 * 4));
    }
    Vec<float, 1> h1[16];  // f32[1, 16, 4, 1], %1
    MIRAGE_UNROLL
    for (int s = 0; s < 16; ++s) {
      h1[s] = load_once<1>(x1 + (block_x * 4096 + s * 256 + block_y * 4 + i2));
    }
    Vec<float, 1> h2[16];  // f32[1, 16, 4, 1], %2
    MIRAGE_UNROLL
    for (int s = 0; s < 16; ++s) {
      h2[s] = load_once<1>(x2 + (block_x * 4096 + s * 256 + block_y * 4 + i2));
    }
    // %3 = RescaledSum(%0, %2): f32[1, 1, 4, 64]
    float top2[1];
    top2[0] = NEGATIVE_INFINITY;
    MIRAGE_UNROLL
    for (int s = 0; s < 16; ++s) {
      {
        top2[0] = maximum(top2[0], to_float(h2[s][0]));
      }
    }
    float r3[4];
    MIRAGE_UNROLL
    for (int v = 0; v < 4; ++v) {
      r3[v] = 0.0f;
    }
    MIRAGE_UNROLL
    for (int s = 0; s < 16; ++s) {
      {
        MIRAGE_UNROLL
        for (int v = 0; v < 4; ++v) {
          r3[v] += rescaled(to_float(h0[s][v]), to_float(h2[s][0]), top2[0]);
        }
      }
    }
    // %4 = RescaledSum(%1, %2): f32[1, 1, 4, 1]
    float r4[1];
    r4[0] = 0.0f;
    MIRAGE_UNROLL
    for (int s = 0; s < 16; ++s) {
      {
        r4[0] += rescaled(to_float(h1[s][0]), to_float(h2[s][0]), top2[0]);
      }
    }
    // output 0 = %6
    {
      const Divisor by_div_1 = divisor(r4[0]);
      Vec<float, 4> y;
      MIRAGE_UNROLL
      for (int v = 0; v < 4; ++v) {
        const float div_1 = r3[v] / by_div_1;
        y[v] = div_1;
      }
      store(o0 + (block_x * 16384 + block_y * 256 + i2 * 64 + i3 * 4), from_floats<f16>(y));
    }
  }
}
