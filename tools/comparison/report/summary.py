"""Which level to take, by rules that the report states, and why not the others."""
import math
from dataclasses import dataclass

EQUAL_TIMES = 0.1  # a share: times of steps that differ by less count as equal
EQUAL_MEMORY = 0.01
WORTH_MENTION = 0.2  # memory that a slower level saves


@dataclass
class Verdict:
    kind: str  # suggested | good | baseline | accuracy | diverged | unknown
    words: str


def apart(ratio, equal):
    return ratio > 1 + equal or ratio < 1 - equal


def equally_fast(level, other):
    """Whether times cannot be told apart: they are nearly the same, or runs of the two overlap."""
    (low, high), (other_low, other_high) = level.time_range(), other.time_range()
    return not apart(level.time() / other.time(), EQUAL_TIMES) or (low <= other_high and other_low <= high)


def time_words(level, other):
    """ "takes 0.3 of the time of O0", "takes 1.3 times as long as O2" """
    ratio = level.time() / other.time()
    if equally_fast(level, other):
        return f"as fast as {other.name}"
    return f"takes {ratio:.2g} of the time of {other.name}" if ratio < 1 else f"takes {ratio:.1f} times as long as {other.name}"


def memory_words(level, other):
    """ "20 % less memory" """
    ratio = level.resident / other.resident
    if not apart(ratio, EQUAL_MEMORY):
        return "the same memory"
    if ratio >= 2:
        return f"{ratio:.1f} times the memory"
    return f"{100 * abs(ratio - 1):.0f} % {'more' if ratio > 1 else 'less'} memory"


def tolerance(reference, tested):
    """How far below O0's a level's mean accuracy may lie: two deviations of O0 over its seeds, and no less than one standard
    error of a share counted on that many test images."""
    share = reference.accuracy
    of_the_test = math.sqrt(max(share * (1 - share), 1 / tested) / tested) if tested else 0
    return max(2 * reference.spread, of_the_test)


def fastest(levels):
    """Of levels that are as fast as the fastest, the one that takes the least memory; None of none."""
    if not levels:
        return None
    first = min(levels, key=lambda level: level.time())
    return min((level for level in levels if equally_fast(level, first)), key=lambda level: (level.resident, level.time()))


class Choice:
    """The suggestion for one group."""

    def __init__(self, group):
        self.group, self.reference = group, group.reference
        self.tolerance = tolerance(group.reference, group.tested)
        self.good = [level for level in group.levels if self.may_be_taken(level)]
        self.taken = fastest(self.good)

    @property
    def has_standard(self):
        """Whether O0 trains: the accuracy of a ruined run is one that any level keeps."""
        return self.reference.diverged == 0

    def keeps_accuracy(self, level):
        return self.has_standard and level.diverged == 0 and level.accuracy >= self.reference.accuracy - self.tolerance

    def may_be_taken(self, level):
        """Updates become small late in a training: a short one keeps its accuracy without them, a long one does not."""
        return self.keeps_accuracy(level) and not level.loses_small_updates

    @property
    def saves_no_time(self):
        """Whether no level that trains is faster than O0, the baseline for speed included."""
        trained = [level for level in self.group.levels if not level.diverged]
        return all(level.time() > self.reference.time() or equally_fast(level, self.reference) for level in trained)

    @property
    def noise(self):
        """By how many times runs of one level differ in time."""
        ranges = [level.time_range() for level in self.good]
        return max((high / low for low, high in ranges), default=1.0)

    @property
    def headline(self):
        if not self.has_standard:
            return "O0 itself diverged: the training is to be put right before levels are compared"
        return f"Take {self.taken.name}"

    @property
    def reason(self):
        """Of the headline, in sentences."""
        if not self.has_standard:
            return f"{self.verdict(self.reference).words}, and O0 is what the accuracy of the others is measured by."
        smallest = min(self.good, key=lambda level: level.resident)
        if self.taken is not self.reference:
            words = f"As accurate as O0; {time_words(self.taken, self.reference)}, with "
            words += memory_words(self.taken, self.reference) + "."
        elif len(self.good) == 1:
            baselines = any(level.loses_small_updates and self.keeps_accuracy(level) for level in self.group.levels)
            return f"No other level{' with FP32 weights or masters' if baselines else ''} keeps its accuracy."
        elif self.saves_no_time:
            words = "As fast as any here: 16 bits save no time on this machine."
        else:
            words = "As fast as any that may be taken."
        if smallest.resident < (1 - WORTH_MENTION) * self.taken.resident:
            words += (f" Where memory counts more, take {smallest.name}: as accurate, {memory_words(smallest, self.taken)}, "
                      f"{time_words(smallest, self.taken)}.")
        return words

    def verdict(self, level):
        """Why a level is the one to take, or is not."""
        if level.diverged:
            return Verdict("diverged", f"{level.diverged} of {len(level.cells)} runs diverged")
        if not self.has_standard:
            return Verdict("unknown", "O0, by which its accuracy is measured, diverged")
        if not self.keeps_accuracy(level):
            behind = 100 * (self.reference.accuracy - level.accuracy)
            return Verdict("accuracy", f"{behind:.2f} points below O0; {100 * self.tolerance:.2f} are allowed")
        if level.loses_small_updates:
            return Verdict("baseline", "weights in 16 bits without masters: small updates are lost; a baseline for speed")
        if level is self.taken:
            alike = [each for each in self.good if each is not level and equally_fast(each, level)]
            return Verdict("suggested", "as fast as any, with the least memory of those" if alike else "the fastest")
        if not equally_fast(level, self.taken):
            return Verdict("good", time_words(level, self.taken))
        return Verdict("good", f"as fast as {self.taken.name}, {memory_words(level, self.taken)}")

    def duel(self, first, second):
        """"O1 or O2?": the answer and its reason; None where the grid lacks one of them, or O0 diverged."""
        pair = [self.group.level(first), self.group.level(second)]
        if None in pair or not self.has_standard:
            return None
        good = [level for level in pair if level in self.good]
        best = fastest(good)
        if best is None:
            return "Neither", f"{first}: {self.verdict(pair[0]).words}. {second}: {self.verdict(pair[1]).words}."
        other = pair[1] if best is pair[0] else pair[0]
        if other not in good:
            return best.name, f"It keeps the accuracy. {other.name}: {self.verdict(other).words}."
        if not equally_fast(best, other):
            words = f"{best.name} {time_words(best, other)}, with {memory_words(best, other)}"
            return best.name, f"Both are as accurate as O0. {words}."
        return best.name, f"Both are as accurate as O0 and equally fast. {best.name} takes {memory_words(best, other)}."
