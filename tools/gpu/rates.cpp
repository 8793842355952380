// gpu_rates: what this GPU reaches in products and copies, through the runtime's own kernels, and
// what its driver says of it. One JSON document on standard output; 3 without a GPU.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "reports/json_writer.h"
#include "runtime/comm/nccl_ranks.h"
#include "runtime/device_cuda.h"
#include "runtime/memory.h"
#include "runtime/probe.h"

namespace plimsoll::tools {

namespace {

using models::Category;
using reports::JsonWriter;
using runtime::Tensor;

constexpr double kEnoughSeconds = 0.3;  // of each rate
constexpr int kLeast = 5, kMost = 200;

// m tokens, k in, n out: the products of Llama-3.1-8B and GPT-2 at some lengths of a micro-batch.
struct Product {
  std::int64_t m, n, k;
};
constexpr Product kProducts[] = {{4096, 4096, 4096},    {8192, 8192, 8192},  {8192, 4096, 4096},
                                 {8192, 14336, 4096},   {8192, 4096, 14336}, {16384, 14336, 4096},
                                 {16384, 128256, 4096}, {16384, 2304, 768},  {16384, 3072, 768},
                                 {16384, 50304, 768},   {32768, 8192, 2048}};

// Median and deviation of the seconds of `work`, each repetition waited for.
struct Timed {
  double median = 0, deviation = 0;
  int repetitions = 0;
};
template <class Work>
Timed timed(runtime::Device& device, Work work) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < 3; ++i) work();
  device.synchronize();
  std::vector<double> found;
  const Clock::time_point began = Clock::now();
  const auto since = [](Clock::time_point then) {
    return std::chrono::duration<double>(Clock::now() - then).count();
  };
  while (static_cast<int>(found.size()) < kLeast ||
         (static_cast<int>(found.size()) < kMost && since(began) < kEnoughSeconds)) {
    const Clock::time_point start = Clock::now();
    constexpr int kAtOnce = 4;  // so that waiting counts little
    for (int i = 0; i < kAtOnce; ++i) work();
    device.synchronize();
    found.push_back(since(start) / kAtOnce);
  }
  const auto middle = [](std::vector<double>& values) {
    std::nth_element(values.begin(),
                     values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
  };
  Timed result;
  result.repetitions = static_cast<int>(found.size());
  result.median = middle(found);
  for (double& seconds : found) seconds = std::abs(seconds - result.median);
  result.deviation = middle(found);
  return result;
}

void write_reading(JsonWriter& json, const runtime::GpuReading& reading) {
  json.begin_object(JsonWriter::Layout::line);
  json.member("free_bytes", reading.free);
  json.member("total_bytes", reading.total);
  json.member("sm_clock_hertz", reading.sm_clock_hertz);
  json.member("memory_clock_hertz", reading.memory_clock_hertz);
  json.member("power_watts", reading.power_watts);
  json.member("power_limit_watts", reading.power_limit_watts);
  json.member("temperature_celsius", reading.temperature_celsius);
  json.member("other_processes", reading.other_processes);
  json.end_object();
}

void write_facts(JsonWriter& json) {
  const runtime::GpuFacts facts = runtime::gpu_facts(0);
  json.key("gpu");
  json.begin_object(JsonWriter::Layout::line);
  json.member("name", facts.name);
  json.member("driver", facts.driver);
  json.member("cuda_driver", facts.cuda_driver);
  json.member("cuda_runtime", facts.cuda_runtime);
  json.member("nccl", runtime::comm::nccl_version());
  json.member("capability", facts.capability);
  json.member("multiprocessors", facts.multiprocessors);
  json.end_object();
}

// Real numbers: of zeros a product draws less power and runs at higher clocks.
void fill(runtime::Device& device, Tensor& tensor) {
  std::vector<std::uint16_t> values(static_cast<std::size_t>(tensor.view().elements()));
  std::uint32_t state = 1;
  for (std::uint16_t& value : values) {
    state = state * 1664525u + 1013904223u;
    // bf16 of either sign between 0.5 and 2
    value = static_cast<std::uint16_t>((state >> 16 & 0x80ffu) | 0x3f00u);
  }
  device.copy_in(tensor.view().data, values.data(), tensor.bytes());
}

void write_products(JsonWriter& json, runtime::Device& device, runtime::Memory& memory) {
  json.key("products");
  json.begin_array();
  const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
    return memory.allocate("matrix", Category::activations, DType::bf16, {rows, columns});
  };
  Tensor panels = memory.allocate("panels", Category::workspace, DType::fp32, {8 << 20});
  for (const Product& p : kProducts) {
    Tensor x = matrix(p.m, p.k), weight = matrix(p.n, p.k), y = matrix(p.m, p.n);
    fill(device, x);
    fill(device, weight);
    const Timed time = timed(device, [&] {
      device.kernels().linear_forward(x.view(), weight.view(), {}, {}, y.view(), panels.view());
    });
    json.begin_object(JsonWriter::Layout::line);
    json.member("dtype", "bf16");
    json.member("m", p.m);
    json.member("n", p.n);
    json.member("k", p.k);
    json.member("seconds", time.median);
    json.member("deviation_seconds", time.deviation);
    json.member("repetitions", time.repetitions);
    json.member("flops_per_second", 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) *
                                        static_cast<double>(p.k) / time.median);
    json.key("after");
    write_reading(json, runtime::read_gpu(0));
    json.end_object();
  }
  json.end_array();
}

void write_copies(JsonWriter& json, runtime::Device& device, runtime::Memory& memory) {
  json.key("copies");
  json.begin_array();
  for (const std::int64_t mib : {1, 16, 256, 2048}) {
    const std::int64_t bytes = mib << 20;
    Tensor from = memory.allocate("from", Category::activations, DType::uint8, {bytes});
    Tensor to = memory.allocate("to", Category::activations, DType::uint8, {bytes});
    const Timed time =
        timed(device, [&] { device.copy(to.view().data, from.view().data, Bytes(bytes)); });
    json.begin_object(JsonWriter::Layout::line);
    json.member("bytes", bytes);
    json.member("seconds", time.median);
    json.member("deviation_seconds", time.deviation);
    // Read once and written once.
    json.member("bytes_per_second", 2.0 * static_cast<double>(bytes) / time.median);
    json.end_object();
  }
  json.end_array();
}

}  // namespace

std::string rates() {
  runtime::Device& device =
      runtime::cuda_device(0, {.mode = kernels::cuda::Mode::fast, .libraries = true});
  std::string text;
  JsonWriter json(text, JsonWriter::Style::pretty);
  json.begin_object();
  json.member("schema", "plimsoll.gpu_rates/1");
  write_facts(json);
  json.key("before");
  write_reading(json, runtime::read_gpu(0));
  runtime::Memory memory(device, 0, {});
  write_products(json, device, memory);
  write_copies(json, device, memory);
  json.end_object();
  return text;
}

}  // namespace plimsoll::tools

int main() {
  try {
    std::printf("%s\n", plimsoll::tools::rates().c_str());
    return 0;
  } catch (const plimsoll::Error& error) {
    std::fprintf(stderr, "gpu_rates: %s\n", error.message().c_str());
    return 3;
  }
}
