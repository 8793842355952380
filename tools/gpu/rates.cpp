// gpu_rates [LARGEST]: what this GPU reaches in GEMMs, copies, attention, norms and AdamW,
// through the runtime's own kernels, and what its driver says of it. One JSON document on standard
// output; 3 without a GPU. LARGEST: no axis is longer (for a device that is slow).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "models/decisions/workspace.h"
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

// m tokens, k in, n out: the GEMMs of Llama-3.1-8B and GPT-2 at some lengths of a micro-batch.
struct Gemm {
  std::int64_t m, n, k;
};
constexpr Gemm kGemms[] = {{4096, 4096, 4096},    {8192, 8192, 8192},  {8192, 4096, 4096},
                           {8192, 14336, 4096},   {8192, 4096, 14336}, {16384, 14336, 4096},
                           {16384, 128256, 4096}, {16384, 2304, 768},  {16384, 3072, 768},
                           {16384, 50304, 768},   {32768, 8192, 2048}};

std::int64_t largest = std::int64_t{1} << 40;
std::int64_t at_most(std::int64_t length) {
  return std::min(length, largest);
}

// Median and deviation of the seconds of `work`, each repetition waited for.
struct Timed {
  double median = 0, deviation = 0;
  int repetitions = 0;
};
template <class Work>
Timed timed(runtime::Device& device, Work work) {
  using Clock = std::chrono::steady_clock;
  const bool slow = largest < 1024;  // what it says there is no rate
  for (int i = 0; i < (slow ? 0 : 3); ++i) work();
  device.synchronize();
  std::vector<double> found;
  const Clock::time_point began = Clock::now();
  const auto since = [](Clock::time_point then) {
    return std::chrono::duration<double>(Clock::now() - then).count();
  };
  while (static_cast<int>(found.size()) < (slow ? 1 : kLeast) ||
         (static_cast<int>(found.size()) < kMost && since(began) < (slow ? 0 : kEnoughSeconds))) {
    const Clock::time_point start = Clock::now();
    const int at_once = slow ? 1 : 4;  // so that waiting counts little
    for (int i = 0; i < at_once; ++i) work();
    device.synchronize();
    found.push_back(since(start) / at_once);
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

// Real numbers: of zeros a GEMM draws less power and runs at higher clocks.
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

void write_gemms(JsonWriter& json, runtime::Device& device, runtime::Memory& memory) {
  json.key("products");
  json.begin_array();
  const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
    return memory.allocate("matrix", Category::activations, DType::bf16, {rows, columns});
  };
  Tensor panels = memory.allocate("panels", Category::workspace, DType::fp32, {at_most(8 << 20)});
  for (Gemm p : kGemms) {
    p = {at_most(p.m), at_most(p.n), at_most(p.k)};
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

// What moves `bytes` and computes `flops`, under a name.
template <class Work>
void write_kernel(JsonWriter& json, runtime::Device& device, const std::string& name, double bytes,
                  double flops, Work work) {
  const Timed time = timed(device, work);
  json.begin_object(JsonWriter::Layout::line);
  json.member("kernel", name);
  json.member("seconds", time.median);
  json.member("deviation_seconds", time.deviation);
  json.member("bytes_per_second", bytes / time.median);
  json.member("flops_per_second", flops / time.median);
  json.end_object();
}

// Causal, of GPT-2's and Llama-3.1-8B's heads; 4 and 10 FLOPs a pair and column.
void write_attention(JsonWriter& json, runtime::Device& device, runtime::Memory& memory) {
  const kernels::AttentionShape shapes[] = {{8, at_most(2048), 12, 12, 64, 0, 0.125f},
                                            {2, at_most(4096), 32, 8, 128, 0, 0.0884f}};
  for (kernels::AttentionShape s : shapes) {
    s.sequences = at_most(s.sequences);
    const std::int64_t tokens = s.sequences * s.length, queries = s.heads * s.head_dim,
                       keys = s.kv_heads * s.head_dim;
    const auto made = [&](std::int64_t width) {
      Tensor x = memory.allocate("x", Category::activations, DType::bf16, {tokens, width});
      fill(device, x);
      return x;
    };
    Tensor q = made(queries), k = made(keys), v = made(keys), out = made(queries);
    Tensor d_out = made(queries), d_q = made(queries), d_k = made(keys), d_v = made(keys);
    Tensor rows = memory.allocate("rows", Category::activations, DType::fp32,
                                  {s.sequences, s.heads, s.length});
    Tensor scratch = memory.allocate("scratch", Category::workspace, DType::fp32,
                                     {tokens * s.heads * (2 * s.head_dim + 1) + 4096});
    const double pairs = 0.5 * static_cast<double>(tokens * s.heads * (s.length + 1));
    const double each = pairs * static_cast<double>(s.head_dim);
    const double bytes = q.bytes().real() + k.bytes().real() + v.bytes().real();
    const std::string name = std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " x " +
                             std::to_string(s.length) + " x " + std::to_string(s.head_dim);
    write_kernel(json, device, "attention forward " + name, bytes + out.bytes().real(), 4 * each,
                 [&] {
                   device.kernels().flash_forward(s, {}, q.view(), k.view(), v.view(), out.view(),
                                                  rows.view());
                 });
    write_kernel(json, device, "attention backward " + name, 2 * (bytes + out.bytes().real()),
                 10 * each, [&] {
                   device.kernels().flash_backward(s, {}, std::as_const(d_out).view(), q.view(),
                                                   k.view(), v.view(), std::as_const(out).view(),
                                                   std::as_const(rows).view(), d_q.view(),
                                                   d_k.view(), d_v.view(), scratch.view());
                 });
  }
}

void write_norms(JsonWriter& json, runtime::Device& device, runtime::Memory& memory) {
  for (const std::int64_t width : {768, 4096}) {
    const std::int64_t rows = at_most(16384);
    const auto made = [&](DType dtype, std::int64_t r, std::int64_t w) {
      return memory.allocate("x", Category::activations, dtype, {r, w});
    };
    Tensor x = made(DType::bf16, rows, width), y = made(DType::bf16, rows, width);
    Tensor weight = made(DType::bf16, 1, width), d_weight = made(DType::bf16, 1, width);
    Tensor statistics = made(DType::fp32, rows, 1);
    Tensor partial = made(DType::fp32, models::decisions::kPartialRows, width);
    fill(device, x);
    fill(device, y);
    fill(device, weight);
    const auto row = [&](Tensor& of) { return of.view().as({width}); };
    const double bytes = 2 * x.bytes().real();
    write_kernel(json, device, "RMSNorm forward " + std::to_string(width), bytes, 0, [&] {
      device.kernels().rms_norm_forward(std::as_const(x).view(), row(weight), 0, 1e-5f, y.view(),
                                        statistics.view().as({rows}));
    });
    write_kernel(json, device, "RMSNorm backward " + std::to_string(width), 2 * bytes, 0, [&] {
      device.kernels().rms_norm_backward(std::as_const(x).view(), statistics.view().as({rows}),
                                         row(weight), 0, std::as_const(y).view(), true, y.view(),
                                         row(d_weight), partial.view());
    });
  }
}

void write_optimizer(JsonWriter& json, runtime::Device& device, runtime::Memory& memory) {
  const std::int64_t n = at_most(std::int64_t{1} << 28);
  for (const bool master : {true, false}) {
    const DType moment = master ? DType::fp32 : DType::bf16;
    const auto made = [&](DType dtype) {
      return memory.allocate("x", Category::optimizer, dtype, {n});
    };
    Tensor weight = made(DType::bf16), gradient = made(DType::bf16);
    Tensor first = made(moment), second = made(moment), masters;
    if (master) masters = made(DType::fp32);
    kernels::OptimizerTensors tensors;
    tensors.weight = weight.view();
    if (master) tensors.master = masters.view();
    tensors.first_moment = first.view();
    tensors.second_moment = second.view();
    tensors.gradient = std::as_const(gradient).view();
    for (Tensor* of : {&weight, &gradient, &first, &second, &masters})
      if (*of) device.fill_bytes(of->view().data, 0, of->bytes());
    write_kernel(json, device, master ? "AdamW, fp32 master" : "AdamW, all 16 bits",
                 (master ? 28.0 : 14.0) * static_cast<double>(n), 0,
                 [&] { device.kernels().adamw(tensors, {}); });
  }
}

void write_kernels(JsonWriter& json, runtime::Device& device, runtime::Memory& memory) {
  json.key("kernels");
  json.begin_array();
  write_attention(json, device, memory);
  write_norms(json, device, memory);
  write_optimizer(json, device, memory);
  json.end_array();
}

void write_libraries(JsonWriter& json, runtime::Device& device) {
  const runtime::LibraryUse use = device.libraries();
  json.key("libraries");
  json.begin_object();
  for (const auto& [name, version] : use.versions) json.member(name, version);
  json.end_object();
  json.key("refusals");
  json.begin_array();
  for (const auto& [library, why, times] : use.refusals)
    json.value(library + ": " + why + " (" + std::to_string(times) + " times)");
  json.end_array();
}

void write_copies(JsonWriter& json, runtime::Device& device, runtime::Memory& memory) {
  json.key("copies");
  json.begin_array();
  for (const std::int64_t mib : {1, 16, 256, 2048}) {
    const std::int64_t bytes = at_most(mib << 20);
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
  write_gemms(json, device, memory);
  write_copies(json, device, memory);
  write_kernels(json, device, memory);
  write_libraries(json, device);
  json.end_object();
  return text;
}

}  // namespace plimsoll::tools

int main(int count, char** words) {
  try {
    if (count > 1) plimsoll::tools::largest = std::max(1L, std::strtol(words[1], nullptr, 10));
    std::printf("%s\n", plimsoll::tools::rates().c_str());
    return 0;
  } catch (const plimsoll::Error& error) {
    std::fprintf(stderr, "gpu_rates: %s\n", error.message().c_str());
    return 3;
  }
}
