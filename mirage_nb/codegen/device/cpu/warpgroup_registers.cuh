// Registers that warpgroups hand over to each other. All four warps of a warpgroup call each function once. Registers
// are not counted here.
#pragma once

namespace mirage {

template <int N>
MIRAGE_DEVICE void registers_release(MIRAGE_SITE_ALONE) {
  static_assert(N >= 24 && N <= 256 && N % 8 == 0, "24 to 256 registers, a multiple of 8");
  cpu::collective(cpu::Collective::Sync, {}, line);
}
template <int N>
MIRAGE_DEVICE void registers_claim(MIRAGE_SITE_ALONE) {
  static_assert(N >= 24 && N <= 256 && N % 8 == 0, "24 to 256 registers, a multiple of 8");
  cpu::collective(cpu::Collective::Sync, {}, line);
}

}  // namespace mirage
