// See foreign.hpp.
#include "verify/subject/foreign.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "model/core/text.hpp"

namespace assay::verify {
namespace {

struct Calls {
  std::mutex mutex;
  int under_way = 0;
  std::string latest;
};
// Never destroyed: what runs at exit reads it.
Calls& calls() {
  static Calls* const all = new Calls;
  return *all;
}

// Run by exit and quick_exit. Buffers of streams are not written: a report that is half done would
// be taken for one.
void end_as_failed() {
  Calls& all = calls();
  const std::lock_guard lock(all.mutex);
  if (all.under_way == 0) return;
  const std::string text = "assay: " + all.latest + "\n";
  const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  static_cast<void>(written);  // the status must stand though nobody reads
  ::_exit(1);
}

// dlerror is the only source of the reason and is cleared by reading it.
std::string loader_words() {
  const char* words = ::dlerror();
  return words == nullptr ? "no reason given" : one_line(words);
}

}  // namespace

ForeignCall::ForeignCall(std::string_view spec, std::string_view function) {
  static const bool registered =
      std::atexit(end_as_failed) == 0 && std::at_quick_exit(end_as_failed) == 0;
  static_cast<void>(registered);
  Calls& all = calls();
  const std::lock_guard lock(all.mutex);
  ++all.under_way;
  all.latest = fmt::format("subject {} failed: it ended the process in {}, and nothing was judged",
                           in_quotes(spec), function);
}

ForeignCall::~ForeignCall() {
  Calls& all = calls();
  const std::lock_guard lock(all.mutex);
  --all.under_way;
}

Error thrown(std::string_view function, std::string_view what) {
  return bad_input(
      fmt::format("{} threw {}", function,
                  what.empty() ? "what is no std::exception" : "an exception: " + one_line(what)));
}

std::string text_of(const assay_message& message) {
  const char* const end = std::find(message.text, message.text + sizeof message.text, '\0');
  return one_line({message.text, static_cast<std::size_t>(end - message.text)});
}

std::string one_line(std::string_view text) {
  constexpr std::size_t kBytesMax = 1000;  // half of what a message holds
  const std::string_view shown = text.substr(0, kBytesMax);
  std::string out;
  for (std::size_t at = 0; at < shown.size();) {
    // Quotes and backslashes stay as they are: nothing is put around the text.
    const std::size_t end = std::min(shown.find_first_of("\"\\", at), shown.size());
    const std::string part = in_quotes(shown.substr(at, end - at), kBytesMax);
    out.append(part, 1, part.size() - 2);
    if (end < shown.size()) out += shown[end];
    at = end + 1;
  }
  if (shown.size() < text.size()) out += fmt::format("... ({} bytes)", text.size());
  return out;
}

Expected<Library> open_plugin(const std::string& spec, const char* entry, std::string_view header) {
  CONTRACT(is_foreign(spec));
  const std::size_t colon = spec.find(':');
  const std::string kind = spec.substr(0, colon), file = spec.substr(colon + 1);
  if (file.empty()) return bad_input(fmt::format("{0}: names no file; write {0}:FILE", kind));
  // A name without a slash is what people type; dlopen would search the system's paths for it.
  const std::string path = file.find('/') == std::string::npos ? "./" + file : file;
  ASSAY_TRY(void* const library, call_foreign(spec, "its initialisers", [&] {
              return ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
            }));
  if (library == nullptr)
    return bad_input(fmt::format("{} {} does not load: {}", kind, in_quotes(file), loader_words()));
  Library opened;
  opened.owner = std::shared_ptr<void>(library, [spec](void* handle) {
    const ForeignCall during(spec, "its destructors");
    ::dlclose(handle);
  });
  opened.entry = ::dlsym(library, entry);
  if (opened.entry == nullptr)
    return bad_input(
        fmt::format("{} {} does not export {} (see {})", kind, in_quotes(file), entry, header));
  return opened;
}

}  // namespace assay::verify
