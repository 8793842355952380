#include "runtime/comm/control.h"

#include <unistd.h>

#include <algorithm>
#include <array>

namespace plimsoll::runtime::comm {

namespace {

class SingleControl final : public Control {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<std::string> gather(std::string bytes) override { return {std::move(bytes)}; }
  std::unique_ptr<Control> split(int) override { return single_control(); }
  void abort(const std::string&) noexcept override {}
};

class HostControl final : public Control {
 public:
  explicit HostControl(Communicator& hosts) : hosts_(hosts) {}
  explicit HostControl(std::unique_ptr<Communicator> hosts)
      : owned_(std::move(hosts)), hosts_(*owned_) {}
  int rank() const override { return hosts_.rank(); }
  int size() const override { return hosts_.size(); }
  std::vector<std::string> gather(std::string bytes) override {
    return hosts_.gather(std::move(bytes));
  }
  std::unique_ptr<Control> split(int color) override {
    return std::make_unique<HostControl>(hosts_.split(color));
  }
  void abort(const std::string& reason) noexcept override { hosts_.abort(reason); }

 private:
  std::unique_ptr<Communicator> owned_;
  Communicator& hosts_;
};

}  // namespace

std::unique_ptr<Control> single_control() {
  return std::make_unique<SingleControl>();
}

std::unique_ptr<Control> control_over(Communicator& hosts) {
  return std::make_unique<HostControl>(hosts);
}

int local_rank_of(const std::vector<std::string>& hosts, int rank) {
  const auto own = hosts.begin() + rank;
  return static_cast<int>(std::count(hosts.begin(), own, *own));
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace plimsoll::runtime::comm
