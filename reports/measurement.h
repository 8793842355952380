// What training steps did cost (`plimsoll.measurement/1`), as plimsoll-run and
// tools/oracle/torch_measure.py write it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/step_flops.h"
#include "reports/record.h"
#include "reports/step_ledger.h"

namespace plimsoll::reports {

// One step's ledger, and the steps that had exactly this one.
struct RankLedger {
  std::vector<std::int64_t> steps;  // from 1
  bool skipped = false;  // an overflow: the optimizer did not step
  StepLedger ledger;
};

// What a GPU's driver has given away, at one moment of the run.
struct DriverReading {
  std::string after;  // context, libraries, weights, step 1, steps
  Bytes used;  // by all that uses the GPU
  Bytes reserved;  // of that, by this rank's arena
};

struct MeasuredRank {
  std::int64_t rank = 0;
  std::optional<Bytes> peak, resident, reserved;
  std::optional<Bytes> initial_reserved;  // before the first step
  std::optional<Bytes> device;  // nothing where several ranks share a device
  std::optional<States> states;
  std::optional<ByCategory> at_peak;
  std::string peak_phase, peak_where;
  std::vector<DriverReading> driver;  // as `device`
  std::vector<RankLedger> ledgers;
};

struct MeasuredStep {
  std::int64_t step = 0;  // from 1
  std::optional<double> loss, grad_norm, seconds, tokens_per_second, mfu;
  bool skipped = false;
};

struct Environment {
  std::string device;
  std::optional<Bytes> capacity;
  std::optional<std::string> driver;
  std::optional<int> other_processes;  // on the GPU; containers may hide them
  std::vector<std::pair<std::string, std::string>> versions, variables;  // sorted
};

// Medians of what a GPU's driver said between steps.
struct Clocks {
  std::int64_t samples = 0;
  std::optional<double> sm_mhz, memory_mhz, power_watts, temperature_celsius;
};

// One step after the others, kernel by kernel: calls of one kernel in one op, in all layers.
struct ProfileRow {
  std::string op, phase, kernel;  // layers.*.mlp.up_proj
  std::int64_t calls = 0;
  double seconds = 0;  // of all calls
  double bytes = 0, flops = 0;  // what they have to move and to compute
  // The share of `seconds` that bytes and FLOPs take at the GPU's rates; nothing where they are
  // unknown.
  std::optional<double> roofline;
};
struct Profile {
  double step_seconds = 0;  // of the step that was profiled
  std::optional<double> peak_flops, bytes_per_second;  // of the roofline
  std::vector<ProfileRow> rows;  // most seconds first
};

// What libraries chose, and what they would not do and how often.
struct LibraryNotes {
  struct Refusal {
    std::string library, why;
    std::int64_t times = 0;
  };
  struct Choice {
    std::string library, what, algorithm;
    std::optional<double> seconds;
  };
  std::vector<Refusal> refusals;
  std::vector<Choice> choices;
};

// The steps behind the first by the clock on the wall: with data, ledgers and logging.
struct Loop {
  std::int64_t steps = 0;
  double seconds = 0;
};

struct Failure {
  std::string kind, message;
  std::optional<std::int64_t> step;
};

struct Measurement {
  std::string source;  // the document's file, for messages
  std::string kind = "cpu";  // gpu, cpu, dry-run
  std::string measured_at;  // 2026-01-31T12:00:00Z
  std::string fingerprint;
  std::string workload;  // JSON, fingerprint included
  std::string model, stack;
  std::int64_t world = 1;  // ranks of the job
  Environment environment;
  // completed, diverged, not_stepped, out_of_memory, failed, timed_out
  std::string outcome = "completed";
  std::optional<Failure> error;
  std::vector<MeasuredRank> ranks;
  std::vector<MeasuredStep> steps;
  std::optional<double> step_seconds;  // median of the timed steps
  std::optional<double> tokens_per_step;  // of all ranks
  std::optional<models::StepFlops> flops;  // of all ranks
  // Of all ranks: the GEMMs and attention that were executed, where a step was profiled.
  std::optional<double> hardware_flops;
  std::optional<double> peak_flops;  // of one device
  std::optional<Loop> loop;
  std::optional<Clocks> clocks;
  std::optional<LibraryNotes> libraries;  // of rank 0
  std::optional<Profile> profile;  // of rank 0

  bool trained() const { return outcome == "completed"; }
  // All steps were executed, and their memory measured. `diverged`: a loss or a gradient norm was
  // not finite; `not_stepped`: an overflow kept the optimizer from every step.
  bool ended() const { return trained() || outcome == "diverged" || outcome == "not_stepped"; }
};

// The share of all devices' peak that `flops` of one step are; nothing where one of them is
// unknown.
std::optional<double> utilization(const Measurement& measurement, std::optional<double> flops,
                                  std::optional<double> seconds);

// Outcome and error of a run whose steps are all there, where they trained nothing.
void judge_training(Measurement& m);

// One element of "ranks".
MeasuredRank read_measured_rank(std::string_view text, const std::string& source);

// Error{bad_input} naming `source`: no plimsoll.measurement/1, one that was altered
// (document_check.h), a rank twice.
Measurement read_measurement(std::string_view text, const std::string& source);

}  // namespace plimsoll::reports
