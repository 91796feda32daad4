// The engine of the CPU edition: runs the blocks of one launch, one after the other, on one OS thread.
//
// In: a kernel (calls.h), its arguments, an order of warps, eager or deferred copies. Out: the arguments as the kernel
// leaves them, or a report of the first mistake (report.cc), after which the runner exits.
// A warp's lanes are fibers; each runs until it waits. A collective is done once, when all lanes wait in it.
// Invariant: whatever a kernel computes here in some order it may compute on a GPU; a mistake that this file names
// is a mistake there.
#pragma once

#include <string>
#include <vector>

#include "../../mirage_device.cuh"
#include "fiber.h"
#include "race.h"

namespace mirage::cpu {

constexpr int LANES = 32;
constexpr int NAMED_BARRIERS = 16;

enum class State : uint8_t { Ready, Collective, Barrier, Mbarrier, Done };

// A cp.async on its way.
struct Copy {
  void* shared;
  const void* global;
  int bytes, valid, group, line;
};

struct Lane : Thread {
  int agent = 0;  // its warp, among those of the cluster
  Fiber fiber;
  State state = State::Done;
  int line = 0;  // of the last call into the library
  Collective kind{};
  Operands operands{};
  int barrier = 0, threads = 0;
  bool waits = false;
  uint64_t* mbarrier = nullptr;
  int parity = 0;
  std::vector<Copy> copies;
  int group = 0;

  void start() {
    state = State::Ready;
    line = group = 0;
    copies.clear();
  }
};

// A wgmma of one warp on its way: its operands, and a's fragments if they came in registers.
struct Product {
  WgmmaShape shape;
  float* d[LANES];
  uint32_t a[LANES][4];
  bool a_registers;
  int group, line;
};

struct Warp {
  int index = 0, count = 0;
  int agent = 0, rank = 0;  // among the warps of the cluster; of its block there
  Lane* lanes = nullptr;
  bool waiting = false, done = false;  // waiting: arrived at a barrier
  std::vector<Product> products;
  int group = 0, products_issued = 0;

  void start() {
    waiting = done = false;
    group = products_issued = 0;
    products.clear();
  }
};

// How a launch runs.
struct Mode {
  bool deferred = false;  // asynchronous copies and products land as late as they may
  bool checked = false;   // the kernel was compiled with its accesses reported to race.cc
  enum { Forward, Reversed, Random } order = Forward;
  uint64_t seed = 0;
  size_t shared_limit = 0;  // bytes of shared memory per block
};
extern Mode mode;

inline Lane& self() { return *static_cast<Lane*>(running); }
inline int warp_of(const Thread& thread) { return thread.index / LANES; }
uint32_t random_below(uint32_t n);

// executor.cc
void run_grid(const Kernel& kernel, void** arguments, size_t dynamic_bytes);
void wait_here(State state, int line);  // the running lane yields until the executor makes it Ready
std::string describe_warps();
bool block_ended(int rank);

// collectives.cc
void run_collective(Warp& warp);
void finish_products(Warp& warp, int pending);

// async.cc
void async_start_block();
bool async_land_one();  // false: nothing is on its way
void async_end_block();
bool mbarrier_passed(uint64_t* bar, int parity);
std::string describe_mbarrier(const uint64_t* bar);
void place_tensor_map(TensorMap& map);  // argument number -> address

// memory.cc
struct Region {
  std::string name;
  unsigned char *begin, *end;              // what the kernel may touch
  unsigned char *pages_begin, *pages_end;  // what is mapped, canaries around [begin, end)
  bool constant;
};
Region& add_argument(const std::string& name, size_t bytes, bool constant);
unsigned char* argument_data(int number);
void memory_start_launch(size_t dynamic_bytes);
void memory_start_block();
void memory_end_block();
void memory_end_launch();
constexpr size_t SHARED_SPAN = 1 << 20;  // addresses for the shared arrays of one block; those of a cluster follow
unsigned char* shared_base();            // what shared addresses count from
bool is_shared(const void* p);
void check_shared(const void* p, size_t bytes, size_t alignment, const char* call, int line);
void check_global(const void* p, size_t bytes, size_t alignment, const char* call, int line);
// Where `p` lies, in words; empty if it lies inside a region or near none.
std::string describe_address(const void* p);
// For accesses of the kernel's own code: fails if [p, p + bytes) overlaps the surroundings of a region.
void check_access(const void* p, size_t bytes, bool write);

// report.cc
std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string place(const Thread& thread, int line);
[[noreturn]] void fail(const char* kind, const std::string& message);
void watch_signals(double timeout_seconds);
void watch_stacks(const unsigned char* stacks, size_t stack_bytes, size_t count);

}  // namespace mirage::cpu
