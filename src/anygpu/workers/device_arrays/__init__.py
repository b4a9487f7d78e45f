"""Arrays that live on devices: the registry of open devices, and how arrays survive the loss of one."""
