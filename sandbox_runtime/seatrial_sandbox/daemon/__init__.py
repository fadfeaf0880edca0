"""`sandboxd`: the daemon that is a sandbox's way in, as the first process of its container.

    trial host ── gRPC, signed token ──▶ service ──▶ sandbox ──▶ commands, files, snapshots
                                            └──────▶ tools   ──▶ MCP servers, in a process of their own

The agent's processes may have the daemon's own user. They cannot end it, since nobody can kill the first process of a
PID namespace from within; they cannot read or trace it, since it has made itself undumpable; and what it keeps lies in
its memory or in files without a name.
"""
