#include "tools/cli/phase.h"

#include "tools/cli/values.h"

namespace plimsoll::tools {

void set_phase(const Options& options, planner::Question& question) {
  const std::string* phase = options.find("phase");
  question.load.asked = phase != nullptr && *phase == "load";
  const std::string* map = options.find("device-map");
  if (map != nullptr && !question.load.asked)
    refuse_value("device-map", *map, "needs --phase load: a step does not depend on it");
  if (map != nullptr && *map == "auto" && question.strategy.quantize)
    refuse_value("device-map", *map,
                 "bitsandbytes loads a packed base to the current device itself; other maps of it "
                 "are not planned yet");
  question.load.device_map = map != nullptr && *map == "auto";
}

}  // namespace plimsoll::tools
