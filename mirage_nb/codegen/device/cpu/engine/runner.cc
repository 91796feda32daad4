// The program that runs one kernel, apart from the notebook: a wrong kernel can end only this.
//
//   runner --describe MODULE     prints the name of each kernel in the shared object, then a line per parameter
//   runner FOLDER                reads FOLDER/job, runs, writes the arrays back; FOLDER/report says how it went
//
// A job is lines of words: module PATH; kernel NAME; grid X Y Z; block X Y Z; shared BYTES LIMIT;
// mode DEFERRED CHECKED; order forward|reversed|random SEED; timeout SECONDS; buffer FILE BYTES CONSTANT NAME for each
// array; then, for each parameter of the kernel, pointer BUFFER, scalar HEX or map HEX (which names its buffer).
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <sstream>

#include "engine.h"

namespace mirage::cpu {

static Kernel* kernels = nullptr;

void enlist(Kernel* kernel) {
  kernel->next = kernels;
  kernels = kernel;
}

namespace {

struct Buffer {
  std::string file;
  Region* region;
};

struct Job {
  std::string module, kernel;
  size_t shared_bytes = 0;
  double timeout = 0;
  std::vector<Buffer> buffers;
  std::deque<TensorMap> maps;
  std::deque<std::vector<unsigned char>> scalars;
  std::deque<void*> pointers;  // an argument is the address of its value: here lie the pointers
  std::vector<void*> arguments;
};

std::vector<unsigned char> from_hex(const std::string& hex) {
  std::vector<unsigned char> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<unsigned char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

void read_buffer(Job& job, std::istream& words) {
  std::string file, name;
  size_t bytes;
  bool constant;
  words >> file >> bytes >> constant;
  std::getline(words >> std::ws, name);
  Region& region = add_argument(name, bytes, constant);
  std::ifstream input(file, std::ios::binary);
  input.read(reinterpret_cast<char*>(region.begin), std::streamsize(bytes));
  if (size_t(input.gcount()) != bytes) fail("arguments", text("%s is shorter than %zu bytes", file.c_str(), bytes));
  job.buffers.push_back({file, &region});
}

void read_order(std::istream& words) {
  std::string order;
  words >> order >> mode.seed;
  mode.order = order == "random" ? Mode::Random : order == "reversed" ? Mode::Reversed : Mode::Forward;
}

void read_argument(Job& job, const std::string& word, std::istream& words) {
  std::string value;
  words >> value;
  if (word == "pointer") {
    job.pointers.push_back(argument_data(std::stoi(value)));
    job.arguments.push_back(&job.pointers.back());
  } else if (word == "map") {
    const std::vector<unsigned char> bytes = from_hex(value);
    job.maps.emplace_back();
    memcpy(job.maps.back().bytes, bytes.data(), std::min(bytes.size(), sizeof(TensorMap)));
    place_tensor_map(job.maps.back());
    job.arguments.push_back(&job.maps.back());
  } else {
    job.scalars.push_back(from_hex(value));
    job.arguments.push_back(job.scalars.back().data());
  }
}

void read_job(Job& job) {
  std::ifstream file("job");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "module") {
      std::getline(words >> std::ws, job.module);
    } else if (word == "kernel") {
      words >> job.kernel;
    } else if (word == "grid") {
      words >> launch.blocks.x >> launch.blocks.y >> launch.blocks.z;
    } else if (word == "block") {
      words >> launch.threads.x >> launch.threads.y >> launch.threads.z;
    } else if (word == "shared") {
      words >> job.shared_bytes >> mode.shared_limit;
    } else if (word == "mode") {
      words >> mode.deferred >> mode.checked;
    } else if (word == "order") {
      read_order(words);
    } else if (word == "timeout") {
      words >> job.timeout;
    } else if (word == "buffer") {
      read_buffer(job, words);
    } else {
      read_argument(job, word, words);
    }
  }
}

const Kernel* load(const std::string& module, const std::string& name) {
  if (!dlopen(module.c_str(), RTLD_NOW)) fail("module", dlerror());
  for (const Kernel* kernel = kernels; kernel; kernel = kernel->next)
    if (name == kernel->name) return kernel;
  return nullptr;
}

int describe(const char* module) {
  load(module, "");
  for (const Kernel* kernel = kernels; kernel; kernel = kernel->next) {
    printf("%s\n", kernel->name);
    for (int i = 0; i < kernel->parameter_count; i++) {
      const Parameter& parameter = kernel->parameters[i];
      printf("\t%s%s%s\n", parameter.constant ? "const " : "", parameter.type, parameter.pointer ? "*" : "");
    }
  }
  return 0;
}

int run(const char* folder) {
  if (chdir(folder)) return 4;
  Job job;
  watch_signals(0);
  read_job(job);
  watch_signals(job.timeout);
  const Kernel* kernel = load(job.module, job.kernel);
  if (!kernel) fail("arguments", "no kernel of that name");
  launch.cluster = kernel->cluster;
  const auto start = std::chrono::steady_clock::now();
  run_grid(*kernel, job.arguments.data(), job.shared_bytes);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const Buffer& buffer : job.buffers) {
    if (buffer.region->constant) continue;
    std::ofstream output(buffer.file, std::ios::binary | std::ios::trunc);
    output.write(reinterpret_cast<const char*>(buffer.region->begin), buffer.region->end - buffer.region->begin);
    if (!output.flush()) fail("memory", "the arrays could not be written back");
  }
  std::ofstream("report") << "done\n" << seconds;
  return 0;
}

}  // namespace
}  // namespace mirage::cpu

int main(int count, char** words) {
  if (count == 3 && !strcmp(words[1], "--describe")) return mirage::cpu::describe(words[2]);
  if (count == 2) return mirage::cpu::run(words[1]);
  fprintf(stderr, "usage: runner FOLDER | runner --describe MODULE\n");
  return 2;
}
