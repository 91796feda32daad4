// Words that both editions define: integer names, macros, shared memory declarations, the CUDA built-ins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#define MIRAGE_CPU_EDITION 1
#define MIRAGE_DEVICE inline __attribute__((always_inline))
#define MIRAGE_UNROLL _Pragma("GCC unroll 16")

// Every function that can fail carries the line of the kernel text that called it, for the reports.
#define MIRAGE_SITE , int line = __builtin_LINE()
#define MIRAGE_SITE_ALONE int line = __builtin_LINE()
#define MIRAGE_PASS , line

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
MIRAGE_DEVICE float2 make_float2(float x, float y) { return {x, y}; }
MIRAGE_DEVICE float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
MIRAGE_DEVICE uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
MIRAGE_DEVICE uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

#include "engine/calls.h"

#define threadIdx (::mirage::cpu::running->thread)
#define blockIdx (::mirage::cpu::launch.block)
#define blockDim (::mirage::cpu::launch.threads)
#define gridDim (::mirage::cpu::launch.blocks)

#define MIRAGE_SHARED(T, name, count)                            \
  static ::mirage::cpu::SharedArray mirage_shared_##name{#name}; \
  T* const name = static_cast<T*>(::mirage::cpu::shared_array(mirage_shared_##name, sizeof(T) * (count)))
#define MIRAGE_DYNAMIC_SHARED(name) unsigned char* const name = ::mirage::cpu::dynamic_shared()

namespace mirage {
MIRAGE_DEVICE uint32_t shared_address(const void* p) { return cpu::shared_offset(p); }
}  // namespace mirage
