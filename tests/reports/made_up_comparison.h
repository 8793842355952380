// A prediction of three ops and three tensors on two ranks, and the measurement that agrees.
#pragma once

#include "reports/comparison.h"

namespace plimsoll::reports {

inline constexpr const char* kWorkload =
    R"({"fingerprint": "00000000000000aa", "model": {"config": null, "name": "tiny"},
        "stack": {"name": "plimsoll", "device": "cpu"}, "strategy": {"world_size": 2, "zero": 3},
        "batch": {"seq_len": 8}})";

// w stays; op 0 makes x (100 B), op 1 reads it and makes y (30 B), op 2 reads y.
inline StepLedger ledger() {
  return {.ops = {{"embeddings", "forward", 1100_B, 1100_B},
                  {"layers.0.mlp", "forward", 1030_B, 1130_B},
                  {"layers.0.mlp", "backward", 1000_B, 1030_B}},
          .tensors = {{"w", "parameters", 1000_B, -1, 3},
                      {"x", "activations", 100_B, 0, 1},
                      {"y", "activations", 30_B, 1, 2}}};
}

inline constexpr ByCategory kAtPeak = {1000_B, 0_B, 0_B, 130_B, 0_B, 0_B, 0_B, 0_B};
inline constexpr States kStates = {1000_B, 0_B, 0_B};

inline Prediction prediction(const char* stack = "plimsoll") {
  Prediction p;
  p.source = "prediction.json";
  p.fingerprint = "00000000000000aa";
  p.workload = kWorkload;
  p.model = "tiny";
  p.stack = stack;
  p.ranks = 2;
  p.resident = 1000_B;
  p.reserved = 1536_B;
  p.device = 1636_B;
  p.overhead = 100_B;
  p.kinds = {{.rank = 0, .count = 2, .peak = 1130_B, .at_peak = kAtPeak, .states = kStates}};
  p.step = ledger();
  return p;
}

inline Measurement measurement() {
  Measurement m;
  m.source = "measurement.json";
  m.fingerprint = "00000000000000aa";
  m.workload = kWorkload;
  m.stack = "plimsoll";
  m.world = 2;
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    MeasuredRank r;
    r.rank = rank;
    r.peak = 1130_B;
    r.resident = 1000_B;
    r.reserved = 1536_B;
    r.at_peak = kAtPeak;
    r.states = kStates;
    r.ledgers = {{{1, 2}, false, ledger()}};
    m.ranks.push_back(r);
  }
  return m;
}

}  // namespace plimsoll::reports
