// Whole texts of made-up answers: every heading, row and figure of them stands here to be read.
#include <doctest/doctest.h>

#include <functional>

#include "reports/ledger_join.h"
#include "reports/oom/answer.h"
#include "reports/oom/reading.h"
#include "reports/oom/scanner.h"
#include "reports/page/page.h"
#include "reports/page/sections.h"
#include "reports/plan_json.h"
#include "reports/plan_table.h"
#include "reports/recommendation.h"
#include "reports/want_of_memory.h"
#include "tests/reports/made_up_plan.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {

models::Strategy strategy(models::Stack stack, std::int64_t gpus, int zero,
                          std::int64_t group = 0) {
  models::Strategy s;
  s.stack = stack;
  s.gpus = gpus;
  s.data.zero = zero;
  s.data.shard_group = group;
  return s;
}

Recommendation recommendation() {
  using models::Stack;
  Recommendation answer = made_up_recommendation();
  answer.ranked[0].tokens_per_second = 1234.5;
  const RankedPlan first = answer.ranked[0];
  for (const models::Strategy& s :
       {strategy(Stack::pytorch, 1, 0), strategy(Stack::pytorch, 2, 0),
        strategy(Stack::pytorch, 2, 1), strategy(Stack::pytorch, 16, 2),
        strategy(Stack::deepspeed, 8, 0), strategy(Stack::deepspeed, 8, 2, 4)}) {
    RankedPlan other = first;
    other.why.clear();
    other.plan.strategy = s;
    other.gpu_days.reset();
    answer.ranked.push_back(other);
  }
  answer.ranked[4].plan.strategy.data.fsdp_version = 1;
  for (int i = 0; i < 23; ++i)
    answer.front.push_back({Bytes((10 + i) * (1LL << 30)),
                            Bytes((11 + i) * (1LL << 30)),
                            1000.0 + i,
                            strategy(Stack::pytorch, 8, 3),
                            {},
                            "--zero 3"});
  return answer;
}

OomAnswer oom() {
  OomScanner scanner;
  scanner.feed(
      "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 238.00 MiB. GPU 0 "
      "has "
      "a total capacity of 22.05 GiB of which 10.81 MiB is free. Process 43872 has 4.97 GiB memory "
      "in use. Including non-PyTorch memory, this process has 17.05 GiB memory in use. Of the "
      "allocated memory 15.43 GiB is allocated by PyTorch, and 1.07 GiB is reserved by PyTorch but "
      "unallocated. If reserved but unallocated memory is large try setting "
      "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n"
      "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 238.00 MiB. GPU 1 "
      "has "
      "a total capacity of 22.05 GiB of which 10.81 MiB is free.\n");
  scanner.finish();
  OomAnswer answer{.log = scanner.log()};
  answer.reading = read_cause(*answer.log.first);
  return answer;
}

}  // namespace

// MFU of the second line: 1e15 FLOP x 1234.5 tokens/s / (8192 x 2 x 4 tokens x 989.4e12 FLOP/s)
// = 1.9 %. Of 23 points of the front 12 are shown, the ends among them: every second. 75 GPU-days
// are 9.38 days on 8 GPUs.
TEST_CASE("a recommendation, from the first line to the last") {
  CHECK(recommendation_table(recommendation(), {}) ==
        R"(USE pytorch, FSDP2 full shard, bf16-mixed, recompute none, full loss,
  micro-batch 2, accumulation 4
tiny-llama: 8 x NVIDIA H100 SXM 80GB, 8 left idle, sequence 8192

The same as
  plimsoll fit tiny-llama --gpus 8 --zero 3

    strategy                    GPUs recompute batch     device  tokens/s   MFU
 1  pytorch FSDP2                  8 none      2x4     43.0 GiB     1,235   0.0
 2  pytorch one GPU                1 none      2x4     43.0 GiB     1,235   1.9
 3  pytorch DDP                    2 none      2x4     43.0 GiB     1,235   0.5
 4  pytorch DDP+ZeRO-1             2 none      2x4     43.0 GiB     1,235   0.5
 5  pytorch FSDP1 no reshard      16 none      2x4     43.0 GiB     1,235   0.0
 6  deepspeed DDP                  8 none      2x4     43.0 GiB     1,235   0.0
 7  deepspeed ZeRO-2 /4            8 none      2x4     43.0 GiB     1,235   0.0
The fastest that fits: 1,500 tokens/s. Plans of one kind (stack, sharding)
  within 4 % count as equally fast, of different kinds within 8 %, and sharding
  or DeepSpeed must be faster by as much again: the estimate is no better than
  that (reports/accuracy.md). Among equals the simplest comes first, then the
  one with the most room.

Why plan 1
  One reason.

A budget of 1e+09 tokens
  6 N D = 6e+15 FLOP
   1  75 GPU-days, 9.38 days on 8 GPUs

Memory against speed: no plan needs less and is faster
       peak  tokens/s  strategy
   10.0 GiB     1,000  pytorch FSDP2, none, full loss, batch 1x1
   12.0 GiB     1,002  pytorch FSDP2, none, full loss, batch 1x1
   14.0 GiB     1,004  pytorch FSDP2, none, full loss, batch 1x1
   16.0 GiB     1,006  pytorch FSDP2, none, full loss, batch 1x1
   18.0 GiB     1,008  pytorch FSDP2, none, full loss, batch 1x1
   20.0 GiB     1,010  pytorch FSDP2, none, full loss, batch 1x1
   22.0 GiB     1,012  pytorch FSDP2, none, full loss, batch 1x1
   24.0 GiB     1,014  pytorch FSDP2, none, full loss, batch 1x1
   26.0 GiB     1,016  pytorch FSDP2, none, full loss, batch 1x1
   28.0 GiB     1,018  pytorch FSDP2, none, full loss, batch 1x1
   30.0 GiB     1,020  pytorch FSDP2, none, full loss, batch 1x1
   32.0 GiB     1,022  pytorch FSDP2, none, full loss, batch 1x1
  (12 of 23 points; --json has all)

34,567 strategies compared by evaluating 12 in 0.25 s. Not considered: offload,
  tensor parallelism
)");
}

// Beside PyTorch: 17.05 - 15.43 - 1.07 GiB = 563 MiB. Elsewhere: 22.05 GiB - 10.81 MiB - 17.05
// - 4.97 GiB = 19.9 MiB.
TEST_CASE("an answer about a message, from the first line to the last") {
  CHECK(oom_table(oom(), {}) == R"(OUT OF MEMORY: no room for 238 MiB on GPU 0 of rank 0 (line 1)
Fragmentation: PyTorch had 1.07 GiB in its cache, more than the 238 MiB that
  were asked for, but in no piece that large.

What the message says
  asked for           238 MiB  after the allocator's rounding
  free               10.8 MiB  by the driver
  allocated          15.4 GiB  to tensors, by PyTorch
  cache              1.07 GiB  reserved by PyTorch, and not allocated
  this process       17.0 GiB  PyTorch and all else
    beside PyTorch    563 MiB  context, NCCL, libraries
  other processes    4.97 GiB  as they are listed
  elsewhere          19.9 MiB  processes that are not listed, the driver
  card               22.0 GiB  as CUDA counts it

All 2 messages of the log
  2 x 238 MiB (ranks 0, 1) (GPUs 0, 1)

Try first
  1. PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: the cache holds the
     memory, in pieces (1.07 GiB at most, enough for this request)
  2. end the other processes on this card: 43872 (4.97 GiB): they hold memory of
     it (4.97 GiB at most, enough for this request)
  3. name the model and its options behind the log, as for plimsoll fit: which
     tensor failed, and which change avoids it
)");
}

// Shares of 40 GiB and of 2 s; 43 = 42 + 0.5 + 0.25 + 0.25 GiB, of 78.
TEST_CASE("a plan, from the first line to the last") {
  CHECK(plan_table(made_up_plan(), {}) ==
        R"(FITS: 43.0 GiB needed on each GPU, 78.0 GiB usable: 35.0 GiB to spare
tiny-llama: LlamaForCausalLM, 1,000,000 parameters
8 x NVIDIA H100 SXM 80GB, pytorch, FSDP2 full shard, bf16-mixed, adamw
sequence 8192, micro-batch 2, accumulation 4, recompute none, flash attention,
  full loss

At the peak (backward, layers.31.mlp, rank 0)
  parameters        4.00 GiB   10.0 % ████▎
  gradients         4.00 GiB   10.0 % ████▎
  optimizer         8.00 GiB   20.0 % ████████▍
  activations       20.0 GiB   50.0 % █████████████████████
  logits            2.00 GiB    5.0 % ██▏
  temporaries       1.00 GiB    2.5 % █
  communication     1.00 GiB    2.5 % █
  peak              40.0 GiB  allocated at once
  between steps     16.0 GiB  stays allocated

On the device
  reserved          42.0 GiB  by the allocator, with its rounding and gaps
  context            512 MiB  of the driver and loaded kernels
  libraries          256 MiB  outside the allocator
  NCCL               256 MiB  buffers of the communicators
  device            43.0 GiB  as nvidia-smi counts
  usable            78.0 GiB  of a capacity of 79.0 GiB

Step: 2 s, 262,144 tokens/s, MFU 40.0 % (45.0 % with full attention)
  compute 75.0 %, exposed communication 20.0 %, optimizer 5.0 %, limited by
  links between nodes

Nothing to add.

Assumed or calibrated (1; --json has their sources)
  CUDA context: 536870912 (assumed)
)");
}

TEST_CASE("a front of one point is shown whole") {
  using models::Stack;
  Recommendation answer = recommendation();
  answer.front = {{10_GiB, 11_GiB, 1000.0, strategy(Stack::pytorch, 8, 3, 4), {}, ""}};
  const std::string table = recommendation_table(answer, {});
  CHECK(table.find("pytorch FSDP2 /4, none") != std::string::npos);
  CHECK(table.find("points; --json has all") == std::string::npos);
}

namespace {

// Three ops in 5 GiB beside an overhead of 1 GiB: the second needs 6 GiB, the third 7.
Plan short_of_memory() {
  Plan plan;
  plan.usable = 6_GiB;
  plan.device = 8_GiB;
  plan.overhead.context = 1_GiB;
  const auto point = [](const char* op, Bytes high) {
    return TimelinePoint{.op = op, .phase = "forward", .allocated = high, .high_water = high};
  };
  plan.timeline = {point("embed", 4_GiB), point("mlp", 6_GiB), point("loss", 7_GiB)};
  const auto line = [](const char* name, Bytes bytes, std::int64_t born, std::int64_t dies) {
    TensorLine out{.name = name, .category = "activations", .bytes = bytes};
    out.born_op = born;
    out.dies_op = dies;
    return out;
  };
  plan.tensors = {line("w", 3_GiB, -1, 3), line("x", 1_GiB, 0, 0), line("small", 1_MiB, 1, 2),
                  line("y", 3_GiB, 1, 2), line("z", 1_GiB, 2, 2)};
  return plan;
}

}  // namespace

TEST_CASE(
    "want of memory names the first op without room, its largest new tensor, and what lives "
    "there") {
  CHECK(want_of_memory(short_of_memory(), {}) ==
        "DOES NOT FIT: 8.00 GiB needed on each rank, 6.00 GiB usable: 2.00 GiB too much\n"
        "No room for y (3.00 GiB) at op 1, forward mlp: 6.00 GiB would live there at\n  once.\n"
        "\nLiving there\n"
        "  w                                                  3.00 GiB  activations\n"
        "  y                                                  3.00 GiB  activations\n"
        "  small                                              1.00 MiB  activations\n");
}

TEST_CASE("what is too large before the step is named there") {
  Plan plan = short_of_memory();
  plan.usable = 3_GiB;
  CHECK(want_of_memory(plan, {}).find(
            "No room for w (3.00 GiB) before the step: 3.00 GiB would live there") !=
        std::string::npos);
}

// Where only the allocator's rounding is too much, every op has room: the highest is named.
TEST_CASE("without an op that has no room the peak is named") {
  Plan plan = short_of_memory();
  plan.usable = 8_GiB;
  CHECK(want_of_memory(plan, {}).find("No room for z (1.00 GiB) at op 2, forward loss: 7.00 GiB") !=
        std::string::npos);
}

TEST_CASE(
    "a tensor that one side alone has counts with its bytes on that side, and with none on the "
    "other") {
  StepLedger predicted{.ops = {{"mlp", "forward", 5_B, 5_B}},
                       .tensors = {{"x", "activations", 5_B, 0, 0}}};
  StepLedger measured{.ops = predicted.ops, .tensors = {}};
  const auto one = join(0, predicted, measured);
  REQUIRE(one.size() == 1);
  CHECK(one[0].kind == Difference::Kind::only_predicted);
  CHECK(one[0].predicted_bytes == 5_B);
  CHECK(one[0].measured_bytes == 0_B);
  const auto other = join(0, measured, predicted);
  REQUIRE(other.size() == 1);
  CHECK(other[0].kind == Difference::Kind::only_measured);
  CHECK(other[0].predicted_bytes == 0_B);
  CHECK(other[0].measured_bytes == 5_B);
}

TEST_CASE("figures of a page: whole numbers in groups, shares with one digit") {
  CHECK(whole_number(1234567.4) == "1,234,567");
  CHECK(whole_number(0.5) == "1");
  CHECK(whole_number(1e19) == "1e+19");
  CHECK(percent(0.1234) == "12.3 %");
}

TEST_CASE("messages of sizes that no group is kept for are counted in the table, and only those") {
  OomAnswer answer = oom();
  CHECK(oom_table(answer, {}).find("of other sizes") == std::string::npos);
  answer.log.ungrouped = 3;
  CHECK(oom_table(answer, {}).find("\n  3 of other sizes\n") != std::string::npos);
}

TEST_CASE("a page has the largest tensors of the peak, and the figures of its plan") {
  std::string document;
  JsonWriter json(document, JsonWriter::Style::compact);
  Plan plan = made_up_plan();
  plan.fingerprint.clear();
  write_plan(json, plan, {.version = "1", .commit = "1"});
  const std::string html = page(document, "plan.json");
  for (const char* part : {"The largest tensors at the peak", "layers.<wbr>*.<wbr>attn.<wbr>q",
                           "1.00 MiB", "43.0 GiB", "H100"})
    CHECK_MESSAGE(html.find(part) != std::string::npos, part);
}

TEST_CASE("without a budget nothing is said of one") {
  Recommendation answer = recommendation();
  answer.budget_tokens.reset();
  CHECK(recommendation_table(answer, {}).find("budget") == std::string::npos);
  answer = recommendation();
  answer.ranked.clear();
  CHECK(recommendation_table(answer, {}).find("A budget of") == std::string::npos);
}

// Ten stand by name; of 1, 2 … 12 GiB the smallest two are 3 GiB together.
TEST_CASE("what lives beside the ten largest is one line") {
  Plan plan = short_of_memory();
  plan.tensors.clear();
  plan.usable = 4_GiB;
  for (int i = 1; i <= 12; ++i) {
    TensorLine line{.name = "t" + std::to_string(i),
                    .category = "activations",
                    .bytes = Bytes(i * (1LL << 30))};
    line.born_op = 0;
    line.dies_op = 2;
    plan.tensors.push_back(line);
  }
  const std::string text = want_of_memory(plan, {});
  CHECK(text.find("  t12                                                12.0 GiB  activations\n") !=
        std::string::npos);
  CHECK(text.find("  t3 ") != std::string::npos);
  CHECK(text.find("  t2 ") == std::string::npos);
  CHECK(text.ends_with("  2 more                                             3.00 GiB\n"));
}

TEST_CASE("the document of an answer about a message has its groups and counts") {
  std::string text;
  JsonWriter json(text, JsonWriter::Style::compact);
  write_oom(json, oom(), {.version = "1", .commit = "1"});
  const auto document = nlohmann::json::parse(text);
  CHECK(document["schema"] == "plimsoll.oom/1");
  std::function<const nlohmann::json*(const nlohmann::json&)> groups =
      [&](const nlohmann::json& in) -> const nlohmann::json* {
    if (in.is_object() && in.contains("groups")) return &in;
    if (in.is_structured())
      for (const auto& member : in)
        if (const nlohmann::json* found = groups(member)) return found;
    return nullptr;
  };
  const nlohmann::json* log = groups(document);
  REQUIRE(log != nullptr);
  CHECK((*log)["messages"] == 2);
  CHECK((*log)["ungrouped"] == 0);
  REQUIRE((*log)["groups"].size() == 1);
  const nlohmann::json& group = (*log)["groups"][0];
  CHECK(group["tried_bytes"] == 238 << 20);
  CHECK(group["count"] == 2);
  CHECK(group["ranks"] == nlohmann::json({0, 1}));
  CHECK(group["gpus"] == nlohmann::json({0, 1}));
}

TEST_CASE("a bar has its parts in hundredths of the whole, and a mark where the limit is inside") {
  CHECK(bar_html({{25, "red", "a"}, {150, "blue", "b"}}, 100, 80) ==
        "<span class=\"bar\"><i style=\"width:25.00%;background:red\" title=\"a\"></i>"
        "<i style=\"width:100.00%;background:blue\" title=\"b\"></i><b "
        "style=\"left:80.00%\"></b></span>");
  CHECK(bar_html({}, 100, 100) == "<span class=\"bar\"></span>");
  CHECK(bar_html({}, 100, 0) == "<span class=\"bar\"></span>");
}
