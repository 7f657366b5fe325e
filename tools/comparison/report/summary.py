"""Which level to take, by rules that the report states, and why not the others. Where the order of two levels is not known,
it says so."""
import math
from dataclasses import dataclass

from words import joined, of_factor, of_quality

EQUAL_TIMES = 0.1  # a share: times of steps that differ by less count as equal; as in time_ratio.h, which decides
EQUAL_MEMORY = 0.05
WORTH_MENTION = 0.2  # memory that a slower level saves
LOSS_SHARE = 0.01  # of O0's loss, by which a level's may be above it where the seeds say nothing
FEW_ROUNDS = 8  # fewer are too few to blame the machine


@dataclass
class Verdict:
    kind: str  # suggested | good | slower | undecided | baseline | worse | diverged | unknown
    words: str


def range_words(ratio):
    return f"{of_factor(ratio.low)} to {of_factor(ratio.high)}"


def same_memory(level, other):
    """Nothing is said of levels whose memory is not known."""
    share = level.resident / other.resident
    return math.isnan(share) or 1 / (1 + EQUAL_MEMORY) <= share <= 1 + EQUAL_MEMORY


def memory_words(level, other):
    """ "20 % less memory" """
    ratio = level.resident / other.resident
    if math.isnan(ratio):
        return ""
    if same_memory(level, other):
        return "no measurable difference in memory"
    if ratio >= 2:
        return f"{ratio:.1f} times the memory"
    return f"{100 * abs(ratio - 1):.0f} % {'more' if ratio > 1 else 'less'} memory"


def with_memory(words, level, other):
    """Words on time, and on memory where there is something to say."""
    of_memory = memory_words(level, other)
    return f"{words}, {of_memory}" if of_memory else words


def tolerance(reference, tested):
    """How much worse than O0's mean a level's may be: two deviations of O0 over its seeds, and no less than one standard error of a
    share counted on that many test images, or a hundredth of a loss."""
    quality = reference.quality
    if not reference.measure.more_is_better:
        return max(2 * reference.spread, LOSS_SHARE * abs(quality))
    of_the_test = math.sqrt(max(quality * (1 - quality), 1 / tested) / tested) if tested else 0
    return max(2 * reference.spread, of_the_test)


class Choice:
    """The suggestion for one group."""

    def __init__(self, group):
        self.group, self.reference = group, group.reference
        self.tolerance = tolerance(group.reference, group.tested)
        self.good = [level for level in group.levels if self.may_be_taken(level)]
        self.fastest = [level for level in self.good if not any(self.order(other, level) == "faster" for other in self.good)]
        self.open = [(a, b) for i, a in enumerate(self.fastest) for b in self.fastest[i + 1:] if self.order(a, b) == "unknown"]
        self.taken = [] if self.open else self.smallest(self.fastest)

    def order(self, level, other):
        return "equal" if level is other else self.group.ratio(level, other).order

    def smallest(self, levels):
        """The levels whose memory does not differ measurably from the least; O0 alone where it is one of them."""
        if not levels:
            return []
        least = min(levels, key=lambda level: level.resident)
        alike = [level for level in levels if same_memory(level, least)]
        return [self.reference] if self.reference in alike else alike

    @property
    def is_decided(self):
        return not self.open

    @property
    def has_standard(self):
        """Whether O0 trains: the accuracy of a ruined run is one that any level keeps."""
        return self.reference.diverged == 0

    def behind(self, level):
        """By how much a level is worse than O0."""
        apart = self.reference.quality - level.quality
        return apart if self.reference.measure.more_is_better else -apart

    def keeps_quality(self, level):
        return self.has_standard and level.diverged == 0 and self.behind(level) <= self.tolerance

    def may_be_taken(self, level):
        """Updates become small late in a training: a short one keeps its accuracy without them, a long one does not."""
        return self.keeps_quality(level) and not level.loses_small_updates

    @property
    def good_words(self):
        """ "As accurate as O0" """
        return "As accurate as O0" if self.reference.measure.more_is_better else "With O0's loss"

    def time_words(self, level, other):
        """ "takes 0.30 of the time of O0 (0.28 to 0.33)", "equally fast as O1 (0.98 to 1.05 of its time)" """
        ratio, order = self.group.ratio(level, other), self.order(level, other)
        if order == "equal":
            return f"as fast as {other.name} ({range_words(ratio)} of its time)"
        if order == "unknown":
            return f"not decided: {self.doubt(level, other)}"
        if order == "faster":
            return f"takes {of_factor(ratio.median)} of the time of {other.name} ({range_words(ratio)})"
        return f"takes {of_factor(ratio.median)} times as long as {other.name} ({range_words(ratio)})"

    def doubt(self, level, other):
        """Why an order is not known."""
        ratio = self.group.ratio(level, other)
        if ratio.rounds < 2:
            return f"{'one round' if ratio.rounds else 'no round'} of timing is not enough"
        found = f"{level.name} took {range_words(ratio)} of the time of {other.name} in {ratio.rounds} rounds"
        return f"{found}, which are too few" if ratio.rounds < FEW_ROUNDS else f"the machine was busy: {found}"

    @property
    def headline(self):
        if not self.has_standard:
            return "O0 itself diverged: fix the training before you compare levels"
        if not self.is_decided:
            return "Not decided"
        return f"Take {joined([level.name for level in self.taken], 'or')}"

    @property
    def reason(self):
        """Of the headline, in sentences."""
        if not self.has_standard:
            return f"{self.verdict(self.reference).words}, and O0 is the reference of the other levels."
        if not self.is_decided:
            return self.reason_of_doubt
        taken = self.taken[0]
        if taken is self.reference:
            words = self.reason_for_reference
        else:
            alike = "No measurable difference between them. " if len(self.taken) > 1 else ""
            words = f"{alike}{self.good_words}; {with_memory(self.time_words(taken, self.reference), taken, self.reference)}."
        return words + self.words_on_smallest(taken)

    @property
    def reason_of_doubt(self):
        first, second = self.open[0]
        words = self.doubt(first, second)
        slower = [level.name for level in self.good if level not in self.fastest]
        words = f"Between {joined([level.name for level in self.fastest], 'and')}: {words}. Start it again when the machine is quiet."
        if slower:
            words += f" Slower: {joined(slower, 'and')}."
        small = self.smallest(self.fastest)
        if len(small) == 1 and not all(same_memory(small[0], level) for level in self.fastest):
            words += f" The least memory of these takes {small[0].name}."
        return words

    @property
    def reason_for_reference(self):
        if len(self.good) == 1:
            baselines = any(level.loses_small_updates and self.keeps_quality(level) for level in self.group.levels)
            kept = "accuracy" if self.reference.measure.more_is_better else "loss"
            return f"No other level{' with FP32 weights or masters' if baselines else ''} keeps its {kept}."
        if any(self.order(level, self.reference) == "faster" for level in self.group.levels if not level.diverged):
            return "No eligible level is measurably faster."
        return "No level is measurably faster here: 16 bits save no time on this machine."

    def words_on_smallest(self, taken):
        if not self.good or math.isnan(taken.resident):
            return ""
        small = min(self.good, key=lambda level: level.resident)
        if small.resident >= (1 - WORTH_MENTION) * taken.resident:
            return ""
        good = "as accurate" if self.reference.measure.more_is_better else "with the same loss"
        return (f" Where memory counts more, take {small.name}: {good}, {memory_words(small, taken)}, "
                f"{self.time_words(small, taken)}.")

    def verdict(self, level):
        """Why a level is the one to take, or is not."""
        if level.diverged:
            return Verdict("diverged", f"{level.diverged} of {len(level.cells)} runs diverged")
        if not self.has_standard:
            return Verdict("unknown", "its reference O0 diverged")
        if not self.keeps_quality(level):
            allowed = of_quality(self.tolerance, level.measure, apart=True)
            return Verdict("worse", f"{of_quality(self.behind(level), level.measure, apart=True)} "
                                    f"{'below' if level.measure.more_is_better else 'above'} O0; {allowed} are allowed")
        if level.loses_small_updates:
            return Verdict("baseline", "weights in 16 bits without masters: small updates are lost; a baseline for speed")
        if not self.is_decided:
            return self.undecided_verdict(level)
        if level in self.taken:
            words = "as fast as any, with the least memory" if len(self.fastest) > len(self.taken) else "the fastest"
            return Verdict("suggested", words if len(self.good) > 1 else "the only eligible level")
        taken = self.taken[0]
        kind = "slower" if self.order(level, taken) == "slower" else "good"
        return Verdict(kind, with_memory(self.time_words(level, taken), level, taken))

    def undecided_verdict(self, level):
        if level not in self.fastest:
            faster = next(other for other in self.fastest if self.order(other, level) == "faster")
            return Verdict("slower", self.time_words(level, faster))
        other = next((b if a is level else a for a, b in self.open if level in (a, b)), None)
        return Verdict("undecided", self.doubt(level, other) if other else "among the fastest")

    def duel(self, first, second):
        """"O1 or O2?": the answer and its reason; None where the grid lacks one of them, or O0 diverged."""
        pair = [self.group.level(first), self.group.level(second)]
        if None in pair or not self.has_standard:
            return None
        good = [level for level in pair if level in self.good]
        if not good:
            return "Neither", f"{first}: {self.verdict(pair[0]).words}. {second}: {self.verdict(pair[1]).words}."
        if len(good) == 1:
            other = pair[1] if good[0] is pair[0] else pair[0]
            return good[0].name, f"It is as good as O0. {other.name}: {self.verdict(other).words}."
        return self.duel_of_good(*pair)

    def duel_of_good(self, first, second):
        order = self.order(first, second)
        if order == "unknown":
            doubt = self.doubt(first, second)
            return "Not decided", f"{doubt[0].upper()}{doubt[1:]}." + self.memory_sentence(first, second)
        if order != "equal":
            best, other = (first, second) if order == "faster" else (second, first)
            return best.name, f"Both are as good as O0. {best.name} {with_memory(self.time_words(best, other), best, other)}."
        equal = f"Both are as good as O0 and equally fast ({range_words(self.group.ratio(first, second))})."
        if same_memory(first, second):
            return "Either", f"No measurable difference. {equal}"
        best, other = sorted((first, second), key=lambda level: level.resident)
        return best.name, f"{equal} {best.name} takes {memory_words(best, other)}."

    @staticmethod
    def memory_sentence(first, second):
        if same_memory(first, second):
            return ""
        small, large = sorted((first, second), key=lambda level: level.resident)
        return f" {small.name} takes {memory_words(small, large)}."
