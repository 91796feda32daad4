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

// The same of several values, whose scratch lies one behind the other; behind one barrier.
namespace detail {
template <int Warps, int Count, class Combine>
MIRAGE_DEVICE void combine_team(float (&v)[Count], float* scratch, int barrier, Combine combine MIRAGE_SITE) {
  MIRAGE_UNROLL
  for (int i = 0; i < Count; i++) {
    v[i] = butterfly<1, 32>(v[i], combine MIRAGE_PASS);
    if (lane_index() == 0) scratch[i * Warps + warp_index() % Warps] = v[i];
  }
  group_sync(barrier, Warps * 32 MIRAGE_PASS);
  MIRAGE_UNROLL
  for (int i = 0; i < Count; i++) {
    v[i] = scratch[i * Warps];
    MIRAGE_UNROLL
    for (int w = 1; w < Warps; w++) v[i] = combine(v[i], scratch[i * Warps + w]);
  }
}
}  // namespace detail

template <int Warps, int Count>
MIRAGE_DEVICE void team_sum(float (&v)[Count], float* scratch, int barrier MIRAGE_SITE) {
  detail::combine_team<Warps>(v, scratch, barrier, Add() MIRAGE_PASS);
}
template <int Warps, int Count>
MIRAGE_DEVICE void team_max(float (&v)[Count], float* scratch, int barrier MIRAGE_SITE) {
  detail::combine_team<Warps>(v, scratch, barrier, Maximum() MIRAGE_PASS);
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

// Running sums: every element becomes the sum up to it, or before it (Exclusive), from the end on (Backward).
namespace detail {
// Of vectors of Width elements, `apart` from one to the next, which lie behind each other; returns the sum of all.
template <int Count, bool Backward, bool Exclusive>
MIRAGE_DEVICE float run_elements(float* v, int apart) {
  float sum = 0.0f;
  MIRAGE_UNROLL
  for (int i = 0; i < Count; i++) {
    float& x = v[(Backward ? Count - 1 - i : i) * apart];
    const float next = sum + x;
    x = Exclusive ? sum : next;
    sum = next;
  }
  return sum;
}
}  // namespace detail

// A thread has Slots vectors of Width columns.
template <int Slots, int Width, bool Backward, bool Exclusive>
MIRAGE_DEVICE void run_columns(float (&v)[Slots * Width]) {
  MIRAGE_UNROLL
  for (int i = 0; i < Width; i++) detail::run_elements<Slots, Backward, Exclusive>(v + i, Width);
}

// The same of columns that threads share as above, each with one stretch of Slots elements behind that of the thread
// before.
template <int Vectors, int Sets, int Slots, int Width, bool Backward, bool Exclusive>
MIRAGE_DEVICE void run_shared_columns(float (&v)[Slots * Width], float* scratch MIRAGE_SITE) {
  constexpr int Each = 32 % Vectors == 0 ? 32 : Vectors;
  const int column = thread_index() % Vectors, set = thread_index() / Each;
  const int behind = Backward ? 31 - lane_index() : lane_index();
  float before[Width];
  MIRAGE_UNROLL
  for (int i = 0; i < Width; i++) {
    float sum = detail::run_elements<Slots, Backward, Exclusive>(v + i, Width);
    before[i] = 0.0f;
    if constexpr (Vectors < Each) {
      MIRAGE_UNROLL
      for (int far = Vectors; far < 32; far *= 2) {
        const float other = shuffle(sum, (lane_index() + (Backward ? far : -far)) & 31 MIRAGE_PASS);
        if (behind >= far) sum += other;
      }
      const float other = shuffle(sum, (lane_index() + (Backward ? Vectors : -Vectors)) & 31 MIRAGE_PASS);
      if (behind >= Vectors) before[i] = other;
    }
    if (Sets > 1 && (Vectors == Each || behind >= 32 - Vectors)) scratch[(set * Width + i) * Vectors + column] = sum;
  }
  if constexpr (Sets > 1) detail::group_sync(0, Sets * Each MIRAGE_PASS);
  MIRAGE_UNROLL
  for (int i = 0; i < Width; i++) {
    if constexpr (Sets > 1) {
      MIRAGE_UNROLL
      for (int s = 0; s < Sets; s++) {
        if (Backward ? s > set : s < set) before[i] += scratch[(s * Width + i) * Vectors + column];
      }
    }
    MIRAGE_UNROLL
    for (int s = 0; s < Slots; s++) v[s * Width + i] += before[i];
  }
}

// A team of Warps warps has a row: one stretch of it after the other, of which each thread has a vector. Scratch and
// barrier as above, a float for every warp and stretch.
template <int Warps, int Slots, int Width, bool Backward, bool Exclusive>
MIRAGE_DEVICE void run_rows(float (&v)[Slots * Width], float* scratch, int barrier MIRAGE_SITE) {
  const int warp = warp_index() % Warps, behind = Backward ? 31 - lane_index() : lane_index();
  float before[Slots], total[Slots];
  MIRAGE_UNROLL
  for (int s = 0; s < Slots; s++) {
    float sum = detail::run_elements<Width, Backward, Exclusive>(v + s * Width, 1);
    MIRAGE_UNROLL
    for (int far = 1; far < 32; far *= 2) {
      const float other = shuffle(sum, (lane_index() + (Backward ? far : -far)) & 31 MIRAGE_PASS);
      if (behind >= far) sum += other;
    }
    const float other = shuffle(sum, (lane_index() + (Backward ? 1 : -1)) & 31 MIRAGE_PASS);
    before[s] = behind > 0 ? other : 0.0f;
    total[s] = shuffle(sum, Backward ? 0 : 31 MIRAGE_PASS);
    if (Warps > 1 && lane_index() == 0) scratch[s * Warps + warp] = total[s];
  }
  if constexpr (Warps > 1) detail::group_sync(barrier, Warps * 32 MIRAGE_PASS);
  float sum = 0.0f;
  MIRAGE_UNROLL
  for (int i = 0; i < Slots; i++) {
    const int s = Backward ? Slots - 1 - i : i;
    if constexpr (Warps > 1) {
      MIRAGE_UNROLL
      for (int j = 0; j < Warps; j++) {
        const int w = Backward ? Warps - 1 - j : j;
        if (w == warp) before[s] += sum;
        sum += scratch[s * Warps + w];
      }
    } else {
      before[s] += sum;
      sum += total[s];
    }
    MIRAGE_UNROLL
    for (int k = 0; k < Width; k++) v[s * Width + k] += before[s];
  }
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
