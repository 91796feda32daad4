// mbarriers: a phase completes when all announced arrivals and all expected bytes have come. From sm_90 on.
#pragma once

#if __CUDA_ARCH__ >= 900
namespace mirage {

MIRAGE_DEVICE void mbarrier_init(uint64_t* bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals) : "memory");
}
// Makes initialised barriers known to the copy engine; block_sync() then makes them known to the other threads.
MIRAGE_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Orders this thread's ordinary accesses to shared memory before those of the copy engine and of wgmma. Reads too: an
// arrival on an mbarrier may be seen while loads in front of it are still on their way.
MIRAGE_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

MIRAGE_DEVICE void mbarrier_arrive(uint64_t* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
// The same of another block of the cluster.
MIRAGE_DEVICE void mbarrier_arrive_of(uint64_t* bar, int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(shared_address(bar)),
      "r"(rank)
      : "memory");
}
MIRAGE_DEVICE void mbarrier_arrive_expect_tx(uint64_t* bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
               : "memory");
}

// Returns once the phase of this parity has completed; a fresh barrier is in phase 0, so parity 1 returns at once.
MIRAGE_DEVICE void mbarrier_wait(uint64_t* bar, int parity) {
  const uint32_t address = shared_address(bar);
  uint32_t done;
  do {
    asm volatile(
        "{\n"
        ".reg .pred complete;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
        "selp.u32 %0, 1, 0, complete;\n"
        "}"
        : "=r"(done)
        : "r"(address), "r"(parity)
        : "memory");
  } while (!done);
}

}  // namespace mirage
#endif
