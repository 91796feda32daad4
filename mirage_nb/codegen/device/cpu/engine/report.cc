// How a run ends badly: one kind, one message, into the file `report`; then the runner exits with status 3.
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <fcntl.h>
#include <sys/time.h>
#include <unistd.h>

#include "engine.h"

namespace mirage::cpu {

namespace {

const unsigned char* stacks_begin = nullptr;
size_t stack_span = 0, stack_count = 0;
double seconds = 0;

std::string cause(int signal, const void* address) {
  switch (signal) {
    case SIGFPE: return "divides an integer by zero";
    case SIGILL: return "runs an instruction that this CPU does not have";
    case SIGABRT: return "aborts";
    default: break;
  }
  const auto p = static_cast<const unsigned char*>(address);
  if (stack_count && p >= stacks_begin && p < stacks_begin + stack_span * stack_count) {
    return "needs more stack than a CPU thread here has";
  }
  const std::string where = describe_address(p);
  return where.empty() ? text("touches the address %p, which is in no argument and not in shared memory", address)
                       : "touches " + where;
}

void on_signal(int signal, siginfo_t* info, void*) {
  const std::string who = running ? place(self(), self().line) : "before the first thread";
  fail("crash", text("the kernel %s; %s", cause(signal, info->si_addr).c_str(), who.c_str()));
}

void on_alarm(int) {
  fail("timeout", text("still running after %.3g s, in block (%u,%u,%u)\n%s", seconds, launch.block.x,
                       launch.block.y, launch.block.z, describe_warps().c_str()));
}

}  // namespace

std::string text(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  char buffer[4096];
  vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

std::string place(const Thread& thread, int line) {
  return text("thread (%u,%u,%u), warp %d, of block (%u,%u,%u), %s line %d", thread.thread.x, thread.thread.y,
              thread.thread.z, warp_of(thread), launch.block.x, launch.block.y, launch.block.z,
              line ? "at or after" : "before its first library call,", line);
}

void fail(const char* kind, const std::string& message) {
  const int file = open("report", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const std::string report = text("%s\n", kind) + message;
  if (file < 0 || write(file, report.data(), report.size()) < 0) _exit(4);
  _exit(3);
}

void watch_signals(double timeout_seconds) {
  static unsigned char signal_stack[64 << 10];
  stack_t stack{};
  stack.ss_sp = signal_stack;
  stack.ss_size = sizeof signal_stack;
  sigaltstack(&stack, nullptr);
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(signal, &action, nullptr);
  struct sigaction timer{};
  timer.sa_handler = on_alarm;
  timer.sa_flags = SA_ONSTACK;
  sigaction(SIGALRM, &timer, nullptr);
  seconds = timeout_seconds;
  itimerval left{};
  left.it_value.tv_sec = static_cast<time_t>(seconds);
  left.it_value.tv_usec = static_cast<suseconds_t>((seconds - left.it_value.tv_sec) * 1e6);
  setitimer(ITIMER_REAL, &left, nullptr);
}

void watch_stacks(const unsigned char* stacks, size_t stack_bytes, size_t count) {
  stacks_begin = stacks;
  stack_span = stack_bytes;
  stack_count = count;
}

}  // namespace mirage::cpu
