"""Files that Protobuf schemas import and that registries do not keep, because their clients have them.

These are Protobuf's own files, Confluent's options and types, and, if googleapis-common-protos is installed, Google's
types such as google/type/date.proto.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

OPTIONS_FILE = "confluent/meta.proto"
_OPTIONS = ("File", "Message", "Field", "Enum", "EnumValue")
_META = """
syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
  repeated Rule rules = 4;
}
message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }
""" + "".join(
    f"extend google.protobuf.{name}Options "
    f"{{ Meta {re.sub('(?<!^)(?=[A-Z])', '_', name).lower()}_meta = 1088; }}\n"
    for name in _OPTIONS
)
_CONFLUENT = {
    OPTIONS_FILE: _META,
    "confluent/type/decimal.proto": 'syntax = "proto3"; package confluent.type;'
    " message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }",
    "confluent/type/variant.proto": 'syntax = "proto3"; package confluent.type;'
    " message Variant { bytes metadata = 1; bytes value = 2; }",
    "confluent/types/decimal.proto": 'syntax = "proto3"; import public "confluent/type/decimal.proto";',
}
_GOOGLE_TYPE = re.compile(r"google/type/[a-z_]+\.proto")
_IMPORT = re.compile(r'\bimport\s+(?:public\s+|weak\s+)?"([^"]+)"')


def text_of_import(name: str) -> str | None:
    """Return the text of a file that clients have. None if it is not one of Confluent's or Google's."""
    if name in _CONFLUENT:
        return _CONFLUENT[name]
    if _GOOGLE_TYPE.fullmatch(name) is None:
        return None
    package = find_spec("google.type") if find_spec("google") is not None else None
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        path = Path(folder, name.rpartition("/")[2])
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return None


def texts_of_imports(texts: Iterable[str]) -> dict[str, str]:
    """Return the files that clients have of those that some texts import, by their names."""
    found: dict[str, str] = {}
    waiting = list(texts)
    while waiting:
        for name in _IMPORT.findall(waiting.pop()):
            text = None if name in found else text_of_import(name)
            if text is not None:
                found[name] = text
                waiting.append(text)
    return found
