#include "reports/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "models/base/utf8.h"
#include "reports/ledger_join.h"
#include "reports/same_workload.h"
#include "reports/text.h"

namespace plimsoll::reports {

namespace {
using Kind = Difference::Kind;
using Verdict = Level::Verdict;

std::string number(Bytes bytes) {
  return grouped(Count(bytes.value())) + " B";
}

std::string signed_number(Bytes bytes) {
  return (bytes > Bytes(0)   ? "+"
          : bytes < Bytes(0) ? "-"
                             : "") +
         number(bytes < Bytes(0) ? Bytes(0) - bytes : bytes);
}

class Comparer {
 public:
  Comparer(const Prediction& prediction, const Measurement& measurement, double tolerance)
      : p_(prediction), m_(measurement), tolerance_(tolerance) {}

  Comparison run() {
    out_.prediction = p_.source;
    out_.measurement = m_.source;
    out_.fingerprint = p_.fingerprint;
    out_.model = p_.model;
    out_.stack = p_.stack;
    out_.notes = check_same_workload(p_, m_);
    check(!p_.kinds.empty(), ErrorKind::bad_input, [&] {
      return p_.source + ": predicts model states only; nothing can be held against them";
    });
    if (m_.outcome == "out_of_memory") return without_memory();
    check(m_.ended(), ErrorKind::bad_input, [&] {
      return fmt::format("{}: the run did not complete ({}{}{})", m_.source, m_.outcome,
                         m_.error ? ": " : "", m_.error ? shortened(m_.error->message, 200) : "");
    });
    const auto has_ledger = [](const MeasuredRank& rank) { return !rank.ledgers.empty(); };
    out_.detailed = p_.step && std::ranges::any_of(m_.ranks, has_ledger);
    for (const MeasuredRank& rank : m_.ranks) one_rank(rank);
    missing_ranks();
    order_differences();
    memory_level();
    reserved_level();
    device_level();
    time_level();
    const bool fine = good(out_.memory) && good(out_.reserved) && good(out_.device);
    if (fine) expect_all_compared();
    out_.outcome = m_.outcome;
    if (!m_.trained()) out_.outcome_text = m_.error ? m_.error->message : m_.outcome;
    out_.agrees = fine && m_.trained();
    return std::move(out_);
  }

 private:
  static bool good(const Level& level) { return level.verdict != Verdict::differs; }

  // What was not compared agrees with nothing, and what contradicts itself neither.
  void expect_all_compared() const {
    check(p_.contradiction.empty(), ErrorKind::bad_input, p_.contradiction);
    check(!out_.ranks.empty(), ErrorKind::bad_input,
          [&] { return m_.source + ": nothing to compare: no rank was measured"; });
    for (const RankComparison& rank : out_.ranks)
      for (const Row* row : {&rank.peak, &rank.resident, &rank.reserved})
        check(!row->predicted || row->measured || (row == &rank.resident && !p_.exact()),
              ErrorKind::bad_input, [&] {
                return fmt::format("{}: nothing to compare: rank {} has no {} bytes", m_.source,
                                   rank.rank, row == &rank.resident ? "resident" : row->name);
              });
    if (!p_.exact()) return;
    for (const MeasuredRank& rank : m_.ranks)
      check(rank.at_peak && rank.states, ErrorKind::bad_input, [&] {
        return fmt::format("{}: nothing to compare: rank {} has no {}", m_.source, rank.rank,
                           rank.at_peak ? "states" : "at_peak");
      });
  }

  // Agrees where the plan said so.
  Comparison without_memory() {
    out_.outcome = m_.outcome;
    const bool said = p_.fits && !*p_.fits;
    out_.memory = {said ? Verdict::within : Verdict::differs,
                   fmt::format("the run ended for want of memory, and the plan {}",
                               said      ? "does not fit"
                               : p_.fits ? "fits"
                                         : "knows no capacity")};
    out_.agrees = said;
    return std::move(out_);
  }

  void figure(std::int64_t rank, const Row& row) {
    if (!row.predicted || !row.measured || *row.predicted == *row.measured) return;
    const std::int64_t end = p_.step ? static_cast<std::int64_t>(p_.step->ops.size()) : 0;
    out_.differences.push_back({Kind::figure, rank, end, "", row.name, number(*row.predicted),
                                number(*row.measured), row.predicted, row.measured});
  }

  void one_rank(const MeasuredRank& rank) {
    const RankKind* kind = p_.kind_of(rank.rank);
    if (kind == nullptr) return;
    RankComparison& out = out_.ranks.emplace_back();
    out.rank = rank.rank;
    for (std::size_t i = 0; i < models::kCategories; ++i) {
      Row row{models::name_of(static_cast<models::Category>(i)), kind->at_peak[i], std::nullopt};
      if (rank.at_peak) row.measured = (*rank.at_peak)[i];
      out.categories.push_back(row);
    }
    // Other kinds of rank than the first have a peak of their own, and no more.
    const bool first = kind == &p_.kinds.front();
    out.peak = {"peak", kind->peak, rank.peak};
    out.resident = {"between steps", first ? p_.resident : std::nullopt, rank.resident};
    out.reserved = {"reserved", first ? p_.reserved : std::nullopt, rank.reserved};
    out.device = {"device", first ? p_.device : std::nullopt, rank.device};
    if (rank.device && rank.reserved && p_.overhead)
      out.unaccounted = *rank.device - *rank.reserved - *p_.overhead;
    if (!p_.exact()) return;
    if (first && p_.step) tensor_by_tensor(rank);
    for (const Row& row : out.categories) figure(rank.rank, row);
    figure(rank.rank, out.peak);
    figure(rank.rank, out.resident);
    if (!rank.states) return;
    figure(rank.rank, {"states: parameters", kind->states.parameters, rank.states->parameters});
    figure(rank.rank, {"states: gradients", kind->states.gradients, rank.states->gradients});
    figure(rank.rank, {"states: optimizer", kind->states.optimizer, rank.states->optimizer});
  }

  void tensor_by_tensor(const MeasuredRank& rank) {
    for (const RankLedger& seen : rank.ledgers) {
      out_.op_count = std::max(out_.op_count, seen.ledger.ops.size());
      out_.tensor_count = std::max(out_.tensor_count, seen.ledger.tensors.size());
      std::vector<Difference> more = join(rank.rank, *p_.step, seen.ledger);
      out_.differences.insert(out_.differences.end(), std::make_move_iterator(more.begin()),
                              std::make_move_iterator(more.end()));
    }
    if (rank.ledgers.empty() && out_.detailed)
      out_.differences.push_back({Kind::missing_rank, rank.rank, -1, "", "", "", "", {}, {}});
  }

  void missing_ranks() {
    std::vector<bool> seen(static_cast<std::size_t>(p_.ranks));
    std::int64_t there = 0;
    for (const MeasuredRank& rank : m_.ranks) {
      if (rank.rank >= p_.ranks) continue;
      seen[static_cast<std::size_t>(rank.rank)] = true;
      ++there;
    }
    if (there == p_.ranks) return;
    if (!p_.exact()) {
      out_.notes.push_back(fmt::format("{} of {} ranks are measured", there, p_.ranks));
      return;
    }
    for (std::int64_t rank = 0; rank < p_.ranks; ++rank)
      if (!seen[static_cast<std::size_t>(rank)])
        out_.differences.push_back({Kind::missing_rank, rank, -1, "", "", "", "", {}, {}});
  }

  void order_differences() {
    std::ranges::stable_sort(out_.differences, {},
                             [](const Difference& d) { return std::tuple(d.at, d.kind, d.rank); });
    const auto shown = [&](std::int64_t rank) {
      for (std::size_t i = 0; i < out_.ranks.size(); ++i)
        if (out_.ranks[i].rank == rank) out_.shown = i;
    };
    for (std::size_t i = 1; i < out_.ranks.size(); ++i)
      if (out_.ranks[i].peak.measured > out_.ranks[out_.shown].peak.measured) out_.shown = i;
    if (!out_.differences.empty()) shown(out_.differences.front().rank);
    if (!out_.detailed || out_.ranks.empty()) return;
    const MeasuredRank& rank = measured(out_.ranks[out_.shown].rank);
    for (const RankLedger& seen : rank.ledgers)
      if (out_.tensors.empty()) out_.tensors = tensor_rows(*p_.step, seen.ledger);
  }

  const MeasuredRank& measured(std::int64_t rank) const {
    return *std::ranges::find(m_.ranks, rank, &MeasuredRank::rank);
  }

  std::string on_ranks() const {
    return out_.ranks.size() == 1 ? "rank " + std::to_string(out_.ranks[0].rank)
                                  : fmt::format("each of {} ranks", out_.ranks.size());
  }

  void memory_level() {
    if (p_.exact()) {
      const bool equal = out_.differences.empty();
      const bool any = std::ranges::any_of(
          out_.ranks, [](const RankComparison& rank) { return rank.peak.measured.has_value(); });
      if (!out_.detailed) without_detail();
      if (equal && !any && !out_.detailed) return;
      out_.memory.verdict = equal ? Verdict::exact : Verdict::differs;
      if (!equal) {
        const auto found = static_cast<std::int64_t>(out_.differences.size());
        out_.memory.text =
            fmt::format("{} difference{}", grouped(Count(found)), found == 1 ? "" : "s");
      } else if (out_.detailed) {
        out_.memory.text =
            fmt::format("{} tensors, {} ops on {}",
                        grouped(Count(static_cast<std::int64_t>(out_.tensor_count))),
                        grouped(Count(static_cast<std::int64_t>(out_.op_count))), on_ranks());
      } else {
        out_.memory.text = "peak and categories on " + on_ranks();
      }
      return;
    }
    without_detail();
    out_.memory = estimate([](const RankComparison& r) { return r.peak; });
  }

  void without_detail() {
    if (!p_.exact()) {
      out_.notes.push_back("stack " + p_.stack + " is estimated: not compared tensor by tensor");
      return;
    }
    std::string which;
    if (!p_.step) which = p_.source + " has no detail (fit --detail)";
    if (std::ranges::all_of(m_.ranks, [](const MeasuredRank& r) { return r.ledgers.empty(); }))
      which += (which.empty() ? "" : ", ") + m_.source + " has no tensors";
    out_.notes.push_back("not compared tensor by tensor: " + which);
  }

  // The largest relative error over all ranks, against the tolerance.
  template <class Get>
  Level estimate(Get get) {
    std::optional<double> worst;
    for (const RankComparison& rank : out_.ranks) {
      const Row row = get(rank);
      if (!row.predicted || !row.measured || *row.predicted <= Bytes(0)) continue;
      const double error = row.difference()->real() / row.predicted->real();
      if (std::abs(error) > tolerance_) figure(rank.rank, row);
      if (!worst || std::abs(error) > std::abs(*worst)) worst = error;
    }
    if (!worst) return {Verdict::not_compared, "not measured"};
    const bool fine = std::abs(*worst) <= tolerance_;
    return {*worst == 0 ? Verdict::exact
            : fine      ? Verdict::within
                        : Verdict::differs,
            fmt::format("{:+.2f} % from the prediction, tolerance {:g} %", 100 * *worst,
                        100 * tolerance_)};
  }

  void reserved_level() {
    if (!p_.exact()) {
      out_.reserved = estimate([](const RankComparison& r) { return r.reserved; });
      return;
    }
    bool compared = false, differs = false, explained = false;
    for (std::size_t i = 0; i < out_.ranks.size(); ++i) {
      const Row& row = out_.ranks[i].reserved;
      const std::optional<Bytes> difference = row.difference();
      if (!difference) continue;
      compared = true;
      if (*difference == Bytes(0)) continue;
      const std::int64_t rank = out_.ranks[i].rank;
      const bool initial =
          *difference > Bytes(0) && measured(rank).initial_reserved == row.measured;
      (initial ? explained : differs) = true;
      if (!initial) figure(rank, row);
      if (!out_.reserved.text.empty()) continue;
      out_.reserved.text = fmt::format("rank {}: {}{}", rank, signed_number(*difference),
                                       initial ? ", reached before the first step" : "");
    }
    if (!compared) {
      out_.reserved = {Verdict::not_compared, "not measured"};
      return;
    }
    out_.reserved.verdict = differs     ? Verdict::differs
                            : explained ? Verdict::explained
                                        : Verdict::exact;
    if (!differs && !explained) out_.reserved.text = "on " + on_ranks();
    if (differs && out_.memory.verdict == Verdict::differs)
      out_.reserved.text += ", follows from the tensors";
  }

  void device_level() {
    std::optional<Bytes> worst;
    bool outside = false;
    for (const RankComparison& rank : out_.ranks) {
      if (rank.unaccounted &&
          (!worst || std::abs(rank.unaccounted->value()) > std::abs(worst->value())))
        worst = rank.unaccounted;
      if (rank.device.measured && p_.range_low && p_.range_high)
        outside = outside || *rank.device.measured < *p_.range_low ||
                  *rank.device.measured > *p_.range_high;
    }
    if (!worst) {
      out_.device = {Verdict::not_compared,
                     m_.kind == "cpu" ? "not measured: all ranks share the host" : "not measured"};
      return;
    }
    sample();
    std::string text = "unaccounted " + signed_number(*worst);
    if (out_.sample) text += ", " + *out_.sample;
    if (!p_.range_low)
      out_.device = {Verdict::not_compared, text + "; the plan gives no range"};
    else
      out_.device = {outside ? Verdict::differs : Verdict::within,
                     text + (outside ? ", outside of the plan's range" : "")};
  }

  void sample() {
    if (!p_.calibration) return;
    const models::Calibration& seen = *p_.calibration;
    const auto has = [&](const std::vector<std::string>& fingerprints) {
      return std::ranges::find(fingerprints, m_.fingerprint) != fingerprints.end();
    };
    out_.sample = has(seen.fitted_fingerprints) ? "in-sample" : "out-of-sample";
    if (has(seen.fitted_fingerprints))
      out_.notes.push_back("in-sample: the plan's overheads were fitted on this workload (" +
                           seen.evidence + ")");
    else if (has(seen.judged_fingerprints))
      out_.notes.push_back("the plan's range was made to hold this workload's measurement (" +
                           seen.evidence + ")");
    if (m_.environment.driver && *m_.environment.driver != seen.driver)
      out_.notes.push_back(fmt::format("overheads were measured with driver {}, this run had {}",
                                       seen.driver, *m_.environment.driver));
  }

  void time_level() {
    if (!p_.step_seconds || !m_.step_seconds || *m_.step_seconds <= 0) {
      out_.time = {Verdict::not_compared, p_.step_seconds ? "not measured" : "not predicted"};
      return;
    }
    out_.time = {Verdict::not_compared,
                 fmt::format("{:.4g} s predicted, {:.4g} s measured ({:+.1f} %)", *p_.step_seconds,
                             *m_.step_seconds, 100 * (*m_.step_seconds / *p_.step_seconds - 1))};
  }

  const Prediction& p_;
  const Measurement& m_;
  double tolerance_;
  Comparison out_;
};
}  // namespace

const char* name_of(Level::Verdict verdict) {
  constexpr const char* names[] = {"exact", "within", "explained", "differs", "not compared"};
  return names[static_cast<std::size_t>(verdict)];
}

std::string Comparison::first_difference() const {
  if (differences.empty()) return "";
  const Difference& first = differences.front();
  std::string text = first.text();
  if (first.kind != Difference::Kind::op) return text;
  // Another op: what it made, or should have made, says more.
  for (const Difference& d : differences)
    if (d.at == first.at && d.rank == first.rank && !d.tensor.empty())
      return text + "; " + d.text();
  return text;
}

Comparison compare(const Prediction& prediction, const Measurement& measurement, double tolerance) {
  return Comparer(prediction, measurement, tolerance).run();
}

}  // namespace plimsoll::reports
