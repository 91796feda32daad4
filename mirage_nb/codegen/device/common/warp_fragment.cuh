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

// The four lanes of a row exchange words: what lane q has in w[i] goes to w[q] of lane i. Pairs of four fragments side
// by side become eight neighbours in a row for each lane, and the other way round.
MIRAGE_DEVICE void quad_transpose(uint32_t (&w)[4] MIRAGE_SITE) {
  const bool odd = lane_index() & 1, upper = lane_index() & 2;
  MIRAGE_UNROLL
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = shuffle_xor(odd ? w[i] : w[i + 1], 1 MIRAGE_PASS);
    if (odd) {
      w[i] = other;
    } else {
      w[i + 1] = other;
    }
  }
  MIRAGE_UNROLL
  for (int i = 0; i < 2; i++) {
    const uint32_t other = shuffle_xor(upper ? w[i] : w[i + 2], 2 MIRAGE_PASS);
    if (upper) {
      w[i] = other;
    } else {
      w[i + 2] = other;
    }
  }
}

}  // namespace mirage
