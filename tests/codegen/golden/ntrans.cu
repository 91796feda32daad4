#include "mirage_device.cuh"

using namespace mirage;

extern "C" __global__ void __launch_bounds__(256, 1)
kernel0(const f16* __restrict__ x0, const f16* __restrict__ x1, const f16* __restrict__ x2, f16* __restrict__ o0) {
  const int thread = thread_index(), warp = warp_index(), lane = lane_index();
  const int block_x = (int)blockIdx.x;
  MIRAGE_DYNAMIC_SHARED(shared);
  f16* const t0 = reinterpret_cast<f16*>(shared + 0);  // f16[1, 4096], %0
  f16* const t1 = reinterpret_cast<f16*>(shared + 8192);  // f16[1, 4096], %1
  f16* const t2 = reinterpret_cast<f16*>(shared + 16384);  // f16[1, 4096], %2
  float* const t4 = reinterpret_cast<float*>(shared + 24576);  // f16[1, 1], %4
  float* const t8 = reinterpret_cast<float*>(shared + 24704);  // f16[1, 1], %8
  MIRAGE_SHARED(float, scratch, 8);
  // %0 = operand 0, imap (0), fmap -: f16[1, 4096]
  for (int e = thread; e < 512; e += 256) {
    cp_async<16>(t0 + e * 8, x0 + block_x * 4096 + e * 8);
  }
  // %1 = operand 1, imap (0), fmap -: f16[1, 4096]
  for (int e = thread; e < 512; e += 256) {
    cp_async<16>(t1 + e * 8, x1 + block_x * 4096 + e * 8);
  }
  // %2 = operand 2, imap (0), fmap -: f16[1, 4096]
  for (int e = thread; e < 512; e += 256) {
    cp_async<16>(t2 + e * 8, x2 + block_x * 4096 + e * 8);
  }
  cp_async_commit();
  cp_async_wait<0>();
  block_sync();
  // %4 = Sum(%3): f16[1, 1]
  {
    float result = 0.0f;
    for (int k = thread; k < 512; k += 256) {
      const auto x0_1 = to_floats(load<8>(t0 + k * 8));
      MIRAGE_UNROLL
      for (int v = 0; v < 8; ++v) {
        const float sqr_2 = square(x0_1[v]);
        result += sqr_2;
      }
    }
    result = block_sum(result, scratch);
    if (thread == 0) t4[0] = from_float<float>(result);
  }
  block_sync();
  // %8 = Sum(%7): f16[1, 1]
  {
    float result = 0.0f;
    for (int k = thread; k < 512; k += 256) {
      const auto x1_1 = to_floats(load<8>(t1 + k * 8));
      const auto x2_2 = to_floats(load<8>(t2 + k * 8));
      const auto x0_3 = to_floats(load<8>(t0 + k * 8));
      const float x4_4 = to_float(t4[0]);
      MIRAGE_UNROLL
      for (int v = 0; v < 8; ++v) {
        const float mul_5 = x4_4 * 0.000244140625f;
        const float sqrt_6 = fast_sqrt(mul_5);
        const float div_7 = fast_divide(x0_3[v], sqrt_6);
        const float add_8 = div_7 + x1_1[v];
        const float mul_9 = x2_2[v] * add_8;
        const float add_10 = x1_1[v] + mul_9;
        const float sqr_11 = square(add_10);
        result += sqr_11;
      }
    }
    result = block_sum(result, scratch);
    if (thread == 0) t8[0] = from_float<float>(result);
  }
  block_sync();
  // output 0 = %10
  for (int e = thread; e < 512; e += 256) {
    const auto x1_1 = to_floats(load<8>(t1 + e * 8));
    const auto x2_2 = to_floats(load<8>(t2 + e * 8));
    const auto x0_3 = to_floats(load<8>(t0 + e * 8));
    const float x4_4 = to_float(t4[0]);
    const float x8_11 = to_float(t8[0]);
    Vec<float, 8> y;
    MIRAGE_UNROLL
    for (int v = 0; v < 8; ++v) {
      const float mul_5 = x4_4 * 0.000244140625f;
      const float sqrt_6 = fast_sqrt(mul_5);
      const float div_7 = fast_divide(x0_3[v], sqrt_6);
      const float add_8 = div_7 + x1_1[v];
      const float mul_9 = x2_2[v] * add_8;
      const float add_10 = x1_1[v] + mul_9;
      const float mul_12 = x8_11 * 0.000244140625f;
      const float sqrt_13 = fast_sqrt(mul_12);
      const float div_14 = fast_divide(add_10, sqrt_13);
      y[v] = div_14;
    }
    store(o0 + block_x * 4096 + e * 8, from_floats<f16>(y));
  }
}
