"""What a federation between organisations needs. So far: keys."""
