"""Keys that two or more parties share, and the streams of masks from them."""
