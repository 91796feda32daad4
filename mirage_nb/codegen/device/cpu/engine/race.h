// Happens-before between the warps of a block or cluster, and the accesses to shared memory that it does not order.
//
// Each warp, and the copy engine, is an agent with a vector clock. Barriers, mbarriers and their waits pass clocks on.
// Every two bytes of shared memory remember who wrote them last and when each agent read them last. An access that is
// not after the conflicting ones is a race, whatever order the executor happened to choose.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mirage::cpu {

constexpr int COPY_ENGINE = 32;  // the agent after the 32 warps that a block may have
constexpr int AGENTS = 33;

struct Clock {
  uint32_t at[AGENTS] = {};
  void join(const Clock& other) {
    for (int i = 0; i < AGENTS; i++) at[i] = at[i] < other.at[i] ? other.at[i] : at[i];
  }
};

void race_start_block(int warps);
Clock race_clock(int warp);
void race_barrier(uint32_t warps, int line);         // all of these warps have arrived
void race_release(int warp, Clock& into, int line);  // what `warp` did so far is before whoever acquires `into`
void race_acquire(int warp, const Clock& from);
void race_proxy_fence(int warp, int line);

void race_read(int warp, const void* p, size_t bytes, int line);
void race_write(int warp, const void* p, size_t bytes, int line);
// wgmma reads through the copy engine's path: ordinary writes must have been fenced.
void race_proxy_read(int warp, const void* p, size_t bytes, int line);
// The copy engine writes on behalf of a thread whose clock was `issued`; `done` is released to the mbarrier. Ordinary
// reads must have been fenced: loads may be on their way when an arrival that stands behind them is seen.
void race_copy_write(const Clock& issued, Clock& done, const void* p, size_t bytes, int line);

}  // namespace mirage::cpu
