// C[16, N] = X[16, K] * W[K, N], one block per 64 columns: boxes of 64 x 64 of W and of 16 x 64 of X arrive by TMA in
// a ring of stages, filled by a producer warp; four consumer warps take W^T as the m = 16 side of mma and X as the
// n = 8 side.
#include "mirage_device.cuh"
using namespace mirage;

constexpr int STAGES = 3, W_BYTES = 64 * 128, X_BYTES = 16 * 128, STAGE = W_BYTES + X_BYTES;
constexpr int CONSUMERS = 4;

// Tests replace these to see the mistake caught.
#ifndef WAIT_FULL
#define WAIT_FULL mbarrier_wait(&full[s], step / STAGES & 1)
#endif
#ifndef WAIT_EMPTY
#define WAIT_EMPTY mbarrier_wait(&empty[s], (step / STAGES & 1) ^ 1)
#endif
#ifndef FENCE_SLOT
#define FENCE_SLOT fence_proxy_async()
#endif
#ifndef EXPECTED
#define EXPECTED STAGE
#endif

extern "C" __global__ void __launch_bounds__(32 * (CONSUMERS + 1))
    matmul(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map, float* C, int K, int N) {
  MIRAGE_DYNAMIC_SHARED(tiles);
  MIRAGE_SHARED(uint64_t, full, STAGES);
  MIRAGE_SHARED(uint64_t, empty, STAGES);
  const int w = warp_index(), l = lane_index(), steps = K / 64, column = blockIdx.x * 64;
  if (thread_index() == 0) {
    for (int s = 0; s < STAGES; s++) {
      mbarrier_init(&full[s], 1);
      mbarrier_init(&empty[s], CONSUMERS);
    }
    fence_mbarrier_init();
  }
  block_sync();

  if (w == CONSUMERS) {
    if (l == 0) {
      for (int step = 0; step < steps; step++) {
        const int s = step % STAGES;
        WAIT_EMPTY;
        mbarrier_arrive_expect_tx(&full[s], EXPECTED);
        tma_load_2d_once(tiles + s * STAGE, w_map, &full[s], column, step * 64);
        tma_load_2d(tiles + s * STAGE + W_BYTES, x_map, &full[s], step * 64, 0);
      }
    }
    return;
  }
  float d[2][4] = {};
  for (int step = 0; step < steps; step++) {
    const int s = step % STAGES;
    WAIT_FULL;
    const unsigned char* const w_tile = tiles + s * STAGE;
    const unsigned char* const x_tile = w_tile + W_BYTES;
    MIRAGE_UNROLL
    for (int k = 0; k < 64; k += 16) {
      uint32_t a[4], b[4];
      // Matrices of a: (columns 0-7, k 0-7), (columns 8-15, k 0-7), then k 8-15; W lies [k][column], hence transposed.
      ldmatrix_x4_trans(a, w_tile + swizzle<128>((k + l % 8 + l / 16 * 8) * 128 + w * 32 + l / 8 % 2 * 16));
      // Matrices of b: (rows 0-7, k 0-7), (rows 0-7, k 8-15), then rows 8-15.
      ldmatrix_x4(b, x_tile + swizzle<128>((l % 8 + l / 16 * 8) * 128 + k * 2 + l / 8 % 2 * 16));
      mma_m16n8k16<f16>(d[0], a, {b[0], b[1]});
      mma_m16n8k16<f16>(d[1], a, {b[2], b[3]});
    }
    FENCE_SLOT;
    warp_sync();
    if (l == 0) mbarrier_arrive(&empty[s]);
  }
  MIRAGE_UNROLL
  for (int j = 0; j < 2; j++) {
    MIRAGE_UNROLL
    for (int i = 0; i < 4; i++) C[(j * 8 + mma_d_column(l, i)) * N + column + w * 16 + mma_d_row(l, i)] = d[j][i];
  }
}
