// Keys: accelerate 1.15, commands/config/config_args.py and commands/config/cluster.py.
#include <fmt/format.h>

#include "models/decisions/mesh.h"
#include "reports/export.h"
#include "reports/export_code.h"
#include "reports/export_notes.h"

namespace plimsoll::reports {

using models::RecomputeKind;
using models::Stack;
using models::Strategy;
using models::Workload;
using models::decisions::Axis;
using models::decisions::mesh_of;

namespace {

// Which of Accelerate's ways of running ranks a plan's stack and stage come down to.
enum class Way { single, ddp, fsdp, deepspeed };

Way way_of(const Strategy& s) {
  if (s.stack == Stack::deepspeed) return Way::deepspeed;
  if (s.stack == Stack::plimsoll && (s.data.zero == 1 || s.data.zero == 2)) return Way::deepspeed;
  if (s.data.zero >= 2) return Way::fsdp;
  return mesh_of(s).communicates() ? Way::ddp : Way::single;
}

const char* distributed_type(Way way) {
  switch (way) {
    case Way::ddp:
      return "MULTI_GPU";
    case Way::fsdp:
      return "FSDP";
    case Way::deepspeed:
      return "DEEPSPEED";
    case Way::single:
      break;
  }
  return "'NO'";  // YAML 1.1 reads a bare NO as false
}

// The launcher passes its own defaults for what is left out.
std::string fsdp1_section(const Strategy& s) {
  return fmt::format(
      "fsdp_config:\n"
      "  fsdp_version: 1\n"
      "  fsdp_sharding_strategy: {}\n"
      "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
      "  fsdp_backward_prefetch: BACKWARD_PRE\n"
      "  fsdp_forward_prefetch: false\n"
      "  fsdp_use_orig_params: {}\n"
      "  fsdp_activation_checkpointing: {}\n"
      "  fsdp_offload_params: {}\n"
      "  fsdp_cpu_ram_efficient_loading: true\n"
      "  fsdp_sync_module_states: true\n"
      "  fsdp_state_dict_type: SHARDED_STATE_DICT\n",
      fsdp1_sharding(s), s.data.use_orig_params, fsdp_checkpoints(s), s.offload.params);
}

std::string fsdp_section(const Strategy& s) {
  if (is_fsdp1(s)) return fsdp1_section(s);
  const bool reshards = s.stack != Stack::pytorch || s.data.zero == 3;
  std::string out = fmt::format(
      "fsdp_config:\n"
      "  fsdp_version: 2\n"
      "  fsdp_reshard_after_forward: {}\n"
      "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
      "  fsdp_activation_checkpointing: {}\n"
      "  fsdp_offload_params: {}\n"
      "  fsdp_cpu_ram_efficient_loading: true\n"
      "  fsdp_state_dict_type: SHARDED_STATE_DICT\n",
      reshards, fsdp_checkpoints(s), s.offload.params);
  if (models::decisions::shards_in_groups(s)) {
    const models::decisions::Mesh mesh = mesh_of(s);
    out += fmt::format(
        "parallelism_config:\n"
        "  parallelism_config_dp_replicate_size: {}\n"
        "  parallelism_config_dp_shard_size: {}\n"
        "  parallelism_config_tp_size: 1\n"
        "  parallelism_config_cp_size: 1\n",
        mesh[Axis::replicate].ranks, mesh[Axis::shard].ranks);
  }
  return out;
}

void add_notes(const Workload& w, Way way, Notes& notes) {
  const Strategy& s = w.strategy;
  if (s.stack == Stack::plimsoll)
    notes.push_back(
        "the plan is of stack plimsoll; `plimsoll fit --stack pytorch` or deepspeed "
        "gives the figures of what this file runs");
  if (const std::string code = needed_code_note(s); !code.empty()) notes.push_back(code);
  if (way != Way::deepspeed)
    notes.push_back(
        fmt::format("micro-batches of {} sequences are the data loader's, {} of them a "
                    "step Accelerator(gradient_accumulation_steps={})",
                    w.batch.micro_batch, w.batch.grad_accum, w.batch.grad_accum));
  if (way != Way::deepspeed && s.recompute.kind == RecomputeKind::full &&
      !(way == Way::fsdp && fsdp_checkpoints(s)))
    notes.push_back("full recompute: call " + checkpointing_call(s));
  if (way == Way::fsdp && s.data.fsdp_upcast && !*s.data.fsdp_upcast)
    notes.push_back(
        "--fsdp-upcast no: Accelerate always stores trained parameters in fp32 when "
        "it trains mixed");
  if (way == Way::fsdp) add_fsdp1_notes(s, notes);
  add_allocator_note(s, notes);
  if (s.lora || !s.freeze.empty())
    notes.push_back(
        "adapters and frozen parameters are made in Python: --to transformers writes "
        "them");
  notes.push_back(fmt::format("the weights are loaded in {} (from_pretrained's dtype)",
                              name_of(loaded_dtype(s))));
  add_model_notes(w, notes);
}

}  // namespace

Exported export_accelerate(const Workload& w) {
  check_exportable(w, "accelerate");
  const Strategy& s = w.strategy;
  const Way way = way_of(s);
  const std::int64_t machines = mesh_of(s).nodes();
  Exported out;
  if (way == Way::deepspeed) {
    Notes discarded;  // they stand with the file that deepspeed_config_file names
    deepspeed_json(w, false, discarded);
    out.notes.push_back(
        "`plimsoll export PLAN --to deepspeed` writes the ds_config.json that "
        "deepspeed_config_file names");
  }
  add_notes(w, way, out.notes);
  if (machines > 1)
    out.notes.push_back(
        fmt::format("{} machines: machine_rank, main_process_ip and "
                    "main_process_port are each machine's own",
                    machines));
  std::string& text = out.text;
  text = as_comments({title(w)}, "#") + as_comments(out.notes, "#");
  text += fmt::format("compute_environment: LOCAL_MACHINE\ndistributed_type: {}\n",
                      distributed_type(way));
  text += fmt::format("num_machines: {}\nnum_processes: {}\nmachine_rank: 0\n", machines, s.gpus);
  text += "main_training_function: main\nrdzv_backend: static\nsame_network: true\n";
  if (way == Way::deepspeed) {
    text += fmt::format(
        "deepspeed_config:\n  deepspeed_config_file: ds_config.json\n  zero3_init_flag: {}\n",
        s.data.zero == 3);
    if (machines > 1) text += "  deepspeed_multinode_launcher: standard\n";
    return out;  // mixed_precision stands in that file
  }
  // Weights that are loaded in the low dtype need no autocast.
  text += fmt::format("mixed_precision: {}\n",
                      is_mixed(s.precision) ? compute_dtype(s.precision) : "'no'");
  if (way == Way::fsdp) text += fsdp_section(s);
  return out;
}

}  // namespace plimsoll::reports
