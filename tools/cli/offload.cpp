#include "tools/cli/offload.h"

#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {

// ZeRO-Infinity's, of what is in files.
void check_nvme(const Options& options, models::Strategy& s) {
  const std::string* to = options.find("offload-to");
  s.offload.nvme = to != nullptr && *to == "nvme";
  for (const char* option : {"offload-optimizer-buffer-count", "offload-param-buffer-count",
                             "offload-param-buffer-size", "offload-param-max-in-cpu"}) {
    const std::string* value = options.find(option);
    if (value == nullptr) continue;
    const bool states = std::string_view(option).starts_with("offload-optimizer");
    if (!s.offload.nvme || !(states ? s.offload.optimizer : s.offload.params))
      refuse_value(option, *value,
                   std::string("needs --offload ") + (states ? "optimizer" : "params") +
                       " --offload-to nvme");
  }
  if (!s.offload.nvme) return;
  if (s.stack != models::Stack::deepspeed || s.data.zero != 3)
    refuse_value("offload-to", "nvme",
                 "is ZeRO-Infinity: --stack deepspeed --zero 3 (elsewhere cpu is modelled)");
  if (!s.offload.optimizer && !s.offload.params)
    refuse_value("offload-to", "nvme", "needs --offload optimizer, params or both");
}

}  // namespace

void set_offload(const Options& options, models::Strategy& s) {
  const std::string* parts = options.find("offload");
  if (parts == nullptr || *parts == "none") {  // where a trainer's default is something else
    for (const char* option :
         {"offload-to", "offload-pin", "host-memory", "offload-optimizer-buffer-count",
          "offload-param-buffer-count", "offload-param-buffer-size", "offload-param-max-in-cpu"})
      if (const std::string* value = options.find(option))
        refuse_value(option, *value, "needs --offload");
    return;
  }
  for (const std::string& part : comma_list("offload", *parts))
    if (!models::set_offload(s.offload, part))
      refuse_value("offload", *parts,
                   "must be optimizer, gradients, params or activations, or several with commas "
                   "between them");
  if (const std::string* pin = options.find("offload-pin"))
    s.offload.pinned = yes_or_no("offload-pin", *pin);
  check_nvme(options, s);
}

}  // namespace plimsoll::tools
