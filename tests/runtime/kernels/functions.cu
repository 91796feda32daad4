// Each function of the device library that sm_80 has, once, where NumPy can look at it.
#include "mirage_device.cuh"
using namespace mirage;

extern "C" __global__ void convert(const float* x, f16* h, bf16* b, float* from_h, float* from_b) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  h[i] = from_float<f16>(x[i]);
  b[i] = from_float<bf16>(x[i]);
  from_h[i] = to_float(h[i]);
  from_b[i] = to_float(b[i]);
}

extern "C" __global__ void all_halves(const f16* h, const bf16* b, float* from_h, float* from_b) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  from_h[i] = to_float(h[i]);
  from_b[i] = to_float(b[i]);
}

extern "C" __global__ void pack(const float* low, const float* high, uint32_t* packed, float* unpacked) {
  const int i = threadIdx.x, n = blockDim.x;
  packed[i] = pack2<f16>(low[i], high[i]);
  packed[n + i] = pack2<bf16>(low[i], high[i]);
  packed[2 * n + i] = float_bits(low[i]);
  const float2 h = unpack2<f16>(packed[i]), b = unpack2<bf16>(packed[n + i]);
  unpacked[i] = h.x;
  unpacked[n + i] = h.y;
  unpacked[2 * n + i] = b.x;
  unpacked[3 * n + i] = b.y;
  unpacked[4 * n + i] = bits_float(float_bits(low[i]));
}

extern "C" __global__ void math(const float* xs, const float* ys, float* out) {
  const int i = threadIdx.x, n = blockDim.x;
  const float x = xs[i], y = ys[i];
  int row = 0;
  auto put = [&](float v) { out[row++ * n + i] = v; };
  put(fast_exp2(x));
  put(fast_exp(x));
  put(fast_sqrt(y));
  put(fast_rsqrt(y));
  put(fast_reciprocal(y));
  put(fast_divide(x, y));
  put(fast_tanh(x));
  put(sigmoid(x));
  put(silu(x));
  put(gelu(x));
  put(gelu_tanh(x));
  put(relu(x));
  put(square(x));
  put(power(y, x));
  put(erf_value(x));
  put(natural_log(y));
  put(log_one_plus(y));
  put(exp_minus_one(x));
  put(arc_tangent(x));
  put(floor_value(x));
  put(absolute(x));
  put(sign(x));
  put(step(x));
  put(not_below(x, y));
  put(above(x, y));
  put(not_below(square(natural_log(-y)), 0.0f));  // of no number
  put(above(absolute(natural_log(-y)), -1.0f));
  put(maximum(x, y));
  put(minimum(x, y));
  put(clamp(x, -1.0f, 2.0f));
  put(fused_multiply_add(x, y, 1.0f));
  put(fast_exp2(NEGATIVE_INFINITY));
  put(rescaled(y, y, maximum(x, y)));
  put(rescaled(x * (NEGATIVE_INFINITY - NEGATIVE_INFINITY), NEGATIVE_INFINITY, y));
  put(rescaled(y, maximum(NEGATIVE_INFINITY, LOWEST_FLOAT), x));
}

extern "C" __global__ void quotients(const float* xs, const float* ys, float* out) {
  const int i = threadIdx.x;
  out[i] = xs[i] / divisor(ys[i]);
}

extern "C" __global__ void waves(const float* xs, float* out) {
  const int i = threadIdx.x, n = blockDim.x;
  out[i] = sine(xs[i]);
  out[n + i] = cosine(xs[i]);
}

extern "C" __global__ void vectors(const f16* x, f16* y, const float* u, float* v) {
  const int i = threadIdx.x;
  touch(u + 4 * i);
  store(y + 16 * i, load<16>(x + 16 * i));
  Vec<float, 8> w = to_floats(load_once<8>(x + 16 * i));
  const Vec<float, 4> a = load_now<4>(u + 4 * i);
  const Vec<float, 2> b = load_now<2>(u + 2 * i);
  const Vec<f16, 2> c = load_inside<2>(i < 40 ? x + 2 * i : nullptr, i < 40);
  const Vec<f16, 8> d = load_anywhere<8>(x, 16 * i + i % 9, 1024, i % 12);
  for (int j = 0; j < 8; j++) w[j] += to_float(d[j]) + a[j % 4] + b[j % 2] + to_float(c[j % 2]) + load<1>(u + i)[0];
  store(v + 8 * i, w);
  store(y + 16 * i + 8, from_floats<f16>(to_floats(load_once<4>(x + 16 * i + 8))));
}

extern "C" __global__ void exchanges(const float* x, float* out) {
  const int l = lane_index(), n = 32;
  const float v = x[l];
  int row = 0;
  auto put = [&](float r) { out[row++ * n + l] = r; };
  put(shuffle(v, (l * 7 + 3) % 32));
  put(shuffle_xor(v, 5));
  put(warp_sum(v));
  put(warp_sum<4>(v));
  put(warp_max(v));
  put(warp_max<8>(v));
  put(float(shuffle(l, 9) + int(shuffle_xor(uint32_t(l), 1))));
  warp_sync();
}

// Of a warp: how many of its numbers lie beyond the bounds of what is computed of all of them, and these bounds; and
// whether a number other than zero is bounded by zeros.
extern "C" __global__ void bounds(const float* xs, const float* ys, float* out) {
  const int i = blockIdx.x * 32 + threadIdx.x;
  const float x = xs[i], y = ys[i];
  Bounds left = no_bounds(), right = no_bounds();
  left.take(x), right.take(y);
  left = across_lanes(left), right = across_lanes(right);
  int row = 0;
  auto put = [&](float one, Bounds all) {
    const bool beyond = one < all.low || one > all.high || (one != 0.0f && !may_be(all));
    const float wrong = warp_sum(beyond ? 1.0f : 0.0f);
    if (threadIdx.x == 0) {
      float* const to = out + (blockIdx.x * 19 + row) * 3;
      to[0] = wrong, to[1] = all.low, to[2] = all.high;
    }
    row++;
  };
  put(x, left);
  put(y, any_bounds());
  put(-x, -left);
  put(x + y, left + right);
  put(x - y, left - right);
  put(x * y, left * right);
  put(minimum(x, y), minimum(left, right));
  put(maximum(x, y), maximum(left, right));
  put(absolute(x), absolute(left));
  put(square(x), square(left));
  put(relu(x), relu(left));
  put(floor_value(x), floor_value(left));
  put(sign(x), sign(left));
  put(step(x), step(left));
  put(x > y ? 1.0f : 0.0f, greater(left, right));
  put(x >= y ? 1.0f : 0.0f, greater_equal(left, right));
  put(x == y ? 1.0f : 0.0f, equal(left, right));
  put(fused_multiply_add(x, y, -1.0f), left * right + Bounds(-1.0f));
  put(x > y ? x : 2.0f, choice(greater(left, right), left, 2.0f));
}

// 8 warps: sums and maxima over the block; then over warps 0-2 and, at the same time, over warps 3-7; then over teams
// of 8, 4 and 2 warps; then over columns that threads share, of which each has two, or one; then running
// sums of a thread, of such columns, and of all threads from the end on; then two sums over a team at once.
extern "C" __global__ void reductions(const float* x, float* out) {
  MIRAGE_SHARED(float, scratch, 8);
  MIRAGE_SHARED(float, team, 40);
  MIRAGE_SHARED(float, columns, 456);
  const int t = thread_index(), n = blockDim.x;
  const float v = x[t];
  out[t] = block_sum(v, scratch);
  out[n + t] = block_max(v, scratch);
  const bool low = warp_index() < 3;
  const int first = low ? 0 : 3, warps = low ? 3 : warp_count() - 3, barrier = low ? 1 : 2;
  out[2 * n + t] = group_sum(v, scratch + first, first, warps, barrier);
  out[3 * n + t] = group_max(v, scratch + first, first, warps, barrier);
  const int four = warp_index() / 4, two = warp_index() / 2;
  out[4 * n + t] = team_sum<8>(v, team, 0);
  out[5 * n + t] = team_max<4>(v, team + 8 + 4 * four, 3 + four);
  out[6 * n + t] = team_sum<2>(v, team + 16 + 2 * two, 5 + two);
  float pair[2] = {v, 2.0f * v}, one[1] = {v};
  columns_sum<8, 8, 2>(pair, columns);
  columns_max<64, 4, 1>(one, columns + 128);
  out[7 * n + t] = pair[0];
  out[8 * n + t] = pair[1];
  out[9 * n + t] = one[0];
  float own[2] = {v, 2.0f * v}, among[1] = {v}, rest[1] = {v};
  run_columns<2, 1, false, false>(own);
  run_shared_columns<8, 8, 1, 1, false, true>(among, columns + 384);
  run_rows<8, 1, 1, true, false>(rest, columns + 448, 0);
  out[10 * n + t] = own[1];
  out[11 * n + t] = among[0];
  out[12 * n + t] = rest[0];
  float both[2] = {v, 2.0f * v};
  team_sum<8>(both, team + 24, 0);
  out[13 * n + t] = both[0] + both[1];
}

// Warp 0 fills, warp 1 waits for it; warp 0 does not wait.
extern "C" __global__ void hand_over(const float* x, float* out) {
  MIRAGE_SHARED(float, shelf, 32);
  if (warp_index() == 0) {
    shelf[lane_index()] = x[lane_index()];
    barrier_arrive(1, 64);
  } else {
    barrier_sync(1, 64);
    out[lane_index()] = shelf[31 - lane_index()];
  }
}

template <class T>
MIRAGE_DEVICE void mma_tile(const T* A, const T* B, float* D) {
  const int l = lane_index();
  uint32_t a[4], b[2];
  float d[4];
  for (int i = 0; i < 4; i++) {
    const T* p = A + mma_a_row(l, i) * 16 + mma_a_k(l, i);
    a[i] = p[0].bits | uint32_t(p[1].bits) << 16;
    d[i] = D[mma_d_row(l, i) * 8 + mma_d_column(l, i)];
  }
  for (int i = 0; i < 2; i++) {
    const T* p = B + mma_b_k(l, i) * 8 + mma_b_column(l);
    b[i] = p[0].bits | uint32_t(p[8].bits) << 16;
  }
  mma_m16n8k16<T>(d, a, b);
  for (int i = 0; i < 4; i++) D[mma_d_row(l, i) * 8 + mma_d_column(l, i)] = d[i];
}
extern "C" __global__ void mma_f16(const f16* A, const f16* B, float* D) { mma_tile(A, B, D); }
extern "C" __global__ void mma_bf16(const bf16* A, const bf16* B, float* D) { mma_tile(A, B, D); }

extern "C" __global__ void mma_tf32(const float* A, const float* B, float* D) {
  const int l = lane_index();
  float a[4], b[2], d[4];
  for (int i = 0; i < 4; i++) a[i] = A[mma_a_row(l, i) * 8 + mma_f32_a_k(l, i)];
  for (int i = 0; i < 2; i++) b[i] = B[mma_f32_b_k(l, i) * 8 + mma_b_column(l)];
  for (int i = 0; i < 4; i++) d[i] = D[mma_d_row(l, i) * 8 + mma_d_column(l, i)];
  mma_m16n8k8_tf32(d, a, b);
  for (int i = 0; i < 4; i++) D[mma_d_row(l, i) * 8 + mma_d_column(l, i)] = d[i];
}

extern "C" __global__ void tf32_pieces(const float* X, float* cut, float* near) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  cut[i] = to_tf32(X[i]);
  near[i] = round_tf32(X[i]);
}

// M: four 8x8 matrices, stored one below the other. Registers of x2, x4, then the same transposed.
extern "C" __global__ void ldmatrix(const uint16_t* M, uint32_t* out) {
  MIRAGE_SHARED(uint16_t, tile, 32 * 8);
  const int l = lane_index();
  store(tile + 8 * l, load<8>(M + 8 * l));
  warp_sync();
  const uint16_t* row = tile + 8 * l;
  uint32_t r2[2], r4[4];
  int at = l;
  auto put = [&](uint32_t v) { out[at] = v, at += 32; };
  ldmatrix_x2(r2, row);
  for (int i = 0; i < 2; i++) put(r2[i]);
  ldmatrix_x4(r4, row);
  for (int i = 0; i < 4; i++) put(r4[i]);
  ldmatrix_x2_trans(r2, row);
  for (int i = 0; i < 2; i++) put(r2[i]);
  ldmatrix_x4_trans(r4, row);
  for (int i = 0; i < 4; i++) put(r4[i]);
}

// Copies of 16, 8 and 4 bytes; of each, thread t takes t % (Bytes + 1) bytes and zeros. Then whole ones.
extern "C" __global__ void copies(const uint8_t* x, uint8_t* out) {
  MIRAGE_SHARED(uint8_t, tile, 32 * 56);
  const int t = threadIdx.x;
  uint8_t* mine = tile + 56 * t;
  cp_async<8>(mine, x + 16 * t, t % 9);
  cp_async<4>(mine + 8, x + 16 * t, t % 5);
  cp_async<4>(mine + 12, x + 16 * t + 4);
  cp_async_commit();
  cp_async<8>(mine + 16, x + 16 * t + 8);
  cp_async_commit();
  cp_async_wait<1>();
  for (int i = 0; i < 16; i++) out[48 * t + i] = mine[i];
  cp_async_wait<0>();
  for (int i = 16; i < 24; i++) out[48 * t + i] = mine[i];
  block_sync();
  cp_async<16>(tile + 16 * t, x + 16 * t, t % 17);
  cp_async<16>(tile + 512 + 16 * t, t % 2 ? x + 16 * t : x);
  cp_async_commit();
  cp_async_wait<0>();
  for (int i = 0; i < 16; i++) out[48 * t + 24 + i] = tile[16 * t + i];
  for (int i = 0; i < 8; i++) out[48 * t + 40 + i] = tile[512 + 16 * t + i];
}

extern "C" __global__ void hints(const float* x, float* out) {
  grid_dependency_wait();
  grid_dependency_launch();
  out[threadIdx.x] = x[threadIdx.x];
}

// Alignments of shared memory, in bytes; places of a thread in a block, and of a block in a three-dimensional grid.
extern "C" __global__ void places(int* out) {
  MIRAGE_SHARED(float, small, 3);
  MIRAGE_SHARED(f16, large, 100);
  MIRAGE_DYNAMIC_SHARED(dynamic);
  const int t = thread_index();
  dynamic[t] = uint8_t(t);
  large[t].bits = 1;
  if (t < 3) small[t] = 1;
  int* mine = out + (blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)) * 8 * 96 + 8 * t;
  mine[0] = shared_address(dynamic) % 1024;
  mine[1] = shared_address(small) % 16;
  mine[2] = shared_address(large) % 128;
  mine[3] = warp_index() * 1000 + lane_index();
  mine[4] = warp_count();
  mine[5] = threadIdx.x;
  mine[6] = blockDim.x;
  mine[7] = blockIdx.x + 10 * blockIdx.y + 100 * blockIdx.z;
}

// Four words of every lane, exchanged among the four lanes of a row, through whole vectors.
extern "C" __global__ void quads(const uint32_t* in, uint32_t* out) {
  alignas(16) uint32_t w[4];
  load_words(w, in + 4 * lane_index());
  transpose_words<4, 1>(w);
  store_words(out + 4 * lane_index(), w);
}

// Sixty-four elements of a row, begun at an element of any number, of which `blockIdx.x` exist.
extern "C" __global__ void rows(const uint32_t* in, f16* out) {
  uint32_t w[8];
  MIRAGE_UNROLL
  for (int q = 0; q < 8; q++) w[q] = in[32 * q + lane_index()];
  transpose_words<8, 4>(w);
  f16* const mine = out + 8 * 71 * blockIdx.x;
  for (int i = lane_index(); i < 8 * 71; i += 32) mine[i] = from_float<f16>(0.0f);
  warp_sync();
  MIRAGE_UNROLL
  for (int r = 0; r < 8; r++) store_row(mine + 71 * r, w[r], blockIdx.x);
}

// Rows of five that numbers name; -1: none.
extern "C" __global__ void rows_named(const float* in, int* out) { out[threadIdx.x] = row_named(in[threadIdx.x], 5); }
