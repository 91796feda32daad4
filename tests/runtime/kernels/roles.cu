// Three warpgroups: one gives registers to the others.
#include "mirage_device.cuh"
using namespace mirage;

extern "C" __global__ void __launch_bounds__(384, 1) roles(const float* x, float* y) {
  const int warp = warp_uniform(warp_index()), thread = thread_index();
  if (warp < 8) {
    registers_claim<240>();
    y[thread] = fused_multiply_add(x[thread], 3.0f, 1.0f);
  } else {
    registers_release<24>();
    y[thread] = x[thread] * 3.0f + 1.0f;
  }
}
