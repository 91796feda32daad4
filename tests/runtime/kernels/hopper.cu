// The functions that begin with sm_90: mbarriers, boxes and bulk copies.
#include "mirage_device.cuh"
using namespace mirage;

#ifndef SWIZZLE
#define SWIZZLE 128
#endif
#ifndef ROW_BYTES
#define ROW_BYTES 128
#endif

constexpr int ROWS = 16;

// Out: the box as it lies in shared memory, then in plain order.
MIRAGE_DEVICE void show(const unsigned char* tile, unsigned char* out, int bytes) {
  for (int i = thread_index(); i < bytes; i += 32 * warp_count()) {
    out[i] = tile[i];
    out[bytes + i] = tile[swizzle<SWIZZLE>(i)];
  }
}

MIRAGE_DEVICE void start(uint64_t* bar) {
  if (thread_index() == 0) {
    mbarrier_init(bar, 1);
    fence_mbarrier_init();
  }
  block_sync();
}

extern "C" __global__ void box_2d(const __grid_constant__ TensorMap map, unsigned char* out, int column, int row) {
  MIRAGE_DYNAMIC_SHARED(tile);
  MIRAGE_SHARED(uint64_t, bar, 1);
  start(bar);
  if (thread_index() == 0) {
    tma_prefetch_map(map);
    mbarrier_arrive_expect_tx(bar, ROWS * ROW_BYTES);
    tma_load_2d(tile, map, bar, column, row);
  }
  mbarrier_wait(bar, 0);
  show(tile, out, ROWS * ROW_BYTES);
}

extern "C" __global__ void box_3d(const __grid_constant__ TensorMap map, unsigned char* out, int column, int row,
                                  int matrix) {
  MIRAGE_DYNAMIC_SHARED(tile);
  MIRAGE_SHARED(uint64_t, bar, 1);
  start(bar);
  if (thread_index() == 0) {
    tma_prefetch_3d(map, column, row, matrix);
    mbarrier_arrive_expect_tx(bar, ROWS * ROW_BYTES);
    tma_load_3d(tile, map, bar, column, row, matrix);
  }
  mbarrier_wait(bar, 0);
  show(tile, out, ROWS * ROW_BYTES);
}

// A bulk copy of 1024 bytes in two phases of one barrier; then ordinary stores that a fence orders.
extern "C" __global__ void bulk(const uint8_t* x, uint8_t* out) {
  MIRAGE_SHARED(uint8_t, tile, 1024);
  MIRAGE_SHARED(uint64_t, bar, 1);
  start(bar);
  for (int phase = 0; phase < 2; phase++) {
    if (thread_index() == 0) {
      mbarrier_arrive_expect_tx(bar, 512);
      bulk_load(tile + 512 * phase, x + 512 * phase, 512, bar);
    }
    mbarrier_wait(bar, phase);
    block_sync();  // nobody may still wait for this phase when the next one completes
  }
  for (int i = thread_index(); i < 1024; i += 64) out[i] = tile[i];
  block_sync();
  tile[thread_index()] = 7;
  fence_proxy_async();
  block_sync();
  if (thread_index() == 0) {
    mbarrier_arrive_expect_tx(bar, 32);
    bulk_load(tile, x, 32, bar);
  }
  mbarrier_wait(bar, 0);
  out[1024 + thread_index()] = tile[thread_index()];
}
