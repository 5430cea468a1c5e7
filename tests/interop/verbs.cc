#include "verbs.h"

#include <algorithm>

namespace accel::interop {

using siw::Event;

QueuePair::QueuePair(const PeerOptions& options)
    : options_(options),
      link_(options),
      endpoint_({.role = options.role, .offer = options.offer, .max_fpdu = options.max_fpdu, .reads = true}) {
}

std::string QueuePair::open() {
  if (auto e = link_.open(); !e.empty()) return e;
  if (options_.role == siw::Role::kInitiator) endpoint_.connect({});
  while (!established_) {
    if (auto e = step(); !e.empty()) return e;
  }
  return {};
}

void QueuePair::add_region(uint32_t stag, uint64_t at, std::vector<uint8_t>& memory) {
  regions_[stag] = {at, &memory};
}

std::optional<siw::MutableBytes> QueuePair::find(uint32_t stag, uint64_t offset, size_t size) {
  const auto it = regions_.find(stag);
  if (it == regions_.end()) return {};
  const siw::MutableBytes all(*it->second.memory);
  const uint64_t at = offset - it->second.at;
  if (offset < it->second.at || at > all.size() || size > all.size() - at) return {};
  return all.subspan(at, size);
}

std::string QueuePair::broken(const char* what) const {
  return std::string(what) + ", violation " + std::string(siw::name_of(endpoint_.violation()));
}

std::string QueuePair::on_event(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kArriving:
    case Event::Kind::kNone:
      return {};
    case Event::Kind::kRequest:
      endpoint_.accept({});
      established_ = true;
      return {};
    case Event::Kind::kEstablished:
      established_ = true;
      return {};
    case Event::Kind::kSend:
      inbox_.emplace_back(event.payload.begin(), event.payload.end());
      return {};
    case Event::Kind::kRead: {
      siw::ReadRequest r;
      if (siw::parse_read_request(event.payload, r) != siw::Violation::none) return "bad Read request";
      const auto memory = find(r.source_stag, r.source_offset, r.size);
      if (!memory) return "Read of what is not ours";
      endpoint_.respond(r, *memory);
      return {};
    }
    case Event::Kind::kWrite:
    case Event::Kind::kReadData: {
      if (event.payload.empty()) return {};  // RTR, keepalive, kick
      const auto memory = find(event.stag, event.offset, event.payload.size());
      if (!memory) return "data for what is not ours";
      std::copy(event.payload.begin(), event.payload.end(), memory->begin());
      if (event.kind == Event::Kind::kReadData) read_left_ -= std::min(read_left_, event.payload.size());
      return {};
    }
  }
  return {};
}

std::string QueuePair::step() {
  if (link_.ended()) return broken("the peer ended");
  size_t written = 0;
  const bool silent = established_ && !endpoint_.may_send() && endpoint_.pending().empty();
  siw::Bytes in = link_.exchange(endpoint_.pending(), written);
  endpoint_.sent(written);
  while (true) {
    Event event;
    if (endpoint_.take(in, event) != siw::Violation::none) return broken("broken off");
    if (event.kind == Event::Kind::kNone) break;
    if (auto e = on_event(event); !e.empty()) return e;
  }
  if (link_.ended() && endpoint_.end() != siw::Violation::none) return broken("cut off");
  if (link_.timed_out()) return "nothing came for too long";
  if (!silent && established_ && options_.role == siw::Role::kInitiator && link_.kick_due(endpoint_.heard()))
    endpoint_.write(1, 0, {});
  return {};
}

std::string QueuePair::receive(std::vector<uint8_t>& message) {
  while (inbox_.empty()) {
    if (auto e = step(); !e.empty()) return e;
  }
  message = std::move(inbox_.front());
  inbox_.erase(inbox_.begin());
  return {};
}

std::string QueuePair::read(const siw::ReadRequest& request) {
  read_left_ = request.size;
  endpoint_.read(request);
  while (read_left_ > 0) {
    if (auto e = step(); !e.empty()) return e;
  }
  return {};
}

std::string QueuePair::finish(bool await_end) {
  while (!endpoint_.pending().empty() || (await_end && !link_.ended())) {
    if (auto e = step(); !e.empty()) return e;
  }
  return {};
}

}  // namespace accel::interop
