// A plan as data: what the planner claims about one workload (`plimsoll.plan/1`), in the order and
// with the units of the JSON document. It crosses from planner to reports, and to other programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/base/quantity.h"
#include "models/cluster_spec.h"
#include "models/lengths.h"
#include "models/model_spec.h"
#include "models/run_spec.h"
#include "reports/load.h"
#include "reports/rank_kind.h"
#include "reports/room.h"

namespace plimsoll::reports {

struct Place {
  std::int64_t rank = 0;
  std::string phase;
  std::string where;
};

struct FrameworkOverheadBytes {
  Bytes context, libraries, nccl;
  Bytes total() const { return context + libraries + nccl; }
};

struct Collective {
  std::string kind;  // all_gather, reduce_scatter, all_reduce, broadcast
  std::int64_t count = 0;
  Bytes array;
  std::int64_t group = 1;
};

struct TimelinePoint {
  std::string op, phase;
  Bytes allocated, high_water;
  ByCategory by_category{};
};

struct TensorLine {
  std::string name, category;
  Bytes bytes;
  std::int64_t repeat = 1;
  std::string born, dies;
  bool at_peak = false;
  // With full detail, of the one tensor: points of the timeline at whose op it is born and dies;
  // -1 before the step, the number of points after it.
  std::optional<std::int64_t> born_op, dies_op;
};

struct Assumption {
  std::string what;
  std::string value;  // as JSON text: a number, a string in quotes, true, false
  std::string basis;  // derived | calibrated | assumed
  std::string source;
};

// What a change of the question, or several together, would bring, found by planning again.
struct Remedy {
  std::string option;  // "--loss fused --recompute full", in place of the values that were given
  Bytes saves;  // of device bytes
  Bytes device;  // device bytes with the change
  bool fits = false;
  std::string concession;  // what is given up for it, where the option does not say it; or ""
};

// A technique that a plan uses, and the same workload planned without it; or one that it does not
// use, and the workload planned with it.
struct Saving {
  bool used = false;
  std::string option;  // that asks for it: "--zero 3"
  std::string instead;  // used: what was planned in its place: "--zero 0"
  std::string concession;  // not used: what it asks of the user beside the option, or ""
  struct Planned {
    Bytes peak, device;  // so
    Bytes saves_peak, saves_device;  // negative: the technique costs memory here
    bool fits = false;
  };
  std::optional<Planned> planned;
  std::string refusal;  // used: why it cannot be planned without it
};

struct Time {
  std::optional<double> step_seconds, compute_seconds, exposed_communication_seconds,
      pipeline_bubble_seconds, optimizer_seconds, tokens_per_second, tokens_per_second_per_gpu, mfu,
      mfu_full_attention, hfu, peak_flops, communication_seconds;
  std::string limited_by;  // what most of the step waits for; empty: not known
};

// Lengths were given: the plan is that of the worst batch.
struct DataSet {
  models::BatchesOfData batches;
  Bytes median_peak, median_device;
  std::optional<double> real_tokens_per_second;
};

struct Plan {
  models::Strategy strategy;
  models::Batch batch;
  std::optional<models::Gpu> gpu;
  models::ClusterSpec cluster;
  std::string model_name, architecture, model_type;
  Count parameters, trainable_parameters, active_parameters;
  std::string config_json;  // the model's configuration as it was read; "" for --params
  std::string fingerprint;
  bool states_only = false;  // --params, or a family without a step program
  bool fits = false;
  Verdict verdict = Verdict::fits;
  std::optional<Bytes> capacity, usable, headroom;  // nothing known: no GPU memory given
  Bytes device, peak, resident, reserved;
  std::optional<Range> range;
  std::optional<HighEnd> high_end;
  std::optional<Flushing> flushing;  // only where it does not fit otherwise
  std::optional<Load> load;  // only where it was asked for
  Place peak_place;
  States states;
  ByCategory at_peak{};
  FrameworkOverheadBytes overhead;
  std::optional<models::Calibration> calibration;  // where `outside` was measured
  Bytes host_pinned, host_pageable, nvme;  // of one rank
  Bytes host_node;  // of all ranks of a node
  std::optional<Bytes> host_memory;  // what a node has, where that was said
  bool host_fits = true;
  std::vector<RankKind> ranks;
  double model_flops_per_step = 0, hardware_flops_per_step = 0;
  Bytes bytes_sent_per_gpu_per_step;
  std::vector<Collective> collectives;
  Time time;
  std::optional<DataSet> data;
  std::vector<TimelinePoint> timeline;
  std::vector<TensorLine> tensors;
  std::vector<Remedy> remedies;
  std::vector<Saving> savings;  // only where they were asked for
  std::vector<std::string> advice;
  std::vector<Assumption> assumptions;
};

}  // namespace plimsoll::reports
