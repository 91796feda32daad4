// Where the elements of an mma fragment live: lane l, register i. A 16-bit register holds elements e and e + 1 along k.
// The accumulator layout is the same for every shape; wgmma repeats it every 8 columns.
#pragma once

namespace mirage {

constexpr MIRAGE_DEVICE int mma_d_row(int l, int i) { return l / 4 + 8 * (i / 2); }
constexpr MIRAGE_DEVICE int mma_d_column(int l, int i) { return 2 * (l % 4) + i % 2; }
// The row where those of two tiles of eight take turns.
constexpr MIRAGE_DEVICE int mma_twin_row(int l, int i) { return 2 * (l / 4) + i / 2; }
constexpr MIRAGE_DEVICE int mma_a_row(int l, int i) { return l / 4 + 8 * (i % 2); }
constexpr MIRAGE_DEVICE int mma_a_k(int l, int i) { return 2 * (l % 4) + 8 * (i / 2); }
constexpr MIRAGE_DEVICE int mma_b_k(int l, int i) { return 2 * (l % 4) + 8 * i; }
constexpr MIRAGE_DEVICE int mma_b_column(int l) { return l / 4; }
// The same where a lane has four neighbours along k, on both sides.
constexpr MIRAGE_DEVICE int mma_fours_a_k(int l, int i) { return 4 * (l % 4) + 2 * (i / 2); }
constexpr MIRAGE_DEVICE int mma_fours_b_k(int l, int i) { return 4 * (l % 4) + 2 * i; }
constexpr MIRAGE_DEVICE int mma_f32_a_k(int l, int i) { return l % 4 + 4 * (i / 2); }
constexpr MIRAGE_DEVICE int mma_f32_b_k(int l, int i) { return l % 4 + 4 * i; }

// `Count` lanes, `Apart` from each other, exchange words: what the q-th of them has in w[i] goes to w[q] of the i-th.
// <4, 1>, the lanes of a row: pairs of four fragments side by side become eight neighbours in a row for each lane, and
// the other way round. <8, 4>, the lanes of a column: pairs of eight fragments become one row after another, of which
// lane l has elements 2l and 2l + 1.
template <int Count, int Apart>
MIRAGE_DEVICE void transpose_words(uint32_t (&w)[Count] MIRAGE_SITE) {
  MIRAGE_UNROLL
  for (int bit = 1; bit < Count; bit *= 2) {
    const bool upper = lane_index() & (bit * Apart);
    MIRAGE_UNROLL
    for (int i = 0; i < Count; i++) {
      if (i & bit) continue;
      const uint32_t other = shuffle_xor(upper ? w[i] : w[i | bit], bit * Apart MIRAGE_PASS);
      if (upper) {
        w[i] = other;
      } else {
        w[i | bit] = other;
      }
    }
  }
}

// A warp's 64 elements of a row, of which lane l has 2l and 2l + 1 and those from `left` on do not exist. The row may
// begin at any element: lanes pass halves on, so that words are stored where memory has words, and single elements at
// its ends only. (All of an odd row element by element: 395 us for 2048 x 768 x 50257 on an H200, so 297.)
template <class T>
MIRAGE_DEVICE void store_row(T* to, uint32_t word, int left MIRAGE_SITE) {
  static_assert(sizeof(T) == 2, "two elements a word");
  const int lane = lane_index(), odd = reinterpret_cast<uint64_t>(to) / 2 % 2;
  const uint32_t before = shuffle(word, (lane + 31) % 32 MIRAGE_PASS), mine = odd ? before >> 16 | word << 16 : word;
  const int first = 2 * lane - odd;
  const uint16_t halves[2] = {uint16_t(mine), uint16_t(mine >> 16)}, last = uint16_t(word >> 16);
  if (first >= 0 && first + 2 <= left) {
    detail::copy<4>(to + first, &mine MIRAGE_PASS);
  } else {
    if (first >= 0 && first < left) detail::copy<2>(to + first, halves MIRAGE_PASS);
    if (first < 0 && left > 0) detail::copy<2>(to, halves + 1 MIRAGE_PASS);
  }
  if (odd && lane == 31 && left > 63) detail::copy<2>(to + 63, &last MIRAGE_PASS);
}

}  // namespace mirage
