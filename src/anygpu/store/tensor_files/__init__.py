"""Files of tensors: read without running anything that a file says, and written whole or not at all."""

from anygpu.store.tensor_files.folders import TensorFolder, Verified, open_folder, verify
from anygpu.store.tensor_files.header import content_hash
from anygpu.store.tensor_files.safetensors import TensorFile, open_file
from anygpu.store.tensor_files.saving import Saved, save

__all__ = [
    "Saved",
    "TensorFile",
    "TensorFolder",
    "Verified",
    "content_hash",
    "open_file",
    "open_folder",
    "save",
    "verify",
]
