// Accesses to global memory (and plain copies of any space): whole vectors, in their order, or read only once.
#pragma once

namespace mirage {

namespace detail {

template <int Bytes>
MIRAGE_DEVICE void copy(void* to, const void* from MIRAGE_SITE) {
  static_assert(Bytes == 1 || Bytes == 2 || Bytes == 4 || Bytes == 8 || Bytes % 16 == 0,
                "1, 2, 4, 8 bytes or a multiple of 16");
  constexpr int ACCESS = Bytes < 16 ? Bytes : 16;
  if (reinterpret_cast<uintptr_t>(to) % ACCESS) cpu::report_misaligned(to, ACCESS, line);
  if (reinterpret_cast<uintptr_t>(from) % ACCESS) cpu::report_misaligned(from, ACCESS, line);
  memcpy(to, from, Bytes);
}

template <int Bytes>
MIRAGE_DEVICE void copy_now(void* to, const void* from MIRAGE_SITE) {
  copy<Bytes>(to, from, line);
}

template <int Bytes>
MIRAGE_DEVICE void copy_once(void* to, const void* from MIRAGE_SITE) {
  copy<Bytes>(to, from, line);
}

}  // namespace detail

// Whether this warp is the last of `count` that come here, to whom all is known that the others did before. The counter
// is zero before the first, and again behind the last.
MIRAGE_DEVICE bool arrives_last(uint32_t* arrived, int count MIRAGE_SITE) {
  warp_sync(line);
  const uint32_t before = *arrived;
  warp_sync(line);
  if (lane_index() == 0) *arrived = before + 1 == uint32_t(count) ? 0 : before + 1;
  return before + 1 == uint32_t(count);
}
// The line of global memory that `p` is in is wanted soon: it is on its way to L2. Here it is read, so that it is there.
template <class T>
MIRAGE_DEVICE void touch(const T* p) {
  (void)*reinterpret_cast<const volatile char*>(p);
}

// What another block wrote.
template <class T>
MIRAGE_DEVICE T load_l2(const T* p) {
  return *p;
}

}  // namespace mirage
