// Asynchronous copies from global to shared memory, issued and awaited by each thread for itself.
#pragma once

namespace mirage {

// The first `valid_bytes` of Bytes come from `global`, the rest is zero; with 0 valid bytes `global` is not read.
template <int Bytes>
MIRAGE_DEVICE void cp_async(void* shared, const void* global, int valid_bytes MIRAGE_SITE) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "4, 8 or 16 bytes");
  cpu::cp_async(shared, global, Bytes, valid_bytes, line);
}

template <int Bytes>
MIRAGE_DEVICE void cp_async(void* shared, const void* global) {
  cp_async<Bytes>(shared, global, Bytes);
}

MIRAGE_DEVICE void cp_async_commit() { cpu::cp_async_commit(); }

// Returns once at most N of this thread's newest groups are still on their way.
template <int N>
MIRAGE_DEVICE void cp_async_wait(MIRAGE_SITE_ALONE) {
  cpu::cp_async_wait(N, line);
}

}  // namespace mirage
