// Register vectors: several elements of one type moved by as few 16-byte accesses as they take.
#pragma once

namespace mirage {

template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec {
  static_assert(N > 0 && (N & (N - 1)) == 0, "the length of a Vec is a power of two");
  T data[N];
  MIRAGE_DEVICE T& operator[](int i) { return data[i]; }
  MIRAGE_DEVICE const T& operator[](int i) const { return data[i]; }
};

// The vectors stay what they are, but the compiler does not know: what it computed of them it computes again.
template <class T, int N, int Count>
MIRAGE_DEVICE void forget(Vec<T, N> (&vectors)[Count]) {
  MIRAGE_UNROLL
  for (Vec<T, N>& vector : vectors) {
    uint32_t words[(sizeof(vector) + 3) / 4] = {};
    memcpy(words, &vector, sizeof(vector));
    MIRAGE_UNROLL
    for (uint32_t& word : words) word = detail::opaque(word);
    memcpy(&vector, words, sizeof(vector));
  }
}

// Reads N elements; `p` is aligned to the smaller of 16 and N * sizeof(T) bytes.
template <int N, class T>
MIRAGE_DEVICE Vec<T, N> load(const T* p MIRAGE_SITE) {
  Vec<T, N> v;
  detail::copy<int(sizeof(T)) * N>(&v, p MIRAGE_PASS);
  return v;
}

// As load if `inside`, else zeros; `p` is not read then.
template <int N, class T>
MIRAGE_DEVICE Vec<T, N> load_inside(const T* p, bool inside MIRAGE_SITE) {
  Vec<T, N> v = {};
  if (inside) detail::copy<int(sizeof(T)) * N>(&v, p MIRAGE_PASS);
  return v;
}

// The N elements from `at` on of a tensor of `count`, which is aligned to 16 bytes; `at` is any. Those from number
// `valid` on are zero. Two aligned vectors are read and shifted, where the tensor has both of them.
template <int N, class T>
MIRAGE_DEVICE Vec<T, N> load_anywhere(const T* tensor, int at, int count, int valid = N MIRAGE_SITE) {
  static_assert(sizeof(T) == 2 && N == 8, "16 bytes of two-byte elements");
  const int low = at / N * N, shift = at - low;
  Vec<T, N> v = {};
  if (low + 2 * N <= count) {
    alignas(16) uint32_t w[8];
    detail::copy<16>(w, tensor + low MIRAGE_PASS);
    detail::copy<16>(w + 4, tensor + low + N MIRAGE_PASS);
    MIRAGE_UNROLL
    for (int i = 0; i < 6; i++) w[i] = shift & 4 ? w[i + 2] : w[i];
    MIRAGE_UNROLL
    for (int i = 0; i < 5; i++) w[i] = shift & 2 ? w[i + 1] : w[i];
    MIRAGE_UNROLL
    for (int i = 0; i < 4; i++) w[i] = shift & 1 ? w[i] >> 16 | w[i + 1] << 16 : w[i];
    MIRAGE_UNROLL
    for (int i = 0; i < 4; i++) w[i] &= (2 * i < valid ? 0xffffu : 0u) | (2 * i + 1 < valid ? 0xffff0000u : 0u);
    memcpy(&v, w, 16);
  } else {
    MIRAGE_UNROLL
    for (int i = 0; i < N; i++) {
      if (i < valid && at + i < count) v[i] = tensor[at + i];
    }
  }
  return v;
}

template <class T, int N>
MIRAGE_DEVICE void store(T* p, const Vec<T, N>& v MIRAGE_SITE) {
  detail::copy<int(sizeof(T)) * N>(p, &v MIRAGE_PASS);
}

// As load, for global memory: asked for in the order in which such loads stand.
template <int N, class T>
MIRAGE_DEVICE Vec<T, N> load_now(const T* p MIRAGE_SITE) {
  Vec<T, N> v;
  detail::copy_now<int(sizeof(T)) * N>(&v, p MIRAGE_PASS);
  return v;
}

// As load, for global memory that nobody reads again: kept out of L1, and in L2 it makes room first.
template <int N, class T>
MIRAGE_DEVICE Vec<T, N> load_once(const T* p MIRAGE_SITE) {
  Vec<T, N> v;
  detail::copy_once<int(sizeof(T)) * N>(&v, p MIRAGE_PASS);
  return v;
}

template <class T, int N>
MIRAGE_DEVICE Vec<float, N> to_floats(const Vec<T, N>& v) {
  Vec<float, N> r;
  MIRAGE_UNROLL
  for (int i = 0; i < N; i++) r[i] = to_float(v[i]);
  return r;
}

template <class T, int N>
MIRAGE_DEVICE Vec<T, N> from_floats(const Vec<float, N>& v) {
  Vec<T, N> r;
  MIRAGE_UNROLL
  for (int i = 0; i < N; i++) r[i] = from_float<T>(v[i]);
  return r;
}

// Four 16-bit elements as two words; `p` is aligned to 8 bytes.
template <class T>
MIRAGE_DEVICE void load_four(const T* p, uint32_t& low, uint32_t& high MIRAGE_SITE) {
  static_assert(sizeof(T) == 2, "elements of two bytes");
  uint2 w;
  detail::copy<8>(&w, p MIRAGE_PASS);
  low = w.x, high = w.y;
}

// Two elements of one byte at p and two at q, as a word; both are aligned to 2 bytes.
template <class B>
MIRAGE_DEVICE uint32_t load_twos(const B* p, const B* q MIRAGE_SITE) {
  static_assert(sizeof(B) == 1, "elements of one byte");
  uint16_t low, high;
  detail::copy<2>(&low, p MIRAGE_PASS);
  detail::copy<2>(&high, q MIRAGE_PASS);
  return low | uint32_t(high) << 16;
}

// 16 bytes as four words; `p` is aligned to 16 bytes.
template <class T>
MIRAGE_DEVICE void load_words(uint32_t (&w)[4], const T* p MIRAGE_SITE) {
  detail::copy<16>(w, p MIRAGE_PASS);
}
template <class T>
MIRAGE_DEVICE void store_words(T* p, const uint32_t (&w)[4] MIRAGE_SITE) {
  detail::copy<16>(p, w MIRAGE_PASS);
}

}  // namespace mirage
