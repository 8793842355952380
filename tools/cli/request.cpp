#include "tools/cli/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "models/base/utf8.h"
#include "models/decisions/layer.h"
#include "models/decisions/mesh.h"
#include "models/lora.h"
#include "models/optimizer_states.h"
#include "models/zero_stage.h"
#include "tools/cli/adapters.h"
#include "tools/cli/deepspeed_file.h"
#include "tools/cli/kernels.h"
#include "tools/cli/offload.h"
#include "tools/cli/option_setters.h"
#include "tools/cli/phase.h"
#include "tools/cli/plan_document_json.h"
#include "tools/cli/precision.h"
#include "tools/cli/quantized_config.h"
#include "tools/cli/recompute_wish.h"
#include "tools/cli/refusals.h"
#include "tools/cli/releases.h"
#include "tools/cli/rows.h"
#include "tools/cli/user_files.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {
using models::Stack;
using models::Strategy;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
// Ranks are looked at one by one for those that hold less: the largest clusters take a second.
constexpr std::int64_t kMostRanks = 1 << 18;

// Of the user's own file, or what this build has.
std::vector<models::Calibration> calibrations_from(const Options& options, const std::string& gpu) {
  const std::string* path = options.find("calibration");
  if (path == nullptr) return models::calibrations_of(gpu);
  std::vector<models::Calibration> all = models::read_calibrations(read_document(*path), *path);
  std::string others;
  for (const models::Calibration& one : all) others += (others.empty() ? "" : ", ") + one.gpu;
  std::erase_if(all, [&](const models::Calibration& one) { return one.gpu != gpu; });
  if (all.empty())
    refuse_value("calibration", *path,
                 fmt::format("nothing was measured on {}; it has {}", gpu,
                             others.empty() ? "no GPU" : others));
  return all;
}

models::ClusterSpec cluster_from(const Options& options, bool host, Sources& sources) {
  constexpr double kMostGigabytes = 1e6;
  models::ClusterSpec cluster;
  for (const char* option :
       {"gpu", "intra-node-bandwidth", "inter-node-bandwidth", "calibration", "host-memory"})
    require(options, option, !host, "--device cpu uses no GPU");
  const std::string* name = options.find("gpu");
  if (!host) cluster.gpu = name ? sources.gpus.named(*name) : sources.gpus.standard();
  set_parsed(options, "gpu-memory", size_value, cluster.memory);
  if (cluster.memory && *cluster.memory < 1_MiB)
    refuse_value("gpu-memory", *options.find("gpu-memory"),
                 "less than a MiB; a size has a unit, as in 80GB or 79.6GiB");
  set_parsed(options, "host-memory", size_value, cluster.host_memory);
  set_parsed(options, "reserve", size_value, cluster.reserve);
  std::optional<Bytes> capacity = cluster.memory;
  if (!capacity && cluster.gpu) capacity = cluster.gpu->cuda_total.bytes;
  if (capacity && cluster.reserve >= *capacity)
    refuse_value("reserve", *options.find("reserve"),
                 fmt::format("keeps free all of the {} bytes that there are", capacity->value()));
  const auto bandwidth = [&](std::string_view option, std::optional<double>& target) {
    if (const std::string* text = options.find(option))
      target = 1e9 * real_value(option, *text, 0.001, kMostGigabytes);
  };
  bandwidth("intra-node-bandwidth", cluster.intra_node_bandwidth);
  bandwidth("inter-node-bandwidth", cluster.inter_node_bandwidth);
  if (cluster.gpu) cluster.calibrations = calibrations_from(options, cluster.gpu->name);
  return cluster;
}

void set_model_code(const Options& options, Strategy& s) {
  set_choice(options, "model-code", s.code);
  require(options, "model-code", s.stack == Stack::pytorch || models::is_transformers(s.code),
          "belongs to --stack pytorch");
  require(options, "transformers-version", models::is_transformers(s.code),
          fmt::format("--model-code {} runs none of it", name_of(s.code)));
}

void set_training_loop(const Options& options, Strategy& s) {
  require(options, "allocator-conf", s.stack != Stack::plimsoll,
          "is of PyTorch's allocator, which --stack plimsoll does not use");
  if (const std::string* text = options.find("allocator-conf"))
    s.allocator = models::allocator_conf_from(*text, "--allocator-conf");
  set_choice(options, "compile", s.compile);
  require(options, "compile", s.stack == Stack::pytorch || s.compile == models::Compile::no,
          "is modelled with --stack pytorch alone");
  s.hold_outputs = options.has("hold-outputs");
  require(options, "hold-outputs", s.stack != Stack::plimsoll,
          "belongs to --stack pytorch; the loop of plimsoll is its own and keeps none");
  if (s.hold_outputs && s.stack == Stack::deepspeed)
    fail(ErrorKind::unsupported, "--hold-outputs with --stack deepspeed: is not modelled yet");
}

void set_stack(const Options& options, Strategy& s) {
  set_choice(options, "stack", s.stack);
  set_releases(options, s);
  set_model_code(options, s);
  set_training_loop(options, s);
  set_choice(options, "device", s.device);
  require(options, "device", s.device == models::Device::cuda || s.stack == Stack::plimsoll,
          "only --stack plimsoll runs on the host");
  set_whole(options, "gpus", 1, kMostRanks, s.gpus);
  set_whole(options, "gpus-per-node", 1, 1 << 16, s.gpus_per_node);
  set_whole(options, "tp", 1, kMostRanks, s.tp);
  require(options, "tp", s.gpus % s.tp == 0, fmt::format("must divide --gpus {}", s.gpus));
}

void set_shard_group(const Options& options, Strategy& s) {
  models::DataParallel& data = s.data;
  set_whole(options, "shard-group", 1, kMostRanks, data.shard_group);
  if (data.shard_group == 0) return;
  require(options, "shard-group", data.zero >= 1, "nothing is sharded with --zero 0");
  const std::int64_t ranks = models::decisions::data_ranks(s);
  require(options, "shard-group", ranks % data.shard_group == 0,
          s.tp == 1 ? fmt::format("must divide --gpus {}", s.gpus)
                    : fmt::format("must divide --gpus {} / --tp {}", s.gpus, s.tp));
  require(options, "shard-group", s.stack != Stack::pytorch || data.zero >= 2,
          "ZeroRedundancyOptimizer shards over all ranks");
  if (data.shard_group == ranks) data.shard_group = 0;  // all of them: the default
}

// DeepSpeed's sizes are elements, often written 5e8.
void set_deepspeed(const Options& options, Strategy& s) {
  models::DeepSpeedOptions& o = s.data.deepspeed;
  const bool deepspeed = s.stack == Stack::deepspeed;
  const auto elements = [&](std::string_view option, int least_stage, std::int64_t& target) {
    require(options, option, deepspeed, "belongs to --stack deepspeed");
    require(options, option, s.data.zero >= least_stage,
            fmt::format("has no effect below --zero {}", least_stage));
    if (const std::string* text = options.find(option))
      target = *text == "0" ? 0 : count_value(option, *text).value();
  };
  elements("reduce-bucket-size", 1, o.reduce_bucket_size);
  if (o.reduce_bucket_size < 1) refuse_value("reduce-bucket-size", "0", "must be at least 1");
  elements("sub-group-size", 3, o.sub_group_size);
  elements("stage3-prefetch-bucket-size", 3, o.prefetch_bucket_size);
  if (o.prefetch_bucket_size == 0)  // from one parameter on, hooks ask for more than is used
    fail(ErrorKind::unsupported,
         "--stage3-prefetch-bucket-size 0: ZeRO-3 without prefetching is not modelled yet");
  elements("stage3-param-persistence-threshold", 3, o.param_persistence_threshold);
  elements("stage3-max-live-parameters", 3, o.max_live_parameters);
  elements("stage3-max-reuse-distance", 3, o.max_reuse_distance);
  models::NvmeOptions& nvme = o.nvme;
  elements("offload-optimizer-buffer-count", 3, nvme.optimizer_buffer_count);
  elements("offload-param-buffer-count", 3, nvme.param_buffer_count);
  elements("offload-param-buffer-size", 3, nvme.param_buffer_size);
  elements("offload-param-max-in-cpu", 3, nvme.max_in_cpu);
  require(options, "overlap-comm", deepspeed, "belongs to --stack deepspeed");
  require(options, "overlap-comm", s.data.zero >= 1, "has no effect below --zero 1");
  set_parsed(options, "overlap-comm", yes_or_no, o.overlap_comm);
  require(options, "round-robin-gradients", deepspeed, "belongs to --stack deepspeed");
  require(options, "round-robin-gradients", s.data.zero == 1 || s.data.zero == 2,
          "is of the flat buffer of --zero 1 and 2");
  set_parsed(options, "round-robin-gradients", yes_or_no, o.round_robin_gradients);
}

void set_data_parallel(const Options& options, Strategy& s) {
  models::DataParallel& data = s.data;
  std::int64_t zero = 0;
  set_whole(options, "zero", 0, 3, zero);
  set_zero(s, static_cast<int>(zero));
  const bool pytorch = s.stack == Stack::pytorch;
  const bool fsdp = pytorch && zero >= 2;
  set_shard_group(options, s);
  require(options, "data-parallel", pytorch && zero == 0,
          "torch.nn.DataParallel and DDP are --stack pytorch with --zero 0");
  set_choice(options, "data-parallel", data.kind);
  require(options, "data-parallel", data.kind == models::DataParallelKind::ddp || s.gpus > 1,
          "torch.nn.DataParallel is of several GPUs (--gpus)");
  const bool ddp = pytorch && zero <= 1 && data.kind == models::DataParallelKind::ddp;
  require(options, "fsdp-version", fsdp, "FSDP is --stack pytorch with --zero 2 or 3");
  std::int64_t version = data.fsdp_version;
  set_whole(options, "fsdp-version", 1, 2, version);
  data.fsdp_version = static_cast<int>(version);
  for (const char* name :
       {"fsdp-activation-checkpointing", "fsdp-sync-module-states", "fsdp-use-orig-params"})
    require(options, name, fsdp && version == 1, "is of --fsdp-version 1");
  set_parsed(options, "fsdp-sync-module-states", yes_or_no, data.sync_module_states);
  set_parsed(options, "fsdp-activation-checkpointing", yes_or_no, data.fsdp_checkpoints);
  set_parsed(options, "fsdp-use-orig-params", yes_or_no, data.use_orig_params);
  require(options, "fsdp-upcast", fsdp, "FSDP is --stack pytorch with --zero 2 or 3");
  set_parsed(options, "fsdp-upcast", yes_or_no, data.fsdp_upcast);
  require(options, "gradient-as-bucket-view", ddp, "DDP is --stack pytorch with --zero 0 or 1");
  set_parsed(options, "gradient-as-bucket-view", yes_or_no, data.gradient_as_bucket_view);
  require(options, "bucket-cap-mb", ddp, "DDP is --stack pytorch with --zero 0 or 1");
  if (const std::string* text = options.find("bucket-cap-mb"))
    data.bucket_cap = Bytes(whole("bucket-cap-mb", *text, 1, 1 << 20) << 20);
  require(options, "reduce-bucket", s.stack == Stack::plimsoll,
          "belongs to --stack plimsoll; DDP's own knob is --bucket-cap-mb, DeepSpeed's "
          "--reduce-bucket-size");
  set_deepspeed(options, s);
  set_parsed(options, "reduce-bucket", size_value, data.bucket_cap);
  require(options, "deterministic", s.stack == Stack::plimsoll,
          "belongs to --stack plimsoll; pytorch's own setting changes no memory that is planned");
  s.deterministic = options.has("deterministic");
  require(options, "exchange", s.stack == Stack::plimsoll,
          "belongs to --stack plimsoll; others talk over NCCL");
  if (options.has("exchange")) {
    s.exchange = choice<models::Exchange>("exchange", *options.find("exchange"));
    require(options, "exchange",
            *s.exchange !=
                (s.device == models::Device::cuda ? models::Exchange::mpi : models::Exchange::nccl),
            "nccl is for --device cuda, mpi for --device cpu, threads for both");
  }
  if (data.bucket_cap <= 0_B) refuse_value("reduce-bucket", "0", "must be at least one byte");
}

Strategy strategy_from(const Options& options) {
  Strategy s;
  set_stack(options, s);
  set_data_parallel(options, s);
  require(
      options, "gpus-per-node",
      s.device == models::Device::cuda || s.exchange == models::Exchange::mpi,
      "ranks of --device cpu are threads of one host; with --exchange mpi there may be several");
  set_precision(options, s);
  set_choice(options, "optimizer", s.optimizer);
  if (const std::string* rank = options.find("galore-rank"))
    s.galore_rank = whole("galore-rank", *rank, 1, 1 << 20);
  s.optimizer_in_backward = options.has("optimizer-in-backward") || models::steps_behind(s);
  set_parsed(options, "optimizer-impl", choice<models::OptimizerImpl>, s.optimizer_impl);
  if (!wishes_recompute(options)) set_parsed(options, "recompute", recompute_value, s.recompute);
  require(options, "recompute",
          s.recompute.kind != models::RecomputeKind::ops || s.stack == Stack::pytorch,
          "operators are chosen on --stack pytorch");
  check(!s.data.fsdp_checkpoints || s.recompute.kind == models::RecomputeKind::full,
        ErrorKind::bad_input, "--fsdp-activation-checkpointing yes: with --recompute full alone");
  set_parsed(options, "use-reentrant", yes_or_no, s.use_reentrant);
  require(options, "use-reentrant", models::decisions::recomputes_layers(s.recompute.kind),
          "is of checkpoints around layers: --recompute full, sqrt, every:K, block:N or nth:N");
  set_choice(options, "attention", s.attention);
  set_choice(options, "loss", s.loss);
  s.rows = rows_from(options);
  set_adapters(options, s);
  refuse_unused_release(options, s);
  set_offload(options, s);
  return s;
}

models::Batch batch_from(const Options& options, const Strategy& strategy,
                         std::int64_t max_positions) {
  models::Batch batch;
  if (max_positions > 0) batch.seq_len = std::min(batch.seq_len, max_positions);
  set_whole(options, "seq-len", 1, kMost, batch.seq_len);
  if (max_positions > 0 && batch.seq_len > max_positions)
    refuse_value("seq-len", *options.find("seq-len"),
                 fmt::format("the model takes at most {} tokens", max_positions));
  set_whole(options, "micro-batch", 1, kMost, batch.micro_batch);
  set_whole(options, "grad-accum", 1, kMost, batch.grad_accum);
  if (const std::string* text = options.find("global-batch")) {
    const std::int64_t global = whole("global-batch", *text, 1, kMost);
    const std::int64_t once =
        checked_multiply(batch.micro_batch, models::decisions::data_ranks(strategy));
    if (global % once != 0)
      refuse_value("global-batch", *text,
                   fmt::format("must be a multiple of {} (--micro-batch {} x --gpus {}{})", once,
                               batch.micro_batch, strategy.gpus,
                               strategy.tp > 1 ? fmt::format(" / --tp {}", strategy.tp) : ""));
    if (options.has("grad-accum") && global / once != batch.grad_accum)
      refuse_value("global-batch", *text,
                   fmt::format("--grad-accum {} gives {}: give one of the two", batch.grad_accum,
                               checked_multiply(once, batch.grad_accum)));
    batch.grad_accum = global / once;
  }
  // What a step takes in must be countable.
  (void)checked_multiply(checked_multiply(batch.tokens(), batch.grad_accum), strategy.gpus);
  return batch;
}
}  // namespace

namespace {
Request request_with_files(const std::string& model, const Options& options, Sources& sources) {
  const FileOptions file = with_user_files(model, options, FileDefaults::filled, sources.models);
  try {
    Request request = request_from(file.model, file.options, sources);
    request.notes.insert(request.notes.begin(), file.notes.begin(), file.notes.end());
    request.notes.insert(request.notes.end(), options.notes().begin(), options.notes().end());
    request.question.fixed.insert(request.question.fixed.end(), file.set.begin(), file.set.end());
    return request;
  } catch (const Error& error) {
    fail_with_origin(error, file.options);
  }
}
}  // namespace

Request request_from(const std::string& model, const Options& options, Sources& sources) {
  if (has_user_files(options)) return request_with_files(model, options, sources);
  if (options.has("deepspeed")) {
    const std::string* assume = options.find("assume");
    const auto loaded = model.empty() ? nullptr : sources.models.load(model, assume ? *assume : "");
    const FileOptions file = with_deepspeed_file(options, loaded.get());
    Request request = request_from(model, file.options, sources);
    request.notes = file.notes;
    request.notes.insert(request.notes.end(), options.notes().begin(), options.notes().end());
    request.question.fixed = file.set;
    return request;
  }
  Request request;
  const std::string* params = options.find("params");
  if (params != nullptr) {
    check(model.empty(), ErrorKind::bad_input, [&] {
      return fmt::format("--params {} with MODEL {}: give one of the two", *params, model);
    });
    request.parameters = count_value("params", *params);
    refuse_with_params(options);
  } else {
    check(!model.empty(), ErrorKind::bad_input,
          "MODEL is missing: a name of `plimsoll models`, a path to a config.json, or --params N");
  }
  refuse_unmodelled(options);
  planner::Question& question = request.question;
  question.strategy = strategy_from(options);
  const bool host = question.strategy.device == models::Device::cpu;
  question.cluster = cluster_from(options, host, sources);
  if (!request.parameters) {
    const std::string* assume = options.find("assume");
    request.model = sources.models.load(model, assume ? *assume : "");
    if (const std::string* task = options.find("task"))
      request.model = with_task(request.model, assume ? *assume : "", *task);
    if (const std::string* rate = options.find("dropout"); rate != nullptr && *rate != "config")
      request.model = with_dropout(*request.model, assume ? *assume : "",
                                   real_value("dropout", *rate, 0, 0.999));
    question.model = &request.model->spec;
    apply_quantization_config(options, request);
    if (const auto& decoder = request.model->spec.decoder; decoder && decoder->eager_attention)
      if (!options.has("attention")) question.strategy.attention = models::Attention::eager;
    set_default_targets(options, request.model->spec, question.strategy);
    set_kernels(options, request.model->spec, question.strategy);
  }
  question.batch =
      batch_from(options, question.strategy, request.model ? request.model->spec.max_positions : 0);
  if (request.model) use_data(options, request.model->spec.max_positions, request);
  set_phase(options, question);
  if (request.model) use_packed_checkpoint(*request.model, question);
  if (options.has("detail")) question.detail = planner::Detail::full;
  for (const auto& [name, value] : options.given()) question.given.push_back(name);
  for (const std::string& note : options.notes()) request.notes.push_back(note);
  const Strategy& s = question.strategy;
  if (options.has("adapter-dtype") && s.stack == Stack::deepspeed && s.data.zero < 3)
    request.notes.push_back(
        "--adapter-dtype: DeepSpeed casts adapters to the dtype of the model below --zero 3.");
  if (wishes_recompute(options)) choose_recompute(options, request);
  return request;
}

}  // namespace plimsoll::tools
