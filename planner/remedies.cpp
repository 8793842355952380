#include "planner/remedies.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "planner/remedy_changes.h"

namespace plimsoll::planner {

using reports::Remedy;

namespace {

using Set = std::vector<std::size_t>;  // of changes, ascending, so by price

constexpr std::size_t kMostTogether = 3;
constexpr std::array kPrices{Price::nothing, Price::time,     Price::hardware,
                             Price::task,    Price::adapters, Price::numerics};

struct Found {
  Set set;
  Remedy remedy;
  bool surely = false;  // fits even where what is assumed comes out high
};

class Finder {
 public:
  Finder(const Question& question, const reports::Plan& plan, const Replanner& replanner)
      : question_(question),
        plan_(plan),
        replanner_(replanner),
        changes_(changes_for(question)),
        usable_(changes_.size(), true) {}

  std::vector<Remedy> remedies();

 private:
  Price price(const Set& set) const { return changes_[set.back()].price; }
  bool cheaper(const Set& a, const Set& b) const;
  bool can_join(const Set& set, std::size_t next) const;
  std::optional<Question> changed(const Set& set) const;
  bool could_fit(const Set& set) const;
  std::optional<Found> planned(const Set& set) const;

  void find_singles();
  std::optional<Price> cheapest_that_fits() const;
  std::vector<Set> sets_of(Price price) const;
  Set all_up_to(Price price) const;
  std::optional<Found> least_of(const Set& set) const;
  std::optional<Found> cheapest_of(Price price) const;
  void find_joined();

  const Question& question_;
  const reports::Plan& plan_;
  const Replanner& replanner_;
  const std::vector<Change> changes_;
  std::vector<bool> usable_;  // in sets that are still to be tried
  std::vector<Found> found_;
};

// By the most expensive change, then the next one; then by how many, and by their order.
bool Finder::cheaper(const Set& a, const Set& b) const {
  const auto less = [&](std::size_t i, std::size_t j) {
    const Change &x = changes_[i], &y = changes_[j];
    return x.price != y.price ? x.price < y.price : x.level < y.level;
  };
  if (std::lexicographical_compare(a.rbegin(), a.rend(), b.rbegin(), b.rend(), less)) return true;
  if (std::lexicographical_compare(b.rbegin(), b.rend(), a.rbegin(), a.rend(), less)) return false;
  return std::pair(a.size(), a) < std::pair(b.size(), b);
}

bool Finder::can_join(const Set& set, std::size_t next) const {
  return std::ranges::none_of(
      set, [&](std::size_t i) { return share_an_option(changes_[i], changes_[next]); });
}

std::optional<Question> Finder::changed(const Set& set) const {
  Question question = question_;
  question.detail = Detail::none;
  question.remedies = false;
  for (const std::size_t i : set) changes_[i].apply(question);
  if (!settle(question_, question)) return std::nullopt;
  return question;
}

bool Finder::could_fit(const Set& set) const {
  const std::optional<Question> question = changed(set);
  try {
    return question && replanner_.could_fit(*question);
  } catch (const Error&) {
    return false;  // a combination that cannot be, or is not modelled
  }
}

std::optional<Found> Finder::planned(const Set& set) const {
  const std::optional<Question> question = changed(set);
  if (!question) return std::nullopt;
  Found found{set, {}, false};
  Remedy& remedy = found.remedy;
  try {
    const reports::Plan plan = replanner_.plan(*question);
    remedy = {"", plan_.device - plan.device, plan.device, plan.fits, ""};
    found.surely = plan.fits && (!plan.high_end || plan.high_end->fits);
  } catch (const Error&) {
    return std::nullopt;
  }
  for (const std::size_t i : set) {
    const Change& change = changes_[i];
    remedy.option += (remedy.option.empty() ? "" : " ") + change.option;
    if (!change.concession.empty())
      remedy.concession += (remedy.concession.empty() ? "" : "; ") + change.concession;
  }
  return found;
}

// Of several values of one option the first that suffices. Where none does: the one that brings
// most, but not ever more GPUs or ever fewer tokens. Less than half a per cent makes nothing fit.
void Finder::find_singles() {
  constexpr double kWorthSaying = 0.005;
  for (std::size_t i = 0, next = 0; i < changes_.size(); i = next) {
    for (next = i + 1; next < changes_.size() && changes_[next].level > 0;) ++next;
    const std::size_t shown = changes_[i].price < Price::hardware ? next - 1 : i;
    std::optional<Found> best;
    for (std::size_t j = i; j < next && !best; ++j)
      if (could_fit({j})) {
        best = planned({j});
        if (best && !best->remedy.fits) best.reset();
      }
    if (!best) best = planned({shown});
    if (best && best->remedy.saves.real() >= kWorthSaying * plan_.device.real())
      found_.push_back(*best);
  }
}

std::optional<Price> Finder::cheapest_that_fits() const {
  const auto first =
      std::ranges::find_if(found_, [](const Found& found) { return found.remedy.fits; });
  if (first == found_.end()) return std::nullopt;
  return price(first->set);
}

// Two or three changes, the most expensive of this price, cheapest first.
std::vector<Set> Finder::sets_of(Price wanted) const {
  std::vector<Set> sets, shorter;
  for (std::size_t i = 0; i < changes_.size(); ++i)
    if (usable_[i] && changes_[i].price <= wanted) shorter.push_back({i});
  for (std::size_t size = 2; size <= kMostTogether; ++size) {
    std::vector<Set> longer;
    for (const Set& set : shorter)
      for (std::size_t next = set.back() + 1; next < changes_.size(); ++next) {
        if (!usable_[next] || changes_[next].price > wanted || !can_join(set, next)) continue;
        longer.push_back(set);
        longer.back().push_back(next);
      }
    std::ranges::copy_if(longer, std::back_inserter(sets),
                         [&](const Set& set) { return price(set) == wanted; });
    shorter = std::move(longer);
  }
  std::ranges::sort(sets, [&](const Set& a, const Set& b) { return cheaper(a, b); });
  return sets;
}

// Everything that costs no more: of several values of one option the last.
Set Finder::all_up_to(Price most) const {
  Set set;
  for (std::size_t i = changes_.size(); i-- > 0;)
    if (usable_[i] && changes_[i].price <= most && can_join(set, i)) set.insert(set.begin(), i);
  return set;
}

// Without whatever is not needed, dearest first.
std::optional<Found> Finder::least_of(const Set& set) const {
  std::optional<Found> found = planned(set);
  if (!found || !found->remedy.fits) return std::nullopt;
  for (std::size_t i = set.size(); i-- > 0 && found->set.size() > 1;) {
    Set without = found->set;
    std::erase(without, set[i]);
    if (!could_fit(without)) continue;
    const std::optional<Found> less = planned(without);
    if (less && less->remedy.fits) found = less;
  }
  return found;
}

// One that surely fits, if it is not much dearer, or else one that should.
std::optional<Found> Finder::cheapest_of(Price wanted) const {
  const Set all = all_up_to(wanted);
  if (all.empty() || price(all) != wanted || !could_fit(all)) return std::nullopt;
  constexpr int kMoreTries = 8;
  std::optional<Found> best;
  int tries = 0;
  for (const Set& set : sets_of(wanted)) {
    if (!could_fit(set)) continue;
    const std::optional<Found> found = planned(set);
    if (found && found->surely) return found;
    if (!best && found && found->remedy.fits) best = found;
    if (best && ++tries > kMoreTries) break;
  }
  if (best) return best;
  best = least_of(all);
  return best && price(best->set) == wanted ? best : std::nullopt;
}

void Finder::find_joined() {
  const std::optional<Price> enough = cheapest_that_fits();
  for (const Price wanted : kPrices) {
    if (enough && wanted >= *enough) return;
    const std::optional<Found> found = cheapest_of(wanted);
    if (!found) continue;
    found_.push_back(*found);
    if (wanted <= Price::time) return;
    // Who can pay this price is answered: the next answer is for those who cannot.
    for (std::size_t i = 0; i < changes_.size(); ++i)
      if (changes_[i].price == wanted) usable_[i] = false;
  }
}

std::vector<Remedy> Finder::remedies() {
  find_singles();
  find_joined();
  std::ranges::stable_sort(found_,
                           [&](const Found& a, const Found& b) { return cheaper(a.set, b.set); });
  std::vector<Remedy> remedies;
  for (Found& found : found_) remedies.push_back(std::move(found.remedy));
  return remedies;
}

}  // namespace

std::vector<Remedy> find_remedies(const Question& question, const reports::Plan& plan,
                                  const Replanner& replanner) {
  return Finder(question, plan, replanner).remedies();
}

}  // namespace plimsoll::planner
