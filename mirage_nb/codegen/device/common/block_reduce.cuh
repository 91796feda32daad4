// Reductions over several warps through shared memory: one float of scratch per warp, the result in every thread.
#pragma once

namespace mirage {

namespace detail {
// Warps first .. first + warps - 1 call this; barrier 0 means the whole block. The scratch is free on return.
template <class Combine>
MIRAGE_DEVICE float combine_warps(float v, float* scratch, int first, int warps, int barrier,
                                  Combine combine MIRAGE_SITE) {
  v = butterfly<1, 32>(v, combine MIRAGE_PASS);
  if (lane_index() == 0) scratch[warp_index() - first] = v;
  group_sync(barrier, warps * 32 MIRAGE_PASS);
  float total = scratch[0];
  for (int w = 1; w < warps; w++) total = combine(total, scratch[w]);
  group_sync(barrier, warps * 32 MIRAGE_PASS);
  return total;
}
}  // namespace detail

namespace detail {
template <int Warps, class Combine>
MIRAGE_DEVICE float combine_team(float v, float* scratch, int barrier, Combine combine MIRAGE_SITE) {
  v = butterfly<1, 32>(v, combine MIRAGE_PASS);
  if (lane_index() == 0) scratch[warp_index() % Warps] = v;
  group_sync(barrier, Warps * 32 MIRAGE_PASS);
  constexpr int Wide = Warps % 4 == 0 ? 4 : Warps % 2 == 0 ? 2 : 1;
  Vec<float, Wide> total = load<Wide>(scratch MIRAGE_PASS);
  MIRAGE_UNROLL
  for (int w = Wide; w < Warps; w += Wide) {
    const Vec<float, Wide> more = load<Wide>(scratch + w MIRAGE_PASS);
    MIRAGE_UNROLL
    for (int i = 0; i < Wide; i++) total[i] = combine(total[i], more[i]);
  }
  float found = total[0];
  if constexpr (Wide == 2) found = combine(found, total[1]);
  if constexpr (Wide == 4) found = combine(combine(found, total[1]), combine(total[2], total[3]));
  return found;
}
}  // namespace detail

// Teams of Warps warps in a row, each with its own aligned scratch; one barrier (0: the whole block is the team).
// The scratch may be written again only after another barrier of the team.
template <int Warps>
MIRAGE_DEVICE float team_sum(float v, float* scratch, int barrier MIRAGE_SITE) {
  return detail::combine_team<Warps>(v, scratch, barrier, Add() MIRAGE_PASS);
}
template <int Warps>
MIRAGE_DEVICE float team_max(float v, float* scratch, int barrier MIRAGE_SITE) {
  return detail::combine_team<Warps>(v, scratch, barrier, Maximum() MIRAGE_PASS);
}

namespace detail {
// Every thread of the block has Width columns: thread % Vectors says which. Where a warp has whole sets of columns its
// lanes are combined first; then Sets of partial results are, which may be written over only after another barrier.
template <int Vectors, int Sets, int Width, class Combine>
MIRAGE_DEVICE void combine_columns(float (&v)[Width], float* scratch, Combine combine MIRAGE_SITE) {
  constexpr int Each = 32 % Vectors == 0 ? 32 : Vectors;
  if constexpr (Vectors < Each) {
    MIRAGE_UNROLL
    for (int i = 0; i < Width; i++) v[i] = butterfly<Vectors, 32>(v[i], combine MIRAGE_PASS);
  }
  if constexpr (Sets > 1) {
    const int column = thread_index() % Vectors, set = thread_index() / Each;
    if (Vectors == Each || lane_index() < Vectors) {
      MIRAGE_UNROLL
      for (int i = 0; i < Width; i++) scratch[(set * Width + i) * Vectors + column] = v[i];
    }
    group_sync(0, Sets * Each MIRAGE_PASS);
    MIRAGE_UNROLL
    for (int i = 0; i < Width; i++) {
      v[i] = scratch[i * Vectors + column];
      MIRAGE_UNROLL
      for (int s = 1; s < Sets; s++) v[i] = combine(v[i], scratch[(s * Width + i) * Vectors + column]);
    }
  }
}
}  // namespace detail

template <int Vectors, int Sets, int Width>
MIRAGE_DEVICE void columns_sum(float (&v)[Width], float* scratch MIRAGE_SITE) {
  detail::combine_columns<Vectors, Sets, Width>(v, scratch, Add() MIRAGE_PASS);
}
template <int Vectors, int Sets, int Width>
MIRAGE_DEVICE void columns_max(float (&v)[Width], float* scratch MIRAGE_SITE) {
  detail::combine_columns<Vectors, Sets, Width>(v, scratch, Maximum() MIRAGE_PASS);
}

MIRAGE_DEVICE float block_sum(float v, float* scratch MIRAGE_SITE) {
  return detail::combine_warps(v, scratch, 0, warp_count(), 0, Add() MIRAGE_PASS);
}
MIRAGE_DEVICE float block_max(float v, float* scratch MIRAGE_SITE) {
  return detail::combine_warps(v, scratch, 0, warp_count(), 0, Maximum() MIRAGE_PASS);
}
MIRAGE_DEVICE float group_sum(float v, float* scratch, int first_warp, int warps, int barrier MIRAGE_SITE) {
  return detail::combine_warps(v, scratch, first_warp, warps, barrier, Add() MIRAGE_PASS);
}
MIRAGE_DEVICE float group_max(float v, float* scratch, int first_warp, int warps, int barrier MIRAGE_SITE) {
  return detail::combine_warps(v, scratch, first_warp, warps, barrier, Maximum() MIRAGE_PASS);
}

}  // namespace mirage
