"""assay golden dispatch and assay check dispatch: slots, joined rows, counters, unused rows."""

import struct
import unittest

from cli_testing import MISMATCH, OK
from golden_testing import CASES, Golden, dispatch_inputs, read


class Dispatch(Golden):
    """Slots that a kernel may choose, and rows that it may not change [VER-7.3][VER-7.6]."""

    def permuted(self, golden, fix_slots):
        """The first block with two rows has its rows 0 and 1 swapped, and their slots if asked."""
        tensors, metadata = read(golden)
        counters = struct.unpack("<9i", tensors["recv_counters"][2])
        pair = next(i for i, count in enumerate(counters) if count >= 2)
        for name in ("recv.hidden", "recv.scales"):
            dtype, shape, data = tensors[name]
            size = len(data) // 36
            first = pair * 4 * size
            data = bytearray(data)
            data[first:first + 2 * size] = (data[first + size:first + 2 * size] +
                                            data[first:first + size])
            tensors[name] = (dtype, shape, bytes(data))
        if fix_slots:
            dtype, shape, data = tensors["target_slot"]
            slots = list(struct.unpack("<24i", data))
            ranks = struct.unpack("<24i", tensors["target_rank"][2])
            for i in range(8 * (pair % 3), 8 * (pair % 3) + 8):
                if ranks[i] == pair // 3 and slots[i] in (0, 1):
                    slots[i] = 1 - slots[i]
            tensors["target_slot"] = (dtype, shape, struct.pack("<24i", *slots))
        return tensors, metadata

    def test_another_slot_order_conforms_if_it_is_the_recorded_one(self):
        golden = self.golden("dispatch")
        tensors, metadata = self.permuted(golden, fix_slots=True)
        told = self.check("dispatch", golden, self.write("got.safetensors", tensors, metadata),
                          code=OK)
        self.assertEqual(told["provenance"]["join"], "by the recorded slots")
        tensors, metadata = self.permuted(golden, fix_slots=False)
        told = self.check("dispatch", golden, self.write("got.safetensors", tensors, metadata))
        self.assertEqual(told["mismatches"][0]["check"], "dispatch.recv.hidden")

    def test_rows_are_joined_by_content_where_no_slots_are_recorded(self):
        golden = self.golden("dispatch")
        tensors, metadata = self.permuted(golden, fix_slots=False)
        del tensors["target_rank"], tensors["target_slot"]
        got = self.write("got.safetensors", tensors, metadata)
        told = self.check("dispatch", golden, got, code=OK)
        self.assertIn("whole rows", told["provenance"]["join"])
        # A row that is there twice has lost the other: each legal row is matched once.
        counters = struct.unpack("<9i", tensors["recv_counters"][2])
        pair = next(i for i, count in enumerate(counters) if count >= 2)
        twice = dict(tensors)
        for name in ("recv.hidden", "recv.scales"):
            dtype, shape, data = tensors[name]
            size = len(data) // 36
            first = pair * 4 * size
            twice[name] = dtype, shape, (data[:first + size] + data[first:first + size] +
                                         data[first + 2 * size:])
        told = self.check("dispatch", golden, self.write("twice.safetensors", twice, metadata))
        self.assertEqual(told["mismatches"][0]["first"]["slot"], 1)
        # Rows mixed by column are in no multiset of whole rows.
        hidden = self.permuted(golden, fix_slots=False)[0]["recv.hidden"]
        mixed = {**tensors, "recv.hidden": hidden,
                 "recv.scales": read(golden)[0]["recv.scales"]}
        told = self.check("dispatch", golden, self.write("got.safetensors", mixed, metadata))
        self.assertEqual(told["verdict"], "MISMATCH")

    def test_wrong_targets_and_counters_are_told_first(self):
        golden = self.golden("dispatch")
        for name, byte, check, join in (
                ("target_rank", 0, "dispatch.targets", "whole rows"),
                ("target_slot", 0, "dispatch.targets", "whole rows"),
                ("recv_counters", 4 * 2, "dispatch.recv_counters", "recorded slots")):
            with self.subTest(name):
                told = self.check("dispatch", golden, self.changed(golden, name, byte, 4))
                mismatch, = told["mismatches"]
                self.assertEqual(mismatch["check"], check)
                self.assertIn(join, told["provenance"]["join"])

    def test_every_bit_of_a_row_is_compared_and_none_of_an_unused_one(self):
        golden = self.golden("dispatch")
        counters = struct.unpack("<9i", read(golden)[0]["recv_counters"][2])
        for pair in range(9):
            for slot in range(4):
                got = self.changed(golden, "recv.hidden", (pair * 4 + slot) * 16 + 5)
                if slot >= counters[pair]:
                    self.check("dispatch", golden, got, code=OK)
                    continue
                mismatch, = self.check("dispatch", golden, got)["mismatches"]
                self.assertEqual(mismatch["first"], {"rank": pair // 3, "source": pair % 3,
                                                     "slot": slot, "element": 2})

    def test_an_invalid_id_that_is_given_is_expected_in_unused_rows_of_ids(self):
        tensors = dispatch_inputs()
        tensors["payload.topk_ids"] = tensors["topk_ids"]
        for setting, code in ((["--set", "invalid_id=-7"], MISMATCH), ([], OK)):
            golden = self.golden("dispatch", tensors, CASES["dispatch"][1] + setting)
            self.check("dispatch", golden, golden, code=OK)
            # Rank 1 has no tokens, so the first row from it is unused.
            got = self.changed(golden, "recv.topk_ids", 8 * 4)
            told = self.check("dispatch", golden, got, code=code)
            if code == MISMATCH:
                self.assertEqual(told["mismatches"][0]["first"],
                                 {"rank": 0, "source": 1, "slot": 0, "element": 0})


if __name__ == "__main__":
    unittest.main()
