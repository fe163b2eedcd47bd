// A library of kernels without kernels, for tests of how such libraries are called: its table has
// the fault that the environment names (ASSAY_TEST_TABLE), its functions the one that options name.
// Needs no GPU: what it calls device pointers are made up.
#include <cstdlib>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <string>

#include "verify/subject/one_sided_kernels.h"

namespace {

int states = 0;

struct State {
  std::string options;
  char place;
};

// What `function` does when the options ask for something: "dispatch=7", "create=throw",
// "create=3 message=why". Else it returns ok.
int does(const std::string& options, const std::string& function, assay_message* message) {
  const std::size_t at = options.find(function + "=");
  if (at == std::string::npos) return ASSAY_OK;
  const std::string what = options.substr(at + function.size() + 1);
  if (what.rfind("throw", 0) == 0) throw std::runtime_error("boo\nhoo");
  if (what.rfind("odd", 0) == 0) throw 7;
  if (const std::size_t text = options.find("message="); text != std::string::npos)
    std::strcpy(message->text, options.c_str() + text + 8);
  return std::atoi(what.c_str());
}

int window_bytes(const assay_kernels_config* config, uint64_t* bytes, assay_message* message) {
  *bytes = std::strcmp(config->options, "nothing=bytes") == 0 ? 0 : 4096;
  return does(config->options, "window_bytes", message);
}

int create(const assay_kernels_config* config, int32_t, void* const*, void** state,
           assay_message* message) {
  const int code = does(config->options, "create", message);
  if (code != ASSAY_OK || std::strcmp(config->options, "nothing=state") == 0) return code;
  *state = new State{config->options, 0};
  ++states;
  return ASSAY_OK;
}

int places(void* state, const assay_kernels_round* round, assay_kernels_places* to,
           assay_message* message) {
  State& own = *static_cast<State*>(state);
  const auto is_set = [&](const char* place) {
    return own.options != std::string("null=") + place;
  };
  if (is_set("recv"))
    for (int i = 0; i < round->num_payloads; ++i) to->recv[i] = &own.place;
  auto* const word = reinterpret_cast<int32_t*>(&own.place);
  if (is_set("recv_counters")) to->recv_counters = word;
  if (is_set("target_rank")) to->target_rank = word;
  if (is_set("target_slot")) to->target_slot = word;
  if (is_set("expert_out")) to->expert_out = word;
  return does(own.options, "places", message);
}

int dispatch(void* state, const assay_kernels_round*, void*, assay_message* message) {
  return does(static_cast<State*>(state)->options, "dispatch", message);
}

int combine(void* state, const assay_kernels_round*, void*, assay_message* message) {
  return does(static_cast<State*>(state)->options, "combine", message);
}

void destroy(void* state) {
  delete static_cast<State*>(state);
  --states;
}

int slot_rule(const assay_kernels_config* config, int32_t max) {
  assay_message message{};
  return does(config->options, "slot_rule", &message) + (max > 8 ? 0 : ASSAY_SLOTS_TOKEN_INDEX);
}

assay_kernels faulty_table(const std::string& fault) {
  assay_kernels table{ASSAY_KERNELS_ABI_VERSION,
                      sizeof(assay_kernels),
                      "faulty",
                      window_bytes,
                      create,
                      places,
                      dispatch,
                      combine,
                      destroy,
                      slot_rule};
  if (fault == "version") table.abi_version = 9;
  if (fault == "size") table.struct_size = 16;
  if (fault == "name") table.name = nullptr;
  if (fault == "window_bytes") table.window_bytes = nullptr;
  if (fault == "create") table.create = nullptr;
  if (fault == "places") table.places = nullptr;
  if (fault == "dispatch") table.dispatch = nullptr;
  if (fault == "combine") table.combine = nullptr;
  if (fault == "destroy") table.destroy = nullptr;
  if (fault == "slot_rule") table.slot_rule = nullptr;
  return table;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const assay_kernels* assay_kernels_v1(void) {
  static std::deque<assay_kernels> tables;  // which stay where they are
  const char* const fault = std::getenv("ASSAY_TEST_TABLE");
  if (fault == nullptr) return &tables.emplace_back(faulty_table(""));
  if (std::strcmp(fault, "none") == 0) return nullptr;
  if (std::strcmp(fault, "throw") == 0) throw std::runtime_error("boo\nhoo");
  return &tables.emplace_back(faulty_table(fault));
}

// How many states there are.
extern "C" __attribute__((visibility("default"))) int faulty_kernels_states(void) { return states; }
