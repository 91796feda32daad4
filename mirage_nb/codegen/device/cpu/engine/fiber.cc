#include "fiber.h"

#include <cstdint>
#include <cstdlib>

namespace mirage::cpu {

#ifdef MIRAGE_FIBER_UCONTEXT

static ucontext_t executor;

void fiber_create(Fiber& fiber, unsigned char* stack, size_t bytes, void (*entry)()) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = bytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
}
void fiber_enter(Fiber& fiber) { swapcontext(&executor, &fiber.context); }
void fiber_yield(Fiber& fiber) { swapcontext(&fiber.context, &executor); }

#else

// Saves what the System V ABI lets a callee keep, then takes over the other stack.
extern "C" void mirage_fiber_switch(void** save, void* to);
asm(R"(
  .text
  .globl mirage_fiber_switch
  .type mirage_fiber_switch, @function
mirage_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size mirage_fiber_switch, .-mirage_fiber_switch
)");

static void* executor;

void fiber_create(Fiber& fiber, unsigned char* stack, size_t bytes, void (*entry)()) {
  constexpr int SAVED = 6;
  auto top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + bytes) & ~uintptr_t(15));
  *--top = nullptr;  // the return address of `entry`, and the alignment that a call would leave
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < SAVED; i++) *--top = nullptr;
  fiber.stack_pointer = top;
}
void fiber_enter(Fiber& fiber) { mirage_fiber_switch(&executor, fiber.stack_pointer); }
void fiber_yield(Fiber& fiber) { mirage_fiber_switch(&fiber.stack_pointer, executor); }

#endif

}  // namespace mirage::cpu
