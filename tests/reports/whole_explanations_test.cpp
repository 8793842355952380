// Whole explanations and whole comparisons of made-up figures: every row of them stands here to be
// read, with a figure of its own.
#include <doctest/doctest.h>

#include "reports/comparison_json.h"
#include "reports/explain.h"
#include "tests/reports/made_up_plan.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {
TensorLine tensor(const char* name, Bytes bytes, bool at_peak, const char* category,
                  const char* born, const char* dies, std::int64_t repeat = 1) {
  return {.name = name,
          .category = category,
          .bytes = bytes,
          .repeat = repeat,
          .born = born,
          .dies = dies,
          .at_peak = at_peak};
}

Plan plan() {
  Plan out = made_up_plan();
  out.tensors = {tensor("layers.0.mlp.act", 8_GiB, true, "activations", "forward layers.0.mlp.act",
                        "backward layers.0.mlp.act"),
                 tensor("layers.1.mlp.act", 10_GiB, true, "activations", "forward layers.1.mlp.act",
                        "backward layers.1.mlp.act"),
                 tensor("w.2", 4_GiB, true, "parameters", "start", "end", 4),
                 tensor("gone", 1_GiB, false, "temporaries", "forward gone", "forward gone"),
                 tensor("h.x", 512_MiB, true, "temporaries", "forward h.x", "backward h.x")};
  return out;
}
}  // namespace

// 8 + 10 + 4 · 4 + 0.5 GiB have a name at the peak; 40 - 34.5 = 5.5 GiB have none.
TEST_CASE("a plan's explanation, from the first line to the last") {
  const std::vector<Replanned> changes = {{.option = "--recompute full", .peak = 24_GiB},
                                          {.option = "--loss fused", .peak = 40_GiB},
                                          {.option = "--zero 3", .peak = 39_GiB},
                                          {.option = "--seq-len 9000", .peak = 41_GiB}};
  CHECK(explanation(plan(), changes, {}) ==
        R"--(Device 43.0 GiB = reserved 42.0 GiB + context 512 MiB + NCCL 256 MiB + libraries
  256 MiB
Reserved 42.0 GiB = peak 40.0 GiB + 2.00 GiB of rounding and gaps, by a replay
  of every request of two steps in the allocator
Peak 40.0 GiB (42,949,672,960 bytes): rank 0, backward, at layers.31.mlp; the
  tensors that live then, and no other figure

  at the peak  tensors  name, and what it is (from its birth to its death)
     18.0 GiB        2  layers.*.mlp.act
                        activations: forward mlp.act - backward mlp.act
     16.0 GiB        4  w.*
                        parameters: start - end
      512 MiB        1  h.x
                        temporaries: forward h.x - backward h.x
     5.50 GiB           inside the op, and blocks' rounding

What would make the peak smaller (each planned again)
  --recompute full               -16.0 GiB  to 24.0 GiB
  --zero 3                       -1.00 GiB  to 39.0 GiB

Figures that no formula gives, and who says so
  CUDA context: 536870912 (assumed; a page)
)--");
}

TEST_CASE("names beyond the fortieth are one row, and there is no rest where all has a name") {
  Plan many = made_up_plan();
  many.tensors.clear();
  for (int i = 0; i < 43; ++i)
    many.tensors.push_back(tensor(("t" + std::string(1, static_cast<char>('A' + i))).c_str(),
                                  Bytes((100 - i) * (std::int64_t{1} << 20)), true, "logits", "a",
                                  "b"));
  many.peak = 0_B;
  for (const TensorLine& one : many.tensors) many.peak += one.bytes;
  const std::string text = explanation(many, {}, {});
  // 60, 59 and 58 MiB are left.
  CHECK(text.find("\n      177 MiB           of 3 other names\n\nWhat would") != text.npos);
  CHECK(text.find("inside the op") == text.npos);
  many.peak -= 1_MiB;
  CHECK(explanation(many, {}, {}).find("-1.00 MiB           inside the op") != text.npos);
}

TEST_CASE("tensors' explanation, from the first line to the last") {
  const Plan of = plan();
  const std::vector<TensorGroup> groups = tensor_groups(of);
  Replanned twice{.option = "--micro-batch 4", .peak = 60_GiB, .device = 0_B, .groups = groups};
  Replanned longer{.option = "--seq-len 16384", .peak = 60_GiB, .device = 0_B, .groups = groups};
  for (TensorGroup& group : twice.groups) group.bytes = Bytes(group.bytes.value() * 2);
  longer.groups[0].bytes = Bytes(longer.groups[0].bytes.value() * 3);
  Replanned less{.option = "--recompute full", .peak = 24_GiB, .device = 0_B, .groups = groups};
  less.groups[0].bytes = 2_GiB;
  const Replanned none{.option = "--loss fused", .peak = 41_GiB, .device = 0_B, .groups = {}};
  CHECK(tensor_explanation(of, groups, {{twice, 2}, {longer, 2}}, {less, none}, {}) ==
        R"--(layers.*.mlp.act: 18.0 GiB of activations
  2 of 8,589,934,592 to 10,737,418,240 bytes
  made by: forward mlp.act
  dies: backward mlp.act
  at the peak (backward, layers.31.mlp): 18.0 GiB, 2 of 2
  grows: x2 with --micro-batch 4, x3 with --seq-len 16384
  --recompute full              2.00 GiB; peak -16.0 GiB
  --loss fused                  none of it; peak +1.00 GiB

w.*: 16.0 GiB of parameters
  4 of 4,294,967,296 bytes
  made by: start
  dies: end
  at the peak (backward, layers.31.mlp): 16.0 GiB, 4 of 4
  grows: x2 with --micro-batch 4, x1 with --seq-len 16384
  --loss fused                  none of it; peak +1.00 GiB

h.x: 512 MiB of temporaries
  536,870,912 bytes
  made by: forward h.x
  dies: backward h.x
  at the peak (backward, layers.31.mlp): 512 MiB, 1 of 1
  grows: x2 with --micro-batch 4, x1 with --seq-len 16384
  --loss fused                  none of it; peak +1.00 GiB

gone: 1.00 GiB of temporaries
  1,073,741,824 bytes
  made by: forward gone
  dies: forward gone
  at the peak (backward, layers.31.mlp): none of it
  grows: x2 with --micro-batch 4, x1 with --seq-len 16384
  --loss fused                  none of it; peak +1.00 GiB
)--");
  CHECK(tensor_explanation(of, {groups[1]}, {{twice, 2}}, {}, {}) ==
        R"--(w.*: 16.0 GiB of parameters
  4 of 4,294,967,296 bytes
  made by: start
  dies: end
  at the peak (backward, layers.31.mlp): 16.0 GiB, 4 of 4
  grows: x2 with --micro-batch 4; one is 262144 bytes for each of 16,384 tokens
)--");
}

TEST_CASE("the explanation of a step's time, from the first line to the last") {
  const std::vector<OpTimeLine> ops = {{.op = "layers.*.mlp",
                                        .phase = "forward",
                                        .times = 32,
                                        .flops = 3.5e12,
                                        .bytes = 5.5 * (1 << 30),
                                        .kernels = 96,
                                        .seconds = 0.75},
                                       {.op = "lm_head",
                                        .phase = "backward",
                                        .times = 1,
                                        .flops = 0,
                                        .bytes = 3,
                                        .kernels = 4,
                                        .seconds = 0.2},
                                       {.op = "nothing",
                                        .phase = "forward",
                                        .times = 1,
                                        .flops = 1e12,
                                        .bytes = 7,
                                        .kernels = 1,
                                        .seconds = 0},
                                       {.op = "layers.0.attn",
                                        .phase = "recompute",
                                        .times = 32,
                                        .flops = 1e12,
                                        .bytes = 0.5,
                                        .kernels = 1234,
                                        .seconds = 0.05}};
  CHECK(time_explanation(made_up_plan(), ops, {}) ==
        R"--(Forward and backward of a step: 1000 ms on the GPU, by op and phase; GEMMs and
  attention by their FLOPs, all else by the bytes that it moves
         ms   share    TFLOP      bytes kernels  phase, op (*: of all layers)
    750.000  75.00%    3.500   5.50 GiB      96  fwd *.mlp
    200.000  20.00%                 3 B       4  bwd lm_head
     50.000   5.00%    1.000               1234  rec layers.0.attn
The step: 2000 ms = compute 1500 (with what messages and the host's launches
  cost beside it) + messages that nothing hides 400 + optimizer 100
)--");
  Plan bare = made_up_plan();
  bare.time.optimizer_seconds.reset();
  CHECK(time_explanation(bare, ops, {}).find("The step:") == std::string::npos);
  CHECK_THROWS_WITH_AS((void)time_explanation(bare, {}, {}),
                       "--explain time: no time is predicted for this GPU and precision", Error);
}

TEST_CASE(
    "names are found whole, by their beginning, end or middle, and refused with the nearest") {
  const std::vector<TensorGroup> groups = tensor_groups(plan());
  const auto called = [&](const std::string& asked) {
    std::string out;
    for (const TensorGroup& group : groups_called(groups, asked)) out += group.name + " ";
    return out;
  };
  CHECK(called("layers.7.mlp.act") == "layers.*.mlp.act ");
  CHECK(called("mlp") == "layers.*.mlp.act ");
  CHECK(called("act") == "layers.*.mlp.act ");
  CHECK(called("layers") == "layers.*.mlp.act ");
  CHECK(called("w") == "w.* ");
  CHECK(called("gone") == "gone ");
  CHECK_THROWS_WITH_AS((void)called("gnoe"),
                       "--explain gnoe: no tensor of this step is called so; did you mean 'gone'? "
                       "(time, all, or a name as --explain alone lists them)",
                       Error);
  CHECK_THROWS_WITH_AS((void)called("ml"),
                       doctest::Contains("--explain ml: no tensor of this step is called so"),
                       Error);
}

namespace {
Comparison comparison() {
  Comparison out;
  out.prediction = "p.json";
  out.measurement = "m.json";
  out.fingerprint = "00ff";
  out.model = "tiny";
  out.stack = "pytorch";
  out.outcome = "out_of_memory";
  out.detailed = true;
  out.memory = {Level::Verdict::differs, "L1"};
  out.reserved = {Level::Verdict::within, "L2"};
  out.device = {Level::Verdict::explained, "L3"};
  out.time = {Level::Verdict::not_compared, "L4"};
  out.sample = "in-sample";
  RankComparison rank;
  rank.rank = 3;
  rank.categories = {{"logits", 1_B, 3_B}, {"workspace", 4_B, {}}};
  rank.peak = {"peak", 5_B, 7_B};
  rank.resident = {"resident", 9_B, 8_B};
  rank.reserved = {"reserved", 10_B, 10_B};
  rank.device = {"device", {}, 11_B};
  rank.unaccounted = -2_B;
  RankComparison first;
  first.rank = 1;
  out.ranks = {first, rank};
  out.shown = 1;
  Difference bytes{Difference::Kind::bytes, 3, 12, "t", "layers.0", "1 B", "3 B", 1_B, 3_B};
  Difference figure{Difference::Kind::figure, 1, -1, "", "peak", "5 B", "7 B", {}, {}};
  out.differences = {bytes, figure};
  TensorRow row;
  row.bytes = {"t", 1_B, 3_B};
  row.category = "logits";
  row.predicted = 2;
  row.measured = 4;
  out.tensors.push_back(row);
  out.notes = {"A note.", "Another."};
  return out;
}
}  // namespace

TEST_CASE("a comparison's document, from the first line to the last") {
  const auto document = [](const std::vector<Comparison>& all) {
    return pretty([&](JsonWriter& json) { write_comparisons(json, all, {"1", "abc"}); });
  };
  CHECK(document({comparison()}) == R"--({
  "schema": "plimsoll.comparison/1",
  "tool": {"version": "1", "commit": "abc"},
  "agrees": false,
  "outcome": "out_of_memory",
  "prediction": "p.json",
  "measurement": "m.json",
  "workload": {"fingerprint": "00ff", "model": "tiny", "stack": "pytorch"},
  "tensor_by_tensor": true,
  "sample": "in-sample",
  "levels": {
    "requested": {"verdict": "differs", "text": "L1"},
    "reserved": {"verdict": "within", "text": "L2"},
    "device": {"verdict": "explained", "text": "L3"},
    "time": {"verdict": "not compared", "text": "L4"}
  },
  "rank": 3,
  "unaccounted_bytes": -2,
  "categories": [
    {"category": "logits", "predicted_bytes": 1, "measured_bytes": 3, "difference_bytes": 2},
    {"category": "workspace", "predicted_bytes": 4, "measured_bytes": null, "difference_bytes": null}
  ],
  "first_difference": "rank 3, t, born layers.0: 1 B predicted, 3 B measured",
  "differences_found": 2,
  "differences": [
    {"kind": "bytes", "rank": 3, "op_index": 12, "where": "layers.0", "tensor": "t", "predicted": "1 B", "measured": "3 B", "predicted_bytes": 1, "measured_bytes": 3, "difference_bytes": 2, "text": "rank 3, t, born layers.0: 1 B predicted, 3 B measured"},
    {"kind": "figure", "rank": 1, "op_index": -1, "where": "peak", "tensor": null, "predicted": "5 B", "measured": "7 B", "predicted_bytes": null, "measured_bytes": null, "difference_bytes": null, "text": "rank 1, peak: 5 B predicted, 7 B measured"}
  ],
  "ranks": [
    {
      "rank": 1,
      "peak": {"predicted_bytes": null, "measured_bytes": null, "difference_bytes": null},
      "resident": {"predicted_bytes": null, "measured_bytes": null, "difference_bytes": null},
      "reserved": {"predicted_bytes": null, "measured_bytes": null, "difference_bytes": null},
      "device": {"predicted_bytes": null, "measured_bytes": null, "difference_bytes": null},
      "unaccounted_bytes": null,
      "categories": []
    },
    {
      "rank": 3,
      "peak": {"predicted_bytes": 5, "measured_bytes": 7, "difference_bytes": 2},
      "resident": {"predicted_bytes": 9, "measured_bytes": 8, "difference_bytes": -1},
      "reserved": {"predicted_bytes": 10, "measured_bytes": 10, "difference_bytes": 0},
      "device": {"predicted_bytes": null, "measured_bytes": 11, "difference_bytes": null},
      "unaccounted_bytes": -2,
      "categories": [
        {"category": "logits", "predicted_bytes": 1, "measured_bytes": 3, "difference_bytes": 2},
        {"category": "workspace", "predicted_bytes": 4, "measured_bytes": null, "difference_bytes": null}
      ]
    }
  ],
  "tensors": [
    {"name": "t", "category": "logits", "predicted_count": 2, "measured_count": 4, "predicted_bytes": 1, "measured_bytes": 3, "difference_bytes": 2}
  ],
  "notes": [
    "A note.",
    "Another."
  ]
})--");
  Comparison bare;
  bare.agrees = true;
  const std::string both = document({bare, comparison()});
  CHECK(both.find("\"agrees\": false,\n  \"comparisons\": [\n    {\n      \"agrees\": true,") !=
        both.npos);
  CHECK(document({bare, bare}).find("\"agrees\": true,\n  \"comparisons\"") != both.npos);
  CHECK(document({bare}).find("\"rank\": null,") != both.npos);
  CHECK(document({bare}).find("\"first_difference\": null,") != both.npos);
  // A thousand differences are enough; the number of all is there.
  Comparison many = comparison();
  many.differences.assign(1001, many.differences[0]);
  const std::string long_one = document({many});
  CHECK(long_one.find("\"differences_found\": 1001,") != long_one.npos);
  std::size_t rows = 0;
  for (std::size_t at = 0; (at = long_one.find("\"op_index\"", at)) != long_one.npos; ++at) ++rows;
  CHECK(rows == 1000);
}
