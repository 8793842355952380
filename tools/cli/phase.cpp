#include "tools/cli/phase.h"

#include "models/bitsandbytes.h"
#include "models/config_reader.h"
#include "models/storages.h"
#include "tools/cli/quantized_config.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

void set_phase(const Options& options, planner::Question& question) {
  const std::string* phase = options.find("phase");
  question.load.merges = phase != nullptr && *phase == "merge";
  question.load.asked = question.load.merges || (phase != nullptr && *phase == "load");
  const std::string* map = options.find("device-map");
  if (map != nullptr && !question.load.asked)
    refuse_value("device-map", *map, "needs --phase load: a step does not depend on it");
  if (map != nullptr && *map == "none" && question.load.merges)
    refuse_value("device-map", *map,
                 "with --phase merge the model would stand on the host, and merging would take "
                 "nothing of a GPU");
  const auto& quantize = question.strategy.quantize;
  const bool packs = quantize && models::packs_with_bitsandbytes(*quantize->storage);
  if (map != nullptr && *map == "auto" && packs)
    refuse_value("device-map", *map,
                 "bitsandbytes loads a packed base to the current device itself; other maps of it "
                 "are not planned yet");
  question.load.device_map = map != nullptr ? *map == "auto" : question.load.merges && !packs;
}

void use_packed_checkpoint(const LoadedModel& model, planner::Question& question) {
  if (!question.load.asked) return;
  const models::Config config = models::Config::parse(model.config, model.spec.name);
  const std::optional<models::Config> packed = config.section("quantization_config");
  const std::string method = packed ? packed->text("quant_method", "") : "";
  if (!packed || method == "mxfp4") return;  // that is unpacked
  const std::string is =
      "the model's config has a quantization_config, so its checkpoint is packed ";
  const char* const phase = question.load.merges ? "merge" : "load";
  const auto& asked = question.strategy.quantize;
  if (method == "awq" && asked && asked->storage->gemm == models::PackedGemm::awq) {
    question.load.packed = true;
    return;
  }
  if (method != "bitsandbytes")
    refuse_value("phase", phase,
                 is + "already: what loading that takes is planned of "
                      "bitsandbytes' checkpoints and, with adapters, of AWQ's");
  models::Quantization held;
  const std::string name = bitsandbytes_storage(*packed, held);
  if (!asked || asked->storage->name != name || asked->held_in != held.held_in)
    refuse_value("phase", phase,
                 is + "as " + name +
                     " already: planned is what loading that takes with adapters "
                     "on it, and without --quantize");
  question.load.packed = true;
}

}  // namespace plimsoll::tools
