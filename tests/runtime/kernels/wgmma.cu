// D[64, COLUMNS] = A[64, K] * B[K, COLUMNS] by one warpgroup, tiles by TMA with the 128-byte swizzle, K in steps of 64.
// A_ORDER K: A lies [64][K]; MN: A lies [K][64]. B_ORDER K: B lies [COLUMNS][K]; MN: B lies [K][COLUMNS].
#include "mirage_device.cuh"
using namespace mirage;

#ifndef ELEMENT
#define ELEMENT f16
#endif
#ifndef COLUMNS
#define COLUMNS 64
#endif
#ifndef A_ORDER
#define A_ORDER K
#endif
#ifndef B_ORDER
#define B_ORDER MN
#endif
#ifndef A_REGISTERS
#define A_REGISTERS 0
#endif

#ifndef OVERWRITES
#define OVERWRITES 0  // the first product does not add to what is there
#endif

// Tests replace this to see the mistake caught.
#ifndef WAIT_PRODUCTS
#if A_REGISTERS
#define WAIT_PRODUCTS wgmma_wait<0>(d, a)
#else
#define WAIT_PRODUCTS wgmma_wait<0>(d)
#endif
#endif

constexpr Major AM = Major::A_ORDER, BM = Major::B_ORDER;
constexpr int B_WIDE = BM == Major::MN && COLUMNS > 64 ? 64 : COLUMNS;  // columns of one box of B
constexpr int B_BOX = BM == Major::MN ? 64 * 128 : B_WIDE * 128;        // bytes
constexpr int A_BYTES = 64 * 128, B_BYTES = COLUMNS / B_WIDE * B_BOX;

extern "C" __global__ void __launch_bounds__(128)
    matmul(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, float* D, int depth) {
  MIRAGE_DYNAMIC_SHARED(a_tile);
  MIRAGE_SHARED(uint64_t, bar, 1);
  unsigned char* const b_tile = a_tile + A_BYTES;
  const int t = thread_index(), l = lane_index();
  if (t == 0) {
    mbarrier_init(bar, 1);
    fence_mbarrier_init();
  }
  block_sync();
  float d[COLUMNS / 2];
  MIRAGE_UNROLL
  for (int i = 0; i < COLUMNS / 2; i++) d[i] = OVERWRITES ? 7.0f : 0.0f;
  for (int step = 0; step < depth / 64; step++) {
    if (t == 0) {
      const int k = step * 64;
      mbarrier_arrive_expect_tx(bar, A_BYTES + B_BYTES);
      tma_load_2d(a_tile, a_map, bar, AM == Major::K ? k : 0, AM == Major::K ? 0 : k);
      for (int j = 0; j < COLUMNS; j += B_WIDE)
        tma_load_2d(b_tile + j / B_WIDE * B_BOX, b_map, bar, BM == Major::K ? k : j, BM == Major::K ? j : k);
    }
    mbarrier_wait(bar, step % 2);
#if A_REGISTERS
    uint32_t a[4][1][4];
    MIRAGE_UNROLL
    for (int k = 0; k < 4; k++)
      ldmatrix_x4(a[k][0], a_tile + swizzle<128>((t / 32 * 16 + l % 16) * 128 + k * 32 + l / 16 * 16));
    wgmma_fence(d, a);
#else
    wgmma_fence(d);
#endif
    MIRAGE_UNROLL
    for (int k = 0; k < 4; k++) {
      const uint64_t b = wgmma_descriptor<BM>(b_tile + k * (BM == Major::K ? 32 : 2048), B_BOX);
#if A_REGISTERS
      wgmma_m64k16<COLUMNS, ELEMENT, BM>(d, a[k][0], b);
#else
      const uint64_t a = wgmma_descriptor<AM>(a_tile + k * (AM == Major::K ? 32 : 2048));
      if (OVERWRITES && step == 0 && k == 0) {
        wgmma_m64k16<COLUMNS, ELEMENT, AM, BM, false>(d, a, b);
      } else {
        wgmma_m64k16<COLUMNS, ELEMENT, AM, BM>(d, a, b);
      }
#endif
    }
    wgmma_commit();
    WAIT_PRODUCTS;
#if A_REGISTERS
    fence_proxy_async();  // behind ldmatrix, before the copy engine comes again
#endif
    block_sync();
  }
  MIRAGE_UNROLL
  for (int i = 0; i < COLUMNS / 2; i++)
    D[(16 * (t / 32) + mma_d_row(l, i % 4)) * COLUMNS + 8 * (i / 4) + mma_d_column(l, i % 4)] = d[i];
}
