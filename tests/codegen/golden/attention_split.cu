#include "mirage_device.cuh"

using namespace mirage;

extern "C" __global__ void __launch_bounds__(160, 1)
kernel0(float* __restrict__ o0, float* __restrict__ o1, float* __restrict__ o2, const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k, const __grid_constant__ TensorMap map_v) {
  const int warp = warp_uniform(warp_index()), lane = lane_index();
  grid_dependency_launch();
  MIRAGE_DYNAMIC_SHARED(shared);
  f16* const q = reinterpret_cast<f16*>(shared + 0);  // 1 x 64 x 64
  f16* const k = reinterpret_cast<f16*>(shared + 8192);  // 4 x 64 x 64
  f16* const v = reinterpret_cast<f16*>(shared + 40960);  // 4 x 64 x 64
  MIRAGE_SHARED(uint64_t, rq_full, 1);
  MIRAGE_SHARED(uint64_t, rq_empty, 1);
  MIRAGE_SHARED(uint64_t, rk_full, 4);
  MIRAGE_SHARED(uint64_t, rk_empty, 4);
  MIRAGE_SHARED(uint64_t, rv_full, 4);
  MIRAGE_SHARED(uint64_t, rv_empty, 4);
  if (warp == 0 && lane == 0) {
    for (int i = 0; i < 1; ++i) {
      mbarrier_init(rq_full + i, 1);
      mbarrier_init(rq_empty + i, 4);
    }
    for (int i = 0; i < 4; ++i) {
      mbarrier_init(rk_full + i, 1);
      mbarrier_init(rk_empty + i, 4);
    }
    for (int i = 0; i < 4; ++i) {
      mbarrier_init(rv_full + i, 1);
      mbarrier_init(rv_empty + i, 4);
    }
    fence_mbarrier_init();
  }
  block_sync();
  if (warp < 4) {
    // math: 4 warps
    int rq_stage = 0, rq_phase = 0, rq_slot = 0;
    int rq_kept = 0;  // the oldest stage that is not handed back
    int rk_stage = 0, rk_phase = 0, rk_slot = 0;
    int rk_kept = 0;  // the oldest stage that is not handed back
    int rv_stage = 0, rv_phase = 0, rv_slot = 0;
    int rv_kept = 0;  // the oldest stage that is not handed back
    float o[1][32];
    float t11[1][2];
    float top[1][2];
    float s[1][32];
    uint32_t p[1][4][1][4];
    for (int point = (int)blockIdx.x; point < 128; point += 128) {
      const int b = point / 64 % 2;
      const int place = point % 64, band = place / 4, first = band * 1;
      const int height = 1;
      const int z = first + place % 4 % height, m = place % 4 / height;
      MIRAGE_UNROLL
      for (int r = 0; r < 32; ++r) {
        o[0][r] = 0.0f;
      }
      MIRAGE_UNROLL
      for (int r = 0; r < 2; ++r) {
        t11[0][r] = 0.0f;
      }
      MIRAGE_UNROLL
      for (int h = 0; h < 2; ++h) {
        top[0][h] = -8.50705917e+37f;
      }
      mbarrier_wait(rq_full + rq_stage, rq_phase);
      rq_slot = rq_stage;
      if (++rq_stage == 1) { rq_stage = 0; rq_phase ^= 1; }
      mbarrier_wait(rk_full + rk_stage, rk_phase);
      rk_slot = rk_stage;
      if (++rk_stage == 4) { rk_stage = 0; rk_phase ^= 1; }
      wgmma_fence(s[0]);
      wgmma_m64k16<64, f16, Major::K, Major::K, false>(s[0], wgmma_descriptor<Major::K>(q + rq_slot * 4096, 8192), wgmma_descriptor<Major::K>(k + rk_slot * 4096, 8192));
      MIRAGE_UNROLL
      for (int k16 = 1; k16 < 4; ++k16) {
        wgmma_m64k16<64, f16, Major::K, Major::K>(s[0], wgmma_descriptor<Major::K>(q + rq_slot * 4096 + k16 * 16, 8192), wgmma_descriptor<Major::K>(k + rk_slot * 4096 + k16 * 16, 8192));
      }
      wgmma_commit();
      wgmma_wait<0>(s[0]);
      {
        if (lane == 0) mbarrier_arrive(rk_empty + rk_kept);
        if (++rk_kept == 4) { rk_kept = 0;  }
      }
      float v2[1][2];
      MIRAGE_UNROLL
      for (int h = 0; h < 2; ++h) {
        float part[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY};
        MIRAGE_UNROLL
        for (int j = 0; j < 8; ++j) {
          MIRAGE_UNROLL
          for (int e = 0; e < 2; ++e) {
            const float v7 = s[0][4 * j + 2 * h + e] * 0.125f;
            part[e] = maximum(part[e], v7);
          }
        }
        v2[0][h] = warp_max<4>(maximum(part[0], part[1]));
      }
      float v3[1][2];
      MIRAGE_UNROLL
      for (int h = 0; h < 2; ++h) {
        v3[0][h] = maximum(v2[0][h], top[0][h]);
      }
      float v4[1][2];
      MIRAGE_UNROLL
      for (int h = 0; h < 2; ++h) {
        v4[0][h] = top[0][h] - v3[0][h];
      }
      float v5[1][2];
      MIRAGE_UNROLL
      for (int h = 0; h < 2; ++h) {
        v5[0][h] = fast_exp(v4[0][h]);
      }
      MIRAGE_UNROLL
      for (int h = 0; h < 2; ++h) {
        top[0][h] = v3[0][h];
      }
      MIRAGE_UNROLL
      for (int h = 0; h < 2; ++h) {
        MIRAGE_UNROLL
        for (int j = 0; j < 8; ++j) {
          MIRAGE_UNROLL
          for (int e = 0; e < 2; ++e) {
            const float v9 = fast_exp2(fused_multiply_add(s[0][4 * j + 2 * h + e], 0.125f * LOG2_E, -(v3[0][h] * LOG2_E)));
            s[0][4 * j + 2 * h + e] = v9;
          }
        }
      }
      float v10[1][2];
      MIRAGE_UNROLL
      for (int h = 0; h < 2; ++h) {
        float part[2] = {0.0f, 0.0f};
        MIRAGE_UNROLL
        for (int j = 0; j < 8; ++j) {
          MIRAGE_UNROLL
          for (int e = 0; e < 2; ++e) {
            part[e] = part[e] + s[0][4 * j + 2 * h + e];
          }
        }
        v10[0][h] = warp_sum<4>(part[0] + part[1]);
      }
      float v12[1][2];
      MIRAGE_UNROLL
      for (int h = 0; h < 2; ++h) {
        v12[0][h] = t11[0][h] * v5[0][h];
      }
      float v11[1][2];
      MIRAGE_UNROLL
      for (int h = 0; h < 2; ++h) {
        v11[0][h] = v12[0][h] + v10[0][h];
      }
      MIRAGE_UNROLL
      for (int h = 0; h < 2; ++h) {
        t11[0][h] = v11[0][h];
      }
      MIRAGE_UNROLL
      for (int h = 0; h < 2; ++h) {
        MIRAGE_UNROLL
        for (int j = 0; j < 8; ++j) {
          float pair[2];
          MIRAGE_UNROLL
          for (int e = 0; e < 2; ++e) {
            pair[e] = s[0][4 * j + 2 * h + e];
          }
          p[0][j / 2][0][j % 2 * 2 + h] = pack2<f16>(pair[0], pair[1]);
        }
      }
      for (int j = 0; j < 3; ++j) {
        mbarrier_wait(rk_full + rk_stage, rk_phase);
        rk_slot = rk_stage;
        if (++rk_stage == 4) { rk_stage = 0; rk_phase ^= 1; }
        wgmma_fence(s[0]);
        wgmma_m64k16<64, f16, Major::K, Major::K, false>(s[0], wgmma_descriptor<Major::K>(q + rq_slot * 4096, 8192), wgmma_descriptor<Major::K>(k + rk_slot * 4096, 8192));
        MIRAGE_UNROLL
        for (int k16 = 1; k16 < 4; ++k16) {
          wgmma_m64k16<64, f16, Major::K, Major::K>(s[0], wgmma_descriptor<Major::K>(q + rq_slot * 4096 + k16 * 16, 8192), wgmma_descriptor<Major::K>(k + rk_slot * 4096 + k16 * 16, 8192));
        }
        wgmma_commit();
        mbarrier_wait(rv_full + rv_stage, rv_phase);
        rv_slot = rv_stage;
        if (++rv_stage == 4) { rv_stage = 0; rv_phase ^= 1; }
        wgmma_fence(o[0], p[0]);
        MIRAGE_UNROLL
        for (int k16 = 0; k16 < 4; ++k16) {
          wgmma_m64k16<64, f16, Major::MN>(o[0], p[0][k16][0], wgmma_descriptor<Major::MN>(v + rv_slot * 4096 + k16 * 1024, 8192));
        }
        wgmma_commit();
        wgmma_wait<1>(s[0]);
        {
          if (lane == 0) mbarrier_arrive(rk_empty + rk_kept);
          if (++rk_kept == 4) { rk_kept = 0;  }
        }
        float v13[1][2];
        MIRAGE_UNROLL
        for (int h = 0; h < 2; ++h) {
          float part[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY};
          MIRAGE_UNROLL
          for (int j = 0; j < 8; ++j) {
            MIRAGE_UNROLL
            for (int e = 0; e < 2; ++e) {
              const float v18 = s[0][4 * j + 2 * h + e] * 0.125f;
              part[e] = maximum(part[e], v18);
            }
          }
          v13[0][h] = warp_max<4>(maximum(part[0], part[1]));
        }
        float v14[1][2];
        MIRAGE_UNROLL
        for (int h = 0; h < 2; ++h) {
          v14[0][h] = maximum(v13[0][h], top[0][h]);
        }
        float v15[1][2];
        MIRAGE_UNROLL
        for (int h = 0; h < 2; ++h) {
          v15[0][h] = top[0][h] - v14[0][h];
        }
        float v16[1][2];
        MIRAGE_UNROLL
        for (int h = 0; h < 2; ++h) {
          v16[0][h] = fast_exp(v15[0][h]);
        }
        MIRAGE_UNROLL
        for (int h = 0; h < 2; ++h) {
          top[0][h] = v14[0][h];
        }
        MIRAGE_UNROLL
        for (int h = 0; h < 2; ++h) {
          MIRAGE_UNROLL
          for (int j = 0; j < 8; ++j) {
            MIRAGE_UNROLL
            for (int e = 0; e < 2; ++e) {
              const float v20 = fast_exp2(fused_multiply_add(s[0][4 * j + 2 * h + e], 0.125f * LOG2_E, -(v14[0][h] * LOG2_E)));
              s[0][4 * j + 2 * h + e] = v20;
            }
          }
        }
        float v21[1][2];
        MIRAGE_UNROLL
        for (int h = 0; h < 2; ++h) {
          float part[2] = {0.0f, 0.0f};
          MIRAGE_UNROLL
          for (int j = 0; j < 8; ++j) {
            MIRAGE_UNROLL
            for (int e = 0; e < 2; ++e) {
              part[e] = part[e] + s[0][4 * j + 2 * h + e];
            }
          }
          v21[0][h] = warp_sum<4>(part[0] + part[1]);
        }
        float v23[1][2];
        MIRAGE_UNROLL
        for (int h = 0; h < 2; ++h) {
          v23[0][h] = t11[0][h] * v16[0][h];
        }
        float v22[1][2];
        MIRAGE_UNROLL
        for (int h = 0; h < 2; ++h) {
          v22[0][h] = v23[0][h] + v21[0][h];
        }
        MIRAGE_UNROLL
        for (int h = 0; h < 2; ++h) {
          t11[0][h] = v22[0][h];
        }
        wgmma_wait<0>(o[0], p[0]);
        {
          if (lane == 0) mbarrier_arrive(rv_empty + rv_kept);
          if (++rv_kept == 4) { rv_kept = 0;  }
        }
        MIRAGE_UNROLL
        for (int h = 0; h < 2; ++h) {
          MIRAGE_UNROLL
          for (int j = 0; j < 8; ++j) {
            MIRAGE_UNROLL
            for (int e = 0; e < 2; ++e) {
              const float v24 = o[0][4 * j + 2 * h + e] * v16[0][h];
              o[0][4 * j + 2 * h + e] = v24;
            }
          }
        }
        MIRAGE_UNROLL
        for (int h = 0; h < 2; ++h) {
          MIRAGE_UNROLL
          for (int j = 0; j < 8; ++j) {
            float pair[2];
            MIRAGE_UNROLL
            for (int e = 0; e < 2; ++e) {
              pair[e] = s[0][4 * j + 2 * h + e];
            }
            p[0][j / 2][0][j % 2 * 2 + h] = pack2<f16>(pair[0], pair[1]);
          }
        }
      }
      {
        if (lane == 0) mbarrier_arrive(rq_empty + rq_kept);
        if (++rq_kept == 1) { rq_kept = 0;  }
      }
      mbarrier_wait(rv_full + rv_stage, rv_phase);
      rv_slot = rv_stage;
      if (++rv_stage == 4) { rv_stage = 0; rv_phase ^= 1; }
      wgmma_fence(o[0], p[0]);
      MIRAGE_UNROLL
      for (int k16 = 0; k16 < 4; ++k16) {
        wgmma_m64k16<64, f16, Major::MN>(o[0], p[0][k16][0], wgmma_descriptor<Major::MN>(v + rv_slot * 4096 + k16 * 1024, 8192));
      }
      wgmma_commit();
      wgmma_wait<0>(o[0], p[0]);
      {
        if (lane == 0) mbarrier_arrive(rv_empty + rv_kept);
        if (++rv_kept == 4) { rv_kept = 0;  }
      }
      MIRAGE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int row = 64 * 0 + 16 * (warp % 4) + lane / 4 + 8 * h;
        if (lane % 4 == 0) {
          o1[b * 4096 + z * 256 + m * 64 + row] = from_float<float>(t11[0][h]);
        }
      }
      MIRAGE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int row = 64 * 0 + 16 * (warp % 4) + lane / 4 + 8 * h;
        if (lane % 4 == 0) {
          o2[b * 4096 + z * 256 + m * 64 + row] = from_float<float>(top[0][h]);
        }
      }
      {
        MIRAGE_UNROLL
        for (int h = 0; h < 2; ++h) {
          const int row = 16 * (warp % 4) + lane / 4 + 8 * h;
          MIRAGE_UNROLL
          for (int j = 0; j < 2; ++j) {
            MIRAGE_UNROLL
            for (int q = 0; q < 4; ++q) {
              const int column = 32 * j + 8 * q + 2 * (lane % 4);
              float y_o0[2];
              MIRAGE_UNROLL
              for (int e = 0; e < 2; ++e) {
                y_o0[e] = o[0][4 * (4 * j + q) + 2 * h + e];
              }
              Vec<float, 2> z_o0;
              z_o0[0] = y_o0[0], z_o0[1] = y_o0[1];
              {
                store(o0 + b * 262144 + z * 16384 + m * 4096 + row * 64 + column, from_floats<float>(z_o0));
              }
            }
          }
        }
      }
    }
    return;
  }
  {
    // load: 1 warps
    if (warp == 4 && lane == 0) {
      tma_prefetch_map(map_q);
      tma_prefetch_map(map_k);
      tma_prefetch_map(map_v);
      int rq_stage = 0, rq_phase = 0, rq_slot = 0;
      int rk_stage = 0, rk_phase = 0, rk_slot = 0;
      int rv_stage = 0, rv_phase = 0, rv_slot = 0;
      for (int point = (int)blockIdx.x; point < 128; point += 128) {
        const int b = point / 64 % 2;
        const int place = point % 64, band = place / 4, first = band * 1;
        const int height = 1;
        const int z = first + place % 4 % height, m = place % 4 / height;
        mbarrier_wait(rq_empty + rq_stage, rq_phase ^ 1);
        mbarrier_arrive_expect_tx(rq_full + rq_stage, 8192);
        rq_slot = rq_stage;
        if (++rq_stage == 1) { rq_stage = 0; rq_phase ^= 1; }
        tma_load_2d(q + rq_slot * 4096, map_q, rq_full + rq_slot, 0, b * 256 + m * 64);
        for (int j = 0; j < 4; ++j) {
          mbarrier_wait(rk_empty + rk_stage, rk_phase ^ 1);
          mbarrier_arrive_expect_tx(rk_full + rk_stage, 8192);
          rk_slot = rk_stage;
          if (++rk_stage == 4) { rk_stage = 0; rk_phase ^= 1; }
          tma_load_2d(k + rk_slot * 4096, map_k, rk_full + rk_slot, 0, b * 4096 + z * 256 + j * -64 + 192);
          mbarrier_wait(rv_empty + rv_stage, rv_phase ^ 1);
          mbarrier_arrive_expect_tx(rv_full + rv_stage, 8192);
          rv_slot = rv_stage;
          if (++rv_stage == 4) { rv_stage = 0; rv_phase ^= 1; }
          tma_load_2d(v + rv_slot * 4096, map_v, rv_full + rv_slot, 0, b * 4096 + z * 256 + j * -64 + 192);
        }
      }
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
