#include "tools/cli/offload.h"

#include "tools/cli/values.h"

namespace plimsoll::tools {

void set_offload(const Options& options, models::Strategy& s) {
  const std::string* parts = options.find("offload");
  if (parts == nullptr || *parts == "none") {  // where a trainer's default is something else
    for (const char* option : {"offload-to", "offload-pin", "host-memory"})
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
}

}  // namespace plimsoll::tools
