"""training_state from its source: an installed apex_cpp is tested in tests/package."""

import pathlib
import sys
import types

package = types.ModuleType("apex_cpp")
package.__path__ = [str(pathlib.Path(__file__).parents[2] / "apex_cpp/python/apex_cpp")]
sys.modules["apex_cpp"] = package

from apex_cpp import training_state  # noqa: E402, F401 (after the package is known)
