"""`Array` itself: expressions that are not computed yet, views, indexing, and the devices that arrays live on."""
