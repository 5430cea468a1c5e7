// The bytes that a program gives to be sent: how many fit, and where its writes and records end.
#include <algorithm>

#include "base/user_memory.h"
#include "stack/tcp/context.h"
#include "stack/tcp/tcp.h"

namespace accel {

using namespace tcp;

/// tcp_xmit_size_goal(): as much goes into one buffer of unsent bytes.
static uint32_t size_goal(const TcpConn& c, bool urgent) {
  const uint32_t mss = std::max<uint32_t>(c.snd_mss, 1);
  return urgent ? mss : std::max(std::min(c.max_window / 2, 65535u) / mss * mss, mss);
}

/// The room in the last buffer of unsent bytes, which tcp_sendmsg_locked() fills without asking for
/// memory.
static uint32_t tail_room(const TcpConn& c, bool urgent) {
  const uint32_t waiting = unsent(c);
  if (waiting == 0) return 0;
  const uint32_t goal = size_goal(c, urgent), last = waiting % goal;
  return last ? goal - last : 0;
}

/// sk_stream_memory_free()
static uint32_t send_room(const TcpContext& t, const TcpConn& c, bool urgent) {
  uint32_t limit = send_limit(t, c), used = c.send_queue.size();
  if (used >= limit) return 0;
  if (unsent(c) >= notsent_low_water(t, c)) return std::min(tail_room(c, urgent), limit - used);
  const uint32_t held = c.send_queue.memory();
  if (!t.core.tcp_memory.allows(held, 0, t.core.config.tcp_send_least, t.connections)) return 0;
  return limit - used;
}

/// tcp_sendmsg_locked() as far as it copies: buffer after buffer, one that is full being pushed where half of
/// the largest window has come since the last push (forced_push()). Returns how much found memory.
static uint32_t copy_in(TcpContext& t, TcpConn& c, const uint8_t* from, uint32_t n, uint32_t goal,
                        uint32_t& room_in_buffer) {
  uint32_t done = 0;
  while (done < n) {
    const uint32_t part = std::min(n - done, room_in_buffer);
    const uint32_t copied = c.send_queue.append(t.chunks, from + done, part);
    done += copied;
    if (copied < part) break;
    room_in_buffer -= part;
    if (room_in_buffer > 0) continue;
    room_in_buffer = goal;
    if (seq_gt(c.send_queue.end(), c.snd_pushed + c.max_window / 2)) {
      c.snd_pushed = c.send_queue.end();
      c.send_queue.mark_end(SendQueue::kPush);
      c.send_marks = true;
    }
  }
  return done;
}

/// tcp_push() and MSG_EOR: what a write says of the end of its bytes. `whole`: they are all in the queue.
static void mark_write(TcpConn& c, const TcpWrite& how, bool push, bool whole) {
  const uint32_t end = c.send_queue.end();
  push |= seq_gt(end, c.snd_pushed + c.max_window / 2);
  if (push) c.snd_pushed = end;
  if (how.record_end && whole) {
    c.send_queue.mark_end(push ? SendQueue::kRecord | SendQueue::kPush : SendQueue::kRecord);
    c.send_marks = true;
  }
}

/// As much of `room` as the data may take now. `part`: the caller comes again for the rest.
static uint32_t limit_room(const TcpContext& t, const TcpConn& c, uint32_t room, bool urgent, bool& part) {
  const uint32_t low_water = notsent_low_water(t, c);
  if (urgent) {
    if (room == 0 || unsent(c) >= low_water) return room;
    // tcp_sendmsg_locked() asks for room again before each segment of urgent data that it begins.
    const uint64_t mss = c.snd_mss, tail = tail_room(c, true), begun = unsent(c) + tail;
    const uint64_t fresh = begun < low_water ? (low_water - begun + mss - 1) / mss * mss : 0;
    return static_cast<uint32_t>(std::min<uint64_t>(room, tail + fresh));
  }
  if (low_water == kNoLowWater) return room;
  // It asks for each buffer of other data as well.
  const uint32_t tail = tail_room(c, false), step = tail ? tail : size_goal(c, false);
  part = step < room;
  return std::min(room, step);
}

/// Copies a write of any size into the queue; returns the bytes that found room and memory.
static size_t copy_write(TcpContext& t, TcpConn& c, std::span<const iovec> data, uint32_t room, bool urgent) {
  const uint32_t goal = size_goal(c, urgent);
  const uint32_t tail = c.send_marks && c.send_queue.at_record_end() ? 0 : tail_room(c, urgent);
  const uint32_t waiting = unsent(c);
  if (waiting == 0) c.send_marks = false;
  if (waiting > 0 && tail == 0 && c.snd_pushed == c.send_queue.end() && room > 0) {
    c.send_queue.mark_end(SendQueue::kPush);  // its last buffer is full, and stays as it is
    c.send_marks = true;
  }
  uint32_t room_in_buffer = tail ? tail : goal;
  size_t done = 0;
  for (const iovec& v : data) {
    if (room == 0) break;
    const auto n = static_cast<uint32_t>(std::min<size_t>(v.iov_len, room));
    const uint32_t copied = copy_in(t, c, static_cast<const uint8_t*>(v.iov_base), n, goal, room_in_buffer);
    done += copied;
    room = copied < n ? 0 : room - copied;
  }
  return done;
}

/// A write that fits into one segment, with nothing unsent before it: it fills no buffer, so its own end is
/// the only one to be pushed.
static bool is_small(const TcpConn& c, std::span<const iovec> data) {
  return unsent(c) == 0 && data.size() == 1 && data[0].iov_len <= c.snd_mss;
}

/// The same for such a write.
static size_t copy_small(TcpContext& t, TcpConn& c, const iovec& v, uint32_t room) {
  c.send_marks = false;
  const auto n = static_cast<uint32_t>(std::min<size_t>(v.iov_len, room));
  return c.send_queue.append(t.chunks, static_cast<const uint8_t*>(v.iov_base), n);
}

Result<size_t> TcpLayer::send(TcpConn& c, std::span<const iovec> data, TcpWrite how, Instant now) {
  TcpContext& t = *context_;
  const bool more = how.more, urgent = how.urgent;
  if (c.error || c.fin_queued) {
    int error = take_error(c);
    return err(error ? error : EPIPE);
  }
  if (c.tcp_state == TcpState::kSynSent || c.tcp_state == TcpState::kSynReceived) {
    if ((c.fast_open & kFastOpenWaits) != 0) {
      const bool readable = can_read(data, 65535);  // else the SYN goes alone: tcp_send_syn_data()
      return send_first_text(t, c, readable ? data : std::span<const iovec>(), now);
    }
    c.no_space = true;
    return err(EAGAIN);
  }
  if (c.write_shut) return err(EPIPE);
  // An ACK has let go what MSG_MORE had held, and this pass has not sent it yet.
  if (more && !c.more && c.pending && unsent(c) > 0) output(t, c, now);
  bool part = false;
  const uint32_t room = limit_room(t, c, send_room(t, c, urgent), urgent, part);
  if (!can_read(data, room)) return err(EFAULT);
  size_t wanted = 0;
  for (const iovec& v : data) wanted += v.iov_len;
  const uint32_t before = c.send_queue.memory();
  const size_t done =
      is_small(c, data) ? copy_small(t, c, data[0], room) : copy_write(t, c, data, room, urgent);
  t.core.tcp_memory.charge(c.send_queue.memory() - before);
  part = part && done == room && done < wanted;
  if (done < wanted && !part) c.no_space = true;
  if (done == 0) {
    if (wanted == 0) return size_t{0};
    if (room > 0 && c.send_queue.size() == 0) {  // no ACK will free what it needs
      c.no_memory = true;
      set_timer(t, c, kTimerCork, now + kMemoryWait);
    }
    return err(EAGAIN);
  }
  c.no_memory = false;
  if (c.busy == Busy::kIdle) note_busy(c, Busy::kSending, now);
  c.more = more;
  mark_write(c, how, !part && (!more || done < wanted), done == wanted);
  if (!more && !c.settings.cork) release_cork(c);
  if (urgent) {  // also a part of it: tcp_push()
    c.snd_up = c.send_queue.end();
    c.urgent_out = c.push = true;
  }
  Working working(t, c);
  output(t, c, now);
  return done;
}

}  // namespace accel
