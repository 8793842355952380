#include "reports/ledger_join.h"

#include <algorithm>
#include <map>

#include "reports/text.h"

namespace plimsoll::reports {

namespace {
using Kind = Difference::Kind;

// "op 12 (forward layers.0.mlp.up_proj)".
std::string moment(const StepLedger& ledger, std::int64_t at) {
  if (at < 0) return "before the step";
  if (at >= static_cast<std::int64_t>(ledger.ops.size())) return "after the step";
  const OpBoundary& op = ledger.ops[static_cast<std::size_t>(at)];
  return "op " + std::to_string(at) + " (" + op.phase + " " + op.op + ")";
}

std::string bytes(Bytes b) {
  return grouped(Count(b.value())) + " B";
}

class Joiner {
 public:
  Joiner(std::int64_t rank, const StepLedger& predicted, const StepLedger& measured)
      : rank_(rank), predicted_(predicted), measured_(measured) {}

  std::vector<Difference> run() {
    ops();
    tensors();
    return std::move(out_);
  }

 private:
  void add(Kind kind, std::int64_t at, std::string tensor, std::string where, std::string predicted,
           std::string measured, std::optional<Bytes> predicted_bytes,
           std::optional<Bytes> measured_bytes) {
    out_.push_back({kind, rank_, at, std::move(tensor), std::move(where), std::move(predicted),
                    std::move(measured), predicted_bytes, measured_bytes});
  }

  void ops() {
    const std::size_t both = std::min(predicted_.ops.size(), measured_.ops.size());
    std::size_t i = 0;
    for (; i < both; ++i) {
      const OpBoundary &p = predicted_.ops[i], &m = measured_.ops[i];
      if (p.op != m.op || p.phase != m.phase) break;
      const auto at = static_cast<std::int64_t>(i);
      const auto sizes = [&](Kind kind, Bytes a, Bytes b) {
        if (a != b) add(kind, at, "", moment(predicted_, at), bytes(a), bytes(b), a, b);
      };
      sizes(Kind::high_water, p.high_water, m.high_water);
      sizes(Kind::allocated, p.allocated, m.allocated);
    }
    if (i == predicted_.ops.size() && i == measured_.ops.size()) return;
    const auto name = [&](const StepLedger& ledger) {
      return i < ledger.ops.size() ? ledger.ops[i].phase + " " + ledger.ops[i].op
                                   : std::string("the end of the step");
    };
    add(Kind::op, static_cast<std::int64_t>(i), "", "op " + std::to_string(i), name(predicted_),
        name(measured_), std::nullopt, std::nullopt);
  }

  using Spans = std::vector<const TensorSpan*>;

  static std::map<std::string_view, std::pair<Spans, Spans>> by_name(const StepLedger& predicted,
                                                                     const StepLedger& measured) {
    std::map<std::string_view, std::pair<Spans, Spans>> names;
    for (const TensorSpan& t : predicted.tensors) names[t.name].first.push_back(&t);
    for (const TensorSpan& t : measured.tensors) names[t.name].second.push_back(&t);
    const auto earlier = [](const TensorSpan* a, const TensorSpan* b) {
      return std::pair(a->born, a->died) < std::pair(b->born, b->died);
    };
    for (auto& [name, spans] : names) {
      std::stable_sort(spans.first.begin(), spans.first.end(), earlier);
      std::stable_sort(spans.second.begin(), spans.second.end(), earlier);
    }
    return names;
  }

  void tensors() {
    for (const auto& [name, spans] : by_name(predicted_, measured_)) {
      const auto& [predicted, measured] = spans;
      if (predicted.size() == measured.size()) {
        for (std::size_t i = 0; i < predicted.size(); ++i) pair(*predicted[i], *measured[i]);
        continue;
      }
      // One is missing somewhere: those that are born at one op belong together.
      std::size_t i = 0, j = 0;
      while (i < predicted.size() || j < measured.size()) {
        if (j == measured.size() ||
            (i < predicted.size() && predicted[i]->born < measured[j]->born))
          alone(Kind::only_predicted, predicted_, *predicted[i++]);
        else if (i == predicted.size() || measured[j]->born < predicted[i]->born)
          alone(Kind::only_measured, measured_, *measured[j++]);
        else
          pair(*predicted[i++], *measured[j++]);
      }
    }
  }

  void alone(Kind kind, const StepLedger& ledger, const TensorSpan& t) {
    const bool predicted = kind == Kind::only_predicted;
    add(kind, t.born, t.name, moment(ledger, t.born), predicted ? bytes(t.bytes) : "none",
        predicted ? "none" : bytes(t.bytes), predicted ? t.bytes : Bytes(0),
        predicted ? Bytes(0) : t.bytes);
  }

  // A tensor that outlives the step does so in both, whatever the number of ops.
  static std::int64_t death(const StepLedger& ledger, const TensorSpan& t) {
    constexpr std::int64_t kNever = std::int64_t{1} << 62;
    return t.died >= static_cast<std::int64_t>(ledger.ops.size()) ? kNever : t.died;
  }

  void pair(const TensorSpan& p, const TensorSpan& m) {
    const auto differ = [&](Kind kind, std::int64_t at, const std::string& predicted,
                            const std::string& measured) {
      add(kind, at, p.name, moment(predicted_, p.born), predicted, measured, p.bytes, m.bytes);
    };
    const std::int64_t born = std::min(p.born, m.born);
    if (p.bytes != m.bytes) differ(Kind::bytes, born, bytes(p.bytes), bytes(m.bytes));
    if (p.category != m.category) differ(Kind::category, born, p.category, m.category);
    if (p.born != m.born)
      differ(Kind::birth, born, moment(predicted_, p.born), moment(measured_, m.born));
    const std::int64_t a = death(predicted_, p), b = death(measured_, m);
    if (a != b)
      differ(Kind::death, std::min(a, b), moment(predicted_, p.died), moment(measured_, m.died));
  }

  std::int64_t rank_;
  const StepLedger &predicted_, &measured_;
  std::vector<Difference> out_;
};
}  // namespace

std::vector<Difference> join(std::int64_t rank, const StepLedger& predicted,
                             const StepLedger& measured) {
  return Joiner(rank, predicted, measured).run();
}

std::vector<TensorRow> tensor_rows(const StepLedger& predicted, const StepLedger& measured) {
  std::map<std::string_view, TensorRow> rows;
  const auto at = [&](const TensorSpan& t) -> TensorRow& {
    TensorRow& row = rows[t.name];
    if (row.predicted + row.measured > 0) return row;
    row.bytes.name = t.name;
    row.bytes.predicted = row.bytes.measured = Bytes(0);
    row.category = t.category;
    return row;
  };
  for (const TensorSpan& t : predicted.tensors) {
    TensorRow& row = at(t);
    *row.bytes.predicted += t.bytes;
    ++row.predicted;
  }
  for (const TensorSpan& t : measured.tensors) {
    TensorRow& row = at(t);
    *row.bytes.measured += t.bytes;
    ++row.measured;
  }
  std::vector<TensorRow> out;
  for (auto& [name, row] : rows) out.push_back(std::move(row));
  return out;
}

const char* name_of(Difference::Kind kind) {
  constexpr const char* names[] = {"missing_rank", "op",        "only_predicted", "only_measured",
                                   "bytes",        "category",  "birth",          "death",
                                   "high_water",   "allocated", "figure"};
  return names[static_cast<std::size_t>(kind)];
}

std::string Difference::text() const {
  const std::string head = "rank " + std::to_string(rank);
  const std::string both = predicted + " predicted, " + measured + " measured";
  const std::string size =
      predicted_bytes == measured_bytes || !predicted_bytes || !measured_bytes
          ? bytes(predicted_bytes.value_or(measured_bytes.value_or(Bytes(0))))
          : bytes(*predicted_bytes) + " predicted, " + bytes(*measured_bytes) + " measured";
  switch (kind) {
    case Kind::missing_rank:
      return head + ": predicted, and not measured";
    case Kind::op:
      return head + ", " + where + ": " + both;
    case Kind::only_predicted:
      return head + ", " + tensor + " (" + predicted + "), born " + where +
             ": predicted, and not measured";
    case Kind::only_measured:
      return head + ", " + tensor + " (" + measured + "), born " + where +
             ": measured, and not predicted";
    case Kind::bytes:
    case Kind::category:
      return head + ", " + tensor + ", born " + where + ": " + both;
    case Kind::birth:
      return head + ", " + tensor + " (" + size + "): born " + both;
    case Kind::death:
      return head + ", " + tensor + " (" + size + "): dies " + both;
    case Kind::high_water:
      return head + ", high water of " + where + ": " + both;
    case Kind::allocated:
      return head + ", allocated after " + where + ": " + both;
    case Kind::figure:
      break;
  }
  return head + ", " + where + ": " + both;
}

}  // namespace plimsoll::reports
