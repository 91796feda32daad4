// What a warp does as one: shuffles, mma, ldmatrix, wgmma. Each reads all lanes' operands and writes their results.
#include <cmath>
#include <cstring>

#include "engine.h"

namespace mirage::cpu {

namespace {

uint32_t word(const void* p, int i = 0) {
  uint32_t v;
  memcpy(&v, static_cast<const unsigned char*>(p) + 4 * i, 4);
  return v;
}
void put(void* p, uint32_t v, int i = 0) { memcpy(static_cast<unsigned char*>(p) + 4 * i, &v, 4); }

void shuffle(Warp& warp) {
  uint32_t in[LANES];
  for (int l = 0; l < warp.count; l++) in[l] = word(warp.lanes[l].operands.a);
  for (int l = 0; l < warp.count; l++) {
    const Lane& lane = warp.lanes[l];
    const int n = lane.operands.n, from = (lane.kind == Collective::Shuffle ? n : l ^ n) & (LANES - 1);
    if (from >= warp.count) {
      fail("divergence",
           text("a shuffle reads lane %d of a warp of %d; %s", from, warp.count, place(lane, lane.line).c_str()));
    }
    put(lane.operands.out, in[from]);
  }
}

void require_full(const Warp& warp) {
  if (warp.count == LANES) return;
  const Lane& lane = warp.lanes[0];
  fail("divergence", text("a warp of %d lanes calls a tensor core; %s", warp.count, place(lane, lane.line).c_str()));
}

// The 16 x 16 elements of a, from four registers of each lane.
struct FragmentA {
  uint16_t bits[16][16];
  void set(int l, int i, uint32_t pair) { put(&bits[mma_a_row(l, i)][mma_a_k(l, i)], pair); }
};

template <class T, int Rows, int Columns>
void to_floats(float (&to)[Rows][Columns], const uint16_t (&from)[Rows][Columns]) {
  for (int r = 0; r < Rows; r++)
    for (int c = 0; c < Columns; c++) to[r][c] = to_float(T{from[r][c]});
}

template <class T>
void mma(Warp& warp) {
  require_full(warp);
  FragmentA a_bits;
  uint16_t b_bits[16][8];
  float a[16][16], b[16][8], d[16][8] = {};
  for (int l = 0; l < LANES; l++) {
    const Operands& operands = warp.lanes[l].operands;
    for (int i = 0; i < 4; i++) a_bits.set(l, i, word(operands.a, i));
    for (int i = 0; i < 2; i++) {
      const uint32_t pair = word(operands.b, i);
      for (int e = 0; e < 2; e++) b_bits[mma_b_k(l, i) + e][mma_b_column(l)] = uint16_t(pair >> 16 * e);
    }
  }
  to_floats<T>(a, a_bits.bits);
  to_floats<T>(b, b_bits);
  for (int m = 0; m < 16; m++)
    for (int k = 0; k < 16; k++)
      for (int n = 0; n < 8; n++) d[m][n] += a[m][k] * b[k][n];
  for (int l = 0; l < LANES; l++) {
    auto out = static_cast<float*>(warp.lanes[l].operands.out);
    for (int i = 0; i < 4; i++) out[i] += d[mma_d_row(l, i)][mma_d_column(l, i)];
  }
}

void mma_tf32(Warp& warp) {
  require_full(warp);
  float a[16][8], b[8][8], d[16][8] = {};
  for (int l = 0; l < LANES; l++) {
    const Operands& operands = warp.lanes[l].operands;
    for (int i = 0; i < 4; i++) a[mma_a_row(l, i)][mma_f32_a_k(l, i)] = to_tf32(bits_float(word(operands.a, i)));
    for (int i = 0; i < 2; i++) b[mma_f32_b_k(l, i)][mma_b_column(l)] = to_tf32(bits_float(word(operands.b, i)));
  }
  for (int m = 0; m < 16; m++)
    for (int k = 0; k < 8; k++)
      for (int n = 0; n < 8; n++) d[m][n] += a[m][k] * b[k][n];
  for (int l = 0; l < LANES; l++) {
    auto out = static_cast<float*>(warp.lanes[l].operands.out);
    for (int i = 0; i < 4; i++) out[i] += d[mma_d_row(l, i)][mma_d_column(l, i)];
  }
}

void mma_f64(Warp& warp) {
  require_full(warp);
  double a[16][16], b[16][8], d[16][8] = {};
  for (int l = 0; l < LANES; l++) {
    const Operands& operands = warp.lanes[l].operands;
    const auto left = static_cast<const double*>(operands.a), right = static_cast<const double*>(operands.b);
    for (int i = 0; i < 8; i++) a[mma_a_row(l, i)][mma_f32_a_k(l, i)] = left[i];
    for (int i = 0; i < 4; i++) b[mma_f32_b_k(l, i)][mma_b_column(l)] = right[i];
  }
  for (int m = 0; m < 16; m++)
    for (int k = 0; k < 16; k++)
      for (int n = 0; n < 8; n++) d[m][n] += a[m][k] * b[k][n];
  for (int l = 0; l < LANES; l++) {
    auto out = static_cast<double*>(warp.lanes[l].operands.out);
    for (int i = 0; i < 4; i++) out[i] += d[mma_d_row(l, i)][mma_d_column(l, i)];
  }
}

void ldmatrix(Warp& warp, bool trans) {
  require_full(warp);
  const int count = warp.lanes[0].operands.n;
  uint16_t matrix[4][8][8];
  for (int l = 0; l < 8 * count; l++) {
    const Lane& lane = warp.lanes[l];
    running = const_cast<Lane*>(&lane);
    check_shared(lane.operands.a, 16, 16, "ldmatrix", lane.line);
    if (mode.checked) race_read(warp.agent, lane.operands.a, 16, lane.line);
    memcpy(matrix[l / 8][l % 8], lane.operands.a, 16);
  }
  for (int l = 0; l < LANES; l++) {
    for (int m = 0; m < count; m++) {
      const int r = l / 4, c = 2 * (l % 4);
      const uint32_t low = trans ? matrix[m][c][r] : matrix[m][r][c];
      const uint32_t high = trans ? matrix[m][c + 1][r] : matrix[m][r][c + 1];
      put(warp.lanes[l].operands.out, low | high << 16, m);
    }
  }
}

// wgmma ------------------------------------------------------------------------------------------------------

// Reads a 128-byte swizzled tile, eight neighbours at a time: `mn` along M or N, `k` along K.
class Tile {
 public:
  Tile(uint64_t descriptor, bool mn_major, const Warp& warp, int line)
      : base_(shared_base() + uint32_t(descriptor)),
        leading_(int(descriptor >> 32 & 0x7fffffff)),
        mn_major_(mn_major),
        warp_(warp),
        line_(line) {
    if (bool(descriptor >> 63) != mn_major) {
      fail("arguments", text("wgmma_descriptor and wgmma_m64k16 disagree about the major index; %s",
                             place(warp.lanes[0], line).c_str()));
    }
  }
  // The elements [first, first + count) x [0, 16) in mn and k, by `put(mn - first, k, value)`.
  // As each, of [0, count) x [0, 8) floats with k contiguous.
  template <class Put>
  void each_float(int count, Put put) const {
    for (int mn = 0; mn < count; mn++)
      for (int k = 0; k < 8; k += 4) {
        const float* p = chunk<float>(mn * 128 + k * 4);
        for (int i = 0; i < 4; i++) put(mn, k + i, to_tf32(p[i]));
      }
  }
  // As each, of [first, first + count) x [0, 32) floats of one byte with k contiguous.
  template <class T, class Put>
  void each_f8(int first, int count, Put put) const {
    for (int mn = first; mn < first + count; mn++)
      for (int k = 0; k < 32; k += 16) {
        const T* p = chunk<T>(mn * 128 + k);
        for (int i = 0; i < 16; i++) put(mn - first, k + i, to_float(p[i]));
      }
  }
  template <class T, class Put>
  void each(int first, int count, Put put) const {
    if (mn_major_) {
      for (int k = 0; k < 16; k++)
        for (int mn = first; mn < first + count; mn += 8) {
          const T* p = chunk<T>(mn / 64 * leading_ + k / 8 * 1024 + k % 8 * 128 + mn % 64 * 2);
          for (int i = 0; i < 8; i++) put(mn - first + i, k, to_float(p[i]));
        }
    } else {
      for (int mn = first; mn < first + count; mn++)
        for (int k = 0; k < 16; k += 8) {
          const T* p = chunk<T>(mn * 128 + k * 2);
          for (int i = 0; i < 8; i++) put(mn - first, k + i, to_float(p[i]));
        }
    }
  }

 private:
  template <class T>
  const T* chunk(int offset) const {
    const auto address = reinterpret_cast<uintptr_t>(base_ + offset);
    const auto p = reinterpret_cast<const T*>(address ^ ((address >> 7 & 7) << 4));
    check_shared(p, 16, 16, "wgmma_m64k16", line_);
    if (mode.checked) race_proxy_read(warp_.agent, p, 16, line_);
    return p;
  }

  unsigned char* base_;
  int leading_;
  bool mn_major_;
  const Warp& warp_;
  int line_;
};

template <class T>
void multiply(const Warp& warp, const Product& product) {
  const WgmmaShape& shape = product.shape;
  float a[16][16];
  if (product.a_registers) {
    FragmentA bits;
    for (int l = 0; l < LANES; l++)
      for (int i = 0; i < 4; i++) bits.set(l, i, product.a[l][i]);
    to_floats<T>(a, bits.bits);
  } else {
    const Tile tile(shape.a, shape.a_mn, warp, product.line);
    tile.each<T>(warp.index % 4 * 16, 16, [&](int m, int k, float v) { a[m][k] = v; });
  }
  const Tile tile(shape.b, shape.b_mn, warp, product.line);
  static float b[16][256], d[16][256];
  tile.each<T>(0, shape.n, [](int n, int k, float v) { b[k][n] = v; });
  memset(d, 0, sizeof d);
  for (int m = 0; m < 16; m++)
    for (int k = 0; k < 16; k++)
      for (int n = 0; n < shape.n; n++) d[m][n] += a[m][k] * b[k][n];
  for (int l = 0; l < LANES; l++)
    for (int i = 0; i < shape.n / 2; i++)
      product.d[l][i] = (shape.add ? product.d[l][i] : 0) + d[mma_d_row(l, i % 4)][8 * (i / 4) + mma_d_column(l, i % 4)];
}

void multiply_tf32(const Warp& warp, const Product& product) {
  const WgmmaShape& shape = product.shape;
  float a[16][8];
  for (int l = 0; l < LANES; l++)
    for (int i = 0; i < 4; i++) a[mma_a_row(l, i)][mma_f32_a_k(l, i)] = to_tf32(bits_float(product.a[l][i]));
  const Tile tile(shape.b, false, warp, product.line);
  static float b[8][256], d[16][256];
  tile.each_float(shape.n, [](int n, int k, float v) { b[k][n] = v; });
  memset(d, 0, sizeof d);
  for (int m = 0; m < 16; m++)
    for (int k = 0; k < 8; k++)
      for (int n = 0; n < shape.n; n++) d[m][n] += a[m][k] * b[k][n];
  for (int l = 0; l < LANES; l++)
    for (int i = 0; i < shape.n / 2; i++)
      product.d[l][i] += d[mma_d_row(l, i % 4)][8 * (i / 4) + mma_d_column(l, i % 4)];
}

constexpr int FEW_DIGITS = 13;  // behind the point of sums of floats of one byte

// A whole number times a power of two, of which the digits behind the first 14 are dropped.
float few_digits(int32_t total, int exponent) {
  const int more = 31 - FEW_DIGITS - __builtin_clz(abs(total) | 1);
  return ldexpf(more > 0 ? float(total / (1 << more)) : float(total), more > 0 ? exponent + more : exponent);
}

// Products and the sum so far are lined up with the largest of them, and keep 13 bits behind its point; so does the sum.
template <class A, class B>
void multiply_f8(const Warp& warp, const Product& product) {
  const WgmmaShape& shape = product.shape;
  static float a[16][32], b[32][256], d[16][256], most[256], plain[256], scale[256];
  static int32_t total[256];
  const int columns = shape.n;
  Tile(shape.a, false, warp, product.line).each_f8<A>(warp.index % 4 * 16, 16, [](int m, int k, float v) { a[m][k] = v; });
  Tile(shape.b, false, warp, product.line).each_f8<B>(0, columns, [](int n, int k, float v) { b[k][n] = v; });
  for (int l = 0; l < LANES; l++)
    for (int i = 0; i < columns / 2; i++)
      d[mma_d_row(l, i % 4)][8 * (i / 4) + mma_d_column(l, i % 4)] = shape.add ? product.d[l][i] : 0;
  for (auto& sums : d) {
    const float(&left)[32] = a[&sums - d];
    for (int n = 0; n < columns; n++) most[n] = fabsf(plain[n] = sums[n]);
    for (int k = 0; k < 32; k++)
      for (int n = 0; n < columns; n++) {
        plain[n] += left[k] * b[k][n];
        most[n] = most[n] < fabsf(left[k] * b[k][n]) ? fabsf(left[k] * b[k][n]) : most[n];
      }
    for (int n = 0; n < columns; n++) {
      const bool finite = std::isfinite(plain[n]) && most[n] > 0;
      scale[n] = finite ? ldexpf(1, FEW_DIGITS - ilogbf(most[n])) : 0;
      total[n] = finite ? int32_t(sums[n] * scale[n]) : 0;
    }
    for (int k = 0; k < 32; k++)
      for (int n = 0; n < columns; n++) total[n] += scale[n] > 0 ? int32_t(left[k] * b[k][n] * scale[n]) : 0;
    for (int n = 0; n < columns; n++) sums[n] = scale[n] > 0 ? few_digits(total[n], -ilogbf(scale[n])) : plain[n];
  }
  for (int l = 0; l < LANES; l++)
    for (int i = 0; i < columns / 2; i++)
      product.d[l][i] = d[mma_d_row(l, i % 4)][8 * (i / 4) + mma_d_column(l, i % 4)];
}

template <class A>
void multiply_f8(const Warp& warp, const Product& product) {
  if (product.shape.b_f8 == F8::E4M3) {
    multiply_f8<A, f8e4m3>(warp, product);
  } else {
    multiply_f8<A, f8e5m2>(warp, product);
  }
}

void run_product(const Warp& warp, const Product& product) {
  if (product.shape.a_f8 == F8::E4M3) {
    multiply_f8<f8e4m3>(warp, product);
  } else if (product.shape.a_f8 == F8::E5M2) {
    multiply_f8<f8e5m2>(warp, product);
  } else if (product.shape.tf32) {
    multiply_tf32(warp, product);
  } else if (product.shape.bf16) {
    multiply<bf16>(warp, product);
  } else {
    multiply<f16>(warp, product);
  }
}

void start_product(Warp& warp) {
  require_full(warp);
  const Lane& first = warp.lanes[0];
  Product product{*first.operands.shape, {}, {}, first.operands.a != nullptr, warp.group, first.line};
  for (int l = 0; l < LANES; l++) {
    const Operands& operands = warp.lanes[l].operands;
    if (operands.shape->a != product.shape.a || operands.shape->b != product.shape.b) {
      fail("divergence",
           text("the lanes give different descriptors to wgmma_m64k16; %s", place(first, first.line).c_str()));
    }
    product.d[l] = static_cast<float*>(operands.out);
    if (operands.a) memcpy(product.a[l], operands.a, sizeof product.a[l]);
  }
  warp.products_issued++;
  if (mode.deferred) {
    warp.products.push_back(product);
  } else {
    run_product(warp, product);
  }
}

}  // namespace

void finish_products(Warp& warp, int pending) {
  size_t done = 0;
  while (done < warp.products.size() && warp.products[done].group < warp.group - pending) {
    run_product(warp, warp.products[done++]);
  }
  warp.products.erase(warp.products.begin(), warp.products.begin() + long(done));
}

void run_collective(Warp& warp) {
  switch (warp.lanes[0].kind) {
    case Collective::Shuffle:
    case Collective::ShuffleXor: return shuffle(warp);
    case Collective::MmaF16: return mma<f16>(warp);
    case Collective::MmaBf16: return mma<bf16>(warp);
    case Collective::MmaTf32: return mma_tf32(warp);
    case Collective::MmaF64: return mma_f64(warp);
    case Collective::Ldmatrix: return ldmatrix(warp, false);
    case Collective::LdmatrixTrans: return ldmatrix(warp, true);
    case Collective::Wgmma: return start_product(warp);
    case Collective::WgmmaCommit: warp.group++; return;
    case Collective::WgmmaWait: return finish_products(warp, warp.lanes[0].operands.n);
    case Collective::Sync:
    case Collective::WgmmaFence: return;
  }
}

}  // namespace mirage::cpu
