// Bulk copies by the copy engine, completing on an mbarrier. One thread issues each. From sm_90 on.
#pragma once

#if __CUDA_ARCH__ >= 900
namespace mirage {

MIRAGE_DEVICE void tma_prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The box of `map` whose first element is (row, column) -> shared memory, 128-byte aligned (8 * swizzle, if any).
// Elements outside the tensor arrive as zero and count in the expected bytes.
MIRAGE_DEVICE void tma_load_2d(void* shared, const TensorMap& map, uint64_t* bar, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          shared_address(shared)),
      "l"(&map), "r"(shared_address(bar)), "r"(column), "r"(row)
      : "memory");
}
// As tma_load_2d, of a map of several matrices.
MIRAGE_DEVICE void tma_load_3d(void* shared, const TensorMap& map, uint64_t* bar, int column, int row, int matrix) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
          shared_address(shared)),
      "l"(&map), "r"(shared_address(bar)), "r"(column), "r"(row), "r"(matrix)
      : "memory");
}
// As tma_load_2d, to the same place in each of the first `blocks` of the cluster, completing on the mbarrier of each.
MIRAGE_DEVICE void tma_load_2d_all(void* shared, const TensorMap& map, uint64_t* bar, int column, int row,
                                   int blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, "
      "%4}], [%2], %5;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(bar)), "r"(column), "r"(row), "h"(uint16_t((1 << blocks) - 1))
      : "memory");
}
// As tma_load_2d, for what nobody reads again: in L2 it makes room first.
MIRAGE_DEVICE void tma_load_2d_once(void* shared, const TensorMap& map, uint64_t* bar, int column, int row) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4}], [%2], %5;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(bar)), "r"(column), "r"(row), "l"(policy)
      : "memory");
}
// Asks for the box of `map` whose first element is (row, column) in L2.
MIRAGE_DEVICE void tma_prefetch_2d(const TensorMap& map, int column, int row) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&map), "r"(column), "r"(row)
               : "memory");
}
// The same of a map of several matrices.
MIRAGE_DEVICE void tma_prefetch_3d(const TensorMap& map, int column, int row, int matrix) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(&map), "r"(column),
               "r"(row), "r"(matrix)
               : "memory");
}

// `bytes` contiguous bytes; both addresses and the count are multiples of 16.
MIRAGE_DEVICE void bulk_load(void* shared, const void* global, int bytes, uint64_t* bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(bar))
               : "memory");
}

}  // namespace mirage
#endif
