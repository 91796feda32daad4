// 8x8 matrices of 16-bit elements from shared memory into mma fragments, plain or transposed.
// Lane l gives the 16-byte aligned address of row l % 8 of matrix l / 8; register m of the result is matrix m.
#pragma once

namespace mirage {

MIRAGE_DEVICE void ldmatrix_x2(uint32_t (&r)[2], const void* row MIRAGE_SITE) {
  cpu::collective(cpu::Collective::Ldmatrix, {r, row, nullptr, 2, nullptr}, line);
}
MIRAGE_DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void* row MIRAGE_SITE) {
  cpu::collective(cpu::Collective::Ldmatrix, {r, row, nullptr, 4, nullptr}, line);
}
MIRAGE_DEVICE void ldmatrix_x2_trans(uint32_t (&r)[2], const void* row MIRAGE_SITE) {
  cpu::collective(cpu::Collective::LdmatrixTrans, {r, row, nullptr, 2, nullptr}, line);
}
MIRAGE_DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row MIRAGE_SITE) {
  cpu::collective(cpu::Collective::LdmatrixTrans, {r, row, nullptr, 4, nullptr}, line);
}

}  // namespace mirage
