// Every option of `fit` on every stack and stage: it is refused by its name, or it changes the
// answer. Nothing that a user gives is ignored.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "models/recompute.h"
#include "models/run_names.h"
#include "reports/plan_json.h"
#include "tools/cli/plan_source.h"
#include "tools/cli/refusals.h"
#include "tools/cli/request.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {
using Given = std::vector<std::pair<std::string, std::string>>;

struct Trial {
  std::string value;
  Given beside = {};  // what the option needs to be of any effect
};

// A value that is no default for each option that is modelled; several where stacks differ.
const std::map<std::string_view, std::vector<Trial>> kTrials{
    {"dropout", {{"0"}}},
    {"task", {{"classification"}}},
    {"gpu", {{"a100-80gb"}}},
    {"gpus", {{"16"}}},
    {"gpus-per-node", {{"2"}, {"2", {{"exchange", "mpi"}}}}},
    {"gpu-memory", {{"50GB"}}},
    {"intra-node-bandwidth", {{"100"}}},
    {"inter-node-bandwidth", {{"1"}}},
    {"reserve", {{"1GiB", {{"gpu-memory", "50GB"}}}}},
    {"stack", {{"plimsoll"}, {"pytorch"}}},
    {"device", {{"cpu"}, {"cuda"}}},
    {"compile", {{"block"}}},
    {"kernels", {{"liger"}}},  // none for gpt2
    {"torch-version", {{"2.8"}}},
    {"transformers-version", {{"4.48"}}},
    {"bitsandbytes-version",
     {{"0.46.1", {{"lora-rank", "8"}, {"quantize", "nf4"}}},
      {"0.46.1", {{"optimizer", "adam8bit"}}},
      {"0.46.1"}}},
    {"model-code", {{"torchtitan@0.2.2"}}},  // none of gpt2
    {"allocator-conf", {{"expandable_segments:True"}}},
    {"hold-outputs", {{""}}},
    {"zero", {{"0"}, {"1"}}},
    {"fsdp-version", {{"1"}}},
    {"fsdp-activation-checkpointing",
     {{"yes", {{"fsdp-version", "1"}, {"recompute", "full"}, {"micro-batch", "16"}}}, {"yes"}}},
    {"fsdp-sync-module-states", {{"yes", {{"fsdp-version", "1"}}}, {"yes"}}},
    {"fsdp-use-orig-params", {{"no", {{"fsdp-version", "1"}}}, {"no"}}},
    {"shard-group", {{"2"}}},
    {"tp", {{"2"}}},  // none of gpt2
    {"reduce-bucket", {{"1MiB"}}},
    {"bucket-cap-mb", {{"7"}}},
    {"gradient-as-bucket-view", {{"yes"}}},
    {"data-parallel", {{"dp", {{"precision", "bf16"}}}, {"dp"}}},
    {"reduce-bucket-size", {{"1000000"}}},
    // One bucket that holds all gradients has no backward left to run beside.
    {"overlap-comm", {{"yes"}, {"no"}, {"no", {{"reduce-bucket-size", "1000000"}}}}},
    // One bucket that holds all gradients has every owner either way.
    {"round-robin-gradients", {{"yes"}, {"yes", {{"reduce-bucket-size", "1000000"}}}}},
    {"sub-group-size", {{"1e6"}}},
    {"stage3-prefetch-bucket-size", {{"0"}}},
    {"stage3-param-persistence-threshold", {{"1e3"}}},
    {"stage3-max-live-parameters", {{"1e6"}}},
    {"stage3-max-reuse-distance", {{"4e6", {{"stage3-max-live-parameters", "1e6"}}}, {"0"}}},
    {"deterministic", {{"", {{"grad-accum", "2"}}}}},
    {"exchange", {{"threads"}, {"mpi"}}},
    {"precision", {{"fp32"}}},
    {"fp8-recipe", {{"rowwise"}, {"rowwise", {{"precision", "fp8-mixed"}}}}},
    {"fp8-all-gather", {{"yes"}, {"yes", {{"precision", "fp8-mixed"}}}}},
    {"param-dtype", {{"fp32"}, {"bf16"}, {"bf16", {{"fsdp-upcast", "no"}}}}},
    {"grad-dtype", {{"fp32"}, {"bf16"}}},
    {"reduce-dtype", {{"bf16", {{"grad-dtype", "fp32"}}}, {"bf16"}}},
    {"master-weights", {{"no"}, {"yes"}}},
    {"fsdp-upcast", {{"no", {{"param-dtype", "bf16"}}}}},
    {"optimizer", {{"sgd"}}},
    {"optimizer-impl", {{"for-loop"}}},
    {"galore-rank", {{"64"}, {"64", {{"optimizer", "galore"}}}}},
    {"optimizer-in-backward", {{""}}},
    {"seq-len", {{"128"}}},
    {"micro-batch", {{"3"}}},
    {"grad-accum", {{"3"}}},
    {"global-batch", {{"48"}}},
    {"padding-mask", {{"yes"}}},
    {"packing", {{"bfd"}}},
    {"pad-to-multiple-of", {{"8"}}},
    {"padding", {{"free", {{"micro-batch", "4"}}}}},
    {"recompute", {{"full"}}},
    {"use-reentrant", {{"yes", {{"recompute", "full"}, {"micro-batch", "32"}}}}},
    {"attention", {{"eager"}, {"flash-1"}}},
    {"loss", {{"fused", {{"micro-batch", "16"}}}}},
    {"lora-rank", {{"4"}}},
    {"lora-alpha", {{"3"}, {"3", {{"lora-rank", "8"}}}}},
    {"lora-targets", {{"attention"}, {"attention", {{"lora-rank", "8"}}}}},
    {"lora-dropout", {{"0.1"}, {"0.1", {{"lora-rank", "8"}}}}},
    {"modules-to-save", {{"lm_head"}, {"wpe", {{"lora-rank", "8"}}}}},
    {"adapter", {{"ia3"}, {"vera"}}},
    {"adapters", {{"2"}, {"2", {{"lora-rank", "8"}}}}},
    {"virtual-tokens",
     {{"20"}, {"20", {{"adapter", "prompt-tuning"}}}, {"20", {{"adapter", "prefix-tuning"}}}}},
    {"encoder-hidden",
     {{"64"},
      {"64", {{"adapter", "p-tuning"}, {"virtual-tokens", "20"}}},
      {"64", {{"adapter", "prefix-tuning"}, {"virtual-tokens", "20"}}}}},
    {"target-parameters", {{"experts.down_proj"}, {"experts.down_proj", {{"lora-rank", "8"}}}}},
    {"feedforward-modules", {{"none"}, {"none", {{"adapter", "ia3"}}}}},
    {"lora-bias", {{"yes"}, {"yes", {{"lora-rank", "8"}}}}},
    {"use-dora", {{"yes"}, {"yes", {{"lora-rank", "8"}}}}},
    {"adapter-dtype", {{"bf16"}, {"bf16", {{"lora-rank", "8"}}}}},
    {"quantize", {{"nf4-dq", {{"lora-rank", "8"}}}, {"nf4-dq"}}},
    {"quant-storage", {{"bf16", {{"lora-rank", "8"}, {"quantize", "nf4"}}}, {"bf16"}}},
    {"kbit-prep",
     {{"no", {{"lora-rank", "8"}, {"quantize", "nf4"}}},
      {"yes", {{"lora-rank", "8"}, {"quantize", "nf4"}, {"quant-storage", "bf16"}}},
      {"yes"}}},
    {"kbit-casting",
     {{"yes", {{"lora-rank", "8"}, {"quantize", "nf4"}, {"kbit-prep", "yes"}}}, {"yes"}}},
    {"offload", {{"optimizer"}}},
    {"offload-to", {{"nvme", {{"offload", "optimizer"}}}, {"cpu"}}},
    {"offload-optimizer-buffer-count",
     {{"5", {{"offload", "optimizer"}, {"offload-to", "nvme"}}}, {"5"}}},
    {"offload-param-buffer-count", {{"6", {{"offload", "params"}, {"offload-to", "nvme"}}}, {"6"}}},
    {"offload-param-buffer-size",
     {{"2e8", {{"offload", "params"}, {"offload-to", "nvme"}}}, {"2e8"}}},
    {"offload-param-max-in-cpu",
     {{"2e9", {{"offload", "params"}, {"offload-to", "nvme"}}}, {"2e9"}}},
    {"offload-pin", {{"no", {{"offload", "optimizer"}}}, {"no"}}},
    {"host-memory", {{"1MiB", {{"offload", "optimizer"}}}, {"1MiB"}}},
    {"freeze", {{"*wte*"}}},
    {"train", {{"*wte*"}, {"*wte*", {{"freeze", "*"}}}}},
    {"phase", {{"load"}, {"merge", {{"lora-rank", "8"}}}, {"merge"}}},
    {"device-map", {{"auto", {{"phase", "load"}}}, {"auto"}}},
    {"detail", {{""}}}};

// Read elsewhere: a MODEL of its own, files; or of one value only in this version.
const std::set<std::string_view> kElsewhere{
    "params",        "assume",  "calibration", "data",         "deepspeed", "accelerate", "peft",
    "training-args", "trainer", "axolotl",     "llamafactory", "swift",     "torchtitan", "mode"};

nlohmann::json member_of(const std::string& document, std::string_view pointer) {
  const nlohmann::json workload = nlohmann::json::parse(document)["workload"];
  const nlohmann::json::json_pointer at("/" + std::string(pointer));
  return workload.contains(at) ? workload[at] : nlohmann::json();
}

// What changes the workload, and none of its bytes or seconds.
const std::set<std::string_view> kNoFigure{
    "bitsandbytes-version",  // of those for Transformers 5: moments, where no peak stands
    "dropout",  // plimsoll's masks come from a counter: copies of a moment, where no peak stands
    "lora-alpha",  // a factor
    "exchange",  // threads of one process and NCCL hold the same
    "detail",  // of the document
    "phase",
    "device-map",  // what loading takes stands beside the step's figures
    "quant-storage",  // as many bytes, whatever they are called (FSDP shards floats alone)
    "deterministic",  // stages 2 and 3 reduce after every micro-batch anyway
    "offload-param-max-in-cpu",  // more than a model has
    "adapter-dtype"};  // DeepSpeed casts adapters, and says so

struct Outcome {
  std::string refusal, document, figures;
};

std::string document_of(const reports::Plan& plan) {
  std::string text;
  reports::JsonWriter json(text, reports::JsonWriter::Style::compact);
  reports::write_plan(json, plan, {});
  return text;
}

// The workload that stands in an answer is the whole question: asked again, it has the same answer.
void check_comes_back(const Request& request, const std::string& document) {
  Request again = request_from_plan(document, "plan.json");
  again.question.detail = request.question.detail;
  again.question.remedies = false;
  CHECK(document_of(answer(again)) == document);
}

Outcome outcome(const Given& given) {
  Outcome out;
  Options options;
  for (const auto& [name, value] : given) options.add(name, value);
  Sources sources;
  try {
    Request request = request_from(options.has("params") ? "" : "gpt2", options, sources);
    if (!options.has("detail")) request.question.detail = planner::Detail::none;
    request.question.remedies = false;
    models::ClusterSpec& cluster = request.question.cluster;
    if (!cluster.gpu && !cluster.memory) cluster.memory = 64_GiB;
    const reports::Plan plan = answer(request);
    out.document = document_of(plan);
    if (!request.parameters) check_comes_back(request, out.document);
    std::int64_t messages = 0;
    for (const reports::Collective& sent : plan.collectives) messages += sent.count;
    out.figures = fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", messages, plan.peak.value(),
                              plan.resident.value(), plan.reserved.value(), plan.device.value(),
                              plan.usable.value_or(Bytes(0)).value(), plan.states.total().value(),
                              plan.bytes_sent_per_gpu_per_step.value(),
                              plan.time.step_seconds.value_or(0), plan.hardware_flops_per_step,
                              (plan.host_pinned + plan.nvme).value(), plan.host_fits);
  } catch (const Error& error) {
    CHECK((error.kind() == ErrorKind::bad_input || error.kind() == ErrorKind::unsupported));
    out.refusal = error.message();
  }
  return out;
}

// `base` without what `more` says anew.
Given with(Given base, const Given& more) {
  for (const auto& [name, value] : more) {
    std::erase_if(base, [&](const auto& item) { return item.first == name; });
    base.emplace_back(name, value);
  }
  return base;
}

// An option is in the fingerprint where its row says where it stands, and nowhere else.
void check_member(const Option& option, const std::string& before, const std::string& after) {
  CAPTURE(option.name);
  const bool moves = member_of(before, "fingerprint") != member_of(after, "fingerprint");
  CHECK(moves == !option.member.empty());
  if (!option.member.empty())
    CHECK(member_of(before, option.member) != member_of(after, option.member));
}

// Whether one of the trials shows that the option is heeded.
bool is_heeded(const Option& option, const Given& base) {
  const std::string name(option.name);
  for (const Trial& trial : kTrials.at(option.name)) {
    const Outcome before = outcome(with(base, trial.beside));
    if (!before.refusal.empty()) continue;
    const Outcome after = outcome(with(base, with(trial.beside, {{name, trial.value}})));
    if (after.refusal.find("--" + name) != std::string::npos) return true;
    if (!after.refusal.empty()) continue;
    if (after.document == before.document) continue;
    check_member(option, before.document, after.document);
    if (kNoFigure.contains(option.name) || after.figures != before.figures) return true;
  }
  return false;
}
}  // namespace

TEST_CASE("every option of fit has a trial here, or a reason to have none") {
  for (const Option& option : plan_options())
    CHECK_MESSAGE(kTrials.contains(option.name) + kElsewhere.contains(option.name) +
                          option.is_never_modelled() ==
                      1,
                  option.name);
}

TEST_CASE("the schema of a plan accepts every name that an option of a few names plans") {
  const nlohmann::json schema = nlohmann::json::parse(
      std::ifstream(std::string(PLIMSOLL_SOURCE_ROOT) + "/reports/schema/plan.schema.json"));
  const nlohmann::json& workload = schema["properties"]["workload"]["properties"];
  int compared = 0;
  for (const Option& option : plan_options()) {
    // --padding names what makes the rows.
    if (option.names.empty() || option.member.empty() || option.name == "padding") continue;
    const std::size_t slash = option.member.find('/');
    const nlohmann::json& part = workload[std::string(option.member.substr(0, slash))];
    const std::string key(option.member.substr(slash + 1));
    std::set<std::string> accepted;
    for (const nlohmann::json& kind : part.contains("anyOf") ? part["anyOf"] : nlohmann::json{part})
      if (kind["properties"].contains(key) && kind["properties"][key].contains("enum"))
        for (const nlohmann::json& name : kind["properties"][key]["enum"])
          accepted.insert(name.is_string() ? name.get<std::string>() : name.dump());
    if (accepted.empty()) continue;
    for (const std::string_view name : option.names.first(option.modelled))
      if (name != "no" && name != "transformers")  // false; absent
        CHECK_MESSAGE(accepted.contains(std::string(name)), option.name << ' ' << name);
    ++compared;
  }
  CHECK(compared >= 8);
}

TEST_CASE("the schema of a plan accepts what is recomputed, of every kind") {
  const nlohmann::json schema = nlohmann::json::parse(
      std::ifstream(std::string(PLIMSOLL_SOURCE_ROOT) + "/reports/schema/plan.schema.json"));
  const nlohmann::json& strategy = schema["properties"]["workload"]["properties"]["strategy"];
  const std::regex accepted(
      (strategy.contains("anyOf") ? strategy["anyOf"][0] : strategy)["properties"]["recompute"]
          .at("pattern")
          .get<std::string>());
  using models::RecomputeKind;
  for (std::size_t i = 0; i < models::kNamesOf<RecomputeKind>.size(); ++i) {
    models::Recompute recompute{static_cast<RecomputeKind>(i), 12};
    if (recompute.kind == RecomputeKind::ops) recompute.kept = {"attention", "mlp.c_proj"};
    CHECK_MESSAGE(std::regex_match(models::text_of(recompute), accepted),
                  models::text_of(recompute));
  }
}

TEST_CASE("no option is ignored: on each stack and stage it changes the answer or is refused") {
  const Given stacks[] = {{{"stack", "pytorch"}, {"gpu", "h100"}},
                          {{"stack", "deepspeed"}, {"gpu", "h100"}},
                          {{"stack", "plimsoll"}, {"gpu", "h100"}},
                          {{"stack", "plimsoll"}, {"device", "cpu"}}};  // no nodes there
  for (const Given& stack : stacks)
    for (const char* zero : {"0", "1", "2", "3"}) {
      Given base = with(stack, {{"zero", zero}, {"gpus", "8"}, {"seq-len", "256"}});
      if (stack[1].first == "gpu") base.emplace_back("gpus-per-node", "4");
      for (const Option& option : plan_options()) {
        if (!kTrials.contains(option.name)) continue;
        CHECK_MESSAGE(is_heeded(option, base), fmt::format("--{} on {} {} --zero {}", option.name,
                                                           stack[0].second, stack[1].second, zero));
      }
    }
}

// Its states are sharded bytes of a count: no step, no batch and no message of a run moves them.
TEST_CASE("a bare count heeds what moves its states or its card, and refuses all else by name") {
  const std::set<std::string_view> heeded{"gpu",  "gpus",        "gpu-memory", "reserve",
                                          "zero", "shard-group", "precision"};
  std::map<std::string_view, int> moved;  // at how many stages
  for (const char* zero : {"0", "1", "2", "3"}) {
    const Given base{{"params", "1e9"}, {"gpu", "h100"}, {"gpus", "8"}, {"zero", zero}};
    REQUIRE(outcome(base).refusal.empty());
    for (const Option& option : plan_options()) {
      if (!kTrials.contains(option.name)) continue;
      const std::string name(option.name);
      CAPTURE(name);
      CAPTURE(zero);
      if (!heeded.contains(option.name)) {
        for (const Trial& trial : kTrials.at(option.name))
          CHECK(outcome(with(base, {{name, trial.value}}))
                    .refusal.starts_with("--params with --" + name + ": a bare count is answered"));
        continue;
      }
      moved[option.name] += is_heeded(option, base) ? 1 : 0;
    }
  }
  // --zero 0 shards nothing: of more GPUs each has it all, and --shard-group is refused.
  for (const std::string_view name : heeded) {
    CAPTURE(name);
    CHECK(moved[name] == (name == "gpus" ? 3 : 4));
  }
}
