// cp.async, mbarriers and the copy engine. Eager: a copy lands where it is issued. Deferred: cp.async lands when its
// thread waits for it, the copy engine's boxes when nobody can go on without them (in random order: at any time).
#include <algorithm>
#include <cstring>

#include "engine.h"

namespace mirage::cpu {

namespace {

struct Mbarrier {
  uint64_t* address;
  int arrivals, pending;      // per phase
  int64_t bytes = 0;          // still to come in this phase
  int phase = 0;              // parity of the current phase
  bool fenced = false;        // known to the copy engine
  Clock arriving, completed;  // what the current, the completed phase orders
};

// What Python writes into a tensor map (runtime/execution/tensor_map.py). The fastest dimension first; strides in bytes.
struct MapWords {
  uint64_t magic, address;
  uint32_t rank, element_bytes, swizzle, argument;
  uint64_t size[3], stride[3];
  uint32_t box[3];
};
constexpr uint64_t MAP_MAGIC = 0x70616d6567617269;
static_assert(sizeof(MapWords) <= sizeof(TensorMap));

struct Bulk {
  unsigned char* to;
  const unsigned char* from;  // of a contiguous copy
  MapWords map;
  Box box;
  size_t bytes;
  uint64_t* bar;
  Clock issued;
  int line;
};

std::vector<Mbarrier> mbarriers;
std::vector<Bulk> bulks;

Mbarrier* find(const uint64_t* bar) {
  for (Mbarrier& m : mbarriers)
    if (m.address == bar) return &m;
  return nullptr;
}

Mbarrier& need(const uint64_t* bar, const char* call, int line) {
  if (Mbarrier* m = find(bar)) return *m;
  fail("mbarrier", text("%s on an mbarrier that was never initialised; %s", call, place(self(), line).c_str()));
}

void complete_phase(Mbarrier& m) {
  if (m.pending != 0 || m.bytes != 0) return;
  m.phase ^= 1;
  m.pending = m.arrivals;
  m.completed = m.arriving;
}

MapWords words(const TensorMap& map) {
  MapWords w;
  memcpy(&w, map.bytes, sizeof w);
  return w;
}

uintptr_t swizzled(uintptr_t address, uint32_t swizzle) {
  return swizzle ? address ^ ((address >> 7 & (swizzle / 16 - 1)) << 4) : address;
}

// One row of the box, in chunks of 16 bytes; what lies outside the tensor is zero.
void land_row(const Bulk& bulk, int64_t row, int64_t plane, unsigned char* to) {
  const MapWords& map = bulk.map;
  const int64_t element = map.element_bytes, bytes = map.box[0] * element;
  const bool inside = row >= 0 && row < int64_t(map.size[1]) && plane >= 0 && plane < int64_t(map.size[2]);
  std::vector<unsigned char> buffer(size_t(bytes), 0);
  if (inside) {
    const int64_t first = std::max<int64_t>(bulk.box.column, 0);
    const int64_t last = std::min<int64_t>(bulk.box.column + map.box[0], int64_t(map.size[0]));
    if (first < last) {
      const auto source = reinterpret_cast<const unsigned char*>(map.address) + plane * int64_t(map.stride[2]) +
                          row * int64_t(map.stride[1]) + first * element;
      check_global(source, size_t((last - first) * element), size_t(element), "tma_load", bulk.line);
      memcpy(&buffer[size_t((first - bulk.box.column) * element)], source, size_t((last - first) * element));
    }
  }
  for (int64_t i = 0; i < bytes; i += 16) {
    const uintptr_t at = swizzled(reinterpret_cast<uintptr_t>(to + i), map.swizzle);
    memcpy(reinterpret_cast<void*>(at), &buffer[size_t(i)], 16);
  }
}

void land(const Bulk& bulk) {
  Mbarrier* m = find(bulk.bar);
  if (mode.checked) race_copy_write(bulk.issued, m->arriving, bulk.to, bulk.bytes, bulk.line);
  if (bulk.from) {
    memcpy(bulk.to, bulk.from, bulk.bytes);
  } else {
    unsigned char* to = bulk.to;
    const size_t row_bytes = size_t(bulk.map.box[0]) * bulk.map.element_bytes;
    for (int p = 0; p < int(bulk.map.box[2]); p++)
      for (int r = 0; r < int(bulk.map.box[1]); r++, to += row_bytes)
        land_row(bulk, bulk.box.row + r, bulk.box.plane + p, to);
  }
  m->bytes -= int64_t(bulk.bytes);
  complete_phase(*m);
}

void issue(Bulk bulk, const char* call) {
  const Mbarrier& m = need(bulk.bar, call, bulk.line);
  if (!m.fenced) {
    fail("mbarrier", text("%s on an mbarrier whose mbarrier_init was not followed by fence_mbarrier_init; %s", call,
                          place(self(), bulk.line).c_str()));
  }
  if (mode.checked) bulk.issued = race_clock(self().agent);
  if (mode.deferred) {
    bulks.push_back(bulk);
  } else {
    land(bulk);
  }
}

}  // namespace

// cp.async ---------------------------------------------------------------------------------------------------

static void land(const Copy& copy) {
  if (mode.checked) race_write(self().agent, copy.shared, size_t(copy.bytes), copy.line);
  auto to = static_cast<unsigned char*>(copy.shared);
  if (copy.valid) memcpy(to, copy.global, size_t(copy.valid));
  memset(to + copy.valid, 0, size_t(copy.bytes - copy.valid));
}

void cp_async(void* shared, const void* global, int bytes, int valid, int line) {
  Lane& lane = self();
  lane.line = line;
  check_shared(shared, size_t(bytes), size_t(bytes), "cp_async", line);
  if (valid < 0 || valid > bytes) {
    fail("arguments", text("cp_async of %d bytes with %d valid ones; %s", bytes, valid, place(lane, line).c_str()));
  }
  if (valid) check_global(global, size_t(valid), size_t(bytes), "cp_async", line);
  // The destination may change from now on, whenever the copy lands.
  if (mode.checked) race_write(lane.agent, shared, size_t(bytes), line);
  const Copy copy{shared, global, bytes, valid, lane.group, line};
  if (!mode.deferred) land(copy);
  lane.copies.push_back(copy);
}

void cp_async_commit() { self().group++; }

void cp_async_wait(int pending, int line) {
  Lane& lane = self();
  lane.line = line;
  size_t done = 0;
  while (done < lane.copies.size() && lane.copies[done].group < lane.group - pending) {
    // Visible to others only after this wait: eager copies are written down once more.
    if (mode.deferred) {
      land(lane.copies[done]);
    } else if (mode.checked) {
      race_write(lane.agent, lane.copies[done].shared, size_t(lane.copies[done].bytes), line);
    }
    done++;
  }
  lane.copies.erase(lane.copies.begin(), lane.copies.begin() + long(done));
}

// mbarriers --------------------------------------------------------------------------------------------------

void mbarrier_init(uint64_t* bar, int arrivals, int line) {
  check_shared(bar, 8, 8, "mbarrier_init", line);
  if (arrivals < 1) fail("mbarrier", text("mbarrier_init with %d arrivals; %s", arrivals, place(self(), line).c_str()));
  if (find(bar)) fail("mbarrier", text("mbarrier_init of an mbarrier in use; %s", place(self(), line).c_str()));
  if (mode.checked) race_write(self().agent, bar, 8, line);
  mbarriers.push_back({bar, arrivals, arrivals, 0, 0, false, {}, {}});
}

void fence_mbarrier_init() {
  for (Mbarrier& m : mbarriers) m.fenced = true;
}

void fence_proxy_async() {
  if (mode.checked) race_proxy_fence(self().agent, self().line);
}

void mbarrier_expect(uint64_t* bar, int bytes, int line) {
  Mbarrier& m = need(bar, "mbarrier_arrive_expect_tx", line);
  if (mode.checked) race_read(self().agent, bar, 8, line);
  m.bytes += bytes;
}

void mbarrier_arrive(uint64_t* bar, int line) {
  self().line = line;
  Mbarrier& m = need(bar, "mbarrier_arrive", line);
  if (mode.checked) {
    race_read(self().agent, bar, 8, line);
    race_release(self().agent, m.arriving, line);
  }
  if (m.pending == 0) {
    fail("mbarrier",
         text("more arrivals in one phase than the %d of mbarrier_init; %s", m.arrivals, place(self(), line).c_str()));
  }
  m.pending--;
  complete_phase(m);
}

void mbarrier_wait(uint64_t* bar, int parity, int line) {
  need(bar, "mbarrier_wait", line);
  if (parity != 0 && parity != 1) {
    fail("mbarrier", text("mbarrier_wait with parity %d, not 0 or 1; %s", parity, place(self(), line).c_str()));
  }
  Lane& lane = self();
  lane.line = line;
  if (mode.checked) race_read(lane.agent, bar, 8, line);
  lane.mbarrier = bar;
  lane.parity = parity;
  if (!mbarrier_passed(bar, parity)) wait_here(State::Mbarrier, line);
  if (mode.checked) race_acquire(lane.agent, find(bar)->completed);
}

bool mbarrier_passed(uint64_t* bar, int parity) { return find(bar)->phase != parity; }

std::string describe_mbarrier(const uint64_t* bar) {
  const Mbarrier* m = find(bar);
  return text("the mbarrier at shared address %u is in phase %d, %d of %d arrivals and %lld bytes to come",
              shared_offset(bar), m->phase, m->pending, m->arrivals, static_cast<long long>(m->bytes));
}

// Boxes ------------------------------------------------------------------------------------------------------

void place_tensor_map(TensorMap& map) {
  MapWords w = words(map);
  if (w.magic != MAP_MAGIC) fail("arguments", "an argument is not a tensor map");
  w.address += reinterpret_cast<uint64_t>(argument_data(int(w.argument)));
  memcpy(map.bytes, &w, sizeof w);
}

void tma_load(void* shared, const TensorMap& map, uint64_t* bar, const Box& box, int line) {
  self().line = line;
  const MapWords w = words(map);
  if (w.magic != MAP_MAGIC)
    fail("arguments", text("tma_load of something that is no tensor map; %s", place(self(), line).c_str()));
  if (int(w.rank) != box.rank) {
    fail("arguments",
         text("tma_load_%dd with a map of %u dimensions; %s", box.rank, w.rank, place(self(), line).c_str()));
  }
  const size_t bytes = size_t(w.box[0]) * w.box[1] * w.box[2] * w.element_bytes;
  check_shared(shared, bytes, std::max<size_t>(128, w.swizzle * 8), "tma_load", line);
  issue({static_cast<unsigned char*>(shared), nullptr, w, box, bytes, bar, {}, line}, "tma_load");
}

void bulk_load(void* shared, const void* global, int bytes, uint64_t* bar, int line) {
  self().line = line;
  if (bytes <= 0 || bytes % 16)
    fail("arguments", text("bulk_load of %d bytes; %s", bytes, place(self(), line).c_str()));
  check_shared(shared, size_t(bytes), 16, "bulk_load", line);
  check_global(global, size_t(bytes), 16, "bulk_load", line);
  issue({static_cast<unsigned char*>(shared),
         static_cast<const unsigned char*>(global),
         {},
         {},
         size_t(bytes),
         bar,
         {},
         line},
        "bulk_load");
}

void async_start_block() {
  mbarriers.clear();
  bulks.clear();
}

bool async_land_one() {
  if (bulks.empty()) return false;
  const size_t i = mode.order == Mode::Random ? random_below(uint32_t(bulks.size())) : 0;
  const Bulk bulk = bulks[i];
  bulks.erase(bulks.begin() + long(i));
  land(bulk);
  return true;
}

void async_end_block() {
  if (bulks.empty()) return;
  fail("mbarrier", text("block (%u,%u,%u) ended while a copy from line %d was on its way: nobody waited for it",
                        launch.block.x, launch.block.y, launch.block.z, bulks[0].line));
}

}  // namespace mirage::cpu
