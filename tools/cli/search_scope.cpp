#include "tools/cli/search_scope.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <thread>

#include "planner/search/axes.h"
#include "tools/cli/deepspeed_file.h"
#include "tools/cli/recompute_wish.h"
#include "tools/cli/user_files.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace search = planner::search;

namespace {

constexpr std::array<std::string_view, 5> kObjectives{"throughput", "gpus", "context", "batch",
                                                      "memory"};
// The most GPUs that are looked at where the fewest are asked for and none are named.
constexpr std::int64_t kMostGpus = 1024;

bool is_axis(std::string_view name) {
  return std::ranges::any_of(search::axes(),
                             [&](const search::Axis& axis) { return axis.name == name; });
}

void set_kept(const Options& options, search::Scope& scope) {
  // An option that was given keeps its axes as they are.
  for (const Option& option : plan_options())
    if (options.has(option.name))
      for (const std::string_view axis : option.axes)
        if (!axis.empty()) scope.fixed.emplace(axis);
  const std::string* keep = options.find("keep");
  if (keep == nullptr) return;
  for (const std::string& name : comma_list("keep", *keep)) {
    if (!is_axis(name) && name != "micro-batch") {
      std::string names = "micro-batch";
      for (const search::Axis& axis : search::axes()) names += ", " + std::string(axis.name);
      refuse_value("keep", name, "must be of " + names);
    }
    scope.fixed.insert(name);
  }
}

// "zero=2,zero=3,stack=pytorch".
void set_filter(const Options& options, std::string_view option,
                std::map<std::string, std::set<std::string>, std::less<>>& filter) {
  const std::string* text = options.find(option);
  if (text == nullptr) return;
  for (const std::string& item : comma_list(option, *text)) {
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == item.size())
      refuse_value(option, item, "must be AXIS=VALUE, as in zero=3");
    filter[item.substr(0, equals)].insert(item.substr(equals + 1));
  }
}

// `options`: with what a file says; `given`: without.
void set_numbers(const Options& options, const Options& given, search::Scope& scope) {
  if (const std::string* text = options.find("objective"))
    scope.objective = static_cast<search::Objective>(name_index("objective", *text, kObjectives));
  if (const std::string* text = options.find("top"))
    scope.top = static_cast<std::size_t>(whole("top", *text, 1, 100));
  scope.threads = std::clamp(std::thread::hardware_concurrency(), 1u, 64u);
  if (const std::string* text = options.find("threads"))
    scope.threads = static_cast<std::size_t>(whole("threads", *text, 1, 256));
  if (const std::string* text = options.find("global-batch")) {
    scope.global_batch = whole("global-batch", *text, 1, std::int64_t{1} << 40);
    if (options.has("grad-accum") && !given.has("grad-accum"))
      scope.fixed.emplace("grad-accum");  // the file says both
    else if (options.has("grad-accum"))
      refuse_value("global-batch", *text, "--grad-accum is then searched: give one of the two");
    if (scope.objective == search::Objective::batch)
      refuse_value("global-batch", *text, "is what --objective batch looks for: give one");
  }
  scope.gpus = scope.base.strategy.gpus;
  if (scope.objective == search::Objective::gpus && !options.has("gpus")) scope.gpus = kMostGpus;
  if (scope.objective == search::Objective::context && options.has("seq-len"))
    refuse_value("seq-len", *options.find("seq-len"),
                 "is what --objective context looks for: give one");
}
// What must stay free is what the plans reserve; without a wish, plans must fit with what is
// assumed at its high end.
void keep_free(const Options& options, SearchRequest& out) {
  Bytes& reserve = out.request.question.cluster.reserve;
  if (const std::string* text = options.find("min-headroom")) {
    reserve += size_value("min-headroom", *text);
    out.scope.overheads = planner::Overheads::typical;
  }
  const std::optional<Bytes> usable = planner::capacity_of(out.request.question).usable;
  if (usable && *usable <= 0_B)
    refuse_value("min-headroom", *options.find("min-headroom"), "leaves nothing to use");
  if (reserve > 0_B) out.kept.add("reserve", std::to_string(reserve.value()));
}
}  // namespace

namespace {

// What a file settles is held as if it had been given; what it leaves "auto" is searched.
FileOptions with_files(const std::string& model, const Options& given, Sources& sources) {
  if (!given.has("deepspeed")) return {given, {}, {}, {}};
  const std::string* assume = given.find("assume");
  const auto loaded = model.empty() ? nullptr : sources.models.load(model, assume ? *assume : "");
  return with_open_deepspeed_file(given, loaded.get());
}

// Where a file settles all three sizes, the number of GPUs follows.
void check_sizes(const Options& options, const Options& given) {
  if (!given.has("deepspeed")) return;
  const auto value = [&](const char* option) {
    const std::string* text = options.find(option);
    return text == nullptr ? 0 : whole(option, *text, 1, std::int64_t{1} << 40);
  };
  const std::int64_t all = value("global-batch"),
                     micro = std::max<std::int64_t>(1, value("micro-batch")),
                     accum = std::max<std::int64_t>(1, value("grad-accum"));
  const std::int64_t gpus = std::max<std::int64_t>(1, value("gpus"));
  if (all == 0) return;
  const std::int64_t each = checked_multiply(micro, accum);
  const bool settled = value("micro-batch") > 0 && value("grad-accum") > 0;
  const std::string& path = *given.find("deepspeed");
  if (all % each != 0)
    refuse_value(
        "deepspeed", path,
        fmt::format("train_batch_size {} is no multiple of {} (micro-batch x accumulation)", all,
                    each));
  if (settled && all / each > gpus)
    refuse_value(
        "deepspeed", path,
        fmt::format("its batch sizes are those of {} GPUs: --gpus is {}", all / each, gpus));
}

}  // namespace

SearchRequest search_request(const std::string& model, const Options& given, Sources& sources) {
  if (has_user_files(given)) {
    FileOptions file = with_user_files(model, given, FileDefaults::left_open, sources.models);
    try {
      SearchRequest out = search_request(file.model, file.options, sources);
      out.request.notes.insert(out.request.notes.begin(), file.notes.begin(), file.notes.end());
      return out;
    } catch (const Error& error) {
      fail_with_origin(error, file.options);
    }
  }
  check(!given.has("params"), ErrorKind::unsupported,
        "--params: a bare count has no step to search; `plimsoll fit --params` gives its states");
  const FileOptions file = with_files(model, given, sources);
  const Options& options = file.options;
  check(!wishes_recompute(options), ErrorKind::bad_input, [&] {
    return "--recompute " + *options.find("recompute") +
           ": recommend compares recomputations itself; leave the option away, or name one to keep";
  });
  if (const std::string* data = options.find("data"))
    refuse_value(
        "data", *data,
        "recommend plans rows of --seq-len; --padding-mask yes or --padding free says what "
        "they hold");
  if (const std::string* kind = options.find("data-parallel"); kind != nullptr && *kind == "dp")
    refuse_value("data-parallel", *kind,
                 "`plimsoll recommend` ranks what a launcher starts, a process for each GPU; "
                 "`plimsoll fit` plans torch.nn.DataParallel");
  if (const std::string* phase = options.find("phase"); phase != nullptr && *phase != "step")
    refuse_value("phase", *phase,
                 "recommend judges steps; `plimsoll fit` says what loading the model takes");
  check_sizes(options, given);
  Options base;
  SearchRequest out;
  out.model = model;
  // FSDP's options without a stage leave open which of its two it is.
  const std::string* const stack = options.find("stack");
  const bool pytorch = stack == nullptr || *stack == "pytorch";
  const bool any_fsdp =
      !options.has("zero") && (options.has("fsdp-version") || options.has("fsdp-upcast") ||
                               (pytorch && options.has("reduce-dtype")));
  if (any_fsdp) base.add("zero", "3");
  for (const auto& [name, value] : options.given())
    if (name != "global-batch") base.add(name, value);
  for (const auto& [name, value] : given.given()) {
    const Option* option = find_plan_option(name);
    if (option != nullptr && !option->is_written_anew) out.kept.add(name, value);
  }
  out.request = request_from(model, base, sources);
  out.request.notes = file.notes;
  planner::Question& question = out.request.question;
  check(question.model->decoder.has_value(), ErrorKind::unsupported, [&] {
    return "recommend: the training step of model_type '" + question.model->model_type +
           "' is not modelled yet; `plimsoll fit` gives its model states";
  });
  keep_free(options, out);
  if (!options.has("gpu") && question.cluster.gpu) out.kept.add("gpu", question.cluster.gpu->name);
  out.scope.base = question;
  set_kept(options, out.scope);
  // Sizes of stage 3 stand in the file beside its stage; without one it is DeepSpeed's own, 0.
  if (given.has("deepspeed")) out.scope.fixed.insert("zero");
  if (any_fsdp) {
    out.scope.fixed.erase("zero");
    out.scope.only["zero"] = {"2", "3"};
  }
  set_filter(options, "only", out.scope.only);
  set_filter(options, "without", out.scope.without);
  set_numbers(options, given, out.scope);
  return out;
}

Options fit_options(const SearchRequest& found, const search::Setting& setting) {
  Options options;
  for (const auto& [name, value] : found.kept.given()) options.add(name, value);
  std::istringstream words(search::options_of(setting));
  for (std::string word, value; words >> word;) {
    words >> value;  // every option of a setting takes one
    if (!options.has(word.substr(2))) options.add(find_option(word.substr(2))->name, value);
  }
  return options;
}

std::string command_text(const std::string& model, const Options& options) {
  const auto quoted = [](const std::string& word) {
    const bool plain = word.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                           "0123456789-_./,:=+@%") == std::string::npos;
    if (plain && !word.empty()) return word;
    std::string out = "'";
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
  };
  std::string text = "plimsoll fit" + (model.empty() ? "" : " " + quoted(model));
  for (const auto& [name, value] : options.given()) {
    text += " --" + name;
    if (!value.empty()) text += " " + quoted(value);
  }
  return text;
}

}  // namespace plimsoll::tools
