"""The engine: accepts groups, has them judged, and answers. Every route goes through `Engine`."""
