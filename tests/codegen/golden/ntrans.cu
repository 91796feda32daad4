#include "mirage_device.cuh"

using namespace mirage;

extern "C" __global__ void __launch_bounds__(256, 2)
kernel0(const f16* __restrict__ x0, const f16* __restrict__ x1, const f16* __restrict__ x2, f16* __restrict__ o0) {
  const int thread = thread_index(), warp = warp_index(), lane = lane_index();
  const int block_x = (int)blockIdx.x;
  grid_dependency_launch();
  MIRAGE_SHARED(float, scratch, 16);
  const int place = thread;
  Vec<f16, 8> h1[2];  // f16[1, 4096], %1
  MIRAGE_UNROLL
  for (int s = 0; s < 2; ++s) {
    h1[s] = load_once<8>(x1 + (block_x * 4096 + s * 2048 + place * 8));
  }
  Vec<f16, 8> h2[2];  // f16[1, 4096], %2
  MIRAGE_UNROLL
  for (int s = 0; s < 2; ++s) {
    h2[s] = load_once<8>(x2 + (block_x * 4096 + s * 2048 + place * 8));
  }
  Vec<f16, 8> h0[2];  // f16[1, 4096], %0
  MIRAGE_UNROLL
  for (int s = 0; s < 2; ++s) {
    h0[s] = load_once<8>(x0 + (block_x * 4096 + s * 2048 + place * 8));
  }
  // %4 = Sum(%3): f16[1, 1]
  float r4[1];
  r4[0] = 0.0f;
  MIRAGE_UNROLL
  for (int s = 0; s < 2; ++s) {
    {
      MIRAGE_UNROLL
      for (int v = 0; v < 8; ++v) {
        const float sqr_1 = square(to_float(h0[s][v]));
        r4[0] += sqr_1;
      }
    }
  }
  r4[0] = team_sum<8>(r4[0], scratch + 0, 0);
  // %7 = Sum(%6): f16[1, 1]
  float r7[1];
  r7[0] = 0.0f;
  MIRAGE_UNROLL
  for (int s = 0; s < 2; ++s) {
    {
      const float mul_1 = r4[0] * 0.000244140625f;
      const float sqrt_2 = fast_sqrt(mul_1);
      const Divisor by_div_3 = divisor(sqrt_2);
      MIRAGE_UNROLL
      for (int v = 0; v < 8; ++v) {
        const float div_3 = to_float(h0[s][v]) / by_div_3;
        const float add_4 = div_3 + to_float(h1[s][v]);
        const float mul_5 = to_float(h2[s][v]) * add_4;
        const float add_6 = to_float(h1[s][v]) + mul_5;
        const float sqr_7 = square(add_6);
        r7[0] += sqr_7;
      }
    }
  }
  r7[0] = team_sum<8>(r7[0], scratch + 8, 0);
  // output 0 = %8
  MIRAGE_UNROLL
  for (int s = 0; s < 2; ++s) {
    {
      const float mul_1 = r4[0] * 0.000244140625f;
      const float sqrt_2 = fast_sqrt(mul_1);
      const Divisor by_div_3 = divisor(sqrt_2);
      const float mul_7 = r7[0] * 0.000244140625f;
      const float sqrt_8 = fast_sqrt(mul_7);
      const Divisor by_div_9 = divisor(sqrt_8);
      Vec<float, 8> y;
      MIRAGE_UNROLL
      for (int v = 0; v < 8; ++v) {
        const float div_3 = to_float(h0[s][v]) / by_div_3;
        const float add_4 = div_3 + to_float(h1[s][v]);
        const float mul_5 = to_float(h2[s][v]) * add_4;
        const float add_6 = to_float(h1[s][v]) + mul_5;
        const float div_9 = add_6 / by_div_9;
        y[v] = div_9;
      }
      store(o0 + (block_x * 4096 + s * 2048 + place * 8), from_floats<f16>(y));
    }
  }
}
