// Each single field of what is measured, altered in one place, is noticed. (The other tests here
// seed real faults; these ask whether the comparison looks at everything.)
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "tests/honesty/scenario.h"

namespace plimsoll::honesty {
namespace {

using runtime::OpRecord;
using runtime::StepRecord;
using runtime::TensorRecord;

TensorRecord& tensor(StepRecord& record, const char* name) {
  const auto found = std::ranges::find(record.tensors, name, &TensorRecord::name);
  REQUIRE(found != record.tensors.end());
  return *found;
}

struct Alteration {
  const char* what;
  std::function<void(StepRecord&)> alter;
  const char* named;
};

constexpr const char* kTensor = "layers.1.mlp.product";

const Alteration kAlterations[] = {
    {"bytes", [](StepRecord& r) { tensor(r, kTensor).bytes += Bytes(1); }, kTensor},
    {"name", [](StepRecord& r) { tensor(r, kTensor).name += "s"; }, kTensor},
    {"category", [](StepRecord& r) { tensor(r, kTensor).category = models::Category::temporaries; },
     kTensor},
    {"birth", [](StepRecord& r) { --tensor(r, kTensor).born; }, kTensor},
    {"death", [](StepRecord& r) { ++tensor(r, kTensor).died; }, kTensor},
    {"death of what stays", [](StepRecord& r) { tensor(r, "workspace").died = 3; }, "workspace"},
    {"birth of what was there", [](StepRecord& r) { tensor(r, "scalars").born = 0; }, "scalars"},
    {"one more tensor", [](StepRecord& r) { r.tensors.push_back(tensor(r, kTensor)); }, kTensor},
    {"one tensor less",
     [](StepRecord& r) { std::erase(r.tensors, TensorRecord(tensor(r, kTensor))); }, kTensor},
    {"order of ops", [](StepRecord& r) { std::swap(r.ops[20], r.ops[21]); }, "op 20"},
    {"phase of an op", [](StepRecord& r) { r.ops[20].phase = models::Phase::recompute; }, "op 20"},
    {"name of an op", [](StepRecord& r) { r.ops[20].name += "s"; }, "op 20"},
    {"one more op", [](StepRecord& r) { r.ops.push_back(r.ops.back()); }, "the end of the step"},
    {"one op less", [](StepRecord& r) { r.ops.pop_back(); }, "the end of the step"},
    {"allocated", [](StepRecord& r) { r.ops[20].allocated += Bytes(1); }, "op 20"},
    {"high water", [](StepRecord& r) { r.ops[20].high_water += Bytes(1); }, "high water of op 20"},
};

TEST_CASE("every field of a ledger counts, on any rank and in any step") {
  Case c = llama(2, 3);
  c.steps = 2;
  const witness::Predicted plan = witness::predicted(c);
  const reports::Prediction prediction = prediction_of(c, plan);
  const witness::Measured run = witness::measured(c);
  REQUIRE(first_difference(prediction, run) == "");
  for (const Alteration& alteration : kAlterations)
    for (const std::size_t rank : {0u, 1u})
      for (const std::size_t step : {0u, 1u}) {
        CAPTURE(alteration.what);
        witness::Measured altered = run;
        StepRecord& record = altered.ranks[rank][step].memory;
        alteration.alter(record);
        CHECK(witness::first_difference(plan, record) != "");
        const std::string difference = first_difference(prediction, altered);
        CAPTURE(difference);
        CHECK(difference.starts_with("rank " + std::to_string(rank)));
        CHECK(difference.find(alteration.named) != std::string::npos);
      }
}

// Figures of a rank: `where` of the difference says which.
TEST_CASE("every figure of a rank's summary counts") {
  const Case c = llama(2, 1);
  const reports::Prediction prediction = prediction_of(c, witness::predicted(c));
  const witness::Measured run = witness::measured(c);
  const auto difference = [&](const std::function<void(reports::MeasuredRank&)>& alter) {
    reports::Measurement measurement = measurement_of(prediction, run);
    alter(measurement.ranks[1]);
    const reports::Comparison comparison = reports::compare(prediction, measurement);
    CHECK(!comparison.agrees);
    return comparison.first_difference();
  };
  using Rank = reports::MeasuredRank;
  CHECK(difference([](Rank& r) { *r.peak += Bytes(1); }).starts_with("rank 1, peak: "));
  CHECK(difference([](Rank& r) { *r.resident += Bytes(1); }).starts_with("rank 1, between steps"));
  CHECK(difference([](Rank& r) { *r.reserved += Bytes(256); }).starts_with("rank 1, reserved: "));
  CHECK(difference([](Rank& r) { *r.reserved -= Bytes(256); }).starts_with("rank 1, reserved: "));
  CHECK(
      difference([](Rank& r) { (*r.at_peak)[3] += Bytes(1); }).starts_with("rank 1, activations"));
  CHECK(difference([](Rank& r) {
          r.states->gradients += Bytes(1);
        }).starts_with("rank 1, states: gradients"));
  CHECK(difference([](Rank& r) { r.rank = 2; }) != "");  // rank 1 was not measured
  CHECK(difference([](Rank& r) { r.ledgers.clear(); }) != "");
}

}  // namespace
}  // namespace plimsoll::honesty
