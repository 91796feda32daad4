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

}  // namespace mirage
