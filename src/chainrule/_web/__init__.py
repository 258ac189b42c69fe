"""What the pages of every package share: scripts, colours, and the way from many files to one module.

_modules      files of pages, and how scripts are joined

theme.css     colours, text, buttons and figures
dom.js        elements
json.js       JSON with large whole numbers
arrays.js     arrays of the wire, statistics, numbers as text
plots.js      curves, images and bars
lines.js      several lines over the steps of a run
"""

from chainrule._web._modules import join_modules, read_folder, shared_files

__all__ = ["join_modules", "read_folder", "shared_files"]
