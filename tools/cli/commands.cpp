#include <algorithm>
#include <array>

#include "tools/cli/command_line.h"
#include "tools/run/run_options.h"

namespace plimsoll::tools {

namespace {
constexpr Option kHtml{"html", "FILE", "Output",
                       "write a page with pictures; - for standard output"};

constexpr Option kTrace{"trace", "FILE", "Output",
                        "memory by category and ops, for ui.perfetto.dev"};
constexpr Option kMemoryViz{"memory-viz", "FILE", "Output",
                            "a snapshot for pytorch.org/memory_viz"};

constexpr std::array<Option, 4> kReportOptions{{
    kHtml,
    kTrace,
    kMemoryViz,
    {"rank", "N", "Output", "whose step --trace and --memory-viz show (the first in the file)"},
}};

constexpr std::array<Option, 6> kFitOptions{{
    kHtml,
    {"explain", "[TENSOR]", "Output",
     "how the figures come about: of the plan (all), of the time (time), of a tensor"},
    {"plot", "", "Output", "draw memory over the step below the table"},
    {"svg", "FILE", "Output", "memory over the step as a picture"},
    kTrace,
    kMemoryViz,
}};

constexpr std::array<Option, 1> kExportOptions{{
    {"to", "TARGET", "Export",
     "deepspeed, accelerate, transformers, slurm, plimsoll (the plan itself)"},
}};

constexpr std::array<Option, 2> kCatalogOptions{{
    {"html", "FILE", "Output",
     "a page with what trains on what, and how; - for standard output (a minute)"},
    {"search", "TEXT", "Catalog", "only those with TEXT in a name or an alias"},
}};

constexpr std::array<Option, 7> kBatchOptions{{
    kHtml,
    {"fields", "LIST", "Batch",
     "only these of each plan, as in peak_bytes,verdict,time.step_seconds"},
    {"csv", "", "Batch", "a table with a header (of --fields, or of the usual ones)"},
    {"markdown", "", "Batch", "the same for GitHub and wikis (--html: as a page)"},
    {"threads", "N", "Batch", "(all cores)"},
    {"fleet", "FILE", "Batch",
     "pools of GPUs with counts and prices, and jobs (those of QUERIES.jsonl too): which job fits "
     "where, who goes where, what to buy"},
    {"solver-seconds", "N", "Batch", "for each assignment of --fleet (10)"},
}};

constexpr std::array<Option, 4> kCompareOptions{{
    kHtml,
    {"published", "", "Compare",
     "every published row of FOLDER (this program's own), asked as its source states it: answered, "
     "refused, how far off"},
    {"svg", "FILE", "Compare", "of --published: planned against measured, as a picture"},
    {"tolerance", "PERCENT", "Compare", "of stacks that are estimated; plimsoll is exact (5)"},
}};

constexpr std::array<Option, 4> kCheckOptions{{
    {"against", "BASELINE.json", "Check", "what the plans were (without it nothing is compared)"},
    {"max-growth", "PERCENT", "Check", "of each figure, as in 2% (0)"},
    {"junit", "FILE", "Check", "a test report, a case for each plan"},
    {"github", "", "Check", "annotations of GitHub Actions (where it runs them, by itself)"},
}};

constexpr std::array<Option, 9> kSearchOptions{{
    kHtml,
    {"objective", "NAME", "Search",
     "throughput, gpus (fewest), context (longest), batch (largest), memory (least) (throughput)"},
    {"keep", "LIST", "Search", "axes that stay as given: precision, optimizer, stack, zero, …"},
    {"only", "LIST", "Search", "values that may be taken: zero=2,zero=3,stack=pytorch"},
    {"without", "LIST", "Search", "values that may not: adapters=lora,recompute=every"},
    {"min-headroom", "SIZE", "Search",
     "free on each GPU (enough for all assumed overheads at their high end)"},
    {"tokens", "N", "Search", "a compute budget, as in 15e12: GPU-days of each plan"},
    {"top", "N", "Search", "approaches to list (5)"},
    {"threads", "N", "Search", "(all cores)"},
}};

constexpr auto kRunOptions = [] {
  constexpr std::array<Option, 4> kOwn{{
      {"ranks", "N", "Run", "as threads of this machine; the same as --gpus"},
      {"reduce-layers", "N", "Run", "only the model's first layers, planned anew"},
      {"prediction", "FILE", "Run", "keep the plan that was made before the run"},
      {"anyway", "", "Run", "although the plan says that it does not fit"},
  }};
  std::array<Option, kOwn.size() + kTrainingOptions.size()> all{};
  std::copy(kOwn.begin(), kOwn.end(), all.begin());
  std::copy(kTrainingOptions.begin(), kTrainingOptions.end(), all.begin() + kOwn.size());
  return all;
}();

constexpr std::array<Command, 12> kCommands{{
    {.name = "fit",
     .argument = "MODEL",
     .help = "Will it fit, where does the memory go, and at which moment is the peak?",
     .example = "plimsoll fit llama-3.1-8b --gpu h100 --gpus 8 --zero 3 --seq-len 8192 "
                "--recompute full",
     .takes_plan_options = true,
     .own_options = kFitOptions},
    {.name = "batch",
     .argument = "QUERIES.jsonl",
     .help =
         "Many fit queries (- for standard input): one JSON object a line, its keys the options "
         "of fit, and \"id\", which comes back; or a CSV table whose first row has those keys. One "
         "answer a line, in order, without timeline unless \"detail\": true",
     .example = "echo '{\"model\": \"gpt2\", \"gpu\": \"4090\", \"micro_batch\": 8}' | "
                "plimsoll batch -",
     .own_options = kBatchOptions},
    {.name = "models",
     .help = "The models that are known by name",
     .example = "plimsoll models --search phi3",
     .own_options = kCatalogOptions},
    {.name = "gpus",
     .help = "The GPUs that are known by name",
     .example = "plimsoll gpus --search h200",
     .own_options = kCatalogOptions},
    {.name = "trainers",
     .help = "Training programs whose defaults --trainer takes",
     .example = "plimsoll trainers --search torchtitan",
     .own_options = kCatalogOptions},
    {.name = "recommend",
     .argument = "MODEL",
     .help = "How should it run on these GPUs? Options of fit that are given stay as they are, the "
             "rest is searched; --gpus is the most that may be used",
     .example = "plimsoll recommend llama-3.1-8b --gpu a100-80gb --gpus 8 --seq-len 8192",
     .takes_plan_options = true,
     .own_options = kSearchOptions},
    {.name = "run",
     .argument = "MODEL",
     .help =
         "Executes training steps for real on our own runtime: the prediction first, then what "
         "each rank's memory did, tensor by tensor, against it. MODEL may be a PLAN.json, - for "
         "one on standard input, or a recommendation, whose first plan is taken",
     .example = "plimsoll run gpt2 --device cpu --ranks 2 --zero 3 --steps 2 --seq-len 64",
     .takes_plan_options = true,
     .own_options = kRunOptions},
    {.name = "compare",
     .argument = "PREDICTION.json MEASUREMENT.json…",
     .help = "Do measurements agree with their prediction, tensor by tensor (where it was made "
             "with --detail) and category by category? In place of measurements also snapshots "
             "of torch.cuda.memory._dump_snapshot(): which of the plan's tensors are there, and "
             "what else is",
     .example = "plimsoll compare prediction.json measurement.json",
     .takes_more_arguments = true,
     .own_options = kCompareOptions},
    {.name = "report",
     .argument = "FILE.json",
     .help = "A plan, recommendation, measurement or comparison as a page with pictures: one HTML "
             "file that needs no network. A measurement's step as viewers of real ones read it: "
             "--trace, --memory-viz",
     .example = "plimsoll fit gpt2 --json - | plimsoll report - --html plan.html",
     .own_options = kReportOptions},
    {.name = "export",
     .argument = "PLAN.json",
     .help = "A plan as the configuration of DeepSpeed, Accelerate, Transformers or Slurm: "
             "PLAN.json is "
             "what fit or recommend wrote (- for standard input; of a recommendation, the first "
             "plan)",
     .example = "plimsoll fit gpt2 --gpus 8 --zero 3 --json - | plimsoll export - --to accelerate",
     .own_options = kExportOptions},
    {.name = "oom",
     .argument = "FILE [MODEL]",
     .help = "What was this out-of-memory error, and what is the cheapest way round it? FILE is a "
             "log with PyTorch's message, or one of the driver, NCCL or a library (- for standard "
             "input). With MODEL and options as for fit the workload is planned: which tensor "
             "failed, what lived then, and which changes avoid it, on a card of the message's size",
     .example = "plimsoll oom train.log llama-3.1-8b --gpus 4 --zero 3 --seq-len 4096",
     .takes_plan_options = true,
     .takes_more_arguments = true},
    {.name = "check",
     .argument = "PLAN.json…",
     .help =
         "Did a change cost memory? Peak, reserved and device bytes of plans against those of a "
         "baseline: what this command wrote with --json before the change, or a plan. Plans are "
         "the same where their files have the same name. For pull requests",
     .example = "plimsoll check plans/*.json --against baseline.json --max-growth 2%",
     .takes_more_arguments = true,
     .own_options = kCheckOptions},
}};
}  // namespace

std::span<const Command> commands() {
  return kCommands;
}

}  // namespace plimsoll::tools
