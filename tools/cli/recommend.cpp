// `plimsoll recommend`: how should it run on these GPUs?
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <utility>

#include "models/decisions/mesh.h"
#include "models/gpu_catalog.h"
#include "planner/search/axes.h"
#include "planner/search/reasons.h"
#include "planner/search/search.h"
#include "planner/search/shortage.h"
#include "reports/recommendation.h"
#include "tools/cli/doors.h"
#include "tools/cli/output.h"
#include "tools/cli/savings.h"
#include "tools/cli/search_scope.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace search = planner::search;

namespace {

std::atomic<bool> stop_asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // set by a signal's handler

extern "C" void ask_to_stop(int) {
  stop_asked = true;
  std::signal(SIGINT, SIG_DFL);  // a second one ends the program
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// On standard error, from the second second on.
class ProgressLine {
 public:
  ProgressLine(bool wanted, std::chrono::steady_clock::time_point start)
      : wanted_(wanted), start_(start) {}

  void show(const search::Progress& progress) {
    const double elapsed = seconds_since(start_);
    if (!wanted_ || elapsed < next_) return;
    next_ = elapsed + 1;
    say(fmt::format("{:.0f} s, {} of {} strategies evaluated{}", elapsed, progress.evaluated,
                    progress.points, progress.best.empty() ? "" : "; best: " + progress.best));
  }

 private:
  bool wanted_;
  std::chrono::steady_clock::time_point start_;
  double next_ = 1;
};

class Recommender {
 public:
  Recommender(const CommandLine& line, Sources& sources)
      : line_(line),
        sources_(sources),
        asked_(search_request(line.argument, line.options, sources)) {}

  const std::string& note() const { return asked_.request.model->note; }

  reports::Recommendation answer() {
    const auto start = std::chrono::steady_clock::now();
    ProgressLine progress(!line_.options.has("quiet"), start);
    const search::Control control{&stop_asked,
                                  [&](const search::Progress& p) { progress.show(p); }};
    const auto before = std::signal(SIGINT, ask_to_stop);
    search::Result result = search::search(asked_.scope, control);
    reports::Recommendation out = header(result);
    const auto why = search::reasons(asked_.scope, result.ranked, control);
    for (std::size_t i = 0; i < result.ranked.size(); ++i) {
      out.ranked.push_back(ranked(result.ranked[i]));
      out.ranked.back().why = why[i];
    }
    for (const search::ParetoPoint& point : result.front)
      out.front.push_back({point.peak, point.peak + point.need.overhead,
                           tokens_per_second(point.throughput), point.setting.strategy,
                           point.setting.batch, search::options_of(point.setting)});
    if (result.ranked.empty() && !result.stopped) out.nothing_fits = nothing(control);
    out.elapsed_seconds = seconds_since(start);
    std::signal(SIGINT, before);
    return out;
  }

 private:
  static std::optional<double> tokens_per_second(const search::Throughput& throughput) {
    return throughput.known ? std::optional(throughput.tokens_per_second) : std::nullopt;
  }

  reports::Recommendation header(const search::Result& result) const {
    reports::Recommendation out;
    out.model_name = asked_.request.model->spec.name;
    const std::string* objective = line_.options.find("objective");
    out.objective = objective != nullptr ? *objective : "throughput";
    out.evaluated = result.evaluated;
    out.points = result.points;
    out.stopped = result.stopped;
    out.tie_margin = search::kTieMargin;
    out.same_kind_margin = search::kSameKindMargin;
    if (!result.ranked.empty() && result.ranked.front().throughput.known)
      out.fastest = result.fastest;
    out.gpus = asked_.scope.gpus;
    out.gpus_there = line_.options.has("gpus");
    out.high_end = asked_.scope.overheads == planner::Overheads::high_end;
    if (const std::string* text = line_.options.find("min-headroom"))
      out.min_headroom = size_value("min-headroom", *text);
    if (const std::string* tokens = line_.options.find("tokens"))
      out.budget_tokens = count_value("tokens", *tokens).real();
    for (const std::string_view name : search::not_considered())
      out.not_considered.emplace_back(name);
    for (const std::string& refusal : result.refusals) out.notes.push_back("Left out: " + refusal);
    return out;
  }

  // The plan as `fit` gives it for the command that is printed beside it.
  reports::RankedPlan ranked(search::Found& found) {
    reports::RankedPlan out;
    const Options options = fit_options(asked_, found.setting);
    const Request request = request_from(asked_.model, options, sources_);
    check(request.question.strategy == found.setting.strategy &&
              request.question.batch == found.setting.batch,
          ErrorKind::internal, "recommend: the options of a plan do not give it back");
    out.plan = completed(request, std::move(found.plan));
    // The page shows one plan whole: the first, or the closest.
    if (line_.options.has("html") && !std::exchange(explained_, true))
      add_savings(request, line_.options.has("quiet"), out.plan);
    out.command = command_text(asked_.model, options);
    out.score = score(found);
    out.tokens_per_second = tokens_per_second(found.throughput);
    if (const std::string* tokens = line_.options.find("tokens"); tokens && found.throughput.known)
      out.gpu_days = count_value("tokens", *tokens).real() / found.throughput.tokens_per_second *
                     static_cast<double>(found.setting.strategy.gpus) / 86400;
    return out;
  }

  std::optional<double> score(const search::Found& found) const {
    switch (asked_.scope.objective) {
      case search::Objective::gpus:
        return static_cast<double>(found.setting.strategy.gpus);
      case search::Objective::context:
        return static_cast<double>(found.setting.batch.seq_len);
      case search::Objective::batch:
        return static_cast<double>(found.setting.batch.micro_batch *
                                   models::decisions::data_ranks(found.setting.strategy));
      case search::Objective::memory:
        return found.need.least().real();
      case search::Objective::throughput:
        break;
    }
    return tokens_per_second(found.throughput);
  }

  reports::NothingFits nothing(const search::Control& control) {
    std::vector<models::Gpu> cards;
    const std::optional<models::Gpu>& gpu = asked_.scope.base.cluster.gpu;
    for (models::Gpu& card : models::all_gpus())
      if (gpu && card.vendor == gpu->vendor && card.pcie_bandwidth > 0) cards.push_back(card);
    search::Shortage shortage = search::shortage(asked_.scope, cards, control);
    reports::NothingFits out;
    out.shortfall = shortage.missing;
    if (shortage.closest) out.closest = ranked(*shortage.closest);
    for (const search::WouldFit& change : shortage.would_fit) {
      Options options;
      const Options same_card = fit_options(asked_, change.plan.setting);
      for (const auto& [name, value] : same_card.given()) {
        const bool other_card = !change.gpu.empty();
        if (other_card && name == "gpu-memory") continue;
        options.add(name, other_card && name == "gpu" ? change.gpu : value);
      }
      out.would_fit.push_back(
          {change.change, command_text(asked_.model, options), change.plan.plan.device});
    }
    return out;
  }

  const CommandLine& line_;
  Sources& sources_;
  SearchRequest asked_;
  bool explained_ = false;  // a plan has what its techniques save
};

std::string document_of(const reports::Recommendation& answer) {
  std::string document;
  reports::JsonWriter json(document, reports::JsonWriter::Style::pretty);
  reports::write_recommendation(json, answer, this_tool());
  return document + '\n';
}

}  // namespace

std::string recommend_document(const CommandLine& line) {
  CommandLine quiet = line;
  quiet.options.add("quiet", "");
  Sources sources;
  return document_of(Recommender(quiet, sources).answer());
}

int recommend(const CommandLine& line) {
  Sources sources;
  Recommender recommender(line, sources);
  if (!recommender.note().empty() && !line.options.has("quiet")) say(recommender.note());
  const reports::Recommendation answer = recommender.answer();
  const std::string document = wants_document(line.options) ? document_of(answer) : "";
  deliver(line.options, document,
          reports::recommendation_table(answer, standard_output_terminal()));
  return answer.ranked.empty() ? 1 : 0;
}

}  // namespace plimsoll::tools
