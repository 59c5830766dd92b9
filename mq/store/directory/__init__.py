"""The root of a store: what it is, who may open it, and the small files that it keeps."""
