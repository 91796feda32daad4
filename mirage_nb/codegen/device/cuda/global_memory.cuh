// Accesses to global memory (and plain copies of any space): whole vectors, in their order, or read only once.
#pragma once

namespace mirage {

namespace detail {

// One access of up to 16 bytes, or as many of 16 as it takes.
template <int Bytes>
MIRAGE_DEVICE void copy(void* to, const void* from) {
  if constexpr (Bytes > 16) {
    MIRAGE_UNROLL
    for (int i = 0; i < Bytes / 16; i++) static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
  } else if constexpr (Bytes == 16) {
    *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
  } else if constexpr (Bytes == 8) {
    *static_cast<uint2*>(to) = *static_cast<const uint2*>(from);
  } else if constexpr (Bytes == 4) {
    *static_cast<uint32_t*>(to) = *static_cast<const uint32_t*>(from);
  } else {
    static_assert(Bytes == 2 || Bytes == 1, "1, 2, 4, 8 bytes or a multiple of 16");
    if constexpr (Bytes == 2) *static_cast<uint16_t*>(to) = *static_cast<const uint16_t*>(from);
    if constexpr (Bytes == 1) *static_cast<uint8_t*>(to) = *static_cast<const uint8_t*>(from);
  }
}

// As copy, of global memory. Accesses that other threads of the card may see stay in their order: the assembler moves
// others to where they are used, behind what has to be waited for.
template <int Bytes>
MIRAGE_DEVICE void copy_now(void* to, const void* from) {
  const auto at = __cvta_generic_to_global(from);
  if constexpr (Bytes > 16) {
    MIRAGE_UNROLL
    for (int i = 0; i < Bytes; i += 16) copy_now<16>(static_cast<char*>(to) + i, static_cast<const char*>(from) + i);
  } else if constexpr (Bytes == 16) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    *static_cast<uint4*>(to) = v;
  } else if constexpr (Bytes == 8) {
    uint2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at));
    *static_cast<uint2*>(to) = v;
  } else if constexpr (Bytes == 4) {
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(*static_cast<uint32_t*>(to)) : "l"(at));
  } else if constexpr (Bytes == 2) {
    asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];" : "=h"(*static_cast<uint16_t*>(to)) : "l"(at));
  } else {
    static_assert(Bytes == 1, "1, 2, 4, 8 bytes or a multiple of 16");
    uint16_t v;
    asm volatile("ld.relaxed.gpu.global.u8 %0, [%1];" : "=h"(v) : "l"(at));
    *static_cast<uint8_t*>(to) = uint8_t(v);
  }
}

// As copy, of global memory: past L1, and what makes room first in L2.
template <int Bytes>
MIRAGE_DEVICE void copy_once(void* to, const void* from) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  const auto at = __cvta_generic_to_global(from);
  if constexpr (Bytes > 16) {
    MIRAGE_UNROLL
    for (int i = 0; i < Bytes; i += 16) copy_once<16>(static_cast<char*>(to) + i, static_cast<const char*>(from) + i);
  } else if constexpr (Bytes == 16) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at), "l"(policy));
    *static_cast<uint4*>(to) = v;
  } else if constexpr (Bytes == 8) {
    uint2 v;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(at), "l"(policy));
    *static_cast<uint2*>(to) = v;
  } else if constexpr (Bytes == 4) {
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.u32 %0, [%1], %2;"
                 : "=r"(*static_cast<uint32_t*>(to))
                 : "l"(at), "l"(policy));
  } else {
    copy<Bytes>(to, from);
  }
}

}  // namespace detail

// Whether this warp is the last of `count` that come here, to whom all is known that the others did before. The counter
// is zero before the first, and again behind the last.
MIRAGE_DEVICE bool arrives_last(uint32_t* arrived, int count) {
  __threadfence();
  __syncwarp();
  const uint32_t before = lane_index() == 0 ? atomicInc(arrived, uint32_t(count - 1)) : 0;
  __threadfence();
  return shuffle(before, 0) == uint32_t(count - 1);
}
// The line of global memory that `p` is in is wanted soon: it is on its way to L2.
template <class T>
MIRAGE_DEVICE void touch(const T* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)));
}

// What another block wrote.
template <class T>
MIRAGE_DEVICE T load_l2(const T* p) {
  return __ldcg(p);
}

}  // namespace mirage
