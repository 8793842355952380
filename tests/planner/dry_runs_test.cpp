// Peak and reserved bytes of full-size models against torch's own allocator.
//
// tests/golden/dry_runs.json: max_memory_allocated() and max_memory_reserved() of real training
// loops on a CUDA runtime that computes nothing (tools/oracle/dry_runs.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "models/model_catalog.h"
#include "models/model_reader.h"
#include "models/storages.h"
#include "planner/plan.h"
#include "tests/planner/dry_plan.h"
#include "tests/planner/dry_run_checks.h"

using namespace plimsoll;
using nlohmann::json;
using tests::check_host;
using tests::check_runs;
using tests::drawn_errors;
using tests::error;

TEST_CASE("planned peaks of full-size models are within 0.1 % of torch's, reserved within 6 %") {
  check_runs("dry_runs.json", {}, 25);
}

TEST_CASE("so are those with settings of the allocator, kept outputs, other checkpoints") {
  // A block of 1.6 GB of logits takes a segment of its own, which was planned in a hole.
  check_runs("dry_runs_settings.json", {{"gpt2-ddp-mixed-full-reentrant", "reserved 17 %"}}, 31);
}

TEST_CASE("so are those of more families") {
  check_runs("dry_runs_families.json", {}, 51);
}

TEST_CASE("so are those of packed bases: one GPU, DDP, FSDP with floats that hold them") {
  // Weights are packed one by one as they are loaded, and later ones lie in blocks that earlier
  // ones left, which are larger: torch counts whole blocks. What was requested of llama-2-7b is
  // within 0.04 % at the peak (8,991,367,560 bytes).
  check_runs("dry_runs_packed.json",
             {{"llama-2-7b-nf4-dq-kbit-full", "peak 0.30 %, resident 0.56 %"},
              {"llama-2-7b-nf4-dq-kbit-full-2x2048-accum4", "peak 0.23 %, resident 0.37 %"},
              {"llama-2-7b-nf4-dq-kbit-full-qv", "peak 0.22 %, resident 0.61 %"},
              {"qwen2.5-7b-nf4-dq-kbit-full-ddp8", "peak 0.16 %, resident 0.36 %"},
              {"llama-3.1-70b-nf4-dq-kbit-full", "peak 0.16 %"},
              {"llama-3.1-70b-fsdp2-nf4-bf16-full-512", "peak 0.16 %, resident 0.22 %"}},
             20);
}

TEST_CASE(
    "so are those of streams that widen: TRL's casts, LayerNorm over a base as it was loaded") {
  check_runs("dry_runs_kbit.json",
             {{"qwen2.5-7b-nf4-casting-full", "resident 0.22 %"},
              {"llama-3.2-3b-fp4-casting-ddp8", "peak 0.15 %, resident 0.83 %"}},
             6);
}

// Drawn by one seed when the traces of small models were exact: 15 models, N, precision, FSDP2,
// DDP, adapters, packed bases, batch.
TEST_CASE("so are drawn ones with checkpoints around the first layers alone") {
  check_runs("dry_runs_block_draw.json", {{"block-drawn-9-llama-3.2-1b", "reserved 6.7 %"}}, 15);
}

// Drawn like those, by another seed; six of torchtitan's own code, two of each release.
TEST_CASE("so are drawn ones with a checkpoint around every Nth layer") {
  check_runs("dry_runs_nth_draw.json", {}, 18);
}

// Drawn by a third seed: one GPU, DDP, FSDP1 and FSDP2 with whole models, LoRA and QLoRA, eager
// and Liger's kernels, 14 models.
TEST_CASE("so are drawn ones behind reentrant checkpoints") {
  check_runs("dry_runs_reentrant_draw.json",
             {{"reentrant-drawn-0-qwen2.5-7b", "resident 0.59 %"},
              {"reentrant-drawn-10-qwen2.5-7b", "peak 0.29 %, resident 0.3 %"},
              {"reentrant-drawn-14-phi-3-mini-4k", "reserved 6.4 %"},
              {"reentrant-drawn-27-llama-2-7b", "peak 0.17 %, resident 0.35 %"},
              {"reentrant-drawn-35-llama-2-7b", "peak 0.19 %, resident 0.35 %"}},
             23);
}

TEST_CASE("drawn steps with TRL's tiles of logits are planned as torch's allocator took them") {
  check_runs("dry_runs_tiled_draw.json", {{"tiled-drawn-fsdp2-2-qwen3-8b", "reserved 7.5 %"}}, 16);
}

TEST_CASE("so are those of FSDP with parameters on the host, and what is there") {
  // Tiny FSDP1: a segment of 20 MiB of 196 to 246 is missed; the peaks are exact.
  check_runs("dry_runs_offload.json",
             {{"tiny-fsdp1", "reserved 8 %"},
              {"tiny-fsdp1-accum", "reserved 8 %"},
              {"tiny-fsdp1-full", "reserved 10 %"},
              {"tiny-fsdp1-zero2", "reserved 8 %"},
              {"llama-3.1-8b-fsdp1-full", "peak 2.6 %, reserved 16 %"},
              {"llama-3.1-70b-fsdp1-nf4-dq-w2-512", "reserved 9 %"},
              {"mistral-7b-v0.3-fsdp2-fp4-w4", "peak 0.11 %"}},
             29);
  check_host("dry_runs_offload.json");
}

// Autocast runs LayerNorm in fp32, and Linear4bit returns that: dry runs of these four have streams
// of fp32 behind the first layer (planned in 16 bits they were 5 to 10 % too low).
TEST_CASE("a packed base whose residual stream widens is refused under FSDP1, by its norm") {
  const auto refused = [](const char* name, bool fsdp1, std::optional<DType> loaded) {
    const models::ModelSpec model = models::catalog_model(name);
    planner::Question question;
    question.model = &model;
    question.strategy.quantize =
        models::Quantization{.storage = models::find_packed_storage("nf4"),
                             .held_in = fsdp1 ? DType::bf16 : DType::uint8,
                             .kbit_prep = fsdp1 ? std::nullopt : std::optional(false)};
    question.strategy.lora = models::Lora{.rank = 8};
    question.strategy.param_dtype = loaded;
    if (fsdp1) question.strategy.gpus = 4;
    if (fsdp1) question.strategy.data = {.zero = 3, .fsdp_version = 1};
    question.batch = {.seq_len = 64};
    try {
      return planner::plan(question).peak == Bytes(0);
    } catch (const Error& error) {
      return error.message().starts_with("--fsdp-version 1 is not modelled where autocast makes");
    }
  };
  for (const char* name : {"gpt2", "opt-1.3b", "pythia-1.4b", "phi-2"}) {
    CHECK(refused(name, true, DType::bf16));
    CHECK_FALSE(refused(name, false, DType::bf16));
  }
  CHECK_FALSE(refused("llama-3.2-1b", true, DType::bf16));
}

TEST_CASE("so are those with Liger's kernels") {
  check_runs("dry_runs_liger.json", {}, 24);
}

// The peaks of 16-bit bases are exact to the byte. Weights that are packed lie in blocks that
// earlier ones left, as those of other packed bases.
TEST_CASE("so are those of Unsloth itself, adapters of bases in 16 and in 4 bits") {
  check_runs("dry_runs_unsloth.json",
             {{"unsloth-qwen2.5-7b-nf4-2048x2", "peak 0.32 %, resident 0.50 %"}}, 9);
}

// By one seed: family, sizes, rank, NF4 or 16 bits, offloading, attention, optimizer, batch. What
// is off are remainders of blocks that are not split, of models that take 0.6 to 1.2 GB.
TEST_CASE("so are those of Unsloth that were drawn when the plan was done") {
  check_runs("dry_runs_unsloth_draw.json",
             {{"unsloth-drawn-2", "peak 0.11 %"}, {"unsloth-drawn-12", "resident 0.27 %"}}, 14);
}

// 48 small models of the families that Liger patches, drawn by one seed when nothing was left to
// mend: precision, ZeRO, recomputation, loss, adapters, batch. Where little is allocated, what
// FSDP2 takes beside tensors shows (1.4 MB of 640 at most).
TEST_CASE(
    "drawn questions with Liger's kernels: half the peaks are within 0.001 %, all in 0.25 %") {
  const std::vector<double> errors = drawn_errors("dry_runs_liger_draw.json", 0.0025);
  REQUIRE(errors.size() == 48);
  MESSAGE("median error of the peak " << 100 * errors[24] << " %, largest " << 100 * errors.back()
                                      << " %");
  CHECK(errors[24] < 1e-5);
}

// Small models of 17 families, drawn with all that can be measured: packed bases, adapters, every
// optimizer, Liger, operators that are kept, offloading, DDP, ZeRO, FSDP1 and 2. Drawn by one seed
// when what four others had shown was mended; who is refused is not among them.
TEST_CASE(
    "drawn questions over families and options: half the peaks are within 0.02 %, 19 of 20 within "
    "0.5 %") {
  const std::vector<double> errors = drawn_errors("dry_runs_drawn.json", 0.01);
  REQUIRE(errors.size() == 107);
  MESSAGE("median error of the peak " << 100 * errors[53] << " %, 19 of 20 within "
                                      << 100 * errors[101] << " %, largest " << 100 * errors.back()
                                      << " %");
  CHECK(errors[53] < 2e-4);
  CHECK(errors[101] < 5e-3);
}

// The same by another seed, when those had been mended, too: 96 peaks to a millionth, 19 of 20
// within 0.14 %. They have shown since what flash takes where it divides keys (split_blocks).
TEST_CASE("160 questions drawn afterwards: 19 of 20 peaks are within 0.2 %, all within 0.5 %") {
  const std::vector<double> errors = drawn_errors("dry_runs_drawn_13.json", 0.005);
  REQUIRE(errors.size() == 160);
  MESSAGE("exact " << std::ranges::count_if(errors, [](double e) { return e < 5e-7; })
                   << ", 19 of 20 within " << 100 * errors[152] << " %, largest "
                   << 100 * errors.back() << " %");
  CHECK(errors[96] < 1e-5);
  CHECK(errors[152] < 2e-3);
}

// By one more seed, after that. One had been 4.8 % high: in fp32 Gemma's norms read their input
// itself, which in a second micro-batch was the first one's.
TEST_CASE("80 questions more: 19 of 20 peaks are within 0.3 %, all within 0.5 %") {
  const std::vector<double> errors = drawn_errors("dry_runs_drawn_14.json", 0.005);
  REQUIRE(errors.size() == 80);
  CHECK(errors[40] < 5e-5);
  CHECK(errors[76] < 3e-3);
}

TEST_CASE(
    "so are those of bitsandbytes' optimizers, Adafactor, Muon, GaLore, torchao, schedule-free, "
    "APOLLO, Adam-mini, RMSprop, Adagrad, StableAdamW, managed memory to the byte") {
  // Resident: blocks that were not split. So is the peak of GaLore with full states within a
  // backward, where they lie between gradients, and of gpt2's small tensors. Adagrad makes its sums
  // before the first step.
  check_runs("dry_runs_optimizers.json",
             {{"gpt2-ddp8-muon", "resident 0.205 %"},
              {"llama-2-7b-galore-in-backward", "peak 0.19 %, resident 0.40 %"},
              {"gpt2-apollo", "resident 0.38 %"},
              {"gpt2-ddp8-apollo", "peak 0.26 %, resident 0.46 %"},
              {"gpt2-adam-mini", "peak 0.12 %, resident 0.30 %"},
              {"gpt2-ddp8-rmsprop", "peak 0.17 %"},
              {"gpt2-ddp8-rmsprop8bit", "peak 0.11 %, reserved 7.4 %"},
              {"gpt2-adagrad", "resident 0.70 %, reserved 11 %"},
              {"qwen2.5-0.5b-bf16-torchao-adam8bit", "reserved 9.4 %"},
              {"gpt2-ddp8-grokadamw", "reserved 6.04 %"}},
             117);
}

TEST_CASE("so are those of adapters with more than A and B, of vectors, prompts, stacked experts") {
  // As other packed bases: their weights lie in larger blocks that were left while loading.
  check_runs("dry_runs_peft.json",
             {{"llama-2-7b-nf4-dq-kbit-full-saved", "peak 0.26 %, resident 0.34 %"},
              {"llama-2-7b-nf4-dq-kbit-dora-full", "peak 0.34 %, resident 0.56 %"}},
             33);
}

TEST_CASE(
    "so are those of FSDP1 as scripts wrap: checkpoints inside, flat parameters, states sent") {
  // What packed weights leave between blocks, visible where a rank holds little.
  check_runs("dry_runs_fsdp1.json",
             {{"tinyllama-1.1b-fsdp1-inside-nf4-dq-1536x3", "resident 0.22 %"}}, 6);
}

TEST_CASE("so are those of torchtitan's own code, recomputed by op or not") {
  check_runs("dry_runs_torchtitan.json", {}, 12);
}

TEST_CASE("so are those of torchtitan's code with tensor parallelism, to 405B on 512 GPUs") {
  check_runs("dry_runs_tensor_parallel.json", {}, 12);
}

TEST_CASE("so are those of tensor parallelism that were drawn when the plan was done") {
  // Blocks that serve up to 1 MiB less than they hold, in runs of 1 to 2 GB, or of which 80 MB
  // stay.
  check_runs("dry_runs_tensor_parallel_draw.json",
             {{"tp-draw-35-2024-12", "peak 0.19 %"},
              {"tp-draw-03-0.2.2", "peak 0.14 %"},
              {"tp-draw-04-2024-12", "resident 0.26 %"},
              {"tp-draw-24-0.2.2", "resident 0.72 %"},
              {"tp-draw-30-2024-12", "resident 0.83 %"}},
             40);
}

TEST_CASE("so are those of torchtune's own code, all parameters or adapters, on one GPU or FSDP2") {
  check_runs("dry_runs_torchtune.json", {}, 26);
}

TEST_CASE("so are those of torchtune's code that were drawn when the plan was done") {
  check_runs("dry_runs_torchtune_draw.json", {}, 14);
}

TEST_CASE("so are those of older Transformers, whose loss shifts the logits") {
  // Resident: what blocks that were not split keep, visible where a rank holds little. Reserved: of
  // six blocks of 4.2 GB of logits one takes a segment of its own, which was planned in a hole.
  check_runs("dry_runs_transformers_4.48.json",
             {{"qwen2.5-0.5b-fsdp8-tied-full", "resident"},
              {"llama-3.1-70b-fsdp64-full", "reserved 7 %"},
              {"gpt2-ddp-mixed", "refused"},
              {"gpt2-bf16", "refused"},
              {"gpt2-xl-bf16-full", "refused"},
              {"gpt2-xl-mixed", "refused"},
              {"gpt2-xl-fsdp8", "refused"}},
             25);
}

TEST_CASE("so are those of mixtures whose experts are modules of a loop") {
  // Of small models with a packed base, blocks that were not split: one or two MB.
  check_runs("dry_runs_mixtures_4.57.json",
             {{"mixtral-small-nf4-kbit-full", "resident 0.45 %"},
              {"mixtral-small-int8-full", "resident 0.30 %"},
              {"mixtral-small-nf4-dq-bf16", "peak 0.17 %"},
              {"mixtral-small-nf4-ddp4-full", "peak 0.14 %"}},
             36);
  // Resident: blocks that were not split, which other requests left than those planned.
  check_runs("dry_runs_mixtures_4.51.json", {{"qwen3-moe-32-bf16-sgd", "resident 0.86 %"}}, 21);
  check_runs("dry_runs_mixtures_4.48.json", {{"mixtral-small-nf4-kbit-full", "resident"}}, 24);
}

TEST_CASE("so are those of GPT-OSS: sinks beside the scores, experts with biases, clamped gates") {
  check_runs("dry_runs_gpt_oss.json", {}, 6);
}

TEST_CASE("32 drawn steps of GPT-OSS: half the peaks are within 0.0005 %, all within 0.15 %") {
  const std::vector<double> errors = drawn_errors("dry_runs_gpt_oss_draw.json", 0.0015);
  REQUIRE(errors.size() == 32);
  CHECK(errors[16] < 0.000005);
}

TEST_CASE("drawn loops of packed experts: half the peaks are within 0.05 %, all within 0.7 %") {
  const std::vector<double> errors = drawn_errors("dry_runs_mixtures_draw.json", 0.007);
  REQUIRE(errors.size() == 12);
  CHECK(errors[6] < 0.0005);
}

// Int8WeightOnlyConfig with Transformers 5.17 and torchao 0.18; HQQ with Transformers 4.48.3 and
// hqq 0.2.8; eight of each were drawn when the others agreed. Reserved: weights are packed one by
// one, and what their 16 bits and the packing itself left in the cache stays there; that is not
// planned. Resident, and peaks of small models: blocks that were not split, as of bitsandbytes'
// above; what was requested is met to the byte (nine traced steps, the batch's labels apart).
TEST_CASE("so are those of bases packed by torchao and HQQ") {
  check_runs("dry_runs_torchao.json",
             {{"llama-3.1-8b-torchao-int8-full", "reserved 40 %"},
              {"llama-3.2-1b-torchao-int8-fp16-full", "reserved 8 %"},
              {"qwen2.5-1.5b-torchao-int8-full", "peak 0.64 %, resident 3.1 %, reserved 17 %"},
              {"qwen2.5-1.5b-torchao-int8", "peak 0.87 %, resident 3.0 %"},
              {"llama-3.2-1b-torchao-int8-full-reentrant", "reserved 18 %"},
              {"drawn-0", "peak 1.5 %, resident 1.0 %, reserved 13 %"},
              {"drawn-1", "resident 0.204 %"},
              {"drawn-2", "peak 1.5 %, resident 2.5 %"},
              {"drawn-4", "peak 0.19 %, resident 0.68 %"},
              {"drawn-6", "peak 0.36 %"},
              {"drawn-7", "peak 0.18 %, reserved 10 %"}},
             17);
  check_runs("dry_runs_hqq.json",
             {{"llama-3.1-8b-hqq-full", "reserved 43 %"},
              {"llama-3.1-8b-hqq-qv", "reserved 30 %"},
              {"llama-3.2-1b-hqq-fp16-full", "reserved 6.2 %"},
              {"mistral-7b-v0.3-hqq-full", "peak 0.11 %, reserved 57 %"},
              {"drawn-0", "peak 2.1 %, resident 2.3 %, reserved 34 %"},
              {"drawn-3", "peak 0.12 %, resident 1.1 %"},
              {"drawn-4", "resident 1.5 %"},
              {"drawn-5", "peak 0.15 %"},
              {"drawn-6", "reserved 13 %"},
              {"drawn-7", "resident 1.8 %"},
              {"llama-3.2-1b-hqq-qv-full-accum", "reserved 17 %"}},
             16);
}

// Of Transformers 5.17 with gptqmodel 7.3.4, 4.57.6 with autoawq 0.2.9, 5.23 with gptqmodel 7.7.0.
// The drawn ones came when the others agreed: what is kept under checkpoints with accumulation (a
// quarter of drawn-3's peak, not there) is from them. The rest is blocks that were not split.
TEST_CASE("so are those of AWQ bases, with each package that has their products") {
  check_runs("dry_runs_awq.json",
             {{"drawn-0", "reserved 17 %"},
              {"drawn-2", "peak 0.2 %, reserved 17 %"},
              {"drawn-4", "peak 0.32 %"},
              {"drawn-6", "peak 1.1 %"}},
             17);
  check_runs("dry_runs_awq_4.57.json",
             {{"drawn-0", "reserved 17 %"},
              {"drawn-2", "peak 0.2 %, reserved 17 %"},
              {"drawn-6", "peak 1.0 %"}},
             13);
  check_runs("dry_runs_awq_5.23.json",
             {{"drawn-0", "reserved 17 %"},
              {"drawn-2", "resident 0.58 %"},
              {"drawn-4", "peak 0.6 %, reserved 11 %"},
              {"drawn-6", "peak 0.11 %, reserved 7.9 %"}},
             13);
}

// Transformers 4.48.1, PEFT 0.13.2, PyTorch 2.4.1. The last eight were drawn when the others
// agreed: that DDP broadcasts a GPTQ base's buffers before a forward (12 % of drawn-2's peak, which
// was missing) is from them.
TEST_CASE("so are those of loops of experts in GPTQ, as fms-acceleration runs them") {
  check_runs("dry_runs_gptq_mixtures.json",
             {{"drawn-1", "peak 0.31 %"},
              {"drawn-2", "peak 0.14 %"},
              {"drawn-6", "reserved 12 %"},
              {"drawn-7", "peak 0.35 %"}},
             16);
}

TEST_CASE("so are those of other releases, with what each does to logits and operands") {
  check_runs("dry_runs_transformers_4.45.json", {}, 4);
  check_runs("dry_runs_transformers_4.51.json", {{"qwen2.5-0.5b-mixed", "refused"}}, 11);
  check_runs("dry_runs_transformers_4.57.json", {}, 12);
  check_runs("dry_runs_transformers_5.23.json", {}, 13);
}

// 2.4.1 has no FSDP2 that Accelerate calls; its Transformers is 4.48.3.
TEST_CASE("so are those of older PyTorch, whose indices of whole axes are slices") {
  // Resident: blocks that were not split, of a model that is small.
  check_runs("dry_runs_torch_2.8.json", {{"gpt2-ddp-mixed", "resident 0.202 %"}}, 42);
  check_runs("dry_runs_torch_2.4.json", {}, 27);
  // As with torch 2.11: blocks that were not split.
  check_runs("dry_runs_mixtures_torch_2.4.json",
             {{"mixtral-small-nf4-kbit-full", "resident 0.45 %"}}, 21);
}
