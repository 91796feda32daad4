// D[64, COLUMNS] = A[64, 32] * B[COLUMNS, 32]^T by one warpgroup of TF32: A in registers, B in swizzled panels.
#include "mirage_device.cuh"
using namespace mirage;

extern "C" __global__ void __launch_bounds__(128) matmul(const float* A, const float* B, float* D) {
  MIRAGE_DYNAMIC_SHARED(tile);
  float* const b = reinterpret_cast<float*>(tile);
  const int t = thread_index(), l = lane_index();
  for (int i = t; i < COLUMNS * 8; i += 128) {
    const int row = i / 8, column = i % 8 * 4;
    store(b + panel_start<COLUMNS>(0, 0) + panel_step<COLUMNS>(panel_mixed(0, 0), row, column), load<4>(B + i * 4));
  }
  fence_proxy_async();
  block_sync();
  float d[COLUMNS / 2] = {}, a[4][4];
  MIRAGE_UNROLL
  for (int k = 0; k < 4; k++) {
    for (int i = 0; i < 4; i++) a[k][i] = A[(t / 32 * 16 + mma_a_row(l, i)) * 32 + k * 8 + mma_f32_a_k(l, i)];
    wgmma_hold(a[k]);
    wgmma_fence(d);
    wgmma_m64k8_tf32<COLUMNS>(d, a[k], wgmma_descriptor<Major::K>(b + k * 8));
    wgmma_commit();
    if (k > 0) {
      wgmma_pass<1>();
      wgmma_hold(a[k > 0 ? k - 1 : 0]);
    }
  }
  wgmma_wait<0>(d);
  wgmma_hold(a[3]);
  MIRAGE_UNROLL
  for (int i = 0; i < COLUMNS / 2; i++)
    D[(16 * (t / 32) + mma_d_row(l, i % 4)) * COLUMNS + 8 * (i / 4) + mma_d_column(l, i % 4)] = d[i];
}
