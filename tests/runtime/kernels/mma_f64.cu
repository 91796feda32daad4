// D[16, 8] += A[16, 16] * B[16, 8] of doubles by one warp.
#include "mirage_device.cuh"
using namespace mirage;

extern "C" __global__ void multiply(const double* A, const double* B, double* D) {
  const int l = lane_index();
  double a[8], b[4], d[4];
  for (int i = 0; i < 8; i++) a[i] = A[mma_a_row(l, i) * 16 + mma_f32_a_k(l, i)];
  for (int i = 0; i < 4; i++) b[i] = B[mma_f32_b_k(l, i) * 8 + mma_b_column(l)];
  for (int i = 0; i < 4; i++) d[i] = D[mma_d_row(l, i) * 8 + mma_d_column(l, i)];
  mma_m16n8k16_f64(d, a, b);
  for (int i = 0; i < 4; i++) D[mma_d_row(l, i) * 8 + mma_d_column(l, i)] = fused_multiply_add(1.0, d[i], 0.0);
}
