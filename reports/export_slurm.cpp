// A batch script: options of sbatch (Slurm), torchrun's of torch/distributed/run.py (2.11).
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "models/decisions/mesh.h"
#include "reports/export.h"
#include "reports/export_notes.h"

namespace plimsoll::reports {

using models::Workload;

namespace {

// What a job may be called: a model's name is a path or an id sometimes.
std::string job_name(const Workload& w) {
  std::string name = w.model_name.substr(w.model_name.rfind('/') + 1);
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  };
  std::replace_if(
      name.begin(), name.end(), [&](char c) { return !plain(static_cast<unsigned char>(c)); }, '-');
  return name.empty() ? "train" : name.substr(0, 60);
}

}  // namespace

Exported export_slurm(const Workload& w) {
  check_exportable(w, "slurm");
  const models::Strategy& s = w.strategy;
  const models::decisions::Mesh mesh = models::decisions::mesh_of(s);
  const std::int64_t nodes = mesh.nodes(), local = mesh.ranks_in_node();
  check(nodes * local == mesh.ranks(), ErrorKind::bad_input, [&] {
    return fmt::format("export --to slurm: {} GPUs are no whole number of nodes of {}", s.gpus,
                       s.gpus_per_node);
  });
  Exported out;
  out.notes.push_back(
      "train.py is your script: --to transformers writes its arguments, --to "
      "deepspeed and --to accelerate its configuration");
  out.notes.push_back(
      "partition, account, time limit and memory are your cluster's: sbatch takes "
      "them as options, too");
  const std::string setting = allocator_setting(s);  // srun hands its environment on
  out.text = "#!/bin/bash\n" + as_comments({title(w)}, "#") + as_comments(out.notes, "#");
  out.text += fmt::format(
      "#SBATCH --job-name={}\n"
      "#SBATCH --nodes={}\n"
      "#SBATCH --ntasks-per-node=1\n"
      "#SBATCH --gpus-per-node={}\n"
      "#SBATCH --exclusive\n"
      "set -euo pipefail\n"
      "{}"
      "first=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n"
      "srun torchrun --nnodes={} --nproc-per-node={} --rdzv-id=\"$SLURM_JOB_ID\" \\\n"
      "  --rdzv-backend=c10d --rdzv-endpoint=\"$first:29500\" train.py \"$@\"\n",
      job_name(w), nodes, local, setting.empty() ? "" : "export " + setting + "\n", nodes, local);
  return out;
}

}  // namespace plimsoll::reports
