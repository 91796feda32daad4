// One block per row of X[rows, columns]: its sum, and its softmax. The row stays in registers.
#include "mirage_device.cuh"
using namespace mirage;

constexpr int THREADS = 128, VECTOR = 8;

extern "C" __global__ void __launch_bounds__(THREADS) row_sum(const f16* X, float* sums, int columns) {
  MIRAGE_SHARED(float, scratch, THREADS / 32);
  const f16* x = X + int64_t(blockIdx.x) * columns;
  float s = 0;
  for (int c = thread_index() * VECTOR; c < columns; c += THREADS * VECTOR) {
    const Vec<float, VECTOR> v = to_floats(load_once<VECTOR>(x + c));
    MIRAGE_UNROLL
    for (int i = 0; i < VECTOR; i++) s += v[i];
  }
  s = block_sum(s, scratch);
  if (thread_index() == 0) sums[blockIdx.x] = s;
}

extern "C" __global__ void __launch_bounds__(THREADS) softmax(const f16* X, f16* Y) {
  constexpr int COLUMNS = THREADS * VECTOR;
  MIRAGE_SHARED(float, scratch, THREADS / 32);
  const int64_t at = int64_t(blockIdx.x) * COLUMNS + thread_index() * VECTOR;
  Vec<f16, VECTOR> x[1] = {load<VECTOR>(X + at)};
  forget(x);
  Vec<float, VECTOR> v = to_floats(x[0]);
  float m = NEGATIVE_INFINITY, s = 0;
  MIRAGE_UNROLL
  for (int i = 0; i < VECTOR; i++) m = maximum(m, v[i]);
  m = block_max(m, scratch);
  MIRAGE_UNROLL
  for (int i = 0; i < VECTOR; i++) {
    v[i] = fast_exp(v[i] - m);
    s += v[i];
  }
  const float scale = fast_reciprocal(block_sum(s, scratch));
  MIRAGE_UNROLL
  for (int i = 0; i < VECTOR; i++) v[i] *= scale;
  store(Y + at, from_floats<f16>(v));
}
