// What strategies have in common of a step, evaluated once.
//
// The kind of loss decides the ops between the final norm and its backward, the optimizer's
// implementation those of its step, everything else the layers (models::Section). So strategies
// that differ in these two have the same layers, and strategies that differ in their layers the
// same loss: beyond what is allocated when a section begins, its high water is the same. The peak
// of a step is the largest of its sections', each with its own ops and sizes, and a step needs no
// program where all of its sections stood in earlier ones.
//
// That a section depends on no other choice is the writers' matter and is checked as it is used:
// every program that is written has at least one section that another one had, and all that they
// have in common must be equal. Where it is not, nothing found here is good (contradicted()).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "models/run_spec.h"
#include "planner/program/peak.h"

namespace plimsoll::planner::search {

// Safe to use from several threads.
class SectionCache {
 public:
  // Which of the known layers, losses and optimizers a strategy has, and which shape (shape.h).
  struct Ids {
    std::uint32_t strategy = 0, layers = 0, loss = 0, optimizer = 0, shape = 0;
  };
  // `tied_head`: the head's gradient is the embedding's, too, and the loss decides whether the two
  // are added in place.
  Ids ids_of(const models::Strategy& strategy, bool tied_head);

  // The first that is not known.
  enum class Missing : std::uint8_t { nothing, layers, loss, optimizer };
  Missing missing(const Ids& ids, const models::Batch& batch) const;
  // The whole step, where each section is known. `Peak::at` is not.
  std::optional<Peak> find(const Ids& ids, const models::Batch& batch) const;
  void add(const Ids& ids, const models::Batch& batch, const Peak& peak,
           std::span<const SectionPeak> section_peaks);
  bool contradicted() const { return contradicted_; }

 private:
  static constexpr std::size_t kMost = 3;  // of one section: distinct micro-batches

  struct Layers {
    Bytes high, scratch;
    Bytes resident;  // beside the states
    std::array<Bytes, kMost> loss_begins{};
    Bytes optimizer_begins;
    bool operator==(const Layers&) const = default;
  };
  struct Loss {
    std::array<Bytes, kMost> rises{};
    std::size_t count = 0;
    Bytes scratch;
    bool operator==(const Loss&) const = default;
  };
  struct Optimizer {
    Bytes rise, scratch, states;
    bool operator==(const Optimizer&) const = default;
  };
  struct Key {
    std::uint32_t id = 0;
    models::Batch batch;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  template <class Figures>
  using Known = std::unordered_map<Key, Figures, KeyHash>;
  struct StrategyHash {
    std::size_t operator()(const models::Strategy& strategy) const;
  };
  using Numbers = std::unordered_map<models::Strategy, std::uint32_t, StrategyHash>;

  static bool reaches_layers(const models::Strategy& strategy);
  static models::Strategy key_of_loss(models::Strategy strategy);
  static std::uint32_t number(Numbers& numbers, const models::Strategy& strategy);
  template <class Figures>
  void note(Known<Figures>& known, const Key& key, const Figures& figures);

  mutable std::mutex mutex_;
  Numbers strategies_, layers_of_, losses_of_, optimizers_of_;
  Known<Layers> layers_;
  Known<Loss> losses_;
  Known<Optimizer> optimizers_;
  std::atomic<bool> contradicted_ = false;
};

}  // namespace plimsoll::planner::search
