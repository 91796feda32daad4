// How the runner gets at a kernel: MIRAGE_ENLIST(name, blocks of a cluster), after the kernel, once for each. Nothing in
// the CUDA edition corresponds to it: emulate.py appends it to the kernel text.
#pragma once

namespace mirage::cpu {

template <class T>
constexpr const char* TYPE_NAME = "other";
#define MIRAGE_TYPE(T) \
  template <>          \
  constexpr const char* TYPE_NAME<T> = #T
MIRAGE_TYPE(float);
MIRAGE_TYPE(double);
MIRAGE_TYPE(f16);
MIRAGE_TYPE(bf16);
MIRAGE_TYPE(f8e4m3);
MIRAGE_TYPE(f8e5m2);
MIRAGE_TYPE(bool);
MIRAGE_TYPE(int8_t);
MIRAGE_TYPE(uint8_t);
MIRAGE_TYPE(int16_t);
MIRAGE_TYPE(uint16_t);
MIRAGE_TYPE(int32_t);
MIRAGE_TYPE(uint32_t);
MIRAGE_TYPE(int64_t);
MIRAGE_TYPE(uint64_t);
template <>
constexpr const char* TYPE_NAME<long long> = "int64_t";
template <>
constexpr const char* TYPE_NAME<unsigned long long> = "uint64_t";
MIRAGE_TYPE(TensorMap);
#undef MIRAGE_TYPE

template <class T>
struct ParameterOf {
  static constexpr Parameter VALUE{TYPE_NAME<T>, false, false};
};
template <class T>
struct ParameterOf<T*> {
  static constexpr Parameter VALUE{TYPE_NAME<T>, true, false};
};
template <class T>
struct ParameterOf<const T*> {
  static constexpr Parameter VALUE{TYPE_NAME<T>, true, true};
};

template <int... I>
struct Indices {};
template <int N, int... I>
struct UpTo : UpTo<N - 1, N - 1, I...> {};
template <int... I>
struct UpTo<0, I...> {
  using All = Indices<I...>;
};

template <auto Function>
struct Enlisted;
template <class... A, void (*Function)(A...)>
struct Enlisted<Function> {
  static constexpr Parameter PARAMETERS[sizeof...(A) + 1] = {ParameterOf<A>::VALUE...};
  Kernel kernel;

  Enlisted(const char* name, int cluster) : kernel{name, invoke, PARAMETERS, sizeof...(A), cluster, nullptr} {
    enlist(&kernel);
  }
  static void invoke(void** arguments) { call(arguments, typename UpTo<sizeof...(A)>::All()); }

 private:
  template <int... I>
  static void call(void** arguments, Indices<I...>) {
    Function(*static_cast<A*>(arguments[I])...);
  }
};

}  // namespace mirage::cpu

#define MIRAGE_ENLIST(name, cluster) static ::mirage::cpu::Enlisted<&name> mirage_enlisted_##name(#name, cluster)
