// Whose code a model's forward is.
#pragma once

#include <cstdint>

namespace plimsoll::models {

// torchtitan's own models, as they were at commits 83c879f18 (28 March 2024) and 3f20451bc
// (26 December 2024) and in release 0.2.2, torchtune's of release 0.6.1, and LitGPT's of releases
// 0.3.0 (April 2024), 0.4.13 (September 2024) and 0.5.13. Parameters have other names there; plans
// call them as the checkpoint does.
enum class ModelCode : std::uint8_t {
  transformers,
  torchtitan_2024_03,
  torchtitan_2024_12,
  torchtitan_0_2_2,
  torchtune_0_6_1,
  litgpt_0_3_0,
  litgpt_0_4_13,
  litgpt_0_5_13
};
constexpr bool is_transformers(ModelCode code) {
  return code == ModelCode::transformers;
}
constexpr bool is_torchtune(ModelCode code) {
  return code == ModelCode::torchtune_0_6_1;
}
// Queries, keys and values lie group by group, and a packed base keeps its embedding.
constexpr bool is_litgpt_of_2024(ModelCode code) {
  return code == ModelCode::litgpt_0_3_0 || code == ModelCode::litgpt_0_4_13;
}
constexpr bool is_litgpt(ModelCode code) {
  return is_litgpt_of_2024(code) || code == ModelCode::litgpt_0_5_13;
}
constexpr bool is_torchtitan(ModelCode code) {
  return !is_transformers(code) && !is_torchtune(code) && !is_litgpt(code);
}
constexpr bool is_torchtitan_of_2024(ModelCode code) {
  return code == ModelCode::torchtitan_2024_03 || code == ModelCode::torchtitan_2024_12;
}

}  // namespace plimsoll::models
