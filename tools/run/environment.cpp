#include "tools/run/environment.h"

#include <cstdlib>
#include <ctime>

namespace plimsoll::tools {

reports::Environment environment_of(const runtime::Device& device, std::optional<Bytes> capacity,
                                    const reports::Tool& tool) {
  constexpr const char* kVariables[] = {"CUDA_DEVICE_MAX_CONNECTIONS",
                                        "CUDA_LAUNCH_BLOCKING",
                                        "CUDA_MODULE_LOADING",
                                        "CUDA_VISIBLE_DEVICES",
                                        "NCCL_ALGO",
                                        "NCCL_BUFFSIZE",
                                        "NCCL_CUMEM_ENABLE",
                                        "NCCL_NVLS_ENABLE",
                                        "NCCL_PROTO",
                                        "NVIDIA_TF32_OVERRIDE",
                                        "OMP_NUM_THREADS",
                                        "OPENBLAS_NUM_THREADS"};
  reports::Environment out;
  out.device = device.name();
  out.capacity = capacity;
  out.versions.emplace_back("compiler", __VERSION__);
  out.versions.emplace_back("plimsoll", tool.version);
  for (const char* name : kVariables)
    if (const char* value = std::getenv(name)) out.variables.emplace_back(name, value);
  return out;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[sizeof "2026-01-31T12:00:00Z"];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace plimsoll::tools
