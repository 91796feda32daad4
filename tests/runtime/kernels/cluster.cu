// Blocks of a cluster bring half of a tile each to both; two clusters combine their sums of its columns.
#include "mirage_device.cuh"

using namespace mirage;

__device__ float left[128];
__device__ uint32_t arrived[2];

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(32, 1)
cluster_sums(const __grid_constant__ TensorMap map, float* out) {
  MIRAGE_DYNAMIC_SHARED(tile);
  MIRAGE_SHARED(uint64_t, full, 1);
  MIRAGE_SHARED(uint64_t, empty, 1);
  const int rank = blockIdx.x % 2, cluster = blockIdx.x / 2, lane = lane_index();
  if (lane == 0) {
    mbarrier_init(full, 1);
    mbarrier_init(empty, 2);
    fence_mbarrier_init();
  }
  cluster_sync();
  if (lane == 0) {
    tma_prefetch_2d(map, 0, 32 * cluster + 16 * rank);
    mbarrier_arrive_expect_tx(full, 4096);
    tma_load_2d_all(tile + rank * 2048, map, full, 0, 32 * cluster + 16 * rank, 2);
  }
  mbarrier_wait(full, 0);
  float sums[1][1] = {};
  for (int row = rank; row < 32; row += 2) sums[0][0] += reinterpret_cast<const float*>(tile)[row * 32 + lane];
  warp_sync();
  if (lane < 2) mbarrier_arrive_of(empty, lane);
  mbarrier_wait(empty, 0);
  leave_sums(sums, left + (rank * 2 + cluster) * 32);
  if (arrives_last(arrived + rank, 2)) {
    add_sums(sums, left + rank * 64, 2, 32);
    out[rank * 32 + lane] = sums[0][0];
    if (lane == 0) out[64 + rank] = float(load_l2(arrived + rank));
  }
  cluster_sync();
}
