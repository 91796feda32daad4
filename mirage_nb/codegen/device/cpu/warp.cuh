// Places in the block, and exchanges inside one warp. Every function here is called by all 32 lanes.
#pragma once

namespace mirage {

MIRAGE_DEVICE int thread_index() { return cpu::running->index; }
MIRAGE_DEVICE int lane_index() { return thread_index() & 31; }
MIRAGE_DEVICE int warp_index() { return thread_index() >> 5; }
MIRAGE_DEVICE int warp_count() { return int(blockDim.x * blockDim.y * blockDim.z + 31) >> 5; }

namespace detail {
template <class T>
MIRAGE_DEVICE T exchange(cpu::Collective kind, T v, int n, int line) {
  static_assert(sizeof(T) == 4, "shuffles move 32 bits");
  T r;
  cpu::collective(kind, {&r, &v, nullptr, n, nullptr}, line);
  return r;
}
}  // namespace detail

MIRAGE_DEVICE void warp_sync(MIRAGE_SITE_ALONE) { cpu::collective(cpu::Collective::Sync, {}, line); }

template <class T>
MIRAGE_DEVICE T shuffle(T v, int lane MIRAGE_SITE) {
  return detail::exchange(cpu::Collective::Shuffle, v, lane, line);
}
template <class T>
MIRAGE_DEVICE T shuffle_xor(T v, int mask MIRAGE_SITE) {
  return detail::exchange(cpu::Collective::ShuffleXor, v, mask, line);
}
// What all lanes hand in alike, known to the compiler to be alike: addresses computed from it are computed once.
MIRAGE_DEVICE int warp_uniform(int v MIRAGE_SITE) { return shuffle(v, 0, line); }

}  // namespace mirage
