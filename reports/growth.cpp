#include "reports/growth.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "models/base/error.h"
#include "models/base/utf8.h"
#include "models/config_reader.h"
#include "reports/prediction.h"

namespace plimsoll::reports {

namespace {
using Change = GrowthRow::Verdict;
using Layout = JsonWriter::Layout;

std::string stem(std::string_view path) {
  path = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
  if (path.ends_with(".json")) path.remove_suffix(5);
  return std::string(path);
}

std::string signed_percent(double share) {
  return fmt::format("{:+.2f} %", 100 * share);
}

// How much `now` is above `before`: 0.02 for 2 %. From nothing to something: without end.
double above(Bytes before, Bytes now) {
  if (before == Bytes(0)) return now == Bytes(0) ? 0 : 1e9;
  return now.real() / before.real() - 1;
}

struct Figure {
  const char* name;
  Bytes PlanFigures::*bytes;
};
constexpr Figure kFigures[] = {{"peak", &PlanFigures::peak},
                               {"reserved", &PlanFigures::reserved},
                               {"device", &PlanFigures::device}};

GrowthRow row_of(const PlanFigures& before, const PlanFigures& now, double most) {
  GrowthRow row{.name = now.name, .file = now.file, .before = before, .now = now};
  const Figure* largest = &kFigures[0];
  for (const Figure& figure : kFigures)
    if (above(before.*figure.bytes, now.*figure.bytes) >
        above(before.*largest->bytes, now.*largest->bytes))
      largest = &figure;
  row.growth = above(before.*largest->bytes, now.*largest->bytes);
  row.text = fmt::format("{} {} to {} ({})", largest->name, bytes_text(before.*largest->bytes),
                         bytes_text(now.*largest->bytes), signed_percent(row.growth));
  if (row.growth > most) {
    row.verdict = Change::grew;
    row.text += fmt::format(", more than {:g} %", 100 * most);
  }
  if (before.fits == true && now.fits == false) {
    row.verdict = Change::no_longer_fits;
    row.text += "; it fitted, and does no longer";
  }
  if (before.fingerprint != now.fingerprint) row.text += "; another workload";
  return row;
}

std::string escaped_xml(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  return out;
}

// github.com/actions/toolkit, packages/core/src/command.ts: escapeData, escapeProperty.
std::string escaped_command(std::string_view text, bool is_property) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '%' || (is_property && (c == ':' || c == ',')))
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return out;
}

void write_figures(JsonWriter& json, const char* key, const std::optional<PlanFigures>& figures) {
  json.key(key);
  if (!figures) {
    json.value(std::optional<std::string>());
    return;
  }
  json.begin_object(Layout::line);
  json.member("fingerprint", figures->fingerprint);
  json.member("fits", figures->fits);
  json.member("peak_bytes", figures->peak);
  json.member("reserved_bytes", figures->reserved);
  json.member("device_bytes", figures->device);
  json.end_object();
}
}  // namespace

const char* name_of(GrowthRow::Verdict verdict) {
  constexpr const char* names[] = {"within", "grew", "no longer fits", "new", "gone"};
  return names[static_cast<std::size_t>(verdict)];
}

bool Growth::ok() const {
  return std::ranges::none_of(rows, &GrowthRow::failed);
}

PlanFigures figures_of(std::string_view document, const std::string& source) {
  const Prediction plan = read_prediction(document, source);
  check(plan.contradiction.empty(), ErrorKind::bad_input, plan.contradiction);
  check(!plan.kinds.empty() && plan.reserved && plan.device, ErrorKind::bad_input,
        [&] { return source + ": a plan of model states alone has no peak to be checked"; });
  PlanFigures out{.name = stem(source),
                  .file = source,
                  .fingerprint = plan.fingerprint,
                  .fits = plan.fits,
                  .reserved = *plan.reserved,
                  .device = *plan.device};
  for (const RankKind& kind : plan.kinds) out.peak = std::max(out.peak, kind.peak);
  return out;
}

std::vector<PlanFigures> read_baseline(std::string_view document, const std::string& source) {
  const models::Config parsed = models::Config::parse(document, source);
  const std::string schema = parsed.text("schema", "");
  if (schema == "plimsoll.plan/1") return {figures_of(document, source)};
  check(schema == "plimsoll.check/1", ErrorKind::bad_input, [&] {
    return fmt::format(
        "{}: a document of schema {}; a baseline is what plimsoll check wrote with --json, or a "
        "plan",
        source, schema.empty() ? "(none)" : printable(shortened(schema)));
  });
  std::vector<PlanFigures> out;
  for (const models::Config& plan : parsed.sections("plans")) {
    const std::optional<models::Config> now = plan.section("now");
    if (!now) continue;  // was gone already
    const auto bytes = [&](const char* key) {
      if (!now->has(key)) now->refuse(key, "a number of bytes");
      return Bytes(now->natural(key, 0));
    };
    PlanFigures& read = out.emplace_back();
    read.name = plan.text("name", "");
    if (read.name.empty()) plan.refuse("name", "the plan's name");
    read.file = plan.text("file", "");
    read.fingerprint = now->text("fingerprint", "");
    if (now->has("fits")) read.fits = now->flag("fits", false);
    read.peak = bytes("peak_bytes");
    read.reserved = bytes("reserved_bytes");
    read.device = bytes("device_bytes");
  }
  return out;
}

Growth growth(const std::vector<PlanFigures>& plans,
              const std::optional<std::vector<PlanFigures>>& baseline, double most) {
  Growth out{.most = most, .has_baseline = baseline.has_value()};
  std::map<std::string, const PlanFigures*> before;
  if (baseline)
    for (const PlanFigures& plan : *baseline) before[plan.name] = &plan;
  // One plan against one: whatever their names.
  if (baseline && baseline->size() == 1 && plans.size() == 1)
    before = {{plans[0].name, &baseline->front()}};
  std::set<std::string> seen;
  for (const PlanFigures& plan : plans) {
    check(seen.insert(plan.name).second, ErrorKind::bad_input,
          [&] { return fmt::format("{}: another plan is called {} too", plan.file, plan.name); });
    const auto at = before.find(plan.name);
    if (at != before.end())
      out.rows.push_back(row_of(*at->second, plan, most));
    else
      out.rows.push_back({.name = plan.name,
                          .file = plan.file,
                          .verdict = Change::is_new,
                          .now = plan,
                          .text = fmt::format("peak {}, device {}", bytes_text(plan.peak),
                                              bytes_text(plan.device))});
  }
  for (const auto& [name, plan] : before)
    if (!seen.contains(name))
      out.rows.push_back({.name = name,
                          .file = plan->file,
                          .verdict = Change::is_gone,
                          .before = *plan,
                          .text = "in the baseline, and not among the plans"});
  return out;
}

std::string growth_table(const Growth& growth, const Terminal& terminal) {
  std::string out;
  const auto failed = std::ranges::count_if(growth.rows, &GrowthRow::failed);
  const auto plans = static_cast<std::int64_t>(growth.rows.size());
  std::string head = fmt::format("{} plan{}", plans, plans == 1 ? "" : "s");
  if (growth.has_baseline)
    head = failed == 0
               ? fmt::format("OK: {} within {:g} %", head, 100 * growth.most)
               : fmt::format("GREW: {} of {}, {:g} % is allowed", failed, head, 100 * growth.most);
  out += coloured(head, failed == 0 ? Colour::green : Colour::red, terminal) + '\n';
  std::size_t widest = 0;
  for (const GrowthRow& row : growth.rows) widest = std::max(widest, width(printable(row.name)));
  const std::size_t columns = std::min<std::size_t>(widest, 30);
  for (const GrowthRow& row : growth.rows) {
    const bool shows = growth.has_baseline && row.verdict != Change::within;
    const std::string text =
        shows ? fmt::format("{}: {}", name_of(row.verdict), row.text) : row.text;
    const std::string name = clipped(printable(row.name), columns, terminal);
    const std::string indent(columns + 4, ' ');
    const auto lines = wrapped(printable(text), terminal.columns - indent.size(), "");
    for (std::size_t i = 0; i < lines.size(); ++i)
      out += (i == 0 ? "  " + padded(name, columns + 2) : indent) +
             coloured(lines[i], row.failed() ? Colour::red : Colour::none, terminal) + '\n';
  }
  return out;
}

void write_growth(JsonWriter& json, const Growth& growth, const Tool& tool) {
  json.begin_object();
  json.member("schema", "plimsoll.check/1");
  json.key("tool");
  json.begin_object(Layout::line);
  json.member("version", tool.version);
  json.member("commit", tool.commit);
  json.end_object();
  json.member("ok", growth.ok());
  json.member("max_growth", growth.has_baseline ? std::optional(growth.most) : std::nullopt);
  json.key("plans");
  json.begin_array();
  for (const GrowthRow& row : growth.rows) {
    json.begin_object();
    json.member("name", row.name);
    json.member("file", row.file);
    json.member("verdict", name_of(row.verdict));
    json.member("growth", row.before && row.now ? std::optional(row.growth) : std::nullopt);
    json.member("text", row.text);
    write_figures(json, "before", row.before);
    write_figures(json, "now", row.now);
    json.end_object();
  }
  json.end_array();
  json.end_object();
}

std::string growth_junit(const Growth& growth) {
  std::string out = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<testsuite name=\"plimsoll check\" tests=\"{}\" failures=\"{}\" errors=\"0\" "
      "skipped=\"{}\">\n",
      growth.rows.size(), std::ranges::count_if(growth.rows, &GrowthRow::failed),
      std::ranges::count(growth.rows, Change::is_gone, &GrowthRow::verdict));
  for (const GrowthRow& row : growth.rows) {
    out += fmt::format("  <testcase classname=\"plimsoll.memory\" name=\"{}\" file=\"{}\">",
                       escaped_xml(row.name), escaped_xml(row.file));
    const std::string text = escaped_xml(row.text);
    if (row.failed())
      out += fmt::format("<failure type=\"{}\" message=\"{}\"/>", name_of(row.verdict), text);
    else if (row.verdict == Change::is_gone)
      out += fmt::format("<skipped message=\"{}\"/>", text);
    else
      out += fmt::format("<system-out>{}</system-out>", text);
    out += "</testcase>\n";
  }
  return out + "</testsuite>\n";
}

std::string growth_annotations(const Growth& growth) {
  std::string out;
  for (const GrowthRow& row : growth.rows) {
    const bool is_new = growth.has_baseline && row.verdict == Change::is_new;
    if (!row.failed() && !is_new) continue;
    out += fmt::format("::{} file={},title={}::{}\n", row.failed() ? "error" : "notice",
                       escaped_command(row.file, true),
                       escaped_command(fmt::format("{}: {}", row.name, name_of(row.verdict)), true),
                       escaped_command(row.text, false));
  }
  return out;
}

}  // namespace plimsoll::reports
