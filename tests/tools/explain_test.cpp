// `fit --explain`: sums that add up, tensors that are found, changes that are planned again.
#include "tools/cli/explain.h"

#include <doctest/doctest.h>

#include <sstream>

#include "planner/time/op_times.h"
#include "reports/explain.h"
#include "tests/near.h"
#include "tools/cli/command_line.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {
using Given = std::vector<std::pair<std::string, std::string>>;

Options options(const Given& given) {
  Options out;
  out.add("gpu", "h100");
  for (const auto& [name, value] : given) out.add(name, value);
  return out;
}
std::string explained_of(const std::string& model, const Given& given, const std::string& asked) {
  Sources sources;
  const Options all = options(given);
  return explained(model, all, request_from(model, all, sources), asked, {});
}
reports::Plan whole(const std::string& model, const Given& given) {
  Sources sources;
  Request request = request_from(model, options(given), sources);
  request.question.detail = planner::Detail::full;
  return answer(request);
}
// Wherever a line was broken.
bool says(std::string message, std::string_view part) {
  for (std::size_t at = 0; (at = message.find("\n    ", at)) != std::string::npos;)
    message.replace(at, 5, " ");
  return message.find(part) != std::string::npos;
}
}  // namespace

TEST_CASE("tensors of all layers are one row: their bytes, and those at the peak") {
  reports::Plan plan;
  const auto add = [&](const char* name, std::int64_t bytes, bool at_peak) {
    plan.tensors.push_back({.name = name,
                            .category = "activations",
                            .bytes = Bytes(bytes),
                            .born = "forward layers.0.mlp.act",
                            .dies = "backward layers.1.mlp.act",
                            .at_peak = at_peak});
  };
  add("layers.0.mlp.act", 10, true);
  add("layers.1.mlp.act", 14, false);
  add("layers.2.mlp.act", 10, true);
  add("logits", 30, false);
  const std::vector<reports::TensorGroup> groups = reports::tensor_groups(plan);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].name == "layers.*.mlp.act");
  CHECK(groups[0].count == 3);
  CHECK(groups[0].at_peak == 2);
  CHECK(groups[0].bytes == Bytes(34));
  CHECK(groups[0].peak_bytes == Bytes(20));
  CHECK(groups[0].least == Bytes(10));
  CHECK(groups[0].most == Bytes(14));
  CHECK(groups[0].born == "forward mlp.act");
  CHECK(groups[0].dies == "backward layers.1.mlp.act");  // another layer's
}

TEST_CASE("a name is found whole, by its last parts, or with a layer's number") {
  const std::vector<reports::TensorGroup> all =
      reports::tensor_groups(whole("gpt2", {{"seq-len", "64"}}));
  const auto found = [&](const char* name) { return reports::groups_called(all, name).size(); };
  CHECK(found("layers.3.mlp.act") == found("layers.*.mlp.act"));
  CHECK(found("mlp.act") >= 1);
  CHECK(found("loss") >= 2);
  CHECK_THROWS_WITH_AS(reports::groups_called(all, "loss.logits.fp3"),
                       doctest::Contains("did you mean 'loss.logits"), Error);
}

TEST_CASE("logits grow with the tokens, and the losses that never make them say so") {
  // llama-3.1-8b: a vocabulary of 128,256 in fp32 is 513,024 bytes a token.
  const std::string text =
      explained_of("llama-3.1-8b", {{"gpus", "8"}, {"zero", "3"}}, "loss.logits.fp32");
  CHECK(says(text, "2,101,346,304 bytes"));  // 4,096 tokens
  CHECK(says(text, "grows: x2 with --micro-batch 2, x2 with --seq-len 8192;"));
  CHECK(says(text, "513024 bytes for each of 4,096 tokens"));
  // gpt2 takes 1,024 tokens: 12 layers' 4 x 768 values in fp32, 12,288 bytes a token.
  CHECK(says(explained_of("gpt2", {}, "mlp.act.tanh"),
             "x2 with --micro-batch 2, x0.5 with --seq-len 512; one is"));
  CHECK(says(explained_of("gpt2", {}, "mlp.act.tanh"), "12288 bytes for each of 1,024 tokens"));
  CHECK(says(text, "--loss fused                  none of it; peak -"));
  CHECK(!says(text, "--recompute full"));  // which leaves them as they are
}

TEST_CASE("the plan's own explanation adds up to its figures, in lines of 80 columns") {
  const std::string text = explained_of("gpt2", {{"seq-len", "128"}}, "all");
  const reports::Plan plan = whole("gpt2", {{"seq-len", "128"}});
  CHECK(says(text, "Device " + reports::bytes_text(plan.device) + " = reserved "));
  CHECK(says(text, reports::grouped(Count(plan.peak.value())) + " bytes"));
  CHECK(says(text, "cuBLAS workspaces in the allocator"));  // an assumption with its source
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    CHECK_MESSAGE(reports::width(line) <= 80, line);
}

TEST_CASE("the ops' seconds are the step's compute, and their FLOPs the hardware's") {
  // On one GPU that is never short of launches nothing else is in compute_seconds.
  for (const char* stack : {"pytorch", "plimsoll"})
    for (const char* loss : {"full", "chunked", "fused"}) {
      CAPTURE(stack);
      CAPTURE(loss);
      const Given given{{"grad-accum", "2"},
                        {"micro-batch", "2"},
                        {"recompute", "full"},
                        {"stack", stack},
                        {"loss", loss}};
      Sources sources;
      const Request request = request_from("llama-3.2-1b", options(given), sources);
      const reports::Plan plan = answer(request);
      double seconds = 0, flops = 0;
      for (const planner::OpTime& op : planner::op_times(request.question)) {
        seconds += op.seconds;
        flops += op.flops;
      }
      REQUIRE(plan.time.compute_seconds);
      CHECK(tests::near(seconds, *plan.time.compute_seconds, 1e-6));
      CHECK(tests::near(flops, plan.hardware_flops_per_step, 1e-12));
    }
}

TEST_CASE("a GPU without rates and a bare count have nothing to explain") {
  CHECK_THROWS_WITH_AS(
      explained_of("gpt2", {{"stack", "plimsoll"}, {"precision", "fp32"}, {"seq-len", "64"}},
                   "no such tensor"),
      doctest::Contains("no tensor of this step"), Error);
  CHECK_THROWS_WITH_AS(explained_of("", {{"params", "7e9"}}, "all"),
                       doctest::Contains("model states alone"), Error);
}

TEST_CASE("--explain takes a tensor only behind the MODEL") {
  const auto about = [](std::vector<std::string> words) {
    return *parse_arguments(commands()[0], std::move(words)).options.find("explain");
  };
  CHECK(about({"gpt2", "--explain"}) == "all");
  CHECK(about({"--explain", "gpt2"}) == "all");
  CHECK(about({"gpt2", "--explain", "time"}) == "time");
  CHECK(about({"--explain=time", "gpt2"}) == "time");
  CHECK(about({"gpt2", "--explain", "--zero", "3"}) == "all");
  CHECK(about({"--gpu", "h100", "--explain", "gpt2"}) == "all");
}
