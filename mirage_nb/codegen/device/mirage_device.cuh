// The device library: the only file that a generated kernel includes.
//
// Two editions with the same names, chosen by the compiler: NVRTC or nvcc take cuda/ (inline PTX), a C++20
// compiler takes cpu/ (one fiber per CUDA thread, run by cpu/engine). common/ holds what is plain C++ in both.
// Invariant: kernel text that uses only these names means the same in both editions.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#include "cuda/words.cuh"
#include "common/types.cuh"
#include "cuda/register_convert.cuh"
#include "cuda/register_math.cuh"
#include "cuda/warp.cuh"
#include "cuda/block.cuh"
#include "cuda/global_memory.cuh"
#include "common/register_vector.cuh"
#include "common/register_activation.cuh"
#include "common/warp_reduce.cuh"
#include "common/block_reduce.cuh"
#include "common/warp_fragment.cuh"
#include "common/shared_swizzle.cuh"
#include "cuda/warp_mma.cuh"
#include "cuda/shared_ldmatrix.cuh"
#include "cuda/shared_cp_async.cuh"
#include "cuda/shared_mbarrier.cuh"
#include "cuda/shared_tma.cuh"
#include "cuda/warpgroup_registers.cuh"
#include "cuda/warpgroup_wgmma.cuh"
#include "cuda/grid_dependency.cuh"
#else
#include "cpu/words.cuh"
#include "common/types.cuh"
#include "cpu/register_convert.cuh"
#include "cpu/register_math.cuh"
#include "cpu/warp.cuh"
#include "cpu/block.cuh"
#include "cpu/global_memory.cuh"
#include "common/register_vector.cuh"
#include "common/register_activation.cuh"
#include "common/warp_reduce.cuh"
#include "common/block_reduce.cuh"
#include "common/warp_fragment.cuh"
#include "common/shared_swizzle.cuh"
#include "cpu/warp_mma.cuh"
#include "cpu/shared_ldmatrix.cuh"
#include "cpu/shared_cp_async.cuh"
#include "cpu/shared_mbarrier.cuh"
#include "cpu/shared_tma.cuh"
#include "cpu/warpgroup_registers.cuh"
#include "cpu/warpgroup_wgmma.cuh"
#include "cpu/grid_dependency.cuh"
#include "cpu/kernel_entry.cuh"
#endif
