#include "race.h"

#include <sys/mman.h>

#include <vector>

#include "engine.h"

namespace mirage::cpu {

namespace {

constexpr size_t GRAIN = 1;  // bytes per cell: the smallest element

struct Cell {
  uint32_t written;  // the writer's clock, 0: never
  uint32_t writer;
  uint32_t read[COPY_ENGINE];  // each warp's clock when it last read
  uint32_t proxied;            // the warps that last read through wgmma
};

Cell* cells = nullptr;
Clock clocks[AGENTS];
int warp_count = 0;
uint32_t fenced[AGENTS];         // clock of the last fence_proxy_async
std::vector<int> lines[AGENTS];  // line at which each clock value began

void tick(int agent, int line) {
  clocks[agent].at[agent]++;
  lines[agent].push_back(line);
}

int line_of(int agent, uint32_t clock) {
  const size_t i = clock - 1;
  return i < lines[agent].size() ? lines[agent][i] : 0;
}

std::string agent_name(int agent) { return agent == COPY_ENGINE ? "the copy engine" : text("warp %d", agent); }

[[noreturn]] void race(const void* p, int agent, const char* did, int line, int other, const char* other_did,
                       uint32_t clock, const char* missing) {
  const int since = line_of(other, clock);
  fail("race", text("in block (%u,%u,%u) %s %s shared memory (address %u)%s; %s %s it %s; %s", launch.block.x,
                    launch.block.y, launch.block.z, agent_name(agent).c_str(), did, shared_offset(p),
                    line ? text(" at or after line %d", line).c_str() : "", agent_name(other).c_str(), other_did,
                    since ? text("at or after line %d", since).c_str() : "before any barrier", missing));
}

constexpr const char* NO_ORDER = "no barrier orders the two";

template <class Visit>
void each_cell(const void* p, size_t bytes, Visit visit) {
  const size_t first = shared_offset(p);
  for (size_t i = first / GRAIN; i <= (first + bytes - 1) / GRAIN; i++) visit(cells[i], shared_base() + i * GRAIN);
}

void wrote(int agent, const Clock& clock, const void* p, size_t bytes, int line) {
  each_cell(p, bytes, [&](Cell& cell, const void* at) {
    if (cell.written > clock.at[cell.writer])
      race(at, agent, "writes", line, int(cell.writer), "wrote", cell.written, NO_ORDER);
    for (int r = 0; r < warp_count; r++) {
      if (cell.read[r] > clock.at[r] && r != agent) race(at, agent, "writes", line, r, "read", cell.read[r], NO_ORDER);
    }
    cell.written = clocks[agent].at[agent];
    cell.writer = uint32_t(agent);
  });
}

}  // namespace

void race_start_block(int warps) {
  if (!cells) {
    const size_t count = SHARED_SPAN / GRAIN * size_t(launch.cluster);
    void* base = mmap(nullptr, count * sizeof(Cell), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) fail("memory", "no memory to watch for races");
    cells = static_cast<Cell*>(base);
  }
  warp_count = warps;
  // What earlier blocks did is before everything in this one.
  Clock all;
  for (const Clock& clock : clocks) all.join(clock);
  for (int a = 0; a < AGENTS; a++) {
    clocks[a] = all;
    fenced[a] = all.at[a];
    if (a < warps || a == COPY_ENGINE) tick(a, 0);
  }
}

Clock race_clock(int warp) { return clocks[warp]; }

void race_barrier(uint32_t warps, int line) {
  Clock all;
  for (int w = 0; w < 32; w++)
    if (warps >> w & 1) all.join(clocks[w]);
  for (int w = 0; w < 32; w++) {
    if (!(warps >> w & 1)) continue;
    clocks[w] = all;
    tick(w, line);
  }
}

void race_release(int warp, Clock& into, int line) {
  into.join(clocks[warp]);
  tick(warp, line);
}

void race_acquire(int warp, const Clock& from) { clocks[warp].join(from); }

void race_proxy_fence(int warp, int line) {
  fenced[warp] = clocks[warp].at[warp];
  tick(warp, line);
}

void race_read(int warp, const void* p, size_t bytes, int line) {
  const Clock& clock = clocks[warp];
  each_cell(p, bytes, [&](Cell& cell, const void* at) {
    if (cell.written > clock.at[cell.writer])
      race(at, warp, "reads", line, int(cell.writer), "wrote", cell.written, NO_ORDER);
    cell.read[warp] = clock.at[warp];
    cell.proxied &= ~(1u << warp);
  });
}

void race_write(int warp, const void* p, size_t bytes, int line) { wrote(warp, clocks[warp], p, bytes, line); }

void race_proxy_read(int warp, const void* p, size_t bytes, int line) {
  race_read(warp, p, bytes, line);
  each_cell(p, bytes, [&](Cell& cell, const void* at) {
    if (cell.writer != uint32_t(COPY_ENGINE) && cell.written > fenced[cell.writer]) {
      race(at, warp, "reads through wgmma", line, int(cell.writer), "wrote", cell.written,
           "no fence_proxy_async came after the write");
    }
    cell.proxied |= 1u << warp;
  });
}

void race_copy_write(const Clock& issued, Clock& done, const void* p, size_t bytes, int line) {
  wrote(COPY_ENGINE, issued, p, bytes, line);
  each_cell(p, bytes, [&](Cell& cell, const void* at) {
    for (int r = 0; r < warp_count; r++) {
      if (cell.read[r] > fenced[r] && !(cell.proxied >> r & 1))
        race(at, COPY_ENGINE, "writes", line, r, "read", cell.read[r], "no fence_proxy_async came after the read");
    }
  });
  done.join(issued);
  done.join(clocks[COPY_ENGINE]);
  tick(COPY_ENGINE, line);
}

}  // namespace mirage::cpu
