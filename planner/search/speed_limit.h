// Tokens per second that no plan reaches on fewer GPUs than there are.
//
// Each GPU computes at most as fast as it does alone, with nothing to exchange and nothing to wait
// for; and what does not fit on all GPUs does not fit on fewer of several: every tensor that ranks
// share grows as they become fewer.
#pragma once

#include <list>
#include <utility>
#include <vector>

#include "planner/search/evaluator.h"

namespace plimsoll::planner::search {

class SpeedLimit {
 public:
  // Of the families of one concession. `most`: the largest number of GPUs that is tried.
  SpeedLimit(const Scope& scope, const Space& space, Evaluator& evaluator, int concession,
             std::int64_t most);

  // What `gpus`, fewer than the most, cannot exceed. It is looked at more closely only where a
  // coarse figure says `enough` or more.
  double of(std::int64_t gpus, double enough);
  std::int64_t evaluated() const { return evaluated_; }

 private:
  struct Kind {  // families that compute alike
    Setting setting;
    std::vector<std::pair<models::Batch, double>> speeds;  // of one GPU; sizes upwards
    double fastest = 0;
    bool checked = false;
    void find_fastest();
  };
  void check(Kind& kind);
  bool hopeless(const Kind& kind, models::Batch batch);
  void sort();

  const Space& space_;
  Evaluator& evaluator_;
  std::list<Kind> kinds_;  // fastest first; sorted again and again
  double alone_ = 0;  // the fastest GPU without others
  std::int64_t evaluated_ = 0;
};

}  // namespace plimsoll::planner::search
