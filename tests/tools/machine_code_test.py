"""tools/machine_code.py on instructions as cuobjdump prints them."""
import sys
import unittest

sys.path.insert(0, sys.argv.pop(1))
import machine_code  # noqa: E402


def accesses(*instructions):
    found = machine_code.Accesses()
    for instruction in instructions:
        name, _, operands = instruction.partition(" ")
        found.take(name, operands)
    return found


class MachineCode(unittest.TestCase):
    def test_counts_128_bit_accesses(self):
        found = accesses("LDG.E.128 R4, desc[UR4][R2.64]", "STG.E desc[UR4][R2.64], R4", "LDS.128 R8, [R3]")
        self.assertEqual((found.wide, found.total), (128, 160))

    def test_loads_fly_until_one_is_used(self):
        found = accesses("LDG.E.64 R4, desc[UR4][R2.64]", "LDG.E.U16 R6, desc[UR4][R2.64]", "IADD3 R9, R9, 1", "FADD R8, R5, R9",
                         "LDG.E R7, desc[UR4][R2.64]")
        self.assertEqual(found.most_flying, 64 + 16)

    def test_an_address_that_was_loaded_is_a_use(self):
        self.assertEqual(accesses("LDG.E.64 R4, desc[UR4][R2.64]", "LDG.E R6, desc[UR4][R4.64]").most_flying, 64)

    def test_a_branch_or_barrier_ends_the_count(self):
        for instruction in ("BRA 0x10", "BAR.SYNC 0x0", "EXIT"):
            self.assertEqual(accesses("LDG.E R4, desc[UR4][R2.64]", instruction, "LDG.E R5, desc[UR4][R2.64]").most_flying, 32)

    def test_threads_that_registers_allow(self):
        self.assertEqual([machine_code.resident(90, registers, 256) for registers in (32, 64, 128, 255)], [2048, 1024, 512, 256])


if __name__ == "__main__":
    unittest.main()
