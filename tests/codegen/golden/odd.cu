#include "mirage_device.cuh"

using namespace mirage;

extern "C" __global__ void __launch_bounds__(128, 1)
kernel0(const f16* __restrict__ x0, const f16* __restrict__ x1, f16* __restrict__ o0) {
  const int thread = thread_index(), warp = warp_index(), lane = lane_index();
  const int block_x = (int)blockIdx.x;
  MIRAGE_DYNAMIC_SHARED(shared);
  f16* const ring0 = reinterpret_cast<f16*>(shared + 14848);  // 2 x f16[7, 50], %0
  f16* const ring1 = reinterpret_cast<f16*>(shared + 0);  // 2 x f16[50, 65], %1
  float* const t4 = reinterpret_cast<float*>(shared + 8192);  // f16[7, 1], %4
  float* const t6 = reinterpret_cast<float*>(shared + 0);  // 4 x f16[7, 65], %6
  for (int f = 0; f < 1; ++f) {
    f16* const fill0 = ring0 + f * 384;
    // %0 = operand 0, imap (-), fmap 1: f16[7, 50]
    MIRAGE_UNROLL
    for (int s = 0; s < 2; ++s) {
      const int e = thread + s * 128;
      if (e < 175) {
        const int i0 = e / 25;
        const int i1 = e % 25;
        cp_async<4>(fill0 + i0 * 50 + i1 * 2, x0 + i0 * 100 + i1 * 2);
      }
    }
    f16* const fill1 = ring1 + f * 3712;
    // %1 = operand 1, imap (1), fmap 0: f16[50, 65]
    for (int first = thread; first < 3250; first += 1024) {
      f16 held[8];
      MIRAGE_UNROLL
      for (int u = 0; u < 8; ++u) {
        const int e = first + u * 128;
        if (e < 3250) {
          const int i0 = e / 65;
          const int i1 = e % 65;
          held[u] = x1[i0 * 130 + block_x * 65 + i1];
        }
      }
      MIRAGE_UNROLL
      for (int u = 0; u < 8; ++u) {
        const int e = first + u * 128;
        if (e < 3250) {
          const int i0 = e / 65;
          const int i1 = e % 65;
          fill1[i0 * 73 + i1] = held[u];
        }
      }
    }
    cp_async_commit();
  }
  float a4[1];
  MIRAGE_UNROLL
  for (int s = 0; s < 1; ++s) a4[s] = 0.0f;
  float a6[1][5][1][4] = {};
  for (int iteration = 0; iteration < 2; ++iteration) {
    cp_async_wait<0>();
    block_sync();
    if (iteration + 1 < 2) {
      f16* const fill0 = ring0 + (iteration + 1) % 2 * 384;
      // %0 = operand 0, imap (-), fmap 1: f16[7, 50]
      MIRAGE_UNROLL
      for (int s = 0; s < 2; ++s) {
        const int e = thread + s * 128;
        if (e < 175) {
          const int i0 = e / 25;
          const int i1 = e % 25;
          cp_async<4>(fill0 + i0 * 50 + i1 * 2, x0 + i0 * 100 + i1 * 2 + 50);
        }
      }
      f16* const fill1 = ring1 + (iteration + 1) % 2 * 3712;
      // %1 = operand 1, imap (1), fmap 0: f16[50, 65]
      for (int first = thread; first < 3250; first += 1024) {
        f16 held[8];
        MIRAGE_UNROLL
        for (int u = 0; u < 8; ++u) {
          const int e = first + u * 128;
          if (e < 3250) {
            const int i0 = e / 65;
            const int i1 = e % 65;
            held[u] = x1[i0 * 130 + block_x * 65 + i1 + 6500];
          }
        }
        MIRAGE_UNROLL
        for (int u = 0; u < 8; ++u) {
          const int e = first + u * 128;
          if (e < 3250) {
            const int i0 = e / 65;
            const int i1 = e % 65;
            fill1[i0 * 73 + i1] = held[u];
          }
        }
      }
    }
    cp_async_commit();
    const f16* const t0 = ring0 + iteration % 2 * 384;
    const f16* const t1 = ring1 + iteration % 2 * 3712;
    // %3 = Sum(%2): f16[7, 1], into %4
    {
      const int o = thread / 16;
      if (o < 7) for (int k = thread % 16; k < 25; k += 16) {
        const auto x0_1 = to_floats(load<2>(t0 + (o * 50 + k * 2)));
        MIRAGE_UNROLL
        for (int v = 0; v < 2; ++v) {
          const float sqr_2 = square(x0_1[v]);
          a4[0] += sqr_2;
        }
      }
    }
    // %5 = Matmul(%0, %1): f16[7, 65], warps 1 x 1 x 1 x 4 (batch x rows x columns x depth), transposed, into %6
    {
      const int warp_k = warp % 4;
      const auto row_side0 = [&](int batch, int side, int depth) -> float {
        const float x1_1 = to_float(t1[depth * 73 + side]);
        return x1_1;
      };
      const auto column_side0 = [&](int batch, int side, int depth) -> float {
        const float x0_1 = to_float(t0[side * 50 + depth]);
        return x0_1;
      };
      MIRAGE_UNROLL
      for (int k = 0; k < 1; ++k) {
        uint32_t p[5][4];
        uint32_t q[1][2];
        MIRAGE_UNROLL
        for (int r = 0; r < 5; ++r) {
          MIRAGE_UNROLL
          for (int i = 0; i < 4; ++i) {
            const int row = r * 16 + mma_a_row(lane, i);
            const int depth = warp_k * 16 + mma_a_k(lane, i);
            const bool inside = row < 65;
            p[r][i] = pack2<f16>(inside && depth < 50 ? row_side0(0, row, depth) : 0.0f, inside && depth + 1 < 50 ? row_side0(0, row, depth + 1) : 0.0f);
          }
        }
        MIRAGE_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int column = 0 + mma_b_column(lane);
          const int depth = warp_k * 16 + mma_b_k(lane, i);
          const bool inside = column < 7;
          q[0][i] = pack2<f16>(inside && depth < 50 ? column_side0(0, column, depth) : 0.0f, inside && depth + 1 < 50 ? column_side0(0, column, depth + 1) : 0.0f);
        }
        MIRAGE_UNROLL
        for (int r = 0; r < 5; ++r) {
          mma_m16n8k16<f16>(a6[0][r][0], p[r], q[0]);
        }
      }
    }
  }
  block_sync();
  // %4 = sum accumulator of %3 (to shared memory)
  {
    float result = a4[0];
    const int o = thread / 16;
    result = warp_sum<16>(result);
    if (thread % 16 == 0 && o < 7) t4[o] = from_float<float>(result);
  }
  // %6 = sum accumulator of %5 (to shared memory)
  {
    const int warp_k = warp % 4;
    {
      MIRAGE_UNROLL
      for (int r = 0; r < 5; ++r) {
        MIRAGE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int row = r * 16 + mma_d_row(lane, i);
          const int column = mma_d_column(lane, i);
          if (row < 65 && column < 7) t6[warp_k * 512 + column * 69 + row] = from_float<float>(a6[0][r][0][i]);
        }
      }
    }
  }
  block_sync();
  // output 0 = %7
  MIRAGE_UNROLL
  for (int s = 0; s < 4; ++s) {
    const int e = thread + s * 128;
    if (e < 455) {
      const int i0 = e / 65;
      const int i1 = e % 65;
      float x6_1 = t6[i0 * 69 + i1];
      MIRAGE_UNROLL
      for (int q = 1; q < 4; ++q) x6_1 += t6[q * 512 + i0 * 69 + i1];
      const float x4_2 = to_float(t4[i0]);
      const float mul_3 = x4_2 * 0.01f;
      const float sqrt_4 = fast_sqrt(mul_3);
      const Divisor by_div_5 = divisor(sqrt_4);
      const float div_5 = x6_1 / by_div_5;
      o0[i0 * 130 + block_x * 65 + i1] = from_float<f16>(div_5);
    }
  }
}
