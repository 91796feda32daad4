// Barriers of the block. Named barriers 1 to 15 take whole warps: `threads` counts them all, a multiple of 32.
#pragma once

namespace mirage {

MIRAGE_DEVICE void block_sync() { __syncthreads(); }
MIRAGE_DEVICE void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
MIRAGE_DEVICE void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// All threads of all blocks of the cluster.
MIRAGE_DEVICE void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#endif
}

namespace detail {
MIRAGE_DEVICE void group_sync(int id, int threads) {
  if (id == 0) {
    block_sync();
  } else {
    barrier_sync(id, threads);
  }
}
}  // namespace detail

}  // namespace mirage
