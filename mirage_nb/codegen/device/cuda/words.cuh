// Words that both editions define: integer names, macros, shared memory declarations.
#pragma once

#if defined(__CUDACC_RTC__)
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
#else
#include <cstdint>
#endif

#define MIRAGE_DEVICE __device__ __forceinline__
#define MIRAGE_UNROLL _Pragma("unroll")

// The CPU edition carries the line of the call for its reports; here both are nothing.
#define MIRAGE_SITE
#define MIRAGE_PASS

#define MIRAGE_SHARED(T, name, count) __shared__ __align__(128) T name[count]
#define MIRAGE_DYNAMIC_SHARED(name)                                        \
  extern __shared__ __align__(1024) unsigned char mirage_dynamic_shared[]; \
  unsigned char* const name = mirage_dynamic_shared

namespace mirage {
MIRAGE_DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
}  // namespace mirage
