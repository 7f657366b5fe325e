"""Makes one program of the C++ blocks of tools/comparison/README.md: page_program.py PAGE.md OUT.cpp. Without arguments it is the page's
first main, with arguments the second."""
import pathlib
import re
import sys

page, out = map(pathlib.Path, sys.argv[1:])
first, second = re.findall(r"```cpp\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
end = """
int main(int count, char** arguments) { return count > 1 ? of_one_level(count, arguments) : of_all_levels(); }
"""
# Only main may end without a return.
first, second = (re.sub(r"^}\n\Z", "  return 0;\n}\n", block, flags=re.M) for block in (first, second))
out.write_text(first.replace("int main()", "int of_all_levels()") + second.replace("int main(", "int of_one_level(") + end, encoding="utf-8")
