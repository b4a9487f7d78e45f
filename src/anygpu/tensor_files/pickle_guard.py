"""Refuses pickles by their name, because reading them would run arbitrary code."""

from __future__ import annotations

from pathlib import Path

from anygpu.errors import InvalidTensorFile

#: Suffixes that torch and others use for pickles.
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_NUMPYS = (".npy", ".npz")


def refuse_by_name(path: Path) -> None:
    """Raise if the name says that it is not a safetensors file, and what."""
    suffix = path.suffix.lower()
    if suffix in PICKLES:
        raise InvalidTensorFile(str(path), _WHY_NO_PICKLES, advice=_converting(path.name))
    if suffix in _NUMPYS:
        raise InvalidTensorFile(
            str(path),
            "it is a NumPy file, which may contain pickled objects",
            advice=f"If it has none, numpy.load({path.name!r}, allow_pickle=False) reads it, and "
            "anygpu.tensor_files.save turns it into safetensors.",
        )


def refuse_folder_of_pickles(folder: Path) -> None:
    """Raise if a folder without safetensors has pickles instead."""
    found = sorted(each.name for each in folder.iterdir() if each.suffix.lower() in PICKLES)
    if found:
        why = f"it has no safetensors, but {found[0]}: {_WHY_NO_PICKLES}"
        raise InvalidTensorFile(str(folder), why, advice=_converting(found[0]))


_WHY_NO_PICKLES = "a pickle runs whatever it says when it is read, so anygpu reads none"


def _converting(name: str) -> str:
    return (
        "If you trust where it comes from, turn it into safetensors once: "
        f'safetensors.torch.save_file(torch.load({name!r}, weights_only=True), "model.safetensors").'
    )
