// Whole documents of made-up answers, with a figure of its own in every member: what a member is
// called, where it stands and which figure it has can be read here.
#include <doctest/doctest.h>

#include "reports/oom/answer.h"
#include "reports/oom/scanner.h"
#include "reports/recommendation.h"
#include "tests/reports/made_up_plan.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {

OomAnswer oom() {
  OomScanner scanner;
  scanner.feed(
      "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 238.00 MiB. GPU 0 "
      "has a total capacity of 22.05 GiB of which 10.81 MiB is free. Process 43872 has 4.97 GiB "
      "memory in use. Including non-PyTorch memory, this process has 17.05 GiB memory in use. Of "
      "the allocated memory 15.43 GiB is allocated by PyTorch, and 1.07 GiB is reserved by PyTorch "
      "but unallocated.\n"
      "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 238.00 MiB. GPU 1 "
      "has a total capacity of 22.05 GiB of which 10.81 MiB is free.\n");
  scanner.finish();
  OomAnswer answer{.log = scanner.log()};
  answer.reading = read_cause(*answer.log.first);
  answer.match = OomMatch{.plan = made_up_plan(), .searched = true};
  OomMatch& match = *answer.match;
  OomCandidate candidate{.tensor = {.name = "layers.*.mlp.up",
                                    .category = "activations",
                                    .bytes = Bytes(249560000),
                                    .repeat = 7},
                         .at = {.op = "layers.1.mlp.up", .phase = "forward", .allocated = 15_GiB},
                         .printed = 238_MiB,
                         .first_step = true,
                         .difference = Bytes(-440000000),
                         .agrees = true};
  match.candidates = {candidate};
  candidate.tensor.name = "lm_head.out";
  candidate.at.phase.clear();
  candidate.at.op.clear();
  candidate.difference.reset();
  candidate.first_step = false;
  match.refused = candidate;
  match.further = 4;
  match.room = 17_GiB;
  match.lived = {1_GiB, 2_GiB, 3_GiB, 4_GiB, 5_GiB, 6_GiB, 7_GiB, 8_GiB};
  match.largest = {{.name = "layers.*.p", .category = "parameters", .bytes = 9_GiB, .repeat = 11}};
  match.guesses = {{2, 1000, 1010}};
  match.plan.remedies = {{.option = "--recompute full", .saves = 3_GiB, .device = 40_GiB}};
  return answer;
}

Recommendation nothing_fits() {
  Recommendation answer;
  answer.model_name = "tiny-llama";
  answer.objective = "throughput";
  answer.evaluated = 12;
  answer.points = 34567;
  answer.elapsed_seconds = 0.25;
  answer.stopped = true;
  answer.gpus = 16;
  answer.high_end = false;
  answer.min_headroom = 2_GiB;
  answer.tie_margin = 0.08;
  answer.same_kind_margin = 0.04;
  answer.fastest = 1500;
  answer.budget_tokens = 1e9;
  answer.front = {{.peak = 10_GiB,
                   .device = 11_GiB,
                   .tokens_per_second = 1000.5,
                   .strategy = made_up_plan().strategy,
                   .batch = made_up_plan().batch,
                   .options = "--zero 3"}};
  answer.nothing_fits =
      NothingFits{.shortfall = 5_GiB, .would_fit = {{"--gpus 16", "plimsoll fit tiny", 70_GiB}}};
  answer.not_considered = {"offload", "tensor parallelism"};
  answer.notes = {"A note."};
  return answer;
}

constexpr const char* kOom = R"--({
  "schema": "plimsoll.oom/1",
  "tool": {"version": "1", "commit": "abc"},
  "cause": "fragmentation",
  "why": "Fragmentation: PyTorch had 1.07 GiB in its cache, more than the 238 MiB that were asked for, but in no piece that large.",
  "accounts": {
    "reserved_bytes": 17716740096,
    "reserved_unallocated_bytes": 1148903752,
    "in_use_bytes": 18307298099,
    "in_use_inferred": false,
    "outside_allocator_bytes": 590558003,
    "other_processes_bytes": 5336496865,
    "elsewhere_bytes": 20877148,
    "missing_bytes": 238225981
  },
  "doubts": [],
  "ways": [
    {"change": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "why": "the cache holds the memory, in pieces", "frees_bytes": 1148903752, "enough": true},
    {"change": "end the other processes on this card: 43872 (4.97 GiB)", "why": "they hold memory of it", "frees_bytes": 5336496865, "enough": true}
  ],
  "message": {
    "kind": "allocator",
    "device": "CUDA",
    "library": null,
    "line": 1,
    "time": null,
    "rank": 0,
    "gpu": 0,
    "tried_bytes": 249561088,
    "tried_margin_bytes": 5243,
    "capacity_bytes": 23676007219,
    "free_bytes": 11335107,
    "allocated_bytes": 16567836344,
    "allocated_margin_bytes": 5368710,
    "reserved_bytes": null,
    "reserved_unallocated_bytes": 1148903752,
    "in_use_bytes": 18307298099,
    "allowed_bytes": null,
    "private_pools_bytes": null,
    "processes": [
      {"pid": 43872, "in_use_bytes": 5336496865}
    ]
  },
  "messages": 2,
  "groups": [
    {"kind": "allocator", "library": null, "tried_bytes": 249561088, "count": 2, "ranks": [0, 3], "gpus": [0, 1]}
  ],
  "ungrouped": 0,
  "cache_flush_warnings": 0,
  "plan": {
    "fingerprint": "0123456789abcdef",
    "model": "tiny-llama",
    "verdict": "fits",
    "capacity_bytes": 84825604096,
    "usable_bytes": 83751862272,
    "device_bytes": 46170898432,
    "peak_bytes": 42949672960,
    "reserved_bytes": 45097156608,
    "peak": {"rank": 0, "phase": "backward", "where": "layers.31.mlp"}
  },
  "match": {
    "searched": true,
    "candidates": [
      {"tensor": "layers.*.mlp.up", "category": "activations", "bytes": 249560000, "printed_bytes": 249561088, "requests": 7, "phase": "forward", "op": "layers.1.mlp.up", "first_step": true, "allocated_bytes": 16106127360, "difference_bytes": -440000000, "agrees": true}
    ],
    "further_candidates": 4,
    "room_bytes": 18253611008,
    "refused": {"tensor": "lm_head.out", "category": "activations", "bytes": 249560000, "printed_bytes": 249561088, "requests": 7, "phase": null, "op": null, "first_step": false, "allocated_bytes": 16106127360, "difference_bytes": null, "agrees": null},
    "lived": {"parameters_bytes": 1073741824, "gradients_bytes": 2147483648, "optimizer_bytes": 3221225472, "activations_bytes": 4294967296, "logits_bytes": 5368709120, "temporaries_bytes": 6442450944, "communication_bytes": 7516192768, "workspace_bytes": 8589934592},
    "largest": [
      {"name": "layers.*.p", "category": "parameters", "bytes": 9663676416, "count": 11}
    ],
    "logits_guesses": [
      {"bytes_per_logit": 2, "fewest_tokens": 1000, "most_tokens": 1010}
    ]
  },
  "remedies": [
    {"option": "--recompute full", "saves_bytes": 3221225472, "device_bytes": 42949672960, "fits": false, "concession": null}
  ]
})--";

constexpr const char* kNothingFits = R"--({
  "schema": "plimsoll.recommendation/1",
  "tool": {"version": "1", "commit": "abc"},
  "model": "tiny-llama",
  "objective": "throughput",
  "gpus": 16,
  "budget_tokens": 1000000000.0,
  "headroom": {"overheads": "typical", "min_headroom_bytes": 2147483648},
  "ties": {"margin": 0.08, "same_kind_margin": 0.04, "fastest_tokens_per_second": 1500.0},
  "evaluated": 12,
  "points": 34567,
  "elapsed_seconds": 0.25,
  "stopped": true,
  "ranked": [],
  "pareto": [
    {
      "peak_bytes": 10737418240,
      "least_device_bytes": 11811160064,
      "tokens_per_second": 1000.5,
      "options": "--zero 3",
      "strategy": {
        "attention": "flash",
        "cp": 1,
        "ddp": {"bucket_cap_mb": 25, "bucket_view": false, "wrap": null},
        "ep": 1,
        "freeze": [],
        "fsdp_upcast": true,
        "galore_rank": null,
        "grad_dtype": "bf16",
        "kbit_prep": null,
        "lora": null,
        "loss": "full",
        "master_weights": null,
        "offload": [],
        "offload_to": "cpu",
        "optimizer": "adamw",
        "optimizer_in_backward": false,
        "param_dtype": "fp32",
        "pp": 1,
        "pp_schedule": null,
        "precision": "bf16-mixed",
        "quant_storage": null,
        "quantize": null,
        "recompute": "none",
        "sequence_parallel": false,
        "shard_group": null,
        "tp": 1,
        "train": [],
        "virtual_stages": 1,
        "world_size": 8,
        "zero": 3
      },
      "batch": {"grad_accum": 4, "micro_batch": 2, "seq_len": 8192}
    }
  ],
  "nothing_fits": {
    "closest": null,
    "shortfall_bytes": 5368709120,
    "would_fit": [
      "--gpus 16"
    ],
    "commands": [
      "plimsoll fit tiny"
    ]
  },
  "not_considered": [
    "offload",
    "tensor parallelism"
  ],
  "notes": [
    "A note."
  ]
})--";

}  // namespace

// Reserved 15.43 + 1.07 = 16.5 GiB; outside of it 17.05 - 16.5 = 0.55 GiB; elsewhere 22.05 - 17.05
// - 4.97 GiB - 10.81 MiB = 19.9 MiB; missing 238 - 10.81 = 227.19 MiB.
TEST_CASE("the answer about a message and its plan, from the first line to the last") {
  CHECK(pretty([](JsonWriter& json) { write_oom(json, oom(), {"1", "abc"}); }) == kOom);
}

TEST_CASE("a recommendation where nothing fits, from the first line to the last") {
  CHECK(pretty([](JsonWriter& json) {
          write_recommendation(json, nothing_fits(), {"1", "abc"});
        }) == kNothingFits);
}
