// Places in the block, and exchanges inside one warp. Every function here is called by all 32 lanes.
#pragma once

namespace mirage {

// Blocks have one dimension; a compiler that knows the bounds of an index divides it by shifts.
MIRAGE_DEVICE int thread_index() {
  const unsigned x = threadIdx.x;
  __builtin_assume(x < 1024);
  return int(x);
}
MIRAGE_DEVICE int lane_index() { return thread_index() & 31; }
MIRAGE_DEVICE int warp_index() { return thread_index() >> 5; }
MIRAGE_DEVICE int warp_count() { return int(blockDim.x + 31) >> 5; }

MIRAGE_DEVICE void warp_sync() { __syncwarp(); }

template <class T>
MIRAGE_DEVICE T shuffle(T v, int lane) {
  return __shfl_sync(0xffffffffu, v, lane);
}
template <class T>
MIRAGE_DEVICE T shuffle_xor(T v, int mask) {
  return __shfl_xor_sync(0xffffffffu, v, mask);
}
// What all lanes hand in alike, known to the compiler to be alike: addresses computed from it are computed once.
MIRAGE_DEVICE int warp_uniform(int v) { return shuffle(v, 0); }

}  // namespace mirage
