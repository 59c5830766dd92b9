"""The root of a store: what it is, which process may open it, and the small files that it keeps."""
