// The assay command: verbs over the libraries below. Read in this order:
//   tools/cli/tools.hpp      what a verb is, and what it may answer (this file)
//   tools/cli/arguments.hpp  options of the command line, and their sentences when they are wrong
//   tools/cli/document.hpp   what a verb has to say: one list of fields, printed as text or as JSON
//   tools/cli/output.hpp     where it is printed, and the promise that nothing is left half-written
//   tools/cli/progress.hpp   the line that moves while work is long and somebody watches
//   tools/verbs.def          the table of verbs
//   tools/assay.cpp          main
//   tools/<verb>.cpp         one verb each
// Tools decide spelling (DESIGN of the command line: SPEC TRC-3, VER) and nothing else: every
// number that a verb prints was computed by a library.
#pragma once

#include <functional>
#include <string_view>

#include "model/core/expected.hpp"

namespace assay::tools {

// What the shell is told.
enum class ExitCode : int {
  kConforms = 0,     // nothing is wrong
  kMismatch = 1,     // a wrong kernel, or a run that could not have found one (MISTRUSTED)
  kBadInput = 2,     // bad usage or input
  kUnsupported = 3,  // a legal request that this build or machine cannot serve
  kOurBug = 4,
};

class Arguments;

// Runs after the whole command line was understood.
using Action = std::function<Expected<ExitCode>()>;

// A new verb is a file that defines its `declare` function, and a line in tools/verbs.def. A name
// of two words ("trace info") is a verb of a family.
struct Verb {
  std::string_view name;
  std::string_view what;  // one line of help
  // Declares the verb's options and returns what to do with them.
  Action (*declare)(Arguments& arguments);
};

}  // namespace assay::tools
