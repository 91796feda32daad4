// mbarriers: a phase completes when all announced arrivals and all expected bytes have come.
#pragma once

namespace mirage {

MIRAGE_DEVICE void mbarrier_init(uint64_t* bar, int arrivals MIRAGE_SITE) { cpu::mbarrier_init(bar, arrivals, line); }
// Makes initialised barriers known to the copy engine; block_sync() then makes them known to the other threads.
MIRAGE_DEVICE void fence_mbarrier_init() { cpu::fence_mbarrier_init(); }
// Orders this thread's ordinary accesses to shared memory before those of the copy engine and of wgmma.
MIRAGE_DEVICE void fence_proxy_async() { cpu::fence_proxy_async(); }

MIRAGE_DEVICE void mbarrier_arrive(uint64_t* bar MIRAGE_SITE) { cpu::mbarrier_arrive(bar, line); }
// The same of another block of the cluster.
MIRAGE_DEVICE void mbarrier_arrive_of(uint64_t* bar, int rank MIRAGE_SITE) {
  cpu::mbarrier_arrive(static_cast<uint64_t*>(cpu::shared_of(bar, rank, line)), line);
}
MIRAGE_DEVICE void mbarrier_arrive_expect_tx(uint64_t* bar, int bytes MIRAGE_SITE) {
  cpu::mbarrier_expect(bar, bytes, line);
  cpu::mbarrier_arrive(bar, line);
}

// Returns once the phase of this parity has completed; a fresh barrier is in phase 0, so parity 1 returns at once.
MIRAGE_DEVICE void mbarrier_wait(uint64_t* bar, int parity MIRAGE_SITE) { cpu::mbarrier_wait(bar, parity, line); }

}  // namespace mirage
