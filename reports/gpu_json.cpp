#include "reports/gpu_json.h"

namespace plimsoll::reports {

namespace {
using Layout = JsonWriter::Layout;

void write_sourced(JsonWriter& json, const models::SourcedBytes& figure) {
  json.begin_object(Layout::line);
  json.member("bytes", figure.bytes);
  json.member("basis", figure.basis);
  json.member("source", figure.source);
  json.end_object();
}

}  // namespace

void write_gpu(JsonWriter& json, const models::Gpu& gpu) {
  json.begin_object();
  json.member("name", gpu.name);
  json.member("title", gpu.title);
  json.member("vendor", gpu.vendor);
  json.member("family", gpu.family);
  const std::string& capability = gpu.compute_capability;
  json.member("compute_capability",
              capability.empty() ? std::nullopt : std::optional<std::string>(capability));
  json.key("aliases");
  json.begin_array(Layout::line);
  for (const std::string& alias : gpu.aliases) json.value(alias);
  json.end_array();
  json.member("nominal_bytes", gpu.nominal);
  json.key("smi_total");
  if (gpu.smi_total)
    write_sourced(json, *gpu.smi_total);
  else
    json.value(nullptr);
  json.key("cuda_total");
  write_sourced(json, gpu.cuda_total);
  json.key("peak_flops");
  json.begin_object(Layout::line);
  json.member("fp32", gpu.fp32_flops);
  json.member("tf32", gpu.tf32_flops);
  json.member("bf16", gpu.bf16_flops);
  json.member("fp16", gpu.fp16_flops);
  json.member("fp8", gpu.fp8_flops);
  json.member("fp4", gpu.fp4_flops);
  json.member("int8", gpu.int8_ops);
  json.end_object();
  json.member("memory_bytes_per_second", gpu.memory_bandwidth);
  json.member("link_bytes_per_second", gpu.link_bandwidth);
  json.member("pcie_bytes_per_second", gpu.pcie_bandwidth);
  json.member("tdp_watts", gpu.tdp_watts);
  json.member("multiprocessors", gpu.multiprocessors);
  json.end_object();
}

}  // namespace plimsoll::reports
