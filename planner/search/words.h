// Figures and names as reasons say them.
#pragma once

#include <string>
#include <vector>

#include "planner/search/setting.h"
#include "planner/time/step_time.h"
#include "reports/record.h"

namespace plimsoll::planner::search {

std::string gib(Bytes bytes);
std::string seconds(double seconds);
std::string percent(double share);
// "ZeRO-3 (FSDP full shard)".
std::string rung_name(models::Stack stack, int zero);
// " (0.4 % slower)", or "" where that is nothing.
std::string in_brackets(double slower);

// Of compute, communication and the optimizer.
std::string parts_of_step(const StepTime& time);
// A sentence for each thing that the setting gives up and the plan pays for.
std::vector<std::string> costs_of_concessions(const Setting& setting, const reports::Plan& plan);

// transformers/activations.py: NewGELUActivation and GELUTanh state one formula.
inline constexpr const char* kOneKernelGelu =
    "Not searched: activation_function gelu_pytorch_tanh in the model's configuration computes "
    "gelu_new with one kernel instead of eight.";

// What makes the other one's compute longer, in brackets; or "".
std::string why_longer(const Setting& mine, const Setting& other, bool sends_more,
                       bool python_gelu);

// bf16 has 8 significant bits, of a weight as of AdamW's moments.
inline constexpr const char* kPureRisk =
    "without fp32 master weights, updates smaller than 1/256 of a weight are lost";

}  // namespace plimsoll::planner::search
