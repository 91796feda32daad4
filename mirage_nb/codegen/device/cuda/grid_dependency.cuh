// Programmatic dependent launch: a kernel that starts before the one in front of it has ended. No-ops before sm_90.
#pragma once

namespace mirage {

// Returns once the kernel in front has ended and its writes are visible.
MIRAGE_DEVICE void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel start once every block has said so.
MIRAGE_DEVICE void grid_dependency_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace mirage
