// Which GPU a question is about: the one that was named, the local one, or the default.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "models/cluster_spec.h"

namespace plimsoll::tools {

inline constexpr std::string_view kDefaultGpu = "h100-sxm-80gb";

// The name of this machine's first NVIDIA GPU ("NVIDIA H200"); nothing where there is none. Read
// from the driver's files under `driver`; only where there is a GPU without such files nvidia-smi
// is asked, which takes a second.
std::optional<std::string> local_gpu(const std::string& driver = "/proc/driver/nvidia/gpus",
                                     const std::string& device = "/dev/nvidia0");

// The catalog's entry for a name as the driver gives it; nothing where the catalog has none.
std::optional<models::Gpu> gpu_by_driver_name(std::string_view name);

// GPUs by name, each parsed once.
class GpuSource {
 public:
  const models::Gpu& named(const std::string& name);  // Error{bad_input} with the nearest name
  // The local GPU, else the default. Error{bad_input}: a local GPU that the catalog does not know.
  const models::Gpu& standard();

 private:
  std::map<std::string, models::Gpu> known_;
  std::optional<models::Gpu> standard_;
};

}  // namespace plimsoll::tools
