// `plimsoll run`: predicts, writes the prediction, and hands it to plimsoll-run.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "models/config_reader.h"
#include "models/run_names.h"
#include "reports/plan_json.h"
#include "reports/want_of_memory.h"
#include "runtime/comm/launch.h"
#include "tools/cli/doors.h"
#include "tools/cli/host_memory.h"
#include "tools/cli/output.h"
#include "tools/cli/plan_document_json.h"
#include "tools/cli/plan_source.h"
#include "tools/cli/request.h"
#include "tools/cli/targets.h"
#include "tools/cli/values.h"
#include "tools/run/run_options.h"

namespace plimsoll::tools {

namespace fs = std::filesystem;

namespace {
// A document rather than a model: standard input, or a file that says that it is a plan.
bool is_plan(const std::string& argument, std::string& document) {
  if (argument == "-") {
    document = read_document(argument);
    return true;
  }
  std::error_code error;
  if (!argument.ends_with(".json") || !fs::is_regular_file(argument, error)) return false;
  document = read_document(argument);
  return models::Config::parse(document, argument).text("schema", "").starts_with("plimsoll.");
}

// An option of the run itself: --data is the tokens and --adapter a folder, not fit's lengths and
// kinds.
bool is_of_the_run(std::string_view name) {
  return std::ranges::any_of(kTrainingOptions,
                             [&](const Option& option) { return option.name == name; });
}

// Options that a plan has already answered; these may be given beside one.
void refuse_beside_plan(const Options& options) {
  for (const auto& [name, value] : options.given()) {
    const bool answered = find_plan_option(name) != nullptr && !is_of_the_run(name);
    if (answered && name != "device" && name != "gpu-memory" && name != "detail")
      fail(ErrorKind::bad_input,
           fmt::format("--{}: the plan has answered it; plan again, or give a MODEL", name));
  }
}

std::optional<std::int64_t> ranks_of(const Options& options) {
  const std::string* text = options.find("ranks");
  if (text == nullptr) return std::nullopt;
  return whole("ranks", *text, 1, 1 << 16);
}

// Where torchrun, srun or mpirun have started several processes, each is one rank, plans the same
// question by itself and comes here; rank 0 alone speaks.
using runtime::comm::Launch;

void expect_world(const Launch& launch, std::int64_t ranks, const std::string& who) {
  check(launch.world == 0 || launch.world == ranks, ErrorKind::bad_input, [&] {
    return fmt::format(
        "{} {} ranks, and {} has started {}: give neither --gpus nor --ranks, or "
        "start as many",
        who, ranks, name_of(launch.launcher), launch.world);
  });
}

// How the ranks reach each other is seen here, and is part of what is planned.
void set_exchange(const Launch& launch, const Options& options, models::Strategy& strategy) {
  expect_gpus(launch, strategy.device == models::Device::cuda);
  const models::Exchange here = exchange_here(launch, strategy.device);
  check(!options.has("exchange") || strategy.exchange == here, ErrorKind::bad_input, [&] {
    return fmt::format("--exchange {}: here ranks are over {}", *options.find("exchange"),
                       name_of(here));
  });
  strategy.exchange = here;
}

Request from_plan(const std::string& document, const std::string& argument, const Options& options,
                  const Launch& launch) {
  refuse_beside_plan(options);
  const std::string source = argument == "-" ? "standard input" : argument;
  Request request = request_from_plan(checked_plan(document, source), source);
  models::Strategy& strategy = request.question.strategy;
  check(strategy.stack == models::Stack::plimsoll, ErrorKind::bad_input, [&] {
    return fmt::format("{}: a plan of --stack {}; what runs is --stack plimsoll: plan it so",
                       source, name_of(strategy.stack));
  });
  if (const std::string* device = options.find("device"))
    strategy.device = choice<models::Device>("device", *device);
  if (const std::string* memory = options.find("gpu-memory"))
    request.question.cluster.memory = size_value("gpu-memory", *memory);
  if (const auto ranks = ranks_of(options)) strategy.gpus = *ranks;
  if (is_distributed(launch)) expect_world(launch, strategy.gpus, source + " is for");
  return request;
}

Request from_model(const std::string& model, const Options& given, const Launch& launch,
                   Sources& sources) {
  Options options;
  const std::string* gpus = given.find("gpus");
  const std::string* ranks = given.find("ranks");
  for (const auto& [name, value] : given.given()) {
    if (find_plan_option(name) != nullptr && !is_of_the_run(name)) options.add(name, value);
  }
  check(gpus == nullptr || ranks == nullptr || *gpus == *ranks, ErrorKind::bad_input,
        "--ranks and --gpus are the same: give one of them");
  if (gpus == nullptr && ranks != nullptr) options.add("gpus", *ranks);
  if (is_distributed(launch) && launch.world > 0) {
    if (const std::string* asked = options.find("gpus"))
      expect_world(launch, whole("gpus", *asked, 1, 1 << 20),
                   gpus != nullptr ? "--gpus asks for" : "--ranks asks for");
    else
      options.add("gpus", std::to_string(launch.world));
    if (gpus == nullptr && ranks == nullptr && launch.rank == 0 && !given.has("quiet"))
      say(fmt::format("{} ranks, as {} has started", launch.world, name_of(launch.launcher)));
  }
  const std::string* stack = options.find("stack");
  if (stack == nullptr) options.add("stack", "plimsoll");
  check(stack == nullptr || *stack == "plimsoll", ErrorKind::bad_input,
        [&] { return fmt::format("--stack {}: run executes stack plimsoll only", *stack); });
  check(!options.has("params"), ErrorKind::bad_input,
        "--params: a bare parameter count cannot be run; give a MODEL");
  return request_from(model, options, sources);
}

reports::Plan predicted(Request& request, const Options& options) {
  if (const std::string* text = options.find("reduce-layers")) {
    request.model = with_layers(*request.model, whole("reduce-layers", *text, 1, 1 << 20));
    request.question.model = &request.model->spec;
  }
  request.question.detail = planner::Detail::full;
  return answer(request);
}

std::string as_document(const reports::Plan& plan) {
  std::string document;
  reports::JsonWriter json(document, reports::JsonWriter::Style::pretty);
  reports::write_plan(json, plan, this_tool());
  return document + "\n";
}

void write_prediction(const std::string& path, const std::string& document) {
  AtomicFile file(path, "--prediction");
  file.write(document);
  file.commit();
}

// A host that has too little for all ranks would end the run by force and say nothing.
bool host_has_room(const reports::Plan& plan, const Launch& launch) {
  if (plan.strategy.device != models::Device::cpu || is_distributed(launch)) return true;
  const std::optional<Bytes> available = host_memory();
  const Bytes need = plan.device * plan.strategy.gpus;
  if (const auto addresses = host_addresses(plan.strategy.gpus); addresses && need > *addresses) {
    const Bytes left = std::max(0_B, *addresses);
    say(
        fmt::format("tensors of {} are to be held beside the buffers of OpenBLAS, and the limit on "
                    "addresses (ulimit -v) leaves {}: raise it, or OPENBLAS_NUM_THREADS=1, a "
                    "smaller model, fewer --ranks, or --anyway",
                    reports::bytes_text(need), reports::bytes_text(left)));
    return false;
  }
  if (!available || need <= *available) return true;
  say(
      fmt::format("{} ranks need {:.1f} GiB together, and this host has {:.1f} GiB: a smaller "
                  "model (--reduce-layers N), fewer --ranks, or --anyway",
                  plan.strategy.gpus, need.real() / (1 << 30), available->real() / (1 << 30)));
  return false;
}

// The plan becomes standard input of the program that this process turns into. In memory: no disk
// can be full.
void put_into_standard_input(const std::string& document) {
  const int file = ::memfd_create("plan", 0);
  const auto refuse = [] {
    const int error = errno;
    fail(ErrorKind::internal,
         fmt::format("the plan cannot be handed to plimsoll-run: {}", std::strerror(error)));
  };
  if (file < 0) refuse();
  for (std::string_view rest = document; !rest.empty();) {
    const ssize_t written = ::write(file, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse();
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::lseek(file, 0, SEEK_SET) != 0 || ::dup2(file, STDIN_FILENO) < 0) refuse();
  ::close(file);
}

[[noreturn]] void become_plimsoll_run(const Options& options) {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  const std::string program = (self.parent_path() / "plimsoll-run").string();
  std::vector<std::string> words{program, "-"};
  const auto hand_on = [&](const Option& option) {
    const std::string* value = options.find(option.name);
    if (value == nullptr) return;
    words.push_back("--" + std::string(option.name));
    if (!option.value.empty()) words.push_back(*value);
  };
  for (const Option& option : kTrainingOptions) hand_on(option);
  for (const Option& option : output_options()) hand_on(option);
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  const int reason = errno;
  fail(ErrorKind::internal, fmt::format("{}: {}", program, std::strerror(reason)));
}

// A folder with weights is run with them.
Options with_weights(const Options& given, const std::string& argument) {
  Options options = given;
  std::error_code error;
  if (given.has("weights") || given.has("reduce-layers") || given.has("resume") ||
      !fs::is_directory(argument, error))
    return options;
  for (const auto& entry : fs::directory_iterator(argument, error))
    if (entry.path().extension() == ".safetensors" &&
        !entry.path().filename().string().starts_with("adapter_")) {
      options.add("weights", argument);
      break;
    }
  return options;
}
}  // namespace

int run_model(const CommandLine& line) {
  check(!line.argument.empty(), ErrorKind::bad_input,
        "MODEL or PLAN.json is missing: a name of `plimsoll models`, a folder, or what `plimsoll "
        "fit --stack plimsoll --json FILE` wrote");
  const Launch launch = runtime::comm::detect_launch();
  const bool first = launch.rank == 0;
  check(line.argument != "-" || !is_distributed(launch), ErrorKind::bad_input,
        "-: only one rank has the standard input; give a file");
  Sources sources;
  std::string document;
  Request request = is_plan(line.argument, document)
                        ? from_plan(document, line.argument, line.options, launch)
                        : from_model(line.argument, line.options, launch, sources);
  set_exchange(launch, line.options, request.question.strategy);
  const reports::Plan plan = predicted(request, line.options);
  const std::string prediction = as_document(plan);
  if (first) check_writable(line.options);
  if (const std::string* path = line.options.find("prediction"))
    if (first) write_prediction(*path, prediction);
  if (plan.usable && !plan.fits && !line.options.has("anyway")) {
    if (first)
      deliver(line.options, prediction, reports::want_of_memory(plan, standard_output_terminal()));
    return 1;
  }
  if (!line.options.has("anyway") && !host_has_room(plan, launch)) return 1;
  put_into_standard_input(prediction);
  become_plimsoll_run(with_weights(line.options, line.argument));
}

}  // namespace plimsoll::tools
