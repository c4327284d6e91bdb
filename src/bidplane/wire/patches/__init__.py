"""
Patches and field ownership: JSON patch and merge patch (`jsonpatch`), strategic merge patch
(`strategic`), server-side apply's sets of `fields` and their `managers`. Pure: inputs are not
changed, and no plane is known.
"""
