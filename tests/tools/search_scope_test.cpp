// What a given option means to `recommend`: axes that stay, and what every plan has.
#include "tools/cli/search_scope.h"

#include <doctest/doctest.h>

#include "tests/scratch_folder.h"

using namespace plimsoll;
using namespace plimsoll::tools;
using plimsoll::test::ScratchFolder;

namespace {
using Axes = std::set<std::string, std::less<>>;

SearchRequest asked(const std::vector<std::pair<std::string, std::string>>& given) {
  Options options;
  for (const auto& [name, value] : given) options.add(name, value);
  Sources sources;
  return search_request("gpt2", options, sources);
}
Axes fixed(const std::vector<std::pair<std::string, std::string>>& given) {
  const auto& names = asked(given).scope.fixed;
  return Axes(names.begin(), names.end());
}
}  // namespace

TEST_CASE("an option that is given keeps the axes that it decides, and no other") {
  CHECK(fixed({}).empty());
  CHECK(fixed({{"seq-len", "512"}}).empty());
  CHECK(fixed({{"recompute", "full"}}) == Axes{"recompute"});
  CHECK(fixed({{"lora-rank", "8"}}) == Axes{"adapters"});
  // FSDP's reduce dtype: only pytorch has it, from --zero 2 on, and it follows the precision.
  CHECK(fixed({{"grad-dtype", "fp32"}, {"zero", "3"}}) == Axes{"precision", "stack", "zero"});
  CHECK(fixed({{"reduce-dtype", "bf16"}, {"stack", "plimsoll"}}) == Axes{"precision", "stack"});
  CHECK(fixed({{"param-dtype", "bf16"}}) == Axes{"param-dtype", "precision", "stack"});
}

TEST_CASE(
    "FSDP's options leave open which of its two stages it is, and a stage that is given does not") {
  for (const auto& [option, value] :
       {std::pair("fsdp-version", "1"), {"fsdp-upcast", "no"}, {"reduce-dtype", "bf16"}}) {
    CAPTURE(option);
    const SearchRequest open = asked({{option, value}, {"gpus", "2"}});
    CHECK(!open.scope.fixed.contains("zero"));
    CHECK(open.scope.only.at("zero") == std::set<std::string>{"2", "3"});
    const SearchRequest given = asked({{option, value}, {"gpus", "2"}, {"zero", "2"}});
    CHECK(given.scope.fixed.contains("zero"));
    CHECK(given.scope.only.empty());
  }
  CHECK(asked({{"gpus", "2"}}).scope.only.empty());
}

TEST_CASE("filters are axes with values, and what is kept is an axis") {
  const SearchRequest s = asked({{"only", "zero=2,zero=3,stack=pytorch"},
                                 {"without", "loss=fused"},
                                 {"keep", "micro-batch,attention"}});
  CHECK(s.scope.only.at("zero") == std::set<std::string>{"2", "3"});
  CHECK(s.scope.only.at("stack") == std::set<std::string>{"pytorch"});
  CHECK(s.scope.without.at("loss") == std::set<std::string>{"fused"});
  CHECK(s.scope.fixed.contains("micro-batch"));
  CHECK(s.scope.fixed.contains("attention"));
  for (const char* item : {"zero", "=3", "zero=", "="})
    CHECK_THROWS_AS((void)asked({{"only", item}}), Error);
  CHECK_THROWS_AS((void)asked({{"keep", "batch"}}), Error);
}

TEST_CASE("what a search is told stands in its scope") {
  const SearchRequest s = asked({{"objective", "gpus"}, {"top", "7"}, {"threads", "3"}});
  CHECK(s.scope.objective == planner::search::Objective::gpus);
  CHECK(s.scope.top == 7);
  CHECK(s.scope.threads == 3);
  CHECK(s.scope.gpus == 1024);  // as many as are looked at where none are named
  CHECK(asked({{"objective", "gpus"}, {"gpus", "16"}}).scope.gpus == 16);
  CHECK(asked({{"gpus", "4"}}).scope.gpus == 4);
  CHECK(asked({{"global-batch", "64"}}).scope.global_batch == 64);
  CHECK(!asked({}).scope.global_batch);
  for (const std::vector<std::pair<std::string, std::string>>& given :
       {std::vector<std::pair<std::string, std::string>>{{"objective", "context"},
                                                         {"seq-len", "512"}},
        {{"objective", "batch"}, {"global-batch", "64"}},
        {{"global-batch", "64"}, {"grad-accum", "2"}},
        {{"data", "x.jsonl"}},
        {{"recompute", "fit"}},
        {{"params", "7e9"}}})
    CHECK_THROWS_AS((void)asked(given), Error);
}

// Without a wish plans must fit at the high end of what is assumed; with one, with what is typical.
TEST_CASE("what must stay free is reserved beside what is reserved anyway") {
  using planner::Overheads;
  const SearchRequest plain = asked({{"reserve", "1GiB"}, {"gpu-memory", "20GiB"}});
  CHECK(plain.request.question.cluster.reserve == 1_GiB);
  CHECK(plain.scope.overheads == Overheads::high_end);
  const SearchRequest free =
      asked({{"reserve", "1GiB"}, {"min-headroom", "2GiB"}, {"gpu-memory", "20GiB"}});
  CHECK(free.request.question.cluster.reserve == 3_GiB);
  CHECK(free.scope.overheads == Overheads::typical);
  CHECK(*free.kept.find("reserve") == "3221225472");  // of both, in every plan
  CHECK(free.kept.all("reserve").size() == 1);
  CHECK(!asked({{"gpu-memory", "20GiB"}}).kept.has("reserve"));
}

TEST_CASE("what is searched is written anew for each plan, and what is not stands in all of them") {
  const Options kept = asked({{"optimizer", "sgd"},
                              {"recompute", "full"},
                              {"gpus", "2"},
                              {"hold-outputs", ""},
                              {"objective", "memory"},
                              {"json", "-"}})
                           .kept;
  CHECK(kept.has("optimizer"));
  CHECK(kept.has("hold-outputs"));
  for (const char* option : {"recompute", "gpus", "objective", "json"}) CHECK(!kept.has(option));
}

TEST_CASE(
    "a DeepSpeed file that settles all three batch sizes says how many GPUs there are at least") {
  const ScratchFolder folder;
  const auto refusal = [&](const char* sizes, const char* gpus) -> std::string {
    const std::string file = folder.write("ds.json", sizes);
    try {
      (void)asked({{"deepspeed", file}, {"stack", "deepspeed"}, {"gpus", gpus}});
    } catch (const Error& error) {
      return error.message().substr(error.message().find(": ") + 2);
    }
    return "";
  };
  // 64 sequences a step, 4 a micro-batch, no accumulation: 16 GPUs.
  constexpr const char* kSettled =
      R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1})";
  CHECK(refusal(kSettled, "8") == "its batch sizes are those of 16 GPUs: --gpus is 8");
  CHECK(refusal(kSettled, "16") == "");
  // Without one of them it follows from the number of GPUs.
  CHECK(refusal(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4})", "8") == "");
  CHECK(refusal(R"({"train_batch_size": 64, "gradient_accumulation_steps": 4})", "8") == "");
  CHECK(refusal(R"({"train_batch_size": 63, "gradient_accumulation_steps": 4})", "8") ==
        "train_batch_size 63 is no multiple of 4 (micro-batch x accumulation)");
}

TEST_CASE("what no launcher starts is not recommended") {
  CHECK_NOTHROW(asked({{"data-parallel", "ddp"}, {"gpus", "2"}}));
  CHECK_THROWS_WITH(asked({{"data-parallel", "dp"}, {"gpus", "2"}, {"precision", "bf16"}}),
                    doctest::Contains("`plimsoll fit` plans torch.nn.DataParallel"));
}
