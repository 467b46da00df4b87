"""Images from files and back: one file per library and family of formats; `files` has the doors."""
