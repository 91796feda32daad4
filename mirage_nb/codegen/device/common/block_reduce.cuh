// Reductions over several warps through shared memory: one float of scratch per warp, the result in every thread.
#pragma once

namespace mirage {

namespace detail {
// Warps first .. first + warps - 1 call this; barrier 0 means the whole block. The scratch is free on return.
template <class Combine>
MIRAGE_DEVICE float combine_warps(float v, float* scratch, int first, int warps, int barrier,
                                  Combine combine MIRAGE_SITE) {
  v = butterfly<1, 32>(v, combine MIRAGE_PASS);
  if (lane_index() == 0) scratch[warp_index() - first] = v;
  group_sync(barrier, warps * 32 MIRAGE_PASS);
  float total = scratch[0];
  for (int w = 1; w < warps; w++) total = combine(total, scratch[w]);
  group_sync(barrier, warps * 32 MIRAGE_PASS);
  return total;
}
}  // namespace detail

MIRAGE_DEVICE float block_sum(float v, float* scratch MIRAGE_SITE) {
  return detail::combine_warps(v, scratch, 0, warp_count(), 0, Add() MIRAGE_PASS);
}
MIRAGE_DEVICE float block_max(float v, float* scratch MIRAGE_SITE) {
  return detail::combine_warps(v, scratch, 0, warp_count(), 0, Maximum() MIRAGE_PASS);
}
MIRAGE_DEVICE float group_sum(float v, float* scratch, int first_warp, int warps, int barrier MIRAGE_SITE) {
  return detail::combine_warps(v, scratch, first_warp, warps, barrier, Add() MIRAGE_PASS);
}
MIRAGE_DEVICE float group_max(float v, float* scratch, int first_warp, int warps, int barrier MIRAGE_SITE) {
  return detail::combine_warps(v, scratch, first_warp, warps, barrier, Maximum() MIRAGE_PASS);
}

}  // namespace mirage
