// C[16 g, 64] = A[16 g, K] * B[K, 64], one block per 16 rows, K in steps of 64: cp.async in two stages, ldmatrix, mma.
#include "mirage_device.cuh"
using namespace mirage;

#ifndef ELEMENT
#define ELEMENT f16
#endif

// Tests replace these to see the mistake caught.
#ifndef SYNC_LOADED
#define SYNC_LOADED block_sync()
#endif
#ifndef SYNC_READ
#define SYNC_READ block_sync()
#endif
#ifndef PENDING
#define PENDING 1
#endif

constexpr int PITCH = 72;  // elements of a padded row of 64
constexpr int A_STAGE = 16 * PITCH, B_STAGE = 64 * PITCH;

extern "C" __global__ void __launch_bounds__(128)
    matmul(const ELEMENT* __restrict__ A, const ELEMENT* __restrict__ B, float* __restrict__ C, int K) {
  MIRAGE_DYNAMIC_SHARED(bytes);
  ELEMENT* const a_tiles = reinterpret_cast<ELEMENT*>(bytes);
  ELEMENT* const b_tiles = a_tiles + 2 * A_STAGE;
  const int t = thread_index(), w = warp_index(), l = lane_index();
  A += int64_t(blockIdx.x) * 16 * K;
  C += int64_t(blockIdx.x) * 16 * 64;

  auto fetch = [&](int stage, int k) {
    cp_async<16>(a_tiles + stage * A_STAGE + t / 8 * PITCH + t % 8 * 8, A + int64_t(t / 8) * K + k + t % 8 * 8);
    MIRAGE_UNROLL
    for (int i = 0; i < 4; i++) {
      const int row = t / 8 + 16 * i;
      cp_async<16>(b_tiles + stage * B_STAGE + row * PITCH + t % 8 * 8, B + (k + row) * 64 + t % 8 * 8);
    }
    cp_async_commit();
  };

  float d[2][4] = {};
  const int steps = K / 64;
  fetch(0, 0);
  for (int i = 0; i < steps; i++) {
    if (i + 1 < steps) {
      fetch((i + 1) % 2, (i + 1) * 64);
      cp_async_wait<PENDING>();
    } else {
      cp_async_wait<0>();
    }
    SYNC_LOADED;
    const ELEMENT* a_tile = a_tiles + i % 2 * A_STAGE;
    const ELEMENT* b_tile = b_tiles + i % 2 * B_STAGE;
    MIRAGE_UNROLL
    for (int k = 0; k < 64; k += 16) {
      uint32_t a[4];
      ldmatrix_x4(a, a_tile + l % 16 * PITCH + k + l / 16 * 8);
      MIRAGE_UNROLL
      for (int j = 0; j < 2; j++) {
        uint32_t b[2];
        ldmatrix_x2_trans(b, b_tile + (k + l % 16) * PITCH + w * 16 + j * 8);
        mma_m16n8k16<ELEMENT>(d[j], a, b);
      }
    }
    SYNC_READ;
  }
  MIRAGE_UNROLL
  for (int j = 0; j < 2; j++) {
    MIRAGE_UNROLL
    for (int i = 0; i < 4; i++) C[mma_d_row(l, i) * 64 + w * 16 + j * 8 + mma_d_column(l, i)] = d[j][i];
  }
}
