// Accesses to global memory (and plain copies of any space): whole vectors, reads of what nobody reads again, atomics, prefetch.
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
MIRAGE_DEVICE void copy_once(void* to, const void* from MIRAGE_SITE) {
  copy<Bytes>(to, from, line);
}

}  // namespace detail

// Adds to a float in global or shared memory; other threads may do so at the same time.
MIRAGE_DEVICE void atomic_add(float* p, float v MIRAGE_SITE) { cpu::atomic_add(p, v, line); }

// Asks for the 128-byte line at `p` in L2.
MIRAGE_DEVICE void prefetch_l2(const void*) {}

}  // namespace mirage
