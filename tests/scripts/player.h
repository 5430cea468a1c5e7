// Plays a script on a world.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "calls.h"
#include "script.h"
#include "world.h"

namespace accel::scripts {

struct Failure {
  int line = 0;
  std::string what;
};

class Player {
 public:
  Player(const Script& script, World& world) : script_(script), world_(world) {}
  /// Nothing when all was as the script says.
  std::optional<Failure> play();
  /// What happened, a line each, in the script's language.
  const std::vector<std::string>& trace() const { return trace_; }

 private:
  /// One connection's numbers: those of the wire less the script's.
  struct Flow {
    uint32_t own = 0, peer = 0;
    bool own_known = false, renewed = false;
    std::map<uint32_t, uint32_t> stamps;  ///< TSvals: the script's, the wire's
    std::optional<uint32_t> stamp_offset;
  };
  struct Running {
    const Call* call;
    int line;
    Operation operation;
    std::shared_ptr<Pending> pending;
    Duration due, waited;
  };
  using Ports = std::pair<uint16_t, uint16_t>;  ///< peer's, own

  Failure failure(const std::string& what) const { return {line_, what}; }
  std::optional<Failure> on(const Event& e);
  std::optional<Failure> inject(const SegmentSpec& s);
  std::optional<Failure> inject_icmp(const InjectIcmp& icmp);
  std::optional<Failure> expect(const SegmentSpec& s, const Moment& when);
  std::optional<Failure> expect_nothing();
  std::optional<Failure> call(const Call& c);
  std::optional<Failure> check(const Check& c);
  std::optional<Failure> end();

  void wait_for_due_answers();
  /// Takes the answers of calls that have returned.
  std::optional<Failure> take_answers();
  std::string difference(const SegmentSpec& expected, const Segment& s, Flow& flow);
  std::string stamp_difference(const OptionSpec& expected, const OptionSpec& o, Flow& flow);
  std::string option_difference(const SegmentSpec& expected, const Segment& s, Flow& flow);
  SegmentSpec in_script_numbers(const Segment& s) const;
  Duration due(const Moment& m) const { return m.relative ? last_ + m.from : m.from; }
  Flow& flow_of(Ports p);
  void note(Duration at, const char* direction, const SegmentSpec& s);

  const Script& script_;
  World& world_;
  Descriptors fds_;
  std::map<Ports, Flow> flows_;
  Ports default_{40000, 8080};
  Duration last_{0};
  Duration call_took_{0};  ///< on a busy machine; what it sends may leave as late
  int line_ = 0;
  int64_t info_fd_ = -1;
  std::vector<Running> running_;
  std::vector<std::string> trace_;
};

}  // namespace accel::scripts
