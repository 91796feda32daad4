#include "mirage_device.cuh"

using namespace mirage;

extern "C" __global__ void __launch_bounds__(384, 1)
kernel0(const f16* __restrict__ x2, const f16* x3, f16* __restrict__ o0, const __grid_constant__ TensorMap map_s0, const __grid_constant__ TensorMap map_s1) {
  const int warp = warp_uniform(warp_index()), lane = lane_index();
  grid_dependency_launch();
  MIRAGE_DYNAMIC_SHARED(shared);
  f16* const s0 = reinterpret_cast<f16*>(shared + 0);  // 4 x 128 x 64
  f16* const s1 = reinterpret_cast<f16*>(shared + 65536);  // 4 x 64 x 256
  MIRAGE_SHARED(uint64_t, ring_full, 4);
  MIRAGE_SHARED(uint64_t, ring_empty, 4);
  if (warp == 0 && lane == 0) {
    for (int i = 0; i < 4; ++i) {
      mbarrier_init(ring_full + i, 1);
      mbarrier_init(ring_empty + i, 8);
    }
    fence_mbarrier_init();
  }
  block_sync();
  if (warp < 8) {
    // math: 8 warps
    registers_claim<240>();
    const int part = warp / 4;
    int ring_stage = 0, ring_phase = 0, ring_slot = 0;
    int ring_kept = 0;  // the oldest stage that is not handed back
    float c5[1][128];
    for (int point = (int)blockIdx.x; point < 1376; point += 132) {
      const int place = point, band = place / 688, first = band * 16;
      const int height = 16;
      const int m = first + place % 688 % height, n = place % 688 / height;
      MIRAGE_UNROLL
      for (int r = 0; r < 128; ++r) {
        c5[0][r] = 0.0f;
      }
      for (int k = 0; k < 64; ++k) {
        mbarrier_wait(ring_full + ring_stage, ring_phase);
        ring_slot = ring_stage;
        if (++ring_stage == 4) { ring_stage = 0; ring_phase ^= 1; }
        wgmma_fence(c5[0]);
        MIRAGE_UNROLL
        for (int k16 = 0; k16 < 4; ++k16) {
          wgmma_m64k16<256, f16, Major::K, Major::MN>(c5[0], wgmma_descriptor<Major::K>(s0 + ring_slot * 8192 + part * 4096 + k16 * 16, 16384), wgmma_descriptor<Major::MN>(s1 + ring_slot * 16384 + k16 * 1024, 8192));
        }
        wgmma_commit();
        wgmma_wait<1>(c5[0]);
        if (k >= 1) {
          if (lane == 0) mbarrier_arrive(ring_empty + ring_kept);
          if (++ring_kept == 4) { ring_kept = 0;  }
        }
      }
      wgmma_wait<0>(c5[0]);
      {
        if (lane == 0) mbarrier_arrive(ring_empty + ring_kept);
        if (++ring_kept == 4) { ring_kept = 0;  }
      }
      MIRAGE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int row = 16 * (warp % 4) + lane / 4 + 8 * h;
        MIRAGE_UNROLL
        for (int j = 0; j < 8; ++j) {
          const int wide = 32 * j + 8 * (lane % 4);  // the column that this lane moves
          alignas(16) uint32_t w_v3[4] = {};
          if (n * 256 + wide < 11000) {
            load_words(w_v3, x3 + m * 1408000 + part * 704000 + row * 11000 + n * 256 + wide);
          }
          transpose_words<4, 1>(w_v3);
          alignas(16) uint32_t w_o0[4];
          MIRAGE_UNROLL
          for (int q = 0; q < 4; ++q) {
            const int column = 32 * j + 8 * q + 2 * (lane % 4);
            const auto v0 = to_floats(load_inside<2>(x2 + n * 256 + column, n * 256 + column < 11000));
            const float2 p_v3 = unpack2<f16>(w_v3[q]);
            const float v3[2] = {p_v3.x, p_v3.y};
            float y_o0[2];
            MIRAGE_UNROLL
            for (int e = 0; e < 2; ++e) {
              const float v1 = c5[0][4 * (4 * j + q) + 2 * h + e] + v0[e];
              const float v2 = relu(v1);
              const float v4 = v2 + v3[e];
              y_o0[e] = v4;
            }
            w_o0[q] = pack2<f16>(y_o0[0], y_o0[1]);
          }
          transpose_words<4, 1>(w_o0);
          if (n * 256 + wide < 11000) {
            store_words(o0 + m * 1408000 + part * 704000 + row * 11000 + n * 256 + wide, w_o0);
          }
        }
      }
    }
    return;
  }
  {
    // load: 4 warps
    registers_release<24>();
    if (warp == 8 && lane == 0) {
      tma_prefetch_map(map_s0);
      tma_prefetch_map(map_s1);
      int ring_stage = 0, ring_phase = 0, ring_slot = 0;
      for (int point = (int)blockIdx.x; point < 1376; point += 132) {
        const int place = point, band = place / 688, first = band * 16;
        const int height = 16;
        const int m = first + place % 688 % height, n = place % 688 / height;
        for (int k = 0; k < 64; ++k) {
          mbarrier_wait(ring_empty + ring_stage, ring_phase ^ 1);
          mbarrier_arrive_expect_tx(ring_full + ring_stage, 49152);
          ring_slot = ring_stage;
          if (++ring_stage == 4) { ring_stage = 0; ring_phase ^= 1; }
          tma_load_2d(s0 + ring_slot * 8192, map_s0, ring_full + ring_slot, k * 64, m * 128);
          MIRAGE_UNROLL
          for (int p = 0; p < 4; ++p) {
            tma_load_2d(s1 + ring_slot * 16384 + p * 4096, map_s1, ring_full + ring_slot, n * 256 + p * 64, k * 64);
          }
        }
      }
    }
  }
}
