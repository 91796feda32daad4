// Sums whose parts several blocks have: each warp leaves its registers in global memory, a line of lanes for each, and
// the last to come (arrives_last) adds up what all have left, in the order of their numbers.
#pragma once

namespace mirage {

template <class T, int A, int B>
MIRAGE_DEVICE void leave_sums(const T (&sums)[A][B], T* to) {
  MIRAGE_UNROLL
  for (int a = 0; a < A; a++) {
    MIRAGE_UNROLL
    for (int b = 0; b < B; b++) to[(a * B + b) * 32 + lane_index()] = sums[a][b];
  }
}

// `count` parts, `apart` elements from one to the next.
template <class T, int A, int B>
MIRAGE_DEVICE void add_sums(T (&sums)[A][B], const T* from, int count, int apart) {
  MIRAGE_UNROLL
  for (int a = 0; a < A; a++) {
    MIRAGE_UNROLL
    for (int b = 0; b < B; b++) sums[a][b] = 0;
  }
  for (int part = 0; part < count; part++, from += apart) {
    MIRAGE_UNROLL
    for (int a = 0; a < A; a++) {
      MIRAGE_UNROLL
      for (int b = 0; b < B; b++) sums[a][b] += load_l2(from + (a * B + b) * 32 + lane_index());
    }
  }
}

}  // namespace mirage
