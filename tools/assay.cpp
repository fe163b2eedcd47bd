// The assay command: the table of verbs, and main, which turns what a verb answers into an exit
// code and every failure into one sentence on standard error. Nothing is computed here.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <deque>
#include <exception>
#include <iostream>
#include <map>
#include <new>
#include <stdexcept>

#include "model/core/text.hpp"
#include "tools/cli/arguments.hpp"
#include "tools/cli/tools.hpp"

namespace assay::tools {

#define ASSAY_VERB(name, declare, what) Action declare(Arguments& arguments);
#include "tools/verbs.def"
#undef ASSAY_VERB

namespace {

constexpr Verb kVerbs[] = {
#define ASSAY_VERB(name, declare, what) {name, what, declare},
#include "tools/verbs.def"
#undef ASSAY_VERB
};

constexpr const char* kExitCodes =
    "exit codes: 0 conforms, 1 mismatch or MISTRUSTED, 2 bad usage or input, 3 unsupported, "
    "4 a bug of assay";

struct Declared {
  CLI::App* app;
  Arguments arguments;
  Action action;
};

int fail(ExitCode code, const std::string& sentence) {
  // Not fmt::print, which throws when stderr is closed or full: the exit code must stand.
  std::fputs(fmt::format("assay: {}\n", sentence).c_str(), stderr);
  return static_cast<int>(code);
}

int out_of_memory() {
  return fail(ExitCode::kUnsupported,
              "this machine has not enough memory for the request; a smaller --case, --ep or "
              "--jobs needs less");
}

int run(Declared& verb);
Status check_verb(const CLI::App& root);

// Unknown options are kept aside and named by Arguments::check_complete in a sentence of ours.
CLI::App* add_command(CLI::App& parent, std::string_view name, std::string_view what) {
  CLI::App* app = parent.add_subcommand(std::string(name), std::string(what));
  app->allow_extras();
  app->require_subcommand(0, 1);  // "assay replay size" means a file of that name
  app->footer(kExitCodes);
  return app;
}

void declare_all(CLI::App& root, std::deque<Declared>& declared) {
  std::map<std::string, CLI::App*, std::less<>> families;
  for (const Verb& verb : kVerbs) {
    const std::size_t space = verb.name.find(' ');
    CLI::App* parent = &root;
    if (space != std::string_view::npos) {
      CLI::App*& family = families[std::string(verb.name.substr(0, space))];
      if (family == nullptr)
        family =
            add_command(root, verb.name.substr(0, space),
                        verb.name.substr(0, space) == "trace" ? "captured routing"
                                                              : "times on this machine's GPUs");
      parent = family;
    }
    const std::size_t own = space == std::string_view::npos ? 0 : space + 1;
    CLI::App* app = add_command(*parent, verb.name.substr(own), verb.what);
    Declared& entry = declared.emplace_back(Declared{app, Arguments(*app), {}});
    entry.action = verb.declare(entry.arguments);
  }
}

int run(int argc, char** argv) {
  CLI::App root{"Assay: which output bits of a kernel are legal, and why one is not", "assay"};
  root.footer(kExitCodes);
  root.allow_extras();
  root.require_subcommand(0, 1);
  root.set_version_flag("--version", std::string("assay ") + ASSAY_VERSION);
  std::deque<Declared> declared;  // a deque: verbs keep references to their arguments
  declare_all(root, declared);
  try {
    root.parse(Arguments::words(argc, argv));
  } catch (const CLI::Success& request) {  // --help, --version
    root.exit(request);
    if (!std::cout.flush()) return fail(ExitCode::kBadInput, "cannot write to standard output");
    return static_cast<int>(ExitCode::kConforms);
  } catch (const CLI::ParseError& error) {
    return fail(ExitCode::kBadInput, fmt::format("{}; see assay --help", error.what()));
  }
  if (const Status named = check_verb(root); !named)
    return fail(ExitCode::kBadInput, named.error().sentence);
  for (Declared& verb : declared) {
    if (verb.app->parsed()) return run(verb);
  }
  CONTRACT(false, "the parser accepted a verb that nobody declared");
}

int run(Declared& verb) {
  if (const Status complete = verb.arguments.check_complete(); !complete)
    return fail(ExitCode::kBadInput, complete.error().sentence);
  const Expected<ExitCode> answer = verb.action();
  if (answer) return static_cast<int>(*answer);
  const bool unsupported = answer.error().kind == ErrorKind::kUnsupported;
  return fail(unsupported ? ExitCode::kUnsupported : ExitCode::kBadInput, answer.error().sentence);
}

// Error unless the words lead to one verb, with nothing unknown before it.
Status check_verb(const CLI::App& root) {
  const CLI::App* place = &root;
  while (!place->get_subcommands(nullptr).empty()) {
    std::string allowed;
    for (const CLI::App* next : place->get_subcommands(nullptr))
      allowed += fmt::format("{}{}", allowed.empty() ? "" : ", ", next->get_name());
    if (const auto extras = place->remaining(); !extras.empty())
      return bad_input(fmt::format("{} is no verb of {}; allowed are {}", in_quotes(extras.front()),
                                   full_name(*place), allowed));
    if (place->get_subcommands().empty())
      return bad_input(
          fmt::format("no verb of {} given; allowed are {}", full_name(*place), allowed));
    place = place->get_subcommands().front();
  }
  return Done{};
}

}  // namespace
}  // namespace assay::tools

int main(int argc, char** argv) {
  using assay::tools::ExitCode;
  try {
    return assay::tools::run(argc, argv);
  } catch (const std::bad_alloc&) {
    return assay::tools::out_of_memory();
  } catch (const std::length_error&) {  // what a container says of a size no memory could have
    return assay::tools::out_of_memory();
  } catch (const std::exception& error) {
    return assay::tools::fail(
        ExitCode::kOurBug, fmt::format("a bug of assay: unexpected exception: {}", error.what()));
  }
}
