// Registers that warpgroups hand over to each other. All four warps of a warpgroup call each function once, and the
// kernel has __launch_bounds__(threads, 1). From sm_90a on.
#pragma once

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace mirage {

// From here on each thread of this warpgroup has N registers, a multiple of 8: fewer than before, more than before.
template <int N>
MIRAGE_DEVICE void registers_release() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
MIRAGE_DEVICE void registers_claim() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

}  // namespace mirage
#endif
