"""`anygpu.image`: resizing, filters and colours, for NumPy's arrays and for anygpu's, on every engine.

An image is [height, width], or with channels [height, width, channel]; axes in front of these are as many images.
`layout` says otherwise: "CHW" for channels in front, "HW" for no channels. An array of two axes never has channels.
Integers come out as integers of the same type, rounded and kept in its range; floats stay floats.
"""

from anygpu.image.colours import equalise, hsv_to_rgb, normalise, resize, rgb_to_hsv, to_gray
from anygpu.image.filters import (
    box_blur,
    filter,
    gaussian_blur,
    gradient_magnitude,
    laplacian,
    median,
    sharpen,
    sobel,
)

__all__ = [
    "box_blur",
    "equalise",
    "filter",
    "gaussian_blur",
    "gradient_magnitude",
    "hsv_to_rgb",
    "laplacian",
    "median",
    "normalise",
    "resize",
    "rgb_to_hsv",
    "sharpen",
    "sobel",
    "to_gray",
]
