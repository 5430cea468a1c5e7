// The statistics page of a process: what `accel stat` reads. A memfd named kStatsName that stays open as one
// of the process's descriptors; a reader finds it in /proc/PID/fd by that name. It is gone when the process
// is, however that ended.
//
// A reader asks by adding 1 to `asked`, waits until `answered` has caught up, and copies. The process's
// housekeeping writes sockets, ports and counters only when asked: nobody looking costs nothing. Notes about
// sockets on the kernel's path are written when the path is decided.
//
// Both ends may be of different versions: a reader first compares magic and version. It trusts no number in
// the page.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/counters.h"

namespace accel::stats {

inline constexpr char kStatsName[] = "libaccel-stats";
inline constexpr uint64_t kMagic = 0x7461747363636131;  // "1accstat"
inline constexpr uint32_t kVersion = 4;
inline constexpr uint32_t kMaxPorts = 32;
inline constexpr uint32_t kMaxRows = 65536;  ///< sockets beyond it are counted, not listed
inline constexpr uint32_t kMaxDetails = 255;
inline constexpr uint32_t kMaxNotes = 65536;  ///< by descriptor

/// Enough of an Endpoint, in a layout of its own.
struct Address {
  uint8_t bytes[16];  ///< IPv4 in its mapped form
  uint16_t port;      ///< host byte order
};

/// What keeps a TCP connection from sending more.
enum class Limit : uint8_t {
  kNone,         ///< not open
  kApplication,  ///< everything that the program gave is sent
  kReceiver,     ///< the peer's window is full
  kCongestion,   ///< the congestion window is full
  kPacing,       ///< what remains is due later (SO_MAX_PACING_RATE)
  kRing,         ///< the device's ring or a buffer for a frame; or the pacing of BBR
};

/// A setting that is to change while the process runs. One asker at a time: it locks the page's file (flock).
struct Wish {
  std::atomic<uint64_t> asked;     ///< by the asker, behind the text
  std::atomic<uint64_t> answered;  ///< by the process, behind its answer
  char text[192];                  ///< "key=value"
  char answer[192];                ///< "": done; else why not
};

/// A socket on one of our paths.
struct SocketRow {
  int32_t fd;        ///< -1: not accepted yet, or closed by the program and still delivering or in TIME-WAIT
  uint8_t protocol;  ///< IPPROTO_*
  uint8_t path;      ///< PathKind
  uint8_t reason;    ///< Reason
  uint8_t state;     ///< TcpState; 0 for UDP
  Address local, remote;
  uint32_t rtt_us, rttvar_us, cwnd, mss;  ///< cwnd in segments
  uint32_t retransmits, queue_in,
      queue_out;  ///< bytes waiting to be read / acknowledged; of a listener: connections to accept
  uint64_t rx_bytes, tx_bytes, drops;
  uint8_t detail;  ///< of Page::detail; 0: none
  uint8_t limit;   ///< Limit
  uint8_t unused[2];
  uint32_t unsent;         ///< of queue_out: not sent yet
  uint64_t delivery_rate;  ///< bytes a second, as the last acknowledgements show it
  uint64_t busy_us, receiver_limited_us, buffer_limited_us;  ///< as TCP_INFO
};
static_assert(sizeof(SocketRow) == 136);

struct PortRow {
  char name[16];
  uint8_t kind;  ///< PathKind
  uint8_t zero_copy, tx_checksum, tso;
  uint32_t ifindex, queues_held, queues_total, mtu;
};
static_assert(sizeof(PortRow) == 36);

/// A socket that was left to the kernel, at the index of its descriptor. Valid while that descriptor is the
/// socket `inode`.
struct NoteRow {
  std::atomic<uint64_t> inode;  ///< 0: none; written last
  uint8_t reason;               ///< Reason
  uint8_t detail;               ///< of Page::detail; 0: none
  uint8_t unused[6];
};
static_assert(sizeof(NoteRow) == 16);

struct Page {
  // fixed from the start
  uint64_t magic;
  uint32_t version;
  uint32_t size;  ///< of the whole page
  int32_t pid;    ///< in the process's own pid namespace; another one: inherited by fork, not that process's
  uint32_t counters;  ///< how many: those of base/counters.def
  char config_file[256];
  char application[64];
  char profile[16];
  char mistake[256];  ///< the first of the configuration; "": none
  // when the first TCP connection or listener is accelerated
  int32_t helper;      ///< pid of the helper, in the process's pid namespace; 0: none
  char no_helper[92];  ///< why there is none though it is wanted; empty: not known yet, or not wanted
  // as they refuse sockets: rules of the host's packet filters and socket options, from 1 on, written once
  // each
  char detail[kMaxDetails + 1][96];
  Wish wish;
  // the exchange
  std::atomic<uint64_t> asked;     ///< by readers
  std::atomic<uint64_t> answered;  ///< by the process
  std::atomic<uint64_t> sequence;  ///< odd while the process writes what follows
  // the answer
  uint32_t rows;         ///< filled
  uint32_t rows_wanted;  ///< sockets that there are
  uint32_t ports;
  uint8_t has_engine;  ///< somebody will answer
  uint8_t unused[3];
  uint64_t counter[static_cast<size_t>(Counter::kCount)];
  PortRow port[kMaxPorts];
  SocketRow row[kMaxRows];
  NoteRow note[kMaxNotes];
};

}  // namespace accel::stats
