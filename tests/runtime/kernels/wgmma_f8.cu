// D[64, COLUMNS] += A[64, 128] * B[COLUMNS, 128]^T of floats of one byte by one warpgroup, tiles by TMA with the 128-byte
// swizzle, in four products; OVERWRITES: the first one does not add to what is there.
#include "mirage_device.cuh"
using namespace mirage;

extern "C" __global__ void __launch_bounds__(128)
    matmul(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, float* D) {
  MIRAGE_DYNAMIC_SHARED(a_tile);
  MIRAGE_SHARED(uint64_t, bar, 1);
  unsigned char* const b_tile = a_tile + 64 * 128;
  const int t = thread_index(), l = lane_index();
  if (t == 0) {
    mbarrier_init(bar, 1);
    fence_mbarrier_init();
  }
  block_sync();
  if (t == 0) {
    mbarrier_arrive_expect_tx(bar, (64 + COLUMNS) * 128);
    tma_load_2d(a_tile, a_map, bar, 0, 0);
    tma_load_2d(b_tile, b_map, bar, 0, 0);
  }
  float d[COLUMNS / 2];
  MIRAGE_UNROLL
  for (int i = 0; i < COLUMNS / 2; i++)
    d[i] = D[(16 * (t / 32) + mma_d_row(l, i % 4)) * COLUMNS + 8 * (i / 4) + mma_d_column(l, i % 4)];
  mbarrier_wait(bar, 0);
  wgmma_fence(d);
  MIRAGE_UNROLL
  for (int k = 0; k < 4; k++) {
    const uint64_t a = wgmma_descriptor<Major::K>(a_tile + k * 32), b = wgmma_descriptor<Major::K>(b_tile + k * 32);
    if (OVERWRITES && k == 0) {
      wgmma_m64k32<COLUMNS, LEFT, RIGHT, Major::K, Major::K, false>(d, a, b);
    } else {
      wgmma_m64k32<COLUMNS, LEFT, RIGHT, Major::K, Major::K>(d, a, b);
    }
  }
  wgmma_commit();
  wgmma_wait<0>(d);
  MIRAGE_UNROLL
  for (int i = 0; i < COLUMNS / 2; i++)
    D[(16 * (t / 32) + mma_d_row(l, i % 4)) * COLUMNS + 8 * (i / 4) + mma_d_column(l, i % 4)] = d[i];
}
