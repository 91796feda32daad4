// The memory that a kernel sees: shared arrays and arguments, each on pages of its own between pages that nobody may
// touch, its end as close to the next page as its alignment lets it; canaries fill what is left.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <deque>

#include "engine.h"

namespace mirage::cpu {

namespace {

constexpr unsigned char POISON = 0xff;  // NaN in every float type
constexpr unsigned char CANARY = 0xa5;
constexpr size_t DYNAMIC_ALIGNMENT = 1024, STATIC_ALIGNMENT = 128, ARGUMENT_ALIGNMENT = 16;

std::deque<Region> arguments;
std::deque<Region> shared;  // the dynamic part first
std::vector<SharedArray*> shared_arrays;
unsigned char* arena = nullptr;
size_t arena_used = 0, dynamic_bytes = 0, static_bytes = 0;

size_t page() { return size_t(sysconf(_SC_PAGESIZE)); }
size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
size_t pages_for(size_t bytes) { return round_up(bytes ? bytes : 1, page()); }

// `at` is followed by `pages_for(bytes)` readable bytes and a page that is not.
Region make_region(const std::string& name, unsigned char* at, size_t bytes, size_t alignment, bool constant) {
  unsigned char* end = at + pages_for(bytes);
  unsigned char* begin = end - round_up(bytes, alignment);
  memset(at, CANARY, size_t(end - at));
  return {name, begin, begin + bytes, at, end, constant};
}

void check_canaries(const Region& region, const char* when) {
  auto check = [&](const unsigned char* from, const unsigned char* to) {
    for (const unsigned char* p = from; p < to; p++) {
      if (*p != CANARY) fail("bounds", text("%s was written%s", describe_address(p).c_str(), when));
    }
  };
  check(region.pages_begin, region.begin);
  check(region.end, region.pages_end);
}

Region& add_shared(const std::string& name, size_t bytes, size_t alignment) {
  (shared.empty() ? dynamic_bytes : static_bytes) += bytes;
  // The dynamic part comes after the static one, on its own alignment.
  const size_t all = dynamic_bytes ? round_up(static_bytes, DYNAMIC_ALIGNMENT) + dynamic_bytes : static_bytes;
  if (all > mode.shared_limit) {
    fail("arguments",
         text("the block needs %zu bytes of shared memory, more than the %zu there are", all, mode.shared_limit));
  }
  const size_t span = pages_for(bytes), first = shared.size();
  if (arena_used + span + page() > SHARED_SPAN) fail("arguments", "too many shared arrays in one kernel");
  for (int rank = 0; rank < launch.cluster; rank++) {
    unsigned char* at = arena + size_t(rank) * SHARED_SPAN + arena_used;
    mprotect(at, span, PROT_READ | PROT_WRITE);
    shared.push_back(make_region(name, at, bytes, alignment, false));
  }
  arena_used += span + page();
  return shared[first];
}

const Region* region_of(const std::deque<Region>& regions, const void* p) {
  for (const Region& region : regions)
    if (p >= region.begin && p < region.end) return &region;
  return nullptr;
}

void check_range(const std::deque<Region>& regions, const char* space, const void* p, size_t bytes, size_t alignment,
                 const char* call, int line) {
  if (reinterpret_cast<uintptr_t>(p) % alignment) {
    fail("alignment",
         text("%s needs an address that is a multiple of %zu; %s", call, alignment, place(self(), line).c_str()));
  }
  const Region* region = region_of(regions, p);
  if (region && static_cast<const unsigned char*>(p) + bytes <= region->end) return;
  const auto last = static_cast<const unsigned char*>(p) + (region ? bytes - 1 : 0);
  const std::string where = describe_address(last);
  fail("bounds", text("%s of %zu bytes touches %s; %s", call, bytes,
                      where.empty() ? text("memory that is not %s memory", space).c_str() : where.c_str(),
                      place(self(), line).c_str()));
}

}  // namespace

Region& add_argument(const std::string& name, size_t bytes, bool constant) {
  const size_t span = pages_for(bytes);
  void* base = mmap(nullptr, span + 2 * page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  unsigned char* at = static_cast<unsigned char*>(base) + page();
  if (base == MAP_FAILED || mprotect(at, span, PROT_READ | PROT_WRITE)) {
    fail("memory", text("no memory for %s of %zu bytes", name.c_str(), bytes));
  }
  arguments.push_back(make_region(name, at, bytes, ARGUMENT_ALIGNMENT, constant));
  return arguments.back();
}

unsigned char* argument_data(int number) {
  if (number < 0 || size_t(number) >= arguments.size()) fail("arguments", "a tensor map of no argument");
  return arguments[size_t(number)].begin;
}

void memory_start_launch(size_t dynamic) {
  void* base = mmap(nullptr, SHARED_SPAN * size_t(launch.cluster), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) fail("memory", "no memory for shared memory");
  arena = static_cast<unsigned char*>(base);
  arena_used = page();
  add_shared("dynamic shared memory", dynamic, DYNAMIC_ALIGNMENT);
}

void memory_start_block() {
  for (Region& region : shared) memset(region.begin, POISON, size_t(region.end - region.begin));
}

void memory_end_block() {
  const std::string when = text(" by block (%u,%u,%u)", launch.block.x, launch.block.y, launch.block.z);
  for (const Region& region : shared) check_canaries(region, when.c_str());
}

void memory_end_launch() {
  for (const Region& region : arguments) check_canaries(region, "");
}

void* shared_array(SharedArray& array, size_t bytes) {
  if (!array.data) {
    Region& region = add_shared(text("shared array %s", array.name), bytes, STATIC_ALIGNMENT);
    array.data = region.begin;
    for (int rank = 0; rank < launch.cluster; rank++) memset(array.data + size_t(rank) * SHARED_SPAN, POISON, bytes);
  }
  return array.data + size_t(running->rank) * SHARED_SPAN;
}

unsigned char* dynamic_shared() { return shared[size_t(running->rank)].begin; }
unsigned char* shared_base() { return arena; }
bool is_shared(const void* p) {
  return size_t(static_cast<const unsigned char*>(p) - arena) < SHARED_SPAN * size_t(launch.cluster);
}

void* shared_of(void* p, int rank, int line) {
  self().line = line;
  if (rank < 0 || rank >= launch.cluster || !is_shared(p) || block_ended(rank)) {
    fail("cluster", text("there is no shared memory of block %d of this cluster of %d, or it has ended; %s", rank,
                         launch.cluster, place(self(), line).c_str()));
  }
  return static_cast<unsigned char*>(p) + (rank - running->rank) * long(SHARED_SPAN);
}

uint32_t shared_offset(const void* p) {
  if (!is_shared(p))
    fail("bounds", text("an address that should be in shared memory is not; %s", place(self(), self().line).c_str()));
  return uint32_t(static_cast<const unsigned char*>(p) - arena);
}

void check_shared(const void* p, size_t bytes, size_t alignment, const char* call, int line) {
  check_range(shared, "shared", p, bytes, alignment, call, line);
}

void check_global(const void* p, size_t bytes, size_t alignment, const char* call, int line) {
  check_range(arguments, "global", p, bytes, alignment, call, line);
}

std::string describe_address(const void* address) {
  const auto p = static_cast<const unsigned char*>(address);
  for (const auto* regions : {&shared, &arguments}) {
    for (const Region& region : *regions) {
      if (p < region.pages_begin - page() || p >= region.pages_end + page() || (p >= region.begin && p < region.end))
        continue;
      const size_t size = size_t(region.end - region.begin);
      if (p >= region.end && (regions == &arguments || p < region.pages_end + page())) {
        return text("memory %zu bytes past the end of %s (%zu bytes)", size_t(p - region.end), region.name.c_str(),
                    size);
      }
      return text("memory %zu bytes before %s", size_t(region.begin - p), region.name.c_str());
    }
  }
  return "";
}

void check_access(const void* address, size_t bytes, bool write) {
  const auto p = static_cast<const unsigned char*>(address);
  auto check = [&](const Region& region) {
    if (p + bytes <= region.pages_begin || p >= region.pages_end) return false;
    const unsigned char* outside = p < region.begin ? p : p + bytes > region.end ? p + bytes - 1 : nullptr;
    if (outside) {
      fail("bounds", text("the kernel %s %s; %s", write ? "writes" : "reads", describe_address(outside).c_str(),
                          place(self(), self().line).c_str()));
    }
    if (write && region.constant) {
      fail("bounds",
           text("the kernel writes %s, an input; %s", region.name.c_str(), place(self(), self().line).c_str()));
    }
    return true;
  };
  for (const Region& region : shared)
    if (check(region)) return;
  for (const Region& region : arguments)
    if (check(region)) return;
}

void report_misaligned(const void* p, int bytes, int line) {
  const Region* region = region_of(shared, p);
  if (!region) region = region_of(arguments, p);
  const std::string where =
      region
          ? text("byte %zu of %s", size_t(static_cast<const unsigned char*>(p) - region->begin), region->name.c_str())
          : "an address";
  fail("alignment", text("an access of %d bytes at %s that is not a multiple of %d; %s", bytes, where.c_str(), bytes,
                         place(self(), line).c_str()));
}

}  // namespace mirage::cpu
