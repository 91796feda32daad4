// Blocks, warps and barriers: who runs next, who waits for what, and whether anybody still can go on.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "engine.h"

namespace mirage::cpu {

Thread* running = nullptr;
Launch launch;
Mode mode;

namespace {

constexpr size_t STACK_BYTES = 128 << 10;

struct Barrier {
  int expected = 0;      // threads, of a named barrier
  int arrived = 0;       // threads
  uint32_t warps = 0;    // that arrived
  uint32_t waiting = 0;  // those of them that wait
};

std::vector<Lane> lanes;  // of all blocks of a cluster, one block after the other
std::vector<Warp> warps;
constexpr int MOST_BLOCKS = 8;  // of a cluster
Barrier barriers[MOST_BLOCKS][NAMED_BARRIERS];
Barrier cluster_barrier;
dim3 first_block;  // of the cluster
const Kernel* kernel;
void** kernel_arguments;
uint64_t random_state;

void lane_main() {
  for (;;) {
    kernel->invoke(kernel_arguments);
    self().state = State::Done;
    fiber_yield(self().fiber);
  }
}

void create_lanes(size_t count) {
  const size_t page = size_t(sysconf(_SC_PAGESIZE)), span = STACK_BYTES + page;
  void* base = mmap(nullptr, span * count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) fail("memory", text("no memory for the stacks of %zu threads", count));
  auto stacks = static_cast<unsigned char*>(base);
  lanes = std::vector<Lane>(count);
  const size_t threads = count / size_t(launch.cluster), each = (threads + LANES - 1) / LANES;
  for (size_t i = 0; i < count; i++) {
    mprotect(stacks + i * span, page, PROT_NONE);
    Lane& lane = lanes[i];
    const size_t at = i % threads;
    lane.index = int(at);
    lane.rank = int(i / threads);
    lane.agent = int(i / threads * each + at / LANES);
    lane.thread = {unsigned(at % launch.threads.x), unsigned(at / launch.threads.x % launch.threads.y),
                   unsigned(at / launch.threads.x / launch.threads.y)};
    fiber_create(lane.fiber, stacks + i * span + page, STACK_BYTES, lane_main);
  }
  watch_stacks(stacks, span, count);
  warps = std::vector<Warp>(each * size_t(launch.cluster));
  if (warps.size() > 32) fail("arguments", text("%zu warps in a cluster: 32 are run here", warps.size()));
  for (size_t w = 0; w < warps.size(); w++) {
    warps[w].agent = int(w);
    warps[w].rank = int(w / each);
    warps[w].index = int(w % each);
    warps[w].lanes = &lanes[w / each * threads + w % each * LANES];
    warps[w].count = int(std::min<size_t>(LANES, threads - w % each * LANES));
  }
}

Barrier& barrier_of(const Lane& lane) {
  return lane.barrier == CLUSTER_BARRIER ? cluster_barrier : barriers[lane.rank][lane.barrier];
}

// "lane 3", "warps 0-2,7".
std::string numbered(const char* what, const std::vector<int>& which) {
  std::string list = text("%s%s ", what, which.size() == 1 ? "" : "s");
  for (size_t i = 0; i < which.size();) {
    size_t j = i;
    while (j + 1 < which.size() && which[j + 1] == which[j] + 1) j++;
    if (i) list += ",";
    list += j == i ? text("%d", which[i]) : text("%d-%d", which[i], which[j]);
    i = j + 1;
  }
  return list;
}

// Who shares a description, in order of appearance.
class Groups {
 public:
  void add(const std::string& what, int who) {
    for (auto& [known, members] : groups_) {
      if (known == what) return members.push_back(who);
    }
    groups_.push_back({what, {who}});
  }
  auto begin() const { return groups_.begin(); }
  auto end() const { return groups_.end(); }

 private:
  std::vector<std::pair<std::string, std::vector<int>>> groups_;
};

const char* const COLLECTIVE_NAMES[] = {"warp_sync",        "shuffle",          "shuffle_xor",  "mma_m16n8k16<f16>",
                                        "mma_m16n8k16<bf16>", "mma_m16n8k8_tf32", "mma_m16n8k16_f64", "ldmatrix",
                                        "ldmatrix_trans",   "wgmma_m64k16",     "wgmma_fence",  "wgmma_commit",
                                        "wgmma_wait"};

std::string describe_lane(const Lane& lane) {
  switch (lane.state) {
    case State::Ready: return "can go on";
    case State::Done: return "ended";
    case State::Collective: return text("at %s, line %d", COLLECTIVE_NAMES[int(lane.kind)], lane.line);
    case State::Mbarrier:
      return text("at mbarrier_wait parity %d, line %d (%s)", lane.parity, lane.line,
                  describe_mbarrier(lane.mbarrier).c_str());
    case State::Barrier:
      if (lane.barrier == 0) return text("at block_sync, line %d", lane.line);
      if (lane.barrier == CLUSTER_BARRIER) return text("at cluster_sync, line %d", lane.line);
      return text("at %s(%d, %d), line %d (%d of %d threads arrived)", lane.waits ? "barrier_sync" : "barrier_arrive",
                  lane.barrier, lane.threads, lane.line, barrier_of(lane).arrived, barrier_of(lane).expected);
  }
  return "";
}

std::string describe_lanes(const Warp& warp) {
  Groups groups;
  for (int l = 0; l < warp.count; l++) groups.add(describe_lane(warp.lanes[l]), l);
  std::string result;
  for (const auto& [what, members] : groups) {
    if (!result.empty()) result += "; ";
    result += (int(members.size()) == warp.count ? "all lanes" : numbered("lane", members)) + " " + what;
  }
  return result;
}

std::string block_name() { return text("block (%u,%u,%u)", launch.block.x, launch.block.y, launch.block.z); }

[[noreturn]] void diverged(const Warp& warp) {
  fail("divergence", text("the lanes of warp %d went apart in %s: %s", warp.index, block_name().c_str(),
                          describe_lanes(warp).c_str()));
}

// Barriers ---------------------------------------------------------------------------------------------------

void release(Barrier& barrier, int line) {
  if (mode.checked) race_barrier(barrier.warps, line);
  for (Warp& warp : warps) {
    if (!(barrier.waiting >> warp.agent & 1)) continue;
    warp.waiting = false;
    for (int l = 0; l < warp.count; l++) {
      if (warp.lanes[l].state == State::Barrier) warp.lanes[l].state = State::Ready;
    }
  }
  barrier = Barrier();
}

// block_sync and cluster_sync wait for every warp of theirs that has not ended.
void complete_whole_barriers(int rank, int line) {
  for (Barrier* barrier : {&barriers[rank][0], &cluster_barrier}) {
    bool whole = barrier->waiting != 0;
    for (const Warp& warp : warps) {
      if (barrier != &cluster_barrier && warp.rank != rank) continue;
      whole &= warp.done || (barrier->waiting >> warp.agent & 1);
    }
    if (whole) release(*barrier, line);
  }
}

void arrive(Warp& warp, const Lane& lane) {
  Barrier& barrier = barrier_of(lane);
  barrier.warps |= 1u << warp.agent;
  if (lane.waits) {
    barrier.waiting |= 1u << warp.agent;
    warp.waiting = true;
  } else {
    for (int l = 0; l < warp.count; l++) warp.lanes[l].state = State::Ready;
  }
  if (lane.threads == 0) return complete_whole_barriers(warp.rank, lane.line);
  if (barrier.arrived && barrier.expected != lane.threads) {
    fail("barrier", text("barrier %d is awaited with %d and with %d threads, in %s, line %d", lane.barrier,
                         barrier.expected, lane.threads, block_name().c_str(), lane.line));
  }
  barrier.expected = lane.threads;
  barrier.arrived += LANES;
  if (barrier.arrived >= barrier.expected) release(barrier, lane.line);
}

// Warps ------------------------------------------------------------------------------------------------------

bool alike(const Lane& a, const Lane& b) {
  if (a.state != b.state || a.line != b.line) return false;
  return a.state == State::Collective ? a.kind == b.kind
                                      : a.barrier == b.barrier && a.threads == b.threads && a.waits == b.waits;
}

void run_lanes(Warp& warp) {
  int first = 0, step = 1;
  if (mode.order == Mode::Reversed) first = warp.count - 1, step = -1;
  if (mode.order == Mode::Random) first = int(random_below(uint32_t(warp.count))), step = random_below(2) ? 1 : -1;
  launch.block = {first_block.x + unsigned(warp.rank), first_block.y, first_block.z};
  for (int i = 0, l = first; i < warp.count; i++, l = (l + step + warp.count) % warp.count) {
    Lane& lane = warp.lanes[l];
    if (lane.state == State::Mbarrier && mbarrier_passed(lane.mbarrier, lane.parity)) lane.state = State::Ready;
    if (lane.state != State::Ready) continue;
    running = &lane;
    fiber_enter(lane.fiber);
  }
}

bool can_run(const Warp& warp) {
  for (int l = 0; l < warp.count; l++) {
    const Lane& lane = warp.lanes[l];
    if (lane.state == State::Ready) return true;
    if (lane.state == State::Mbarrier && mbarrier_passed(lane.mbarrier, lane.parity)) return true;
  }
  return false;
}

// What the lanes of a warp wait for together: true if they can go on now.
bool meet(Warp& warp) {
  const Lane* first = nullptr;
  int met = 0, done = 0, elsewhere = 0;
  for (int l = 0; l < warp.count; l++) {
    const Lane& lane = warp.lanes[l];
    if (lane.state == State::Done) {
      done++;
    } else if (lane.state == State::Mbarrier) {
      elsewhere++;
    } else {
      if (!first) first = &lane;
      if (!alike(*first, lane)) diverged(warp);
      met++;
    }
  }
  if (done == warp.count) {
    warp.done = true;
    complete_whole_barriers(warp.rank, 0);
    return false;
  }
  if (elsewhere || !met) return false;  // lanes in mbarrier_wait come later
  const bool whole_barrier = first->state == State::Barrier && first->threads == 0;
  if (done && !whole_barrier) diverged(warp);
  if (first->state == State::Barrier) {
    arrive(warp, *first);
  } else {
    run_collective(warp);
    for (int l = 0; l < warp.count; l++) warp.lanes[l].state = State::Ready;
  }
  return !warp.waiting;
}

// Runs a warp until it waits for others; in random order sometimes only to its next meeting.
bool run_warp(Warp& warp) {
  bool ran = false;
  while (!warp.done && !warp.waiting && can_run(warp)) {
    ran = true;
    run_lanes(warp);
    if (!meet(warp)) break;
    if (mode.order == Mode::Random && random_below(2)) break;
  }
  return ran;
}

void run_cluster() {
  for (Lane& lane : lanes) lane.start();
  for (Warp& warp : warps) warp.start();
  for (auto& block : barriers)
    for (Barrier& barrier : block) barrier = Barrier();
  cluster_barrier = Barrier();
  memory_start_block();
  async_start_block();
  if (mode.checked) race_start_block(int(warps.size()));

  std::vector<int> order(warps.size());
  for (size_t i = 0; i < order.size(); i++) order[i] = int(mode.order == Mode::Reversed ? order.size() - 1 - i : i);
  for (;;) {
    if (mode.order == Mode::Random) {
      for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[random_below(uint32_t(i))]);
      if (random_below(4) == 0) async_land_one();
    }
    bool progress = false, all_done = true;
    for (int w : order) {
      progress |= run_warp(warps[size_t(w)]);
      all_done &= warps[size_t(w)].done;
    }
    if (all_done) break;
    if (!progress && !async_land_one()) {
      fail("deadlock", text("no thread of %s can go on\n%s", block_name().c_str(), describe_warps().c_str()));
    }
  }
  for (size_t w = 0; w < warps.size(); w++) {
    const size_t each = warps.size() / size_t(launch.cluster), group = size_t(warps[w].index) / 4;
    if (warps[w].products_issued != warps[w / each * each + group * 4].products_issued ||
        (warps[w].products_issued && group * 4 + 4 > each)) {
      fail("divergence",
           text("wgmma was not called by all four warps of warpgroup %zu of %s", group, block_name().c_str()));
    }
  }
  async_end_block();
  memory_end_block();
}

}  // namespace

uint32_t random_below(uint32_t n) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return uint32_t((random_state >> 32) * n >> 32);
}

std::string describe_warps() {
  Groups groups;
  for (const Warp& warp : warps) {
    if (!warp.done) groups.add(describe_lanes(warp), warp.agent);
  }
  std::string result;
  for (const auto& [what, members] : groups) result += "  " + numbered("warp", members) + ": " + what + "\n";
  return result;
}

bool block_ended(int rank) {
  return std::all_of(warps.begin(), warps.end(), [&](const Warp& warp) { return warp.rank != rank || warp.done; });
}

void wait_here(State state, int line) {
  Lane& lane = self();
  lane.state = state;
  lane.line = line;
  fiber_yield(lane.fiber);
}

void collective(Collective kind, const Operands& operands, int line) {
  Lane& lane = self();
  lane.kind = kind;
  lane.operands = operands;
  wait_here(State::Collective, line);
}

void barrier(int id, int threads, bool waits, int line) {
  Lane& lane = self();
  lane.barrier = id;
  lane.threads = threads;
  lane.waits = waits;
  const bool named = threads != 0;
  if (named && (id < 1 || id >= NAMED_BARRIERS)) {
    fail("barrier", text("barrier %d does not exist, named barriers are 1 to 15; %s", id, place(lane, line).c_str()));
  }
  if (named && (threads < LANES || threads % LANES || threads > int(warps.size()) / launch.cluster * LANES)) {
    fail("barrier", text("barrier %d is awaited with %d threads: not a multiple of 32 within the block; %s", id,
                         threads, place(lane, line).c_str()));
  }
  wait_here(State::Barrier, line);
}

void run_grid(const Kernel& of, void** arguments, size_t dynamic_bytes) {
  kernel = &of;
  kernel_arguments = arguments;
  random_state = mode.seed * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull;
  dim3 grid = launch.blocks;
  if (launch.cluster < 1 || launch.cluster > MOST_BLOCKS || grid.x % unsigned(launch.cluster)) {
    fail("arguments", text("%u blocks in clusters of %d", grid.x, launch.cluster));
  }
  create_lanes(size_t(launch.threads.x) * launch.threads.y * launch.threads.z * size_t(launch.cluster));
  memory_start_launch(dynamic_bytes);
  grid.x /= unsigned(launch.cluster);
  std::vector<uint64_t> order(uint64_t(grid.x) * grid.y * grid.z);
  for (size_t i = 0; i < order.size(); i++) order[i] = mode.order == Mode::Reversed ? order.size() - 1 - i : i;
  if (mode.order == Mode::Random) {
    for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[random_below(uint32_t(i))]);
  }
  for (uint64_t i : order) {
    launch.block = {unsigned(i % grid.x), unsigned(i / grid.x % grid.y), unsigned(i / grid.x / grid.y)};
    launch.block.x *= unsigned(launch.cluster);
    first_block = launch.block;
    run_cluster();
  }
  memory_end_launch();
}

}  // namespace mirage::cpu
