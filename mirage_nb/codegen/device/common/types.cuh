// Element types and the tensor map, laid out alike on GPU and CPU.
#pragma once

namespace mirage {

// IEEE half and bfloat16 as bits: values are converted to float, computed, and converted back.
struct alignas(2) f16 {
  uint16_t bits;
};
struct alignas(2) bf16 {
  uint16_t bits;
};
// Floats of one byte, with 3 and 2 bits behind the point.
struct f8e4m3 {
  uint8_t bits;
};
struct f8e5m2 {
  uint8_t bits;
};

// A tensor map, opaque to kernels: on the GPU what cuTensorMapEncodeTiled writes, on the CPU what the engine reads.
// Kernels take it as `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

// Which index of a 64-byte-row tile runs contiguously: K (the summed one) or MN (the row of A, the column of B).
enum class Major { K, MN };

}  // namespace mirage
