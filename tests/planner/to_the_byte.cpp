#include "tests/planner/to_the_byte.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

namespace plimsoll::tests {

namespace {

// Of each file. A rule that loses one is wrong there, whatever its share of all bytes; who plans
// more of them says so here.
const std::map<std::string, ToTheByte> kToTheByte{
    {"deepspeed_block_draw", {0, 14, 8, 0}},
    {"deepspeed_buckets", {0, 25, 20, 0}},
    {"deepspeed_draw", {1, 50, 19, 0}},
    {"deepspeed_liger", {2, 36, 19, 1}},
    {"deepspeed_liger_draw", {1, 24, 12, 0}},
    {"deepspeed_lion", {0, 13, 8, 0}},
    {"deepspeed_nth_draw", {0, 8, 4, 0}},
    {"deepspeed_nvme", {0, 36, 2, 5}},
    {"deepspeed_nvme_draw", {0, 7, 0, 2}},
    {"deepspeed_offload", {0, 17, 12, 14}},
    {"deepspeed_round_robin", {0, 29, 26, 0}},
    {"deepspeed_round_robin_draw", {0, 15, 11, 0}},
    {"deepspeed_runs", {1, 49, 39, 1}},
    {"dry_runs", {35, 37, 29, 39}},
    {"dry_runs_activations", {6, 7, 1, 7}},
    {"dry_runs_activations_draw", {6, 9, 1, 14}},
    {"dry_runs_activations_none", {8, 12, 0, 7}},
    {"dry_runs_activations_none_draw", {10, 12, 2, 16}},
    {"dry_runs_attention", {9, 13, 9, 12}},
    {"dry_runs_attention_draw", {6, 9, 13, 11}},
    {"dry_runs_awq", {0, 12, 9, 0}},
    {"dry_runs_awq_4.57", {0, 11, 8, 0}},
    {"dry_runs_awq_5.23", {0, 8, 5, 0}},
    {"dry_runs_bitsandbytes_0.42", {0, 0, 0, 0}},
    {"dry_runs_bitsandbytes_0.43", {0, 0, 0, 2}},
    {"dry_runs_bitsandbytes_0.46", {3, 3, 2, 3}},
    {"dry_runs_bitsandbytes_draw_0.42", {0, 0, 1, 0}},
    {"dry_runs_bitsandbytes_draw_0.46", {2, 2, 2, 3}},
    {"dry_runs_classifier", {9, 10, 11, 12}},
    {"dry_runs_classifier_draw", {4, 7, 11, 12}},
    {"dry_runs_block_draw", {4, 10, 9, 8}},
    {"dry_runs_compiled", {10, 11, 2, 13}},
    {"dry_runs_compiled_draw", {1, 3, 0, 5}},
    {"dry_runs_data_parallel", {1, 5, 3, 5}},
    {"dry_runs_data_parallel_draw", {3, 6, 7, 11}},
    {"dry_runs_drawn", {31, 55, 75, 59}},
    {"dry_runs_drawn_13", {52, 100, 116, 84}},
    {"dry_runs_drawn_14", {18, 42, 57, 44}},
    {"dry_runs_families", {32, 40, 32, 36}},
    {"dry_runs_flex", {4, 4, 4, 5}},
    {"dry_runs_flex_draw", {0, 3, 4, 2}},
    {"dry_runs_float8", {9, 13, 9, 12}},
    {"dry_runs_float8_draw", {2, 4, 7, 7}},
    {"dry_runs_fsdp1", {0, 0, 0, 0}},
    {"dry_runs_gpt_oss", {3, 4, 4, 5}},
    {"dry_runs_gpt_oss_draw", {13, 17, 17, 20}},
    {"dry_runs_gptq_mixtures", {0, 11, 9, 0}},
    {"dry_runs_host_optimizer", {13, 15, 13, 15}},
    {"dry_runs_host_optimizer_draw", {15, 21, 20, 20}},
    {"dry_runs_hqq", {2, 5, 0, 6}},
    {"dry_runs_kbit", {1, 2, 0, 1}},
    {"dry_runs_liger", {15, 20, 12, 19}},
    {"dry_runs_liger_draw", {17, 32, 31, 27}},
    {"dry_runs_litgpt", {1, 1, 1, 3}},
    {"dry_runs_litgpt_0.3", {0, 0, 1, 2}},
    {"dry_runs_litgpt_0.3_draw", {0, 0, 0, 3}},
    {"dry_runs_litgpt_0.4", {0, 0, 0, 3}},
    {"dry_runs_litgpt_0.4_draw", {0, 0, 0, 1}},
    {"dry_runs_litgpt_draw", {3, 3, 0, 4}},
    {"dry_runs_mixtures_4.48", {18, 18, 8, 22}},
    {"dry_runs_mixtures_4.51", {13, 13, 5, 19}},
    {"dry_runs_mixtures_4.57", {27, 29, 26, 33}},
    {"dry_runs_mixtures_draw", {3, 3, 2, 5}},
    {"dry_runs_mixtures_torch_2.4", {4, 14, 8, 19}},
    {"dry_runs_offload", {17, 24, 14, 26}},
    {"dry_runs_optimizers", {71, 74, 84, 82}},
    {"dry_runs_packed", {5, 6, 3, 5}},
    {"dry_runs_peft", {11, 18, 12, 22}},
    {"dry_runs_prefix", {7, 8, 8, 10}},
    {"dry_runs_reentrant_draw", {7, 13, 14, 10}},
    {"dry_runs_prefix_draw", {6, 16, 14, 21}},
    {"dry_runs_nth_draw", {8, 10, 11, 12}},
    {"dry_runs_settings", {21, 23, 16, 25}},
    {"dry_runs_tensor_parallel", {3, 4, 10, 6}},
    {"dry_runs_tensor_parallel_draw", {9, 18, 33, 25}},
    {"dry_runs_tiled_draw", {9, 11, 4, 11}},
    {"dry_runs_torch_2.4", {10, 11, 7, 21}},
    {"dry_runs_torch_2.8", {35, 37, 28, 39}},
    {"dry_runs_torchao", {6, 8, 3, 9}},
    {"dry_runs_q_galore", {0, 0, 1, 0}},
    {"dry_runs_torchtitan", {7, 7, 6, 7}},
    {"dry_runs_torchtune", {13, 14, 1, 18}},
    {"dry_runs_torchtune_draw", {7, 8, 5, 10}},
    {"dry_runs_transformers_4.45", {0, 0, 2, 0}},
    {"dry_runs_transformers_4.48", {23, 23, 11, 25}},
    {"dry_runs_transformers_4.51", {5, 5, 3, 6}},
    {"dry_runs_transformers_4.57", {8, 8, 11, 8}},
    {"dry_runs_transformers_5.23", {10, 10, 10, 11}},
    {"dry_runs_unsloth", {3, 4, 1, 4}},
    {"dry_runs_unsloth_draw", {4, 7, 11, 7}},
    {"dry_runs_xformers", {0, 4, 3, 0}},
    {"dry_runs_xformers_draw", {0, 10, 7, 0}},
};

}  // namespace

void ToTheByte::count(const planner::Reserved& planned, const nlohmann::json& run) {
  const auto above = planned.allocated.value() - run["peak_bytes"].get<std::int64_t>();
  peaks += above == 0;
  close_peaks += std::abs(above) <= 4096;
  reserved += planned.reserved.value() == run["reserved_bytes"];
  resident += planned.resident.value() == run["resident_bytes"];
}

void check_to_the_byte(const std::string& file, const ToTheByte& found) {
  CAPTURE(file);
  INFO("to the byte: ", found.peaks, " peaks, ", found.close_peaks, " within 4 KiB, ",
       found.reserved, " reserved, ", found.resident, " that stay");
  CHECK(found == kToTheByte.at(file.substr(0, file.rfind(".json"))));
}

}  // namespace plimsoll::tests
