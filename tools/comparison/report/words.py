"""How a report writes figures."""
import math
import re

NOTHING = "–"
UNITS = re.compile(r"(?<=\d) (?=(?:%|ms|[kMG]?B|dB|points)(?!\w))")
DTYPES = {"Half": "FP16", "BFloat16": "BF16", "Float": "FP32", "Double": "FP64", "": NOTHING}


def of_bytes(size):
    if math.isnan(size):
        return NOTHING
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            digits = 2 if size < 10 * factor else 1 if size < 100 * factor else 0
            return f"{size / factor:.{digits}f} {unit}"
    return f"{size:.0f} B"


def of_factor(ratio):
    """Of times: "0.67", "1.5", "12", "0.0037" """
    if math.isinf(ratio):
        return "any number"
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1.95 else f"{ratio:.2f}" if ratio >= 0.095 else f"{ratio:.2g}"


def of_quality(value, measure, apart=False):
    """An accuracy in per cent, or in points where it is a difference of two; a loss as a number."""
    if math.isnan(value):
        return NOTHING
    if not measure.more_is_better:
        return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"
    return f"{100 * value:.2f} points" if apart else of_share(value)


def joined(words, last):
    """ "O1", "O1 or O2", "O1, O2 or O4" """
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def unbroken(text):
    """Text in which no line ends between a number and its unit."""
    return UNITS.sub("\N{NO-BREAK SPACE}", text)


def of_share(share, digits=2):
    return f"{100 * share:.{digits}f} %"


def of_small_share(share):
    if share == 0:
        return "0"
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %" if share >= 1e-6 else "< 0.0001 %"


def of_milliseconds(value):
    if math.isnan(value):
        return NOTHING
    return f"{value:.2f} ms" if value < 10 else f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"


def of_clock(seconds):
    """ "22:22" """
    return f"{round(seconds) // 60}:{round(seconds) % 60:02}"


def of_count(number):
    return NOTHING if number is None else str(number)


def counted(number, noun):
    """ "1 epoch", "2 epochs" """
    return f"{number} {noun}{'' if int(number) == 1 else 's'}"


def of_ratio(ratio):
    return NOTHING if math.isnan(ratio) else f"{ratio:.2f}×"


def of_cosine(cosine):
    if math.isnan(cosine):
        return NOTHING
    return "0" if cosine == 0 else f"1 − {1 - cosine:.0e}" if cosine < 1 else "1"


def distance(row):
    """How a difference is shown: in words, and how good it is from 0 to 1."""
    broken = int(row["inf"]) + int(row["nan"])
    if broken:
        return {"text": "Inf/NaN", "good": 0, "broken": True, "error": f"{broken} values", "cosine": ""}
    sqnr = float(row["sqnr_db"])
    unknown = math.isnan(sqnr)  # O0 is of zeros alone, or has Inf or NaN
    return {
        "text": NOTHING if unknown else "equal" if sqnr == math.inf else f"{sqnr:.0f} dB",
        "good": 0.0 if unknown else max(0.0, min(1.0, (sqnr - 10) / 60)),
        "broken": False,
        "error": NOTHING if unknown else of_small_share(float(row["relative_error"])),
        "cosine": of_cosine(float(row["cosine"])),
    }
