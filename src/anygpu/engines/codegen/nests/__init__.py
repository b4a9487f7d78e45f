"""Loop nests: a program for a processor, as few fused loops as its values allow, before a dialect prints them."""
