"""Compares apex_cpp/troubleshooting.md with the sources: every text of the library has a row in the table of its room, with a
remedy, and every row has a text. A row's left cell is the text, or its beginning where the rest of the text is the remedy.
"""
import re
import sys

import messages

PAGE = messages.ROOT / "apex_cpp/troubleshooting.md"
TABLE = re.compile(r"<!-- messages of: (.*?) -->\n((?:\|.*\n)+)")
ROW = re.compile(r"\| (.+?) (?<!\\)\| ?(.*?) ?\|$", re.M)


def words(text):
    """What is compared: punctuation, capitals and marks of Markdown do not count."""
    return re.sub(rf"[^\w{messages.VALUE}]+", " ", text).strip().lower()


def room_of(file, rooms):
    """The longest of the folders and files that the tables name which `file` is or lies in."""
    return max((room for room in rooms if file == room or file.startswith(room + "/")), key=len, default=None)


def compare(found, page):
    """Complaints about a page, given (file, text) of every message."""
    tables = [(mark.split(), ROW.findall(rows)[1:]) for mark, rows in TABLE.findall(page)]
    table_of_room = {room: index for index, (rooms, _) in enumerate(tables) for room in rooms}
    used = set()
    for file, text in found:
        index = table_of_room.get(room_of(file, table_of_room))
        if index is None:
            yield f"{file} is in the room of no table"
            continue
        rows = [row for row in tables[index][1] if words(text) in (words(row[0]), words(" ".join(row)))]
        if not rows:
            yield f"{file}: no row in the table of {' '.join(tables[index][0])}. Add, split before its remedy:\n| `{text}` | |"
        used.update((index, row) for row in rows)
    for index, (rooms, rows) in enumerate(tables):
        for row in rows:
            if (index, row) not in used:
                yield f"the table of {' '.join(rooms)} has a row that no source has the text of:\n| {row[0]} | {row[1]} |"
            if not words(row[1]):
                yield f"a row without a remedy: {row[0]}"


def check_the_check():
    page = "<!-- messages of: a -->\n| text | what to do |\n|---|---|\n| `x … y.` | Use z. |\n"
    assert not list(compare([("a/f.h", "x … y. Use z.")], page))
    assert not list(compare([("a/f.h", "x … y.")], page))
    assert len(list(compare([("a/f.h", "x … w.")], page))) == 2
    assert list(compare([("b/f.h", "x … y.")], page))
    assert list(compare([("a/f.h", "x.")], page.replace("`x … y.` | Use z. |", "`x.` |  |")))
    text = 'TORCH_CHECK_VALUE(a(b, c), kOp, ": it\'s ", x ? "1" : "2", ", " /* , */ "so. ", c10::str("Use ", f(")")), ".");'
    assert list(messages.messages_of(text)) == ["…: it's …, so. Use …."]


check_the_check()
found = messages.messages()
assert len(found) > 400, f"{len(found)} texts were found: the patterns of messages.py miss most of them"
complaints = list(compare(found, PAGE.read_text()))
print("\n".join(complaints))
print(f"{len(found)} texts, {len(complaints)} complaints about {PAGE.relative_to(messages.ROOT)}")
sys.exit(bool(complaints))
