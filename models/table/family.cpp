#include "models/table/family.h"

#include <algorithm>

namespace plimsoll::models::families {

const FamilyEntry* find_family(std::string_view model_type) {
  const auto families = all_families();
  const auto it = std::ranges::lower_bound(families, model_type, {}, &FamilyEntry::model_type);
  return it != families.end() && it->model_type == model_type ? &*it : nullptr;
}

std::vector<std::string_view> family_names() {
  std::vector<std::string_view> names;
  for (const FamilyEntry& entry : all_families()) names.push_back(entry.model_type);
  return names;
}

std::vector<Architecture> decoder_classes(const std::string& prefix) {
  return {{prefix + "ForCausalLM", Head::language_model},
          {prefix + "Model", Head::base},
          {prefix + "ForSequenceClassification", Head::sequence_classification},
          {prefix + "ForTokenClassification", Head::token_classification}};
}

double rotated_fraction(const Config& config, const char* option, double fallback) {
  for (const char* name : {"rope_scaling", "rope_parameters"})
    if (const auto rope = config.section(name); rope && rope->has("partial_rotary_factor"))
      return rope->probability("partial_rotary_factor", fallback);
  return config.probability(option, fallback);
}

}  // namespace plimsoll::models::families
