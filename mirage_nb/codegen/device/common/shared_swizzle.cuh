// The order in which the copy engine lays a tile into shared memory.
#pragma once

namespace mirage {

// Byte offset in a plain row-major tile -> byte offset in the swizzled tile, for a tile whose base is aligned to
// 8 * Bytes. 16-byte chunks stay whole: their index is xored with the bits above the 128-byte line.
template <int Bytes>
constexpr MIRAGE_DEVICE int swizzle(int offset) {
  static_assert(Bytes == 0 || Bytes == 32 || Bytes == 64 || Bytes == 128, "0, 32, 64 or 128");
  return Bytes == 0 ? offset : offset ^ (((offset >> 7) & (Bytes / 16 - 1)) << 4);
}

// Elements in panels of 128 bytes: (row, column) of a tile of `Rows` rows lies at panel_start + panel_step, where
// row and column are sums of a part that only the thread decides and a part that only the loops decide, of different
// bits. `mixed` is panel_mixed of the thread's part: what it adds to the swizzle.
template <int Rows, class T = float>
constexpr MIRAGE_DEVICE int panel_start(int row, int column) {
  constexpr int chunk = 16 / int(sizeof(T)), line = 8 * chunk;
  return (column / line * Rows + row) * line + column % chunk;
}
template <class T = float>
constexpr MIRAGE_DEVICE int panel_mixed(int row, int column) {
  return (column / (16 / int(sizeof(T))) ^ row) & 7;
}
template <int Rows, class T = float>
constexpr MIRAGE_DEVICE int panel_step(int mixed, int row, int column) {
  constexpr int chunk = 16 / int(sizeof(T)), line = 8 * chunk;
  return (column / line * Rows + row) * line + (mixed ^ ((column / chunk ^ row) & 7)) * chunk + column % chunk;
}

}  // namespace mirage
