// A fiber: a stack of its own that the executor enters and that yields back to it.
// x86-64 switches in a dozen instructions; other CPUs, or MIRAGE_FIBER_UCONTEXT, use ucontext.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) && !defined(MIRAGE_FIBER_UCONTEXT)
#define MIRAGE_FIBER_UCONTEXT
#endif
#ifdef MIRAGE_FIBER_UCONTEXT
#include <ucontext.h>
#endif

namespace mirage::cpu {

struct Fiber {
#ifdef MIRAGE_FIBER_UCONTEXT
  ucontext_t context;
#else
  void* stack_pointer;
#endif
};

// `entry` never returns.
void fiber_create(Fiber& fiber, unsigned char* stack, size_t bytes, void (*entry)());
void fiber_enter(Fiber& fiber);  // by the executor: runs the fiber until it yields
void fiber_yield(Fiber& fiber);  // by the fiber itself

}  // namespace mirage::cpu
