// Four numbers of one byte in a word, in every type: one by one, as pairs of halves, and back.
#include "mirage_device.cuh"

using namespace mirage;

template <class T>
MIRAGE_DEVICE void put(float*& out, uint32_t first, uint32_t second) {
  const float2 a = unpack2<T>(first), b = unpack2<T>(second);
  *out++ = a.x, *out++ = a.y, *out++ = b.x, *out++ = b.y;
}

template <class B, class T>
MIRAGE_DEVICE void pairs(uint32_t word, float*& out) {
  uint32_t first, second;
  widen_bytes<B, T>(word, first, second);
  put<T>(out, first, second);
  widen_twins<B, T>(word, first, second);
  put<T>(out, first, second);
}

template <class B>
MIRAGE_DEVICE void every(uint32_t word, float*& out, uint8_t*& same) {
  pairs<B, f16>(word, out);
  pairs<B, bf16>(word, out);
  B held[4], back[4];
  memcpy(held, &word, 4);
  for (int i = 0; i < 4; i++) {
    const float x = *out++ = to_float(held[i]);
    back[i] = from_float<B>(x == x ? x : 0.0f);
  }
  memcpy(same, back, 4);
  same += 4;
}

extern "C" __global__ void bytes(const uint32_t* words, float* out, uint8_t* same) {
  const uint8_t* const four = reinterpret_cast<const uint8_t*>(words + threadIdx.x);
  const uint32_t word = load_twos(four, four + 2);
  out += threadIdx.x * 100;
  same += threadIdx.x * 20;
  every<int8_t>(word, out, same);
  every<uint8_t>(word, out, same);
  every<uint8_t>(word, out, same);
  every<f8e4m3>(word, out, same);
  every<f8e5m2>(word, out, same);
}

// Where fragments have fours and twins, and a four.
extern "C" __global__ void fours(const f16* in, uint32_t* out, int* places) {
  const int l = lane_index();
  load_four(in + 4 * l, out[2 * l], out[2 * l + 1]);
  for (int i = 0; i < 4; i++) {
    places[12 * l + i] = mma_fours_a_k(l, i);
    places[12 * l + 4 + i] = mma_fours_b_k(l, i % 2);
    places[12 * l + 8 + i] = mma_twin_row(l, i);
  }
}
