#include "tools/published/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "reports/json_writer.h"
#include "reports/page/scatter_svg.h"

namespace plimsoll::tools {

namespace {
using reports::JsonWriter;

// A few words of a long source.
std::string short_source(const std::string& source) {
  const std::string words = source.substr(0, source.find_first_of(",(\"@"));
  const std::size_t end = words.find_last_not_of(' ');
  return end == words.npos ? source : words.substr(0, end + 1);
}

std::vector<double> errors_of(const PublishedAnswers& one, const PublishedFigure& figure,
                              std::size_t source, bool in_sample) {
  std::vector<double> errors;
  for (const PublishedAnswer& row : one.answers)
    if (row.source == source && row.in_sample == in_sample)
      if (const auto error = (row.*figure.error)()) errors.push_back(*error);
  return errors;
}

// visit(document, figure, source, calibrated, errors), where there are any.
template <class Visit>
void each_error(const std::vector<PublishedAnswers>& all, Visit visit) {
  for (const PublishedAnswers& one : all)
    for (const PublishedFigure& figure : published_figures())
      for (std::size_t source = 0; source < one.document.sources.size(); ++source)
        for (const bool in_sample : {false, true})
          if (const ErrorSummary errors = summary_of(errors_of(one, figure, source, in_sample));
              errors.rows > 0)
            visit(one, figure, source, in_sample, errors);
}

class Lines {
 public:
  explicit Lines(const reports::Terminal& terminal) : terminal_(terminal) {}
  void add(std::string_view text, std::string_view indent = "    ") {
    for (const std::string& line :
         reports::wrapped(reports::printable(text), terminal_.columns, indent))
      text_ += line + "\n";
  }
  void errors(std::string_view name, const ErrorSummary& errors) {
    text_ += fmt::format("  {} {:>5}  {:>7.3g} %  {:>7.3g} %  {:>7.3g} %\n",
                         reports::padded(reports::clipped(name, 36, terminal_), 36), errors.rows,
                         100 * errors.median, 100 * errors.p95, 100 * errors.largest);
  }
  void heading(std::string_view name) {
    text_ += fmt::format("\n{}\n", name);
    text_ += fmt::format("  {:36} {:>5}  {:>9}  {:>9}  {:>9}\n", "", "rows", "median", "95 of 100",
                         "largest");
  }
  void blank() { text_ += '\n'; }
  std::string take() { return std::move(text_); }

 private:
  const reports::Terminal& terminal_;
  std::string text_;
};

void write_errors(JsonWriter& json, const ErrorSummary& errors) {
  json.member("rows", errors.rows);
  json.member("median", errors.median);
  json.member("p95", errors.p95);
  json.member("largest", errors.largest);
}

void write_counts(JsonWriter& json, const PublishedCounts& counts) {
  json.member("published", counts.published);
  json.member("answered", counts.answered);
  json.member("by_stand_in", counts.by_stand_in);
  json.key("refused");
  json.begin_array();
  for (const auto& [why, count] : counts.refused) {
    json.begin_object(JsonWriter::Layout::line);
    json.member("reason", why);
    json.member("count", count);
    json.end_object();
  }
  json.end_array();
  json.key("runs");
  json.begin_object(JsonWriter::Layout::line);
  json.member("ran", counts.ran);
  json.member("ran_planned_not_to_fit", counts.ran_planned_not_to_fit);
  json.member("out_of_memory", counts.failed);
  json.member("out_of_memory_planned_to_fit", counts.failed_planned_to_fit);
  json.member("out_of_memory_planned_barely", counts.failed_planned_barely);
  json.end_object();
  json.key("bounds");
  json.begin_object(JsonWriter::Layout::line);
  json.member("figures", counts.bounds);
  json.member("hold", counts.bounds_hold);
  json.end_object();
}

void write_figures(JsonWriter& json, const PublishedAnswer& row) {
  json.key("figures");
  json.begin_array();
  for (const PublishedFigure& figure : published_figures()) {
    const std::optional<double> published = figure.published(row);
    if (!published) continue;
    json.begin_object(JsonWriter::Layout::line);
    json.member("figure", figure.key);
    json.member("published", *published);
    const std::optional<double> error = (row.*figure.error)();
    const std::optional<bool> holds = bound_holds(row, figure);
    json.member("planned", error || holds ? std::optional(figure.planned(row)) : std::nullopt);
    json.member("error", error);
    json.end_object();
  }
  json.end_array();
}

void write_row(JsonWriter& json, const PublishedAnswers& one, const PublishedAnswer& row) {
  json.begin_object();
  json.member("id", row.id);
  json.member("document", one.document.name);
  json.member("source", row.source);
  json.member("command", row.command());
  json.key("config");
  json.raw(row.config.empty() ? "null" : row.config);
  json.member("stand_in", row.stand_in);
  json.member("in_sample", row.in_sample);
  json.member("upper_bound", row.upper_bound);
  json.member("out_of_memory", row.out_of_memory);
  json.member("verdict", row.plan ? reports::verdict_text(*row.plan) : std::nullopt);
  json.member("refusal", row.plan ? std::nullopt : std::optional(row.refusal));
  write_figures(json, row);
  json.end_object();
}
}  // namespace

std::string published_table(const std::vector<PublishedAnswers>& all,
                            const reports::Terminal& terminal) {
  Lines lines(terminal);
  const PublishedCounts counts = counts_of(all);
  const auto percent = [&](std::size_t count) {
    return 100 * static_cast<double>(count) / std::max(1.0, static_cast<double>(counts.published));
  };
  lines.add(
      fmt::format("ANSWERED: {} of {} published figures as stated, {:.0f} %; {} more by a "
                  "stand-in for their program, {:.0f} %",
                  counts.answered, counts.published, percent(counts.answered), counts.by_stand_in,
                  percent(counts.by_stand_in)));
  lines.heading("Error, planned against published");
  for (const bool in_sample : {false, true})
    for (const PublishedFigure& figure : published_figures())
      if (const ErrorSummary errors = summary_of(all, figure, in_sample); errors.rows > 0)
        lines.errors(figure.name + std::string(in_sample ? ", in sample" : ""), errors);
  lines.heading("By source");
  each_error(all, [&](const PublishedAnswers& one, const PublishedFigure& figure,
                      std::size_t source, bool in_sample, const ErrorSummary& errors) {
    lines.errors(fmt::format("{} {}, {}{}", one.document.name, source + 1, figure.name,
                             in_sample ? ", in sample" : ""),
                 errors);
  });
  lines.blank();
  for (const PublishedAnswers& one : all)
    for (std::size_t i = 0; i < one.document.sources.size(); ++i)
      lines.add(fmt::format("  {} {}: {}", one.document.name, i + 1,
                            short_source(one.document.sources[i])) +
                (one.document.stand_ins.contains(i) ? " (stand-in)" : ""));
  if (counts.bounds > 0) {
    lines.blank();
    lines.add(
        fmt::format("Bounds, of runs whose sequences are no longer than is asked: {} figures, "
                    "{} not above the plan.",
                    counts.bounds, counts.bounds_hold));
  }
  if (counts.failed > 0) {
    lines.blank();
    lines.add(fmt::format(
        "As stated: ran out of memory {} rows, {} of them planned to fit, barely {}; ran {} "
        "rows, {} "
        "of them planned not to.",
        counts.failed, counts.failed_planned_to_fit, counts.failed_planned_barely, counts.ran,
        counts.ran_planned_not_to_fit));
  }
  lines.blank();
  lines.add("Refused or left out");
  for (const auto& [why, count] : counts.refused)
    lines.add(fmt::format("  {:>3}  {}", count, why), "       ");
  return lines.take();
}

std::string published_json(const std::vector<PublishedAnswers>& all, const reports::Tool& tool) {
  std::string text;
  JsonWriter json(text, JsonWriter::Style::pretty);
  json.begin_object();
  json.member("schema", "plimsoll.published/1");
  json.key("tool");
  json.begin_object(JsonWriter::Layout::line);
  json.member("version", tool.version);
  json.member("commit", tool.commit);
  json.end_object();
  json.key("summary");
  json.begin_object();
  write_counts(json, counts_of(all));
  json.key("errors");
  json.begin_array();
  for (const PublishedFigure& figure : published_figures())
    for (const bool in_sample : {false, true})
      if (const ErrorSummary errors = summary_of(all, figure, in_sample); errors.rows > 0) {
        json.begin_object(JsonWriter::Layout::line);
        json.member("figure", figure.key);
        json.member("in_sample", in_sample);
        write_errors(json, errors);
        json.end_object();
      }
  json.end_array();
  json.end_object();
  json.key("documents");
  json.begin_array();
  for (const PublishedAnswers& one : all) {
    json.begin_object();
    json.member("name", one.document.name);
    json.key("sources");
    json.begin_array();
    for (const std::string& source : one.document.sources) json.value(source);
    json.end_array();
    write_counts(json, counts_of(one));
    json.end_object();
  }
  json.end_array();
  json.key("by_source");
  json.begin_array();
  each_error(all, [&](const PublishedAnswers& one, const PublishedFigure& figure,
                      std::size_t source, bool in_sample, const ErrorSummary& errors) {
    json.begin_object(JsonWriter::Layout::line);
    json.member("document", one.document.name);
    json.member("source", source);
    json.member("figure", figure.key);
    json.member("in_sample", in_sample);
    write_errors(json, errors);
    json.end_object();
  });
  json.end_array();
  json.key("rows");
  json.begin_array();
  for (const PublishedAnswers& one : all)
    for (const PublishedAnswer& row : one.answers) write_row(json, one, row);
  json.end_array();
  json.end_object();
  return text + "\n";
}

std::string published_svg(const std::vector<PublishedAnswers>& all) {
  std::vector<reports::ScatterPanel> panels;
  for (const PublishedFigure& figure : published_figures()) {
    const bool bytes = std::string_view(figure.key).ends_with("_bytes");
    reports::ScatterPanel panel{
        figure.name, bytes ? "GiB" : "tokens/s of one GPU", bytes ? 1024.0 * 1024 * 1024 : 1, {}};
    for (const PublishedAnswers& one : all)
      for (const PublishedAnswer& row : one.answers)
        if ((row.*figure.error)())
          panel.points.push_back(
              {figure.published(row).value(), figure.planned(row), row.in_sample});
    panel.title = fmt::format("{}: {} runs", figure.name, panel.points.size());
    panels.push_back(std::move(panel));
  }
  return reports::scatter_svg("Planned against published (hollow: constants were fitted on it)",
                              panels);
}

}  // namespace plimsoll::tools
