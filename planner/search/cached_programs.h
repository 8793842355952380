// Programs that stand, so that other batches need their sizes alone.
//
// Searches come back to a strategy with other batches, and ask for strategies that have layers,
// loss or optimizer of one that stands: its program with another batch has them too
// (section_cache.h).
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "planner/program/peak.h"
#include "planner/search/section_cache.h"
#include "planner/stack_step.h"

namespace plimsoll::planner::search {

struct CachedProgram {
  models::Strategy strategy;
  SectionCache::Ids ids;
  StackStep step;
  PeakFinder::Known known;
};

// Safe to use from several threads: who takes one has it alone until it is put back.
class CachedPrograms {
 public:
  // Of this very strategy, else one with a section that is `missing`; nothing where none stands.
  std::unique_ptr<CachedProgram> take(const SectionCache::Ids& ids, SectionCache::Missing missing);
  void put(std::unique_ptr<CachedProgram> cached);

 private:
  static constexpr std::size_t kMost = 192;  // some 100 KB each; the oldest goes

  std::unique_ptr<CachedProgram> take(std::uint32_t strategy);

  std::mutex mutex_;
  std::list<std::unique_ptr<CachedProgram>> all_;  // used last comes last
  using Place = std::list<std::unique_ptr<CachedProgram>>::iterator;
  std::unordered_map<std::uint32_t, Place> places_;  // by strategy
  // A strategy that had the section last.
  std::unordered_map<std::uint32_t, std::uint32_t> layers_, losses_, optimizers_;
};

// What a search has found out about steps so far.
struct KnownSteps {
  SectionCache sections;
  CachedPrograms programs;
};

}  // namespace plimsoll::planner::search
