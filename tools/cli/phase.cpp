#include "tools/cli/phase.h"

#include "models/config_reader.h"
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

void refuse_packed_checkpoint(const LoadedModel& model) {
  const models::Config config = models::Config::parse(model.config, model.spec.name);
  const std::optional<models::Config> packed = config.section("quantization_config");
  if (!packed || packed->text("quant_method", "") == "mxfp4") return;  // that is unpacked
  refuse_value("phase", "load",
               "the model's config has a quantization_config, so its checkpoint is packed already: "
               "what loading that takes is not planned yet");
}

}  // namespace plimsoll::tools
