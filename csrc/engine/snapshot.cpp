// SPDX-License-Identifier: MIT
//
// A session as a file: header, tokens, recurrent state, the used rows of keys, values and block keys,
// logits, and a checksum over all of it. Little-endian, as every machine we run on.
//
//   u64 magic "ESKRSESS"  u64 version  u64 model fingerprint  u64 tokens  u64 recurrent floats
//   u64 appended floats   u64 logits   then the arrays in that order, then u64 checksum
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "base/units.h"
#include "engine/session.h"
#include "io/file.h"

namespace esker {
namespace {

constexpr uint64_t kMagic = 0x53534553'524B5345;  // "ESKRSESS"
constexpr uint64_t kVersion = 1;
enum Field { kFieldMagic, kFieldVersion, kFieldModel, kFieldTokens, kFieldRecurrent, kFieldAppended,
             kFieldLogits, kFieldCount };
using Header = std::array<uint64_t, kFieldCount>;

[[noreturn]] void fail(const std::string& path, const char* what, const char* hint) {
  raise(ErrorKind::kRead, "session",
        {.what = what, .got = std::strerror(errno), .want = {}, .where = path, .hint = hint});
}

[[noreturn]] void not_ours(const std::string& path, const std::string& got, const std::string& want) {
  raise(ErrorKind::kFormat, "session",
        {.what = "not a saved session that this model can take up",
         .got = got,
         .want = want,
         .where = path,
         .hint = "restore it with the model it was saved from"});
}

// A new file beside `path` that takes its place on commit() and vanishes otherwise.
class AtomicWriter {
 public:
  explicit AtomicWriter(const std::string& path)
      : path_(path), temporary_(path + ".tmp" + std::to_string(getpid())) {
    fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) fail(path_, "the session file cannot be written", "does the folder exist?");
  }
  ~AtomicWriter() {
    if (fd_ < 0) return;
    close(fd_);
    unlink(temporary_.c_str());
  }
  void write(const void* data, size_t n) {
    hash_.add(data, n);
    write_raw(data, n);
  }
  void commit() {
    const uint64_t checksum = hash_.value();
    write_raw(&checksum, sizeof checksum);
    if (!sync_to_disk(fd_)) fail(path_, "the session file cannot be written", "is the disk full?");
    if (rename(temporary_.c_str(), path_.c_str()) != 0) {
      fail(path_, "the session file cannot be put in place", "");
    }
    close(fd_);
    fd_ = -1;
  }

 private:
  void write_raw(const void* data, size_t n) {
    const auto* p = static_cast<const uint8_t*>(data);
    while (n > 0) {
      const ssize_t done = ::write(fd_, p, n);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail(path_, "the session file cannot be written", "is the disk full?");
      p += done;
      n -= static_cast<size_t>(done);
    }
  }

  std::string path_, temporary_;
  int fd_ = -1;
  Hash hash_;
};

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "rb")) {
    if (file_ == nullptr) fail(path_, "the session file cannot be read", "");
    struct stat info;
    if (fstat(fileno(file_), &info) != 0) fail(path_, "the session file cannot be read", "");
    size_bytes_ = static_cast<uint64_t>(info.st_size);
  }
  ~Reader() { std::fclose(file_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  uint64_t size_bytes() const { return size_bytes_; }
  void read(void* to, size_t n) {
    read_raw(to, n);
    hash_.add(to, n);
  }
  void check() {
    uint64_t checksum = 0;
    read_raw(&checksum, sizeof checksum);
    if (checksum != hash_.value()) not_ours(path_, "another checksum", "an undamaged file");
  }

 private:
  void read_raw(void* to, size_t n) {
    if (std::fread(to, 1, n, file_) != n) {
      not_ours(path_, "only " + format_bytes(size_bytes_), "the whole file");
    }
  }

  std::string path_;
  std::FILE* file_;
  uint64_t size_bytes_ = 0;
  Hash hash_;
};

}  // namespace

void Session::save(const std::string& path) {
  const StateLayout& layout = engine_->layout();
  const auto ranges = used_ranges(engine_->config(), layout, position());
  uint64_t appended = 0;
  for (const auto& [offset, n] : ranges) appended += n;
  const Header header{kMagic, kVersion, engine_->fingerprint(), tokens_.size(), layout.n_recurrent,
                      appended, logits_.size()};
  AtomicWriter file(path);
  file.write(header.data(), sizeof header);
  file.write(tokens_.data(), tokens_.size() * sizeof(int32_t));
  std::vector<float> part;
  const auto write_part = [&](DeviceMemory& from, uint64_t offset, uint64_t n) {
    part.resize(n);
    from.read(offset * sizeof(float), part.data(), n * sizeof(float));
    file.write(part.data(), n * sizeof(float));
  };
  write_part(*state_.before, 0, layout.n_recurrent);
  for (const auto& [offset, n] : ranges) write_part(*state_.appended, offset, n);
  file.write(logits_.data(), logits_.size() * sizeof(float));
  file.commit();
}

void Session::restore(const std::string& path) {
  Reader file(path);
  Header h{};
  file.read(h.data(), sizeof h);
  if (h[kFieldMagic] != kMagic) not_ours(path, "another kind of file", "a session saved by Esker");
  if (h[kFieldVersion] != kVersion) {
    not_ours(path, "format version " + std::to_string(h[kFieldVersion]),
             "version " + std::to_string(kVersion));
  }
  if (h[kFieldModel] != engine_->fingerprint()) not_ours(path, "another model's session", "this model's");
  const StateLayout& layout = engine_->layout();
  const uint64_t n = h[kFieldTokens], n_vocab = engine_->config().n_vocab;
  if (n > layout.context) {
    raise(ErrorKind::kUsage, "session",
          {.what = "the saved session does not fit into the context",
           .got = std::to_string(n) + " tokens",
           .want = "at most " + std::to_string(layout.context),
           .where = path,
           .hint = "load the model with a larger --context"});
  }
  const auto ranges = used_ranges(engine_->config(), layout, n);
  uint64_t appended = 0;
  for (const auto& [offset, count] : ranges) appended += count;
  const bool sizes_fit = h[kFieldRecurrent] == layout.n_recurrent && h[kFieldAppended] == appended &&
                         (h[kFieldLogits] == n_vocab || h[kFieldLogits] == 0);
  const uint64_t want = sizeof h + 4 * (n + h[kFieldRecurrent] + h[kFieldAppended] + h[kFieldLogits]) + 8;
  if (!sizes_fit || want != file.size_bytes()) {
    not_ours(path, std::to_string(file.size_bytes()) + " bytes", std::to_string(want) + " bytes");
  }
  // Into a state of its own first: a damaged file must not leave half a session behind.
  SessionState state = engine_->new_state();
  std::vector<int32_t> tokens(n);
  std::vector<float> logits(h[kFieldLogits]);
  file.read(tokens.data(), n * sizeof(int32_t));
  std::vector<float> part;
  const auto read_part = [&](DeviceMemory& to, uint64_t offset, uint64_t count) {
    part.resize(count);
    file.read(part.data(), count * sizeof(float));
    to.write(offset * sizeof(float), part.data(), count * sizeof(float));
  };
  read_part(*state.before, 0, layout.n_recurrent);
  for (const auto& [offset, count] : ranges) read_part(*state.appended, offset, count);
  file.read(logits.data(), logits.size() * sizeof(float));
  file.check();
  state_ = std::move(state);
  tokens_ = std::move(tokens);
  logits_ = std::move(logits);
  checkpoints_.clear();
}

}  // namespace esker
