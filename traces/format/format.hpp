// Start here: what a trace is and how it lies in files (FORMAT.md, SPEC TRC-1).
//   trace.hpp       routing in memory, checked once when it is made
//   trace_file.hpp  one safetensors file, or shards with an index
// Files of other projects are turned into a Trace by traces/readers.
#pragma once

#include "traces/format/trace.hpp"
#include "traces/format/trace_file.hpp"
