// Bulk copies by the copy engine, completing on an mbarrier. One thread issues each.
#pragma once

namespace mirage {

MIRAGE_DEVICE void tma_prefetch_map(const TensorMap&) {}

// The box of `map` whose first element is (row, column) -> shared memory, 128-byte aligned (8 * swizzle, if any).
// Elements outside the tensor arrive as zero and count in the expected bytes.
MIRAGE_DEVICE void tma_load_2d(void* shared, const TensorMap& map, uint64_t* bar, int column, int row MIRAGE_SITE) {
  cpu::tma_load(shared, map, bar, {2, column, row, 0}, line);
}
// As tma_load_2d, of a map of several matrices.
MIRAGE_DEVICE void tma_load_3d(void* shared, const TensorMap& map, uint64_t* bar, int column, int row,
                               int matrix MIRAGE_SITE) {
  cpu::tma_load(shared, map, bar, {3, column, row, matrix}, line);
}
// As tma_load_2d, to the same place in each of the first `blocks` of the cluster, completing on the mbarrier of each.
MIRAGE_DEVICE void tma_load_2d_all(void* shared, const TensorMap& map, uint64_t* bar, int column, int row,
                                   int blocks MIRAGE_SITE) {
  for (int rank = 0; rank < blocks; rank++) {
    auto there = static_cast<uint64_t*>(cpu::shared_of(bar, rank, line));
    cpu::tma_load(cpu::shared_of(shared, rank, line), map, there, {2, column, row, 0}, line);
  }
}
// As tma_load_2d, for what nobody reads again: in L2 it makes room first.
MIRAGE_DEVICE void tma_load_2d_once(void* shared, const TensorMap& map, uint64_t* bar, int column,
                                    int row MIRAGE_SITE) {
  cpu::tma_load(shared, map, bar, {2, column, row, 0}, line);
}
// Asks for the box of `map` whose first element is (row, column) in L2.
MIRAGE_DEVICE void tma_prefetch_2d(const TensorMap&, int, int) {}
// The same of a map of several matrices.
MIRAGE_DEVICE void tma_prefetch_3d(const TensorMap&, int, int, int) {}

// `bytes` contiguous bytes; both addresses and the count are multiples of 16.
MIRAGE_DEVICE void bulk_load(void* shared, const void* global, int bytes, uint64_t* bar MIRAGE_SITE) {
  cpu::bulk_load(shared, global, bytes, bar, line);
}

}  // namespace mirage
