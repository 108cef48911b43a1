"""The functions that layouts add to commands of the core: `convert`, `diff`,
`warmstart`, `sum`.
"""

from __future__ import annotations

from ckpt.ext.layouts.comparing import layout_note as layout_note
from ckpt.ext.layouts.comparing import relaid_survey as relaid_survey
from ckpt.ext.layouts.comparing import wrong_notes as wrong_notes
from ckpt.ext.layouts.recipe import open_pattern as open_pattern
from ckpt.ext.layouts.recipe import opened_side as opened_side
from ckpt.ext.layouts.roots import root_of as root_of
from ckpt.ext.layouts.roots import values_of as values_of
from ckpt.ext.layouts.several import names_several as names_several
from ckpt.ext.layouts.several import open_several as open_several
from ckpt.ext.layouts.stage import ranks_made as ranks_made
from ckpt.ext.layouts.stage import recipe_stage as recipe_stage
