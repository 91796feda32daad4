// Asynchronous copies from global to shared memory, issued and awaited by each thread for itself.
#pragma once

namespace mirage {

// The first `valid_bytes` of Bytes come from `global`, the rest is zero; with 0 valid bytes `global` is not read.
template <int Bytes>
MIRAGE_DEVICE void cp_async(void* shared, const void* global, int valid_bytes) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "4, 8 or 16 bytes");
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(valid_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "n"(Bytes), "r"(valid_bytes)
                 : "memory");
  }
}

template <int Bytes>
MIRAGE_DEVICE void cp_async(void* shared, const void* global) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "4, 8 or 16 bytes");
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global))
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "n"(Bytes)
                 : "memory");
  }
}

MIRAGE_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Returns once at most N of this thread's newest groups are still on their way.
template <int N>
MIRAGE_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

}  // namespace mirage
