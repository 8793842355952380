// Small texts that commands read and write: words of launch lines, what is left to do, a model's
// configuration with other numbers in it.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <algorithm>
#include <thread>

#include "models/base/error.h"
#include "tools/cli/host_memory.h"
#include "tools/cli/launch_trainers.h"
#include "tools/cli/launch_words.h"
#include "tools/cli/layers_json.h"
#include "tools/cli/model_source.h"
#include "tools/cli/progress_line.h"
#include "tools/cli/values.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {
template <class Call>
std::string refusal(Call call) {
  try {
    (void)call();
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

// "8 x 2, NNODES"; "nothing".
std::string started(const char* program, const Environment& variables) {
  const auto ranks = started_ranks(program, variables);
  if (!ranks) return "nothing";
  return std::to_string(ranks->per_node) + " x " + std::to_string(ranks->nodes) + ", " + ranks->key;
}

// A variable of the environment, as it was before when the test ends.
struct Variable {
  std::string name, before;
  bool was_there;
  Variable(const char* n, const char* value) : name(n) {
    const char* old = ::getenv(n);
    was_there = old != nullptr;
    if (was_there) before = old;
    if (value != nullptr)
      ::setenv(n, value, 1);
    else
      ::unsetenv(n);
  }
  ~Variable() {
    if (was_there)
      ::setenv(name.c_str(), before.c_str(), 1);
    else
      ::unsetenv(name.c_str());
  }
};
}  // namespace

TEST_CASE("a word is an option where it begins with a dash and is no number") {
  using launch_words::option_name;
  CHECK(option_name("--nproc-per-node") == "nproc_per_node");
  CHECK(option_name("--nproc_per_node=8") == "nproc_per_node");
  CHECK(option_name("-x") == "x");
  CHECK(option_name("-zero-stage=2") == "zero_stage");
  for (const char* word : {"", "-", "x", "train.py", "-1", "-0", "-9e3", "-.5", "=8", "x-y"})
    CHECK_MESSAGE(option_name(word) == "", word);
}

TEST_CASE("a value stands behind its option's = or is the next word") {
  const std::vector<std::string> words{"--a=1=2", "--b", "3", "--c"};
  launch_words::Line line(words);
  CHECK(line.peek() == "--a=1=2");
  CHECK(line.value_of(line.take()) == "1=2");
  CHECK(line.value_of(line.take()) == "3");
  CHECK(!line.done());
  CHECK(refusal([&] { return line.value_of(line.take()); }) ==
        "the launch line: --c needs a value");
  CHECK(line.done());
  CHECK(refusal([&] { return line.take(); }) == "the launch line: ends too early");
}

TEST_CASE("training programs are known by module, by path and by their own command") {
  CHECK(trainer_of_script("axolotl.cli.train") == "axolotl");
  CHECK(trainer_of_script("axolotl/cli/train.py") == "axolotl");
  CHECK(trainer_of_script("/opt/src/axolotl/cli/train.py") == "axolotl");
  CHECK(trainer_of_script("llamafactory.launcher") == "llamafactory");
  CHECK(trainer_of_script("/x/llamafactory/launcher.py") == "llamafactory");
  CHECK(trainer_of_script("swift.cli.sft") == "swift");
  CHECK(trainer_of_script("swift/cli/pt.py") == "swift");
  CHECK(trainer_of_script("swift.cli.pt") == "swift");
  CHECK(trainer_of_script("torchtitan.train") == "torchtitan");
  CHECK(trainer_of_script("x/torchtitan/train.py") == "torchtitan");
  CHECK(trainer_of_script("x/torchtitan/train") == "torchtitan");
  for (const char* other : {"", "train.py", "mytorchtitan/train.py", "swift.cli.rlhf", "axolotl"})
    CHECK_MESSAGE(trainer_of_script(other) == "", other);
  CHECK(trainer_command("axolotl")->option == std::string("axolotl"));
  CHECK(trainer_command("llamafactory-cli")->actions == std::string("train"));
  CHECK(trainer_command("lmf")->option == std::string("llamafactory"));
  CHECK(trainer_command("swift")->actions == std::string("sft pt"));
  CHECK(!trainer_command("torchtitan"));
}

// llamafactory/launcher.py and swift/cli/main.py: NPROC_PER_NODE and NNODES; else LLaMA-Factory
// takes the devices that it sees, and ms-swift one rank that splits the model over them.
TEST_CASE("ranks that a training program starts by itself are those of its variables") {
  CHECK(started("llamafactory", {{"NPROC_PER_NODE", "8"}}) == "8 x 1, NPROC_PER_NODE");
  CHECK(started("llamafactory", {{"NPROC_PER_NODE", "8"}, {"NNODES", "2"}}) ==
        "8 x 2, NPROC_PER_NODE");
  CHECK(started("llamafactory", {{"NPROC_PER_NODE", "2"}, {"CUDA_VISIBLE_DEVICES", "0,1,2"}}) ==
        "2 x 1, NPROC_PER_NODE");
  CHECK(started("llamafactory", {{"CUDA_VISIBLE_DEVICES", "0,1,5"}, {"NNODES", "4"}}) ==
        "3 x 4, CUDA_VISIBLE_DEVICES");
  CHECK(started("llamafactory", {{"CUDA_VISIBLE_DEVICES", "3"}}) == "1 x 1, CUDA_VISIBLE_DEVICES");
  CHECK(started("llamafactory", {{"CUDA_VISIBLE_DEVICES", ""}}) == "nothing");
  CHECK(started("llamafactory", {}) == "nothing");
  CHECK(started("swift", {}) == "1 x 1, swift");
  CHECK(started("swift", {{"CUDA_VISIBLE_DEVICES", "3"}, {"NNODES", "2"}}) == "1 x 2, swift");
  CHECK(started("swift", {{"CUDA_VISIBLE_DEVICES", "0,1"}, {"NPROC_PER_NODE", "2"}}) ==
        "2 x 1, NPROC_PER_NODE");
  CHECK(refusal([] {
          return started("swift", {{"CUDA_VISIBLE_DEVICES", "0,1"}});
        }).starts_with("the launch line: CUDA_VISIBLE_DEVICES=0,1: without NPROC_PER_NODE"));
  CHECK(started("swift", {{"NPROC_PER_NODE", "999999"}}) == "999999 x 1, NPROC_PER_NODE");
  for (const char* number : {"0", "", "x", "-1", "1.5", "1000000", "8 "})
    CHECK(refusal([&] {
            return started("swift", {{"NPROC_PER_NODE", number}});
          }) == std::string("the launch line: NPROC_PER_NODE=") + number +
                    ": a positive whole number is needed");
  for (const char* name : {"NPROC_PER_NODE", "NNODES", "CUDA_VISIBLE_DEVICES", "FORCE_TORCHRUN"}) {
    CHECK(is_read_variable("swift", name));
    CHECK(is_read_variable("llamafactory", name));
    CHECK(!is_read_variable("torchtitan", name));
  }
  CHECK(!is_read_variable("swift", "OMP_NUM_THREADS"));
}

// Of a bar of 24: a quarter is 6, and three times as long as it took is left.
TEST_CASE("what is left of a long command is told from what is done") {
  CHECK(progress_text("queries", 12, 0, 3.4) == "queries: 12, 3 s");
  CHECK(progress_text("jobs", 3, 12, 2) == "jobs [######                  ] 3 of 12, 6 s to go");
  CHECK(progress_text("jobs", 0, 12, 2) == "jobs [                        ] 0 of 12");
  CHECK(progress_text("jobs", 12, 12, 2) == "jobs [########################] 12 of 12, 0 s to go");
  CHECK(progress_text("jobs", 13, 12, 2) == "jobs [########################] 13 of 12, 0 s to go");
}

TEST_CASE("a configuration's layers are counted by its family's own key") {
  CHECK(config_with_layers(R"({"n_layer":12,"a":1})", 3) == R"({"a":1,"n_layer":3})");
  CHECK(config_with_layers(R"({"model_type":"gpt2"})", 3) ==
        R"({"model_type":"gpt2","n_layer":3})");
  CHECK(config_with_layers(R"({"num_hidden_layers":4,"layer_types":["a","b","c","d"]})", 3) ==
        R"({"layer_types":["a","b","c"],"num_hidden_layers":3})");
  CHECK(config_with_layers(R"({"num_hidden_layers":2,"layer_types":["a","b"]})", 2) ==
        R"({"layer_types":["a","b"],"num_hidden_layers":2})");
  CHECK(config_with_layers(R"({"num_hidden_layers":2,"layer_types":["a"]})", 2) ==
        R"({"layer_types":["a"],"num_hidden_layers":2})");
  CHECK(config_with_layers(R"({"layer_types":"abc"})", 1) ==
        R"({"layer_types":"abc","num_hidden_layers":1})");
  CHECK(config_with_layers("[1]", 3) == "[1]");
}

TEST_CASE("a dropout is set at each of its keys, and inside the part that has them") {
  CHECK(config_with_dropout(R"({"a":0.5})", {.part = "", .names = {"a", "b"}}, 0.25) ==
        R"({"a":0.25,"b":0.25})");
  CHECK(config_with_dropout(R"({"a":0.5,"text":{"a":0.5}})", {.part = "text", .names = {"a"}}, 0) ==
        R"({"a":0.5,"text":{"a":0.0}})");
}

TEST_CASE("real numbers are finite, whole words, and between their ends") {
  CHECK(real_value("x", "0.5", 0, 1) == 0.5);
  CHECK(real_value("x", "1e-3", 0.001, 1) == 0.001);
  CHECK(real_value("x", "1", 0, 1) == 1);
  for (const char* text : {"", "nan", "inf", "-inf", "1e999", "0.5x", " 0.5", "0.5 ", "half"})
    CHECK(refusal([&] { return real_value("x", text, -1, 1); }) ==
          std::string("--x ") + text + ": must be a number");
  CHECK(refusal([] { return real_value("x", "1.01", 0, 1); }) == "--x 1.01: must be in 0 … 1");
  CHECK(refusal([] { return real_value("x", "-0.01", 0, 1); }) == "--x -0.01: must be in 0 … 1");
  CHECK(float_dtype("x", "fp16") == DType::fp16);
  CHECK(float_dtype("x", "bf16") == DType::bf16);
  CHECK(float_dtype("x", "fp32") == DType::fp32);
  for (const char* text : {"fp64", "int8", "fp8", ""})
    CHECK(refusal([&] { return float_dtype("x", text); }) ==
          std::string("--x ") + text + ": must be fp32, bf16 or fp16");
}

TEST_CASE("the hub's cache is where its variables say") {
  const Variable cache("HF_HUB_CACHE", "/a/b");
  CHECK(hub_cache() == "/a/b");
  const Variable none("HF_HUB_CACHE", "");
  const Variable home("HF_HOME", "/c");
  CHECK(hub_cache() == "/c/hub");
}

// 2^50 bytes, of which the program has 160 MiB, each rank an arena of 64 MiB and a BLAS buffer of
// 128 MiB, and each further thread of BLAS such a buffer.
TEST_CASE("of the addresses that a process may map, tensors get what the program leaves") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  rlimit limit = before;
  limit.rlim_cur = rlim_t{1} << 50;
  if (before.rlim_max != RLIM_INFINITY && before.rlim_max < limit.rlim_cur) return;
  const Variable one("OPENBLAS_NUM_THREADS", "1");
  REQUIRE(::setrlimit(RLIMIT_AS, &limit) == 0);
  const Bytes all = Bytes(std::int64_t{1} << 50);
  CHECK(host_addresses(1) == all - 352_MiB);
  CHECK(host_addresses(3) == all - 736_MiB);
  const std::int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  {
    const Variable two("OPENBLAS_NUM_THREADS", "2");
    CHECK(host_addresses(1) == all - 352_MiB - 128_MiB * (std::min<std::int64_t>(2, cores) - 1));
  }
  for (const char* said : {"", "0", "many"}) {  // as many as there are cores
    const Variable other("OPENBLAS_NUM_THREADS", said);
    CHECK(host_addresses(1) == all - 352_MiB - 128_MiB * (cores - 1));
  }
  limit.rlim_cur = RLIM_INFINITY;
  if (::setrlimit(RLIMIT_AS, &limit) == 0) CHECK(!host_addresses(1));
  REQUIRE(::setrlimit(RLIMIT_AS, &before) == 0);
}
