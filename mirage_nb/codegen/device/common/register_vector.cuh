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

template <class T, int N>
MIRAGE_DEVICE void store(T* p, const Vec<T, N>& v MIRAGE_SITE) {
  detail::copy<int(sizeof(T)) * N>(p, &v MIRAGE_PASS);
}

// As load, for global memory that nobody writes while the kernel runs; keeps it out of L1.
template <int N, class T>
MIRAGE_DEVICE Vec<T, N> load_stream(const T* p MIRAGE_SITE) {
  Vec<T, N> v;
  detail::copy_stream<int(sizeof(T)) * N>(&v, p MIRAGE_PASS);
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

}  // namespace mirage
