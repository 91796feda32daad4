// Barriers of the block. Named barriers 1 to 15 take whole warps: `threads` counts them all, a multiple of 32.
#pragma once

namespace mirage {

MIRAGE_DEVICE void block_sync(MIRAGE_SITE_ALONE) { cpu::barrier(0, 0, true, line); }
MIRAGE_DEVICE void barrier_sync(int id, int threads MIRAGE_SITE) { cpu::barrier(id, threads, true, line); }
MIRAGE_DEVICE void barrier_arrive(int id, int threads MIRAGE_SITE) { cpu::barrier(id, threads, false, line); }
// All threads of all blocks of the cluster.
MIRAGE_DEVICE void cluster_sync(MIRAGE_SITE_ALONE) { cpu::barrier(cpu::CLUSTER_BARRIER, 0, true, line); }

namespace detail {
MIRAGE_DEVICE void group_sync(int id, int threads MIRAGE_SITE) { cpu::barrier(id, id ? threads : 0, true, line); }
}  // namespace detail

}  // namespace mirage

MIRAGE_DEVICE void __syncthreads(MIRAGE_SITE_ALONE) { mirage::block_sync(line); }
