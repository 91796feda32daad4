// Programmatic dependent launch: here kernels run one after the other, so there is nothing to wait for.
#pragma once

namespace mirage {

MIRAGE_DEVICE void grid_dependency_wait() {}
MIRAGE_DEVICE void grid_dependency_launch() {}

}  // namespace mirage
