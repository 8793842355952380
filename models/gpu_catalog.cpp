#include "models/gpu_catalog.h"

#include <fmt/format.h>

#include "models/base/utf8.h"
#include "models/config_reader.h"
#include "models/specs/documents.h"

namespace plimsoll::models {

namespace {
std::optional<double> rate(const Config& config, const char* key) {
  if (!config.has(key)) return std::nullopt;
  return config.real(key, 0);
}

SourcedBytes cuda_total(const Config& config) {
  SourcedBytes total{Bytes(config.count("cuda_bytes", 1)), config.text("cuda_basis", "assumed"),
                     config.text("cuda_src", "")};
  const std::string note = config.text("note", "");
  if (total.basis == "assumed" && !note.empty())
    total.source += total.source.empty() ? note : "; " + note;
  return total;
}

Gpu parse_gpu(const specs::Document& document) {
  const Config config = Config::parse(document.json, "gpus.json: " + std::string(document.name));
  const Config peaks = config.section("peak_flops").value();
  Gpu gpu;
  gpu.name = config.text("id", "");
  gpu.title = config.text("name", "");
  gpu.vendor = config.text("vendor", "");
  gpu.family = config.text("family", "");
  gpu.compute_capability = config.text("cc", "");
  gpu.aliases = config.texts("aliases", 64);
  gpu.nominal = Bytes(config.count("nominal_bytes", 1));
  if (config.has("smi_bytes"))
    gpu.smi_total =
        SourcedBytes{Bytes(config.count("smi_bytes", 1)),
                     config.has("smi_src") ? "measured" : "assumed", config.text("smi_src", "")};
  gpu.cuda_total = cuda_total(config);
  gpu.fp32_flops = rate(peaks, "fp32");
  gpu.tf32_flops = rate(peaks, "tf32");
  gpu.bf16_flops = rate(peaks, "bf16");
  gpu.fp16_flops = rate(peaks, "fp16");
  gpu.fp8_flops = rate(peaks, "fp8");
  gpu.fp4_flops = rate(peaks, "fp4");
  gpu.int8_ops = rate(peaks, "int8");
  gpu.memory_bandwidth = config.real("memory_bytes_per_second", 0);
  gpu.link_bandwidth = rate(config, "link_bytes_per_second");
  gpu.pcie_bandwidth = rate(config, "host_bytes_per_second").value_or(0);
  gpu.tdp_watts = rate(config, "tdp_watts");
  if (config.has("sms")) gpu.multiprocessors = static_cast<int>(config.count("sms", 1));
  return gpu;
}
}  // namespace

std::vector<Gpu> all_gpus() {
  std::vector<Gpu> gpus;
  for (const specs::Document& document : specs::gpus().entries) gpus.push_back(parse_gpu(document));
  return gpus;
}

Gpu find_gpu(std::string_view name) {
  const specs::Document* document = specs::gpus().find(name);
  if (document == nullptr) {
    const std::string near = specs::gpus().nearest(name);
    fail(ErrorKind::bad_input,
         fmt::format("GPU '{}' is not in the catalog{}", shortened(name, 100),
                     near.empty() ? " (plimsoll gpus lists it)"
                                  : fmt::format("; did you mean '{}'?", near)));
  }
  return parse_gpu(*document);
}

void check_products(const Gpu& gpu, Precision precision) {
  check(precision != Precision::fp8_mixed || gpu.fp8_flops.has_value(), ErrorKind::bad_input, [&] {
    return "--precision fp8-mixed: " + gpu.title + " multiplies no float8 (compute capability " +
           gpu.compute_capability + "; 8.9 is the first that does: Ada, Hopper, Blackwell)";
  });
}

}  // namespace plimsoll::models
