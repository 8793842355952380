// Programs that stand, so that other batches need their sizes alone.
//
// Searches come back to a strategy with other batches and with other numbers of ranks that share
// it, and ask for strategies that have layers, loss or optimizer of one that stands: its program
// with another batch has them too (section_cache.h).
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "planner/program/batch_sizes.h"
#include "planner/program/peak.h"
#include "planner/search/section_cache.h"

namespace plimsoll::planner::search {

// Batches whose programs have, but for what thresholds decide, one structure: as many distinct
// micro-batches, of one sequence or of more, of one length.
struct BatchClass {
  std::int64_t length = 0, micro_batches = 1;
  bool several = false;
  bool operator==(const BatchClass&) const = default;
};
BatchClass class_of(const models::Batch& batch);

struct CachedProgram {
  models::Strategy shape;
  SectionCache::Ids ids;  // of the strategy whose sizes it had last
  std::int64_t shards = 1;  // that strategy's
  BatchClass of;
  models::StepProgram program;
  BatchSizes sizes;  // of other batches
  PeakFinder::Known known;
};

// Safe to use from several threads: who takes one has it alone until it is put back.
class CachedPrograms {
 public:
  // For a batch of this class: of this very strategy's shape, and then with its ids and shards,
  // else one with a section that is `missing`; nothing where none stands.
  std::unique_ptr<CachedProgram> take(const SectionCache::Ids& ids, std::int64_t shards,
                                      SectionCache::Missing missing, const BatchClass& of);
  void put(std::unique_ptr<CachedProgram> cached);

 private:
  static constexpr std::size_t kMost = 256;  // some 100 KB each; the oldest goes

  // A shape, or a section, with a class of batches.
  struct Key {
    std::uint32_t id = 0;
    BatchClass of;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  std::unique_ptr<CachedProgram> take(const Key& key);

  std::mutex mutex_;
  std::list<std::unique_ptr<CachedProgram>> all_;  // used last comes last
  using Place = std::list<std::unique_ptr<CachedProgram>>::iterator;
  std::unordered_map<Key, Place, KeyHash> places_;  // by shape
  // A strategy that had the section last.
  struct Had {
    SectionCache::Ids ids;
    std::int64_t shards = 1;
  };
  std::unordered_map<Key, Had, KeyHash> layers_, losses_, optimizers_;
};

// What a search has found out about steps so far.
struct KnownSteps {
  SectionCache sections;
  CachedPrograms programs;
};

}  // namespace plimsoll::planner::search
