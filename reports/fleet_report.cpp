// The answer about a fleet for a terminal and for programs.
#include <fmt/format.h>

#include <algorithm>

#include "reports/fleet.h"

namespace plimsoll::reports {

namespace {
using Layout = JsonWriter::Layout;

std::string job_name(const FleetJob& job) {
  return job.count == 1 ? job.name : fmt::format("{} x {}", job.count, job.name);
}

class FleetTable {
 public:
  FleetTable(const Fleet& fleet, const Terminal& terminal) : fleet_(fleet), terminal_(terminal) {}

  void verdict() {
    const Colour colour = fleet_.fits()     ? Colour::green
                          : fleet_.purchase ? Colour::yellow
                                            : Colour::red;
    for (const std::string& part : wrapped(fleet_verdict(fleet_), terminal_.columns, "  "))
      text_ += coloured(part, colour, terminal_) + '\n';
  }

  // Of each job and pool the fewest GPUs on which it runs, or what stands in its way.
  void fits() {
    text_ += "\nWhere each job fits, on the fewest GPUs\n";
    for (const FleetJob& job : fleet_.jobs) {
      text_ += "  " + clipped(printable(job_name(job)), terminal_.columns - 2, terminal_) + '\n';
      for (std::size_t p = 0; p < fleet_.pools.size(); ++p) fit_line(job, p);
    }
  }

  void solution(std::string_view title, const FleetSolution& solution) {
    text_ += fmt::format("\n{} ({})\n", title, bound_text(solution));
    bought(solution);
    text_ += "  " + padded("pool", 20) + right("GPUs", 8) + right("in use", 8) + "  jobs\n";
    for (std::size_t p = 0; p < fleet_.pools.size(); ++p) pool_line(solution, p);
    left(solution);
  }

  std::string take() { return std::move(text_); }

 private:
  void row(const std::string& head, const std::string& rest) {
    const std::string indent(width(head), ' ');
    const auto lines = wrapped(printable(rest), terminal_.columns - width(head), "");
    for (std::size_t i = 0; i < std::max<std::size_t>(1, lines.size()); ++i)
      text_ += (i == 0 ? head : indent) +
               (i < lines.size() ? clipped(lines[i], terminal_.columns - indent.size(), terminal_)
                                 : "") +
               '\n';
  }

  std::string pool_name(std::size_t p, std::size_t columns) const {
    return padded(clipped(printable(fleet_.pools[p].name), columns, terminal_), columns);
  }

  void fit_line(const FleetJob& job, std::size_t p) {
    const auto fewest = std::ranges::find_if(
        job.options, [&](const FleetOption& o) { return o.pool == p && o.possible; });
    if (fewest == job.options.end()) {
      row("    " + pool_name(p, 20) + right("no", 6) + "  ", obstacle_text(job, p));
      return;
    }
    const std::string rate =
        fewest->tokens_per_second
            ? grouped(Count(static_cast<std::int64_t>(*fewest->tokens_per_second))) + " tokens/s"
            : "";
    text_ +=
        fmt::format("    {}{}{}{}\n", pool_name(p, 20), right(std::to_string(fewest->gpus), 6),
                    right(fewest->device ? bytes_text(*fewest->device) : "", 12), right(rate, 24));
  }

  void bought(const FleetSolution& solution) {
    for (std::size_t p = 0; p < fleet_.pools.size(); ++p) {
      if (solution.bought_nodes[p] == 0) continue;
      const FleetPool& pool = fleet_.pools[p];
      const std::int64_t gpus = solution.bought_nodes[p] * pool.gpus_per_node;
      row("  buy ",
          fmt::format("{} x {} for {} ({} node{} of {} for {}): {}", gpus, pool.gpu, pool.name,
                      solution.bought_nodes[p], solution.bought_nodes[p] == 1 ? "" : "s",
                      pool.gpus_per_node, price_text(fleet_, *pool.price) + " a GPU",
                      price_text(fleet_, *pool.price * static_cast<double>(gpus))));
    }
  }

  void pool_line(const FleetSolution& solution, std::size_t p) {
    const FleetPool& pool = fleet_.pools[p];
    std::string jobs;
    for (const FleetPlacement& one : solution.placements) {
      const FleetJob& job = fleet_.jobs[one.job];
      const FleetOption& option = job.options[one.option];
      if (option.pool != p) continue;
      jobs += fmt::format("{}{} x {} on {}", jobs.empty() ? "" : ", ", one.count, job.name,
                          option.gpus);
    }
    row("  " + pool_name(p, 20) +
            right(grouped(Count(pool.gpus + solution.bought_nodes[p] * pool.gpus_per_node)), 8) +
            right(grouped(Count(used_gpus(fleet_, solution, p))), 8) + "  ",
        jobs.empty() ? "-" : jobs);
  }

  void left(const FleetSolution& solution) {
    std::string names;
    const std::vector<std::int64_t> left = left_over(fleet_, solution);
    for (std::size_t j = 0; j < left.size(); ++j)
      if (left[j] > 0)
        names += fmt::format("{}{} x {}", names.empty() ? "" : ", ", left[j], fleet_.jobs[j].name);
    if (!names.empty()) row("  without a place: ", names);
  }

  const Fleet& fleet_;
  const Terminal& terminal_;
  std::string text_;
};

void write_option(JsonWriter& json, const Fleet& fleet, const FleetOption& option) {
  json.begin_object(Layout::line);
  json.member("pool", fleet.pools[option.pool].name);
  json.member("gpus", option.gpus);
  json.member("possible", option.possible);
  json.member("fits", option.fits);
  json.member("device_bytes", option.device);
  json.member("usable_bytes", option.usable);
  json.member("tokens_per_second", option.tokens_per_second);
  json.member("why", option.why.empty() ? std::optional<std::string>() : option.why);
  json.end_object();
}

void write_inputs(JsonWriter& json, const Fleet& fleet) {
  json.key("pools");
  json.begin_array();
  for (const FleetPool& pool : fleet.pools) {
    json.begin_object(Layout::line);
    json.member("name", pool.name);
    json.member("gpu", pool.gpu);
    json.member("count", pool.gpus);
    json.member("gpus_per_node", pool.gpus_per_node);
    json.member("price", pool.price);
    json.member("most_count", pool.most_gpus);
    json.end_object();
  }
  json.end_array();
  json.key("jobs");
  json.begin_array();
  for (const FleetJob& job : fleet.jobs) {
    json.begin_object();
    json.member("name", job.name);
    json.member("count", job.count);
    json.member("priority", job.priority);
    json.member("min_tokens_per_second", job.min_tokens_per_second);
    json.key("options");
    json.begin_array();
    for (const FleetOption& option : job.options) write_option(json, fleet, option);
    json.end_array();
    json.end_object();
  }
  json.end_array();
}

void write_pools(JsonWriter& json, const Fleet& fleet, const FleetSolution& solution) {
  json.key("pools");
  json.begin_array();
  for (std::size_t p = 0; p < fleet.pools.size(); ++p) {
    const FleetPool& pool = fleet.pools[p];
    const std::int64_t bought = solution.bought_nodes[p] * pool.gpus_per_node;
    json.begin_object(Layout::line);
    json.member("pool", pool.name);
    json.member("owned_gpus", pool.gpus);
    json.member("bought_gpus", bought);
    json.member("bought_nodes", solution.bought_nodes[p]);
    json.member("used_gpus", used_gpus(fleet, solution, p));
    json.member("cost", pool.price.value_or(0) * static_cast<double>(bought));
    json.end_object();
  }
  json.end_array();
}

void write_solution(JsonWriter& json, const char* key, const Fleet& fleet,
                    const FleetSolution& solution) {
  json.key(key);
  json.begin_object();
  json.member("placed", placed_jobs(solution));
  json.member("priority", solution.priority);
  json.member("priority_bound", solution.priority_bound);
  json.member("cost", solution.cost);
  json.member("cost_bound", solution.cost_bound);
  json.member("optimal", solution.optimal);
  json.member("certainty", bound_text(solution));
  write_pools(json, fleet, solution);
  json.key("placements");
  json.begin_array();
  for (const FleetPlacement& one : solution.placements) {
    const FleetOption& option = fleet.jobs[one.job].options[one.option];
    json.begin_object(Layout::line);
    json.member("job", fleet.jobs[one.job].name);
    json.member("pool", fleet.pools[option.pool].name);
    json.member("gpus", option.gpus);
    json.member("count", one.count);
    json.end_object();
  }
  json.end_array();
  json.key("left");
  json.begin_array();
  const std::vector<std::int64_t> left = left_over(fleet, solution);
  for (std::size_t j = 0; j < left.size(); ++j) {
    if (left[j] == 0) continue;
    json.begin_object(Layout::line);
    json.member("job", fleet.jobs[j].name);
    json.member("count", left[j]);
    json.end_object();
  }
  json.end_array();
  json.end_object();
}
}  // namespace

std::string fleet_table(const Fleet& fleet, const Terminal& terminal) {
  FleetTable table(fleet, terminal);
  table.verdict();
  table.fits();
  table.solution("On what is there", fleet.owned);
  if (fleet.purchase) table.solution("With what is to be bought", *fleet.purchase);
  return table.take() + fmt::format("\nAssigned by {}, whole nodes considered.\n", fleet.solver);
}

void write_fleet(JsonWriter& json, const Fleet& fleet, const Tool& tool) {
  json.begin_object();
  json.member("schema", "plimsoll.fleet/1");
  json.key("tool");
  json.begin_object(Layout::line);
  json.member("version", tool.version);
  json.member("commit", tool.commit);
  json.end_object();
  json.member("fits", fleet.fits());
  json.member("verdict", fleet_verdict(fleet));
  json.member("currency", fleet.currency.empty() ? std::optional<std::string>() : fleet.currency);
  json.member("jobs_in_all", fleet.jobs_in_all());
  write_inputs(json, fleet);
  json.key("solver");
  json.begin_object(Layout::line);
  json.member("name", fleet.solver);
  json.member("seconds_for_each", fleet.seconds);
  json.end_object();
  write_solution(json, "owned", fleet, fleet.owned);
  if (fleet.purchase) {
    write_solution(json, "purchase", fleet, *fleet.purchase);
  } else {
    json.key("purchase");
    json.value(nullptr);
  }
  json.end_object();
}

}  // namespace plimsoll::reports
