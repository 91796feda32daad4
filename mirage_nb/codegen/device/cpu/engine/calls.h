// What the CPU edition's headers ask of the engine. A kernel's shared object has these names undefined; the runner
// that loads it defines them (executor.cc). `line` is the line of the kernel text.
#pragma once

namespace mirage {

struct TensorMap;

namespace cpu {

// One CUDA thread, as far as kernel text sees it.
struct Thread {
  dim3 thread;   // threadIdx
  int index;     // linear in the block
  int rank = 0;  // of the block in its cluster
};
struct Launch {
  dim3 blocks, threads, block;  // gridDim, blockDim, blockIdx
  int cluster = 1;              // blocks side by side in x that run together
};
extern Thread* running;
extern Launch launch;

// Shared memory. The first call for an array in a launch places it.
struct SharedArray {
  const char* name;
  unsigned char* data = nullptr;
};
void* shared_array(SharedArray& array, size_t bytes);
unsigned char* dynamic_shared();
uint32_t shared_offset(const void* p);
// The same place in the shared memory of another block of the cluster.
void* shared_of(void* p, int rank, int line);

// Warp collectives: all lanes hand in operands, the warp runs the operation once.
enum class Collective : uint8_t {
  Sync,
  Shuffle,
  ShuffleXor,
  MmaF16,
  MmaBf16,
  MmaTf32,
  MmaF64,
  Ldmatrix,
  LdmatrixTrans,
  Wgmma,
  WgmmaFence,
  WgmmaCommit,
  WgmmaWait
};
struct Operands {
  void* out;
  const void* a;
  const void* b;
  int n;  // lane, mask, matrix count, pending groups
  const struct WgmmaShape* shape;
};
// A null Operands::a means that a is in shared memory, else it points to four fragment registers.
enum class F8 { NONE, E4M3, E5M2 };
struct WgmmaShape {
  int n;  // columns of d
  bool bf16;
  bool a_mn, b_mn;  // which index runs contiguously, as the instruction has it
  uint64_t a, b;    // descriptors
  bool tf32 = false;  // 8 along k instead of 16, a in registers
  bool add = true;    // to what d holds
  F8 a_f8 = F8::NONE, b_f8 = F8::NONE;  // the types of floats of one byte, of which there are 32 along k
};
void collective(Collective kind, const Operands& operands, int line);

// Barriers; 0 threads: all of the block, or of the cluster.
constexpr int CLUSTER_BARRIER = 16;
void barrier(int id, int threads, bool wait, int line);

void cp_async(void* shared, const void* global, int bytes, int valid_bytes, int line);
void cp_async_commit();
void cp_async_wait(int pending, int line);

void mbarrier_init(uint64_t* bar, int arrivals, int line);
void mbarrier_expect(uint64_t* bar, int bytes, int line);
void mbarrier_arrive(uint64_t* bar, int line);
void mbarrier_wait(uint64_t* bar, int parity, int line);
void fence_mbarrier_init();
void fence_proxy_async();

struct Box {
  int rank, column, row, plane;
};
void tma_load(void* shared, const TensorMap& map, uint64_t* bar, const Box& box, int line);
void bulk_load(void* shared, const void* global, int bytes, uint64_t* bar, int line);

[[noreturn]] void report_misaligned(const void* p, int bytes, int line);

// A kernel as the runner calls it: arguments by address, in the order of the parameters.
struct Parameter {
  const char* type;        // of the element, for a pointer
  bool pointer, constant;  // constant: a pointer to what the kernel only reads
};
struct Kernel {
  const char* name;
  void (*invoke)(void** arguments);
  const Parameter* parameters;
  int parameter_count;
  int cluster;
  Kernel* next;
};
void enlist(Kernel* kernel);

}  // namespace cpu
}  // namespace mirage
