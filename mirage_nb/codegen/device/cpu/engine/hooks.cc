// What a compiler calls around the memory accesses of code built with -fsanitize=thread. Checked kernels are built so,
// without the thread sanitizer's own library: each access goes to the bounds check and, in shared memory, to race.cc.
#include "engine.h"

namespace mirage::cpu {

static void access(const void* p, size_t bytes, bool write) {
  check_access(p, bytes, write);
  if (!is_shared(p)) return;
  const int warp = self().agent;
  if (write) {
    race_write(warp, p, bytes, self().line);
  } else {
    race_read(warp, p, bytes, self().line);
  }
}

}  // namespace mirage::cpu

using mirage::cpu::access;

#define HOOK(bytes)                                                       \
  void __tsan_read##bytes(void* p) { access(p, bytes, false); }           \
  void __tsan_write##bytes(void* p) { access(p, bytes, true); }           \
  void __tsan_unaligned_read##bytes(void* p) { access(p, bytes, false); } \
  void __tsan_unaligned_write##bytes(void* p) { access(p, bytes, true); } \
  void __tsan_volatile_read##bytes(void* p) { access(p, bytes, false); }  \
  void __tsan_volatile_write##bytes(void* p) { access(p, bytes, true); }

extern "C" {
HOOK(1)
HOOK(2)
HOOK(4)
HOOK(8)
HOOK(16)
void __tsan_read_range(void* p, unsigned long bytes) { access(p, bytes, false); }
void __tsan_write_range(void* p, unsigned long bytes) { access(p, bytes, true); }
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  access(from, bytes, false);
  access(to, bytes, true);
  return __builtin_memcpy(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  access(to, bytes, true);
  return __builtin_memset(to, value, bytes);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}
